//! Every error that an HTTP client can see: its status, its error object in OpenAI's and in Anthropic's shape, and the
//! faults that it comes from.
//!
//! The only file that knows status codes. Shapes: <https://platform.openai.com/docs/guides/error-codes/api-errors> and
//! <https://docs.anthropic.com/en/api/errors>.

use mesh_types::{ErrorClass, Fault};
use serde::Serialize;
use serde_json::{Value, json};

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

/// A code that errors carry, for `docs/errors.md`.
pub struct Code {
    /// The code.
    pub code: &'static str,
    /// The statuses that it comes with.
    pub statuses: &'static [u16],
    /// When it comes, and what helps.
    pub when: &'static str,
}

const fn code(code: &'static str, statuses: &'static [u16], when: &'static str) -> Code {
    Code { code, statuses, when }
}

/// All codes; a test of the workspace compares them with those that its sources give.
#[rustfmt::skip]
pub const CODES: &[Code] = &[
    code("unsupported_parameter", &[400], "The request asks for something that is known and not served; `param` names it."),
    code("context_length_exceeded", &[400], "The prompt does not fit the model's context. Nothing was computed."),
    code("invalid_function_parameters", &[400], "A function's schema that is called strict is none in the dialect's sense; `param` names it."),
    code("invalid_api_key", &[401], "The gateway has a key, and the request has none or another."),
    code("origin_not_allowed", &[403], "A page of another site (`Origin`) asks a gateway that has no key: give it one."),
    code("host_not_allowed", &[403], "A gateway that has no key is asked under a name of the internet (`Host`), as a page does that had its own name point here: give it one."),
    code("model_not_found", &[404], "No node of the mesh serves the model; the message says which are served."),
    code("unknown_url", &[404], "Nothing is served at that path."),
    code("method_not_allowed", &[405], "The path is served, with the methods in `Allow`."),
    code("request_timeout", &[408], "The request's body did not arrive in time."),
    code("request_too_large", &[413], "The request's body, or what it unpacks to, is over the limit."),
    code("unsupported_encoding", &[415], "The body is packed in a way that is not served; `gzip`, `deflate`, `br` and `zstd` are."),
    code("overloaded", &[429], "As many requests as may wait are waiting, here or at the node: try again after `Retry-After` seconds."),
    code("internal_error", &[500], "A fault of the product or of a model's computation."),
    code("bad_gateway", &[502], "A node broke the protocol between nodes."),
    code("model_conflict", &[503], "Nodes serve different files under that name; nobody can say which is meant."),
    code("model_unavailable", &[503], "The model is known, and no replica answers now; the message says what is missing, or how far loading it is."),
    code("model_not_ready", &[503], "The same, found at the node: the model stopped answering while the request was on its way."),
    code("peer_lost", &[503], "The connection to the node that answered was lost."),
    code("unavailable", &[503], "Something that is needed is missing now."),
    code("deadline_exceeded", &[504], "A node did not answer in time."),
    code("cancelled", &[499], "The client went away: in logs alone."),
];

impl ApiError {
    /// No API key, or a wrong one: 401.
    pub fn unauthorized(given: bool) -> Self {
        let message = if given {
            "The API key is not the one of this gateway."
        } else {
            "This gateway needs an API key: send it as `Authorization: Bearer KEY` or `x-api-key: KEY`."
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

    /// A page from elsewhere asks a gateway that has no key: 403.
    pub fn foreign_origin(origin: &str) -> Self {
        let message =
            format!("This gateway has no API key, and answers pages of this machine alone, not of `{origin}`.");
        Self::invalid(403, message, "origin_not_allowed")
    }

    /// A name of the internet for a gateway that has no key: 403.
    pub fn foreign_host(host: &str) -> Self {
        let message = format!(
            "This gateway has no API key, and answers under an address or a local name alone, not as `{host}`."
        );
        Self::invalid(403, message, "host_not_allowed")
    }

    /// A body in an encoding that is not served: 415.
    pub fn unsupported_encoding(encoding: &str) -> Self {
        let message =
            format!("The content encoding `{encoding}` is not supported: use gzip, deflate, br, zstd or none.");
        Self::invalid(415, message, "unsupported_encoding")
    }

    /// Anthropic's error object. `request` is the request's id, where it is to stand in it.
    pub fn anthropic(&self, request: Option<&str>) -> Value {
        let kind = match self.status {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            413 => "request_too_large",
            429 => "rate_limit_error",
            504 => "timeout_error",
            400..=499 => "invalid_request_error",
            503 => "overloaded_error",
            _ => "api_error",
        };
        let mut object = json!({"type": "error", "error": {"type": kind, "message": self.error.message}});
        if let Some(request) = request {
            object["request_id"] = json!(request);
        }
        object
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
    fn an_error_has_anthropics_shape_too() {
        let error = ApiError::from(Fault::new(ErrorClass::Overloaded, "full"));
        let expected =
            json!({"type": "error", "error": {"type": "rate_limit_error", "message": "full"}, "request_id": "r"});
        assert_eq!(error.anthropic(Some("r")), expected);
        assert_eq!(ApiError::unauthorized(true).anthropic(None)["error"]["type"], "authentication_error");
    }

    #[test]
    fn codes_are_listed_once() {
        let mut codes: Vec<_> = CODES.iter().map(|code| code.code).collect();
        codes.sort_unstable();
        assert!(codes.windows(2).all(|pair| pair[0] != pair[1]));
        let of_classes = CLASSES.iter().chain([&INTERNAL]).filter_map(|row| Some((row.code?, row.status)));
        for (code, status) in of_classes {
            let listed = CODES.iter().find(|listed| listed.code == code);
            assert!(listed.is_some_and(|listed| listed.statuses.contains(&status)), "{code}");
        }
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
