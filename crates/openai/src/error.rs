//! Every error that an HTTP client can see: its status, its OpenAI error object, and the faults that it comes from.
//!
//! The only file that knows status codes. Shapes: <https://platform.openai.com/docs/guides/error-codes/api-errors>.

use mesh_types::{ErrorClass, Fault};
use serde::Serialize;

/// An error as the client gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    /// HTTP status.
    pub status: u16,
    /// Seconds after which the same request may work; for the `Retry-After` header.
    pub retry_after: Option<u32>,
    /// What the body says.
    pub error: ErrorObject,
}

/// The value of `error` in an error's body.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ErrorObject {
    /// One sentence.
    pub message: String,
    /// `invalid_request_error`, `rate_limit_error` or `server_error`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The request's field at fault, or null.
    pub param: Option<String>,
    /// A stable machine-readable code, or null.
    pub code: Option<String>,
}

/// `{"error": {…}}`.
#[derive(Serialize)]
struct Envelope<'a> {
    error: &'a ErrorObject,
}

const INVALID: &str = "invalid_request_error";
const RATE_LIMIT: &str = "rate_limit_error";
const SERVER: &str = "server_error";

/// What a class of faults looks like to a client.
struct Row {
    class: ErrorClass,
    status: u16,
    kind: &'static str,
    /// Where the fault has none of its own.
    code: Option<&'static str>,
    retry_after: Option<u32>,
}

const fn row(class: ErrorClass, status: u16, kind: &'static str, code: Option<&'static str>) -> Row {
    Row { class, status, kind, code, retry_after: None }
}

const CLASSES: [Row; 7] = [
    row(ErrorClass::InvalidRequest, 400, INVALID, None),
    row(ErrorClass::NotFound, 404, INVALID, Some("model_not_found")),
    Row { retry_after: Some(1), ..row(ErrorClass::Overloaded, 429, RATE_LIMIT, Some("overloaded")) },
    Row { retry_after: Some(5), ..row(ErrorClass::Unavailable, 503, SERVER, Some("unavailable")) },
    row(ErrorClass::Deadline, 504, SERVER, Some("deadline_exceeded")),
    // Seen by nobody but a log: the client is gone. The number is nginx's.
    row(ErrorClass::Cancelled, 499, SERVER, Some("cancelled")),
    row(ErrorClass::PeerProtocol, 502, SERVER, Some("bad_gateway")),
];
const INTERNAL: Row = row(ErrorClass::Internal, 500, SERVER, Some("internal_error"));

impl ApiError {
    /// No API key, or a wrong one: 401.
    pub fn unauthorized(given: bool) -> Self {
        let message = if given {
            "The API key is not the one of this gateway."
        } else {
            "This gateway needs an API key: send it as `Authorization: Bearer KEY`."
        };
        Self::invalid(401, message, "invalid_api_key")
    }

    /// A path that is served to nobody: 404.
    pub fn unknown_path(method: &str, path: &str) -> Self {
        Self::invalid(404, format!("Unknown request URL: {method} {path}."), "unknown_url")
    }

    /// A path that is served, but not with this method: 405.
    pub fn method_not_allowed(method: &str, path: &str, allowed: &str) -> Self {
        let message = format!("{method} is not allowed for {path}: use {allowed}.");
        Self::invalid(405, message, "method_not_allowed")
    }

    /// The body did not arrive in time: 408.
    pub fn body_timeout(seconds: u64) -> Self {
        Self::invalid(408, format!("The request's body did not arrive within {seconds} seconds."), "request_timeout")
    }

    /// A body over the limit: 413.
    pub fn too_large(limit_bytes: usize) -> Self {
        let message = format!("The request's body is larger than {} MiB.", limit_bytes >> 20);
        Self::invalid(413, message, "request_too_large")
    }

    /// `{"error": {…}}` as JSON.
    pub fn body(&self) -> Vec<u8> {
        // Strings and options of strings: serialising them cannot fail.
        serde_json::to_vec(&Envelope { error: &self.error }).unwrap_or_default()
    }

    fn invalid(status: u16, message: impl Into<String>, code: &str) -> Self {
        let error = ErrorObject { message: message.into(), kind: INVALID, param: None, code: Some(code.to_owned()) };
        Self { status, retry_after: None, error }
    }
}

impl From<&Fault> for ApiError {
    fn from(fault: &Fault) -> Self {
        let row = CLASSES.iter().find(|row| row.class == fault.class).unwrap_or(&INTERNAL);
        let error = ErrorObject {
            message: fault.message.clone(),
            kind: row.kind,
            param: fault.param.clone(),
            code: fault.code.clone().or_else(|| row.code.map(str::to_owned)),
        };
        Self { status: row.status, retry_after: row.retry_after, error }
    }
}

impl From<Fault> for ApiError {
    fn from(fault: Fault) -> Self {
        Self::from(&fault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class_has_its_status() {
        let status = |class| ApiError::from(Fault::new(class, "x")).status;
        assert_eq!(status(ErrorClass::InvalidRequest), 400);
        assert_eq!(status(ErrorClass::NotFound), 404);
        assert_eq!(status(ErrorClass::Overloaded), 429);
        assert_eq!(status(ErrorClass::Unavailable), 503);
        assert_eq!(status(ErrorClass::Deadline), 504);
        assert_eq!(status(ErrorClass::PeerProtocol), 502);
        assert_eq!(status(ErrorClass::Internal), 500);
        assert_eq!(status(ErrorClass::Cancelled), 499);
    }

    #[test]
    fn a_body_has_all_four_fields() {
        let fault = Fault::invalid("too long").with_param("messages").with_code("context_length_exceeded");
        let body: serde_json::Value = serde_json::from_slice(&ApiError::from(fault).body()).unwrap();
        let expected = serde_json::json!({"error": {
            "message": "too long", "type": "invalid_request_error", "param": "messages",
            "code": "context_length_exceeded",
        }});
        assert_eq!(body, expected);
        let body: serde_json::Value = serde_json::from_slice(&ApiError::from(Fault::invalid("x")).body()).unwrap();
        assert!(body["error"]["param"].is_null() && body["error"]["code"].is_null());
    }
}
