//! From a request's line and headers to what answers it: paths, methods, the key, and the headers that every response
//! carries.

use std::sync::Arc;

use http::header::{self, HeaderMap, HeaderValue};
use http::{HeaderName, Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use mesh_openai::ApiError;
use mesh_types::RequestId;
use tokio::sync::Semaphore;
use tracing::Instrument as _;

use crate::body::{self, ResponseBody};
use crate::config::{ApiKey, Limits};
use crate::peers::Peers;
use crate::ticket::{Outcome, Ticket};
use crate::{chat, cors, health, models};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const MAX_REQUEST_ID: usize = 128;

/// What all requests share.
pub(crate) struct Shared {
    pub(crate) peers: Arc<dyn Peers>,
    pub(crate) api_key: Option<ApiKey>,
    pub(crate) limits: Limits,
    /// One permit for each request that may be answered at the same time.
    pub(crate) requests: Arc<Semaphore>,
    /// When this gateway began, in Unix seconds: the `created` of models, which have no better one.
    pub(crate) started: u64,
}

/// What is served.
#[derive(Debug, PartialEq, Eq)]
enum Resource {
    Hint,
    Health,
    Models,
    Model(String),
    ChatCompletions,
}

impl Shared {
    /// Answers `request`, whatever it is.
    ///
    /// # Cancel safety
    /// Dropping the future, or the response's body, cancels what was asked for.
    pub(crate) async fn handle(&self, request: Request<Incoming>) -> Response<ResponseBody> {
        let id = request_id(request.headers());
        let span = tracing::info_span!(
            "request", request = %id, method = %request.method(), path = %request.uri().path()
        );
        let answered = self.answer(request, id.clone()).instrument(span).await;
        let mut response = answered.unwrap_or_else(|error| body::error(&error));
        let headers = response.headers_mut();
        if let Ok(id) = HeaderValue::from_str(id.as_str()) {
            headers.insert(REQUEST_ID, id);
        }
        cors::allow(headers);
        response
    }

    async fn answer(&self, request: Request<Incoming>, id: RequestId) -> Result<Response<ResponseBody>, ApiError> {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let resource = Resource::at(&path);
        if let Some(resource) = &resource
            && cors::is_preflight(&request)
        {
            return Ok(cors::preflight(request.headers(), resource.methods()));
        }
        if resource.as_ref().is_none_or(Resource::needs_key)
            && let Some(refusal) = self.refusal(request.headers())
        {
            return Ok(unauthorized(&refusal));
        }
        let Some(resource) = resource else {
            return Err(ApiError::unknown_path(method.as_str(), &path));
        };
        if method == Method::OPTIONS {
            let mut response = Response::new(body::empty());
            *response.status_mut() = StatusCode::NO_CONTENT;
            return Ok(allowed(response, resource.methods()));
        }
        if !resource.methods().split(", ").any(|allowed| allowed == method.as_str()) {
            let error = ApiError::method_not_allowed(method.as_str(), &path, resource.methods());
            return Ok(allowed(body::error(&error), resource.methods()));
        }
        self.serve(resource, request, id).await
    }

    async fn serve(
        &self,
        resource: Resource,
        request: Request<Incoming>,
        id: RequestId,
    ) -> Result<Response<ResponseBody>, ApiError> {
        let view = self.peers.view().borrow().clone();
        match resource {
            Resource::Hint => Ok(body::json(StatusCode::OK, HINT.to_vec())),
            Resource::Health => Ok(health::health(&view, &self.peers.ages())),
            Resource::Models => Ok(models::list(&view, self.started)),
            Resource::Model(name) => models::one(&view, &name, self.started),
            Resource::ChatCompletions => {
                let mut ticket = Ticket::take(&self.requests)?;
                let (head, body) = request.into_parts();
                let body = body::read(&head.headers, body, &self.limits).await;
                let body = body.inspect_err(|_| ticket.outcome = Outcome::Failed)?;
                chat::completions(&*self.peers, &self.limits, body, id, ticket).await
            }
        }
    }

    /// Why the key that came with a request is not enough.
    fn refusal(&self, headers: &HeaderMap) -> Option<ApiError> {
        let key = self.api_key.as_ref()?;
        let given = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes).and_then(bearer);
        match given {
            Some(given) if key.matches(given) => None,
            given => Some(ApiError::unauthorized(given.is_some())),
        }
    }
}

const HINT: &[u8] = br#"{"service":"mesh-node gateway","openai_base_url":"/v1","endpoints":["POST /v1/chat/completions","GET /v1/models","GET /health"]}"#;

impl Resource {
    fn at(path: &str) -> Option<Self> {
        match path {
            "/" => Some(Self::Hint),
            "/health" | "/v1/health" => Some(Self::Health),
            "/v1/models" | "/v1/models/" => Some(Self::Models),
            "/v1/chat/completions" => Some(Self::ChatCompletions),
            // A model's name may hold slashes.
            _ => path.strip_prefix("/v1/models/").and_then(percent_decode).map(Self::Model),
        }
    }

    fn methods(&self) -> &'static str {
        match self {
            Self::ChatCompletions => "POST, OPTIONS",
            _ => "GET, HEAD, OPTIONS",
        }
    }

    /// Whoever watches over a gateway may do so without its key.
    fn needs_key(&self) -> bool {
        !matches!(self, Self::Hint | Self::Health)
    }
}

fn allowed(mut response: Response<ResponseBody>, methods: &'static str) -> Response<ResponseBody> {
    response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(methods));
    response
}

fn unauthorized(error: &ApiError) -> Response<ResponseBody> {
    let mut response = body::error(error);
    response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

/// The credentials in an `Authorization: Bearer …` header. The scheme may be written in any case (RFC 9110, 11.1).
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let at = value.iter().position(|byte| *byte == b' ')?;
    let (scheme, rest) = value.split_at(at);
    scheme.eq_ignore_ascii_case(b"bearer").then(|| rest.trim_ascii())
}

/// The client's own id for the request if it is a sane one, else a new one.
fn request_id(headers: &HeaderMap) -> RequestId {
    let given = headers.get(REQUEST_ID).and_then(|id| id.to_str().ok());
    match given {
        Some(id) if (1..=MAX_REQUEST_ID).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_graphic()) => {
            RequestId::new(id)
        }
        _ => RequestId::new(uuid::Uuid::now_v7().to_string()),
    }
}

/// `%2F` and the like decoded; `None` where that is malformed.
fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        if *byte != b'%' {
            bytes.push(*byte);
            continue;
        }
        let (digits, after) = rest.split_at_checked(2)?;
        let digits = std::str::from_utf8(digits).ok().filter(|digits| !digits.starts_with('+'))?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = after;
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lead_to_resources() {
        assert_eq!(Resource::at("/v1/models/org%2Fname"), Some(Resource::Model("org/name".into())));
        assert_eq!(Resource::at("/v1/models/org/name"), Some(Resource::Model("org/name".into())));
        for unknown in ["/v1", "/v2/models", "/v1/models/%zz", "/v1/models/%f", "/v1/models/%+1", "//", "/V1/models"] {
            assert_eq!(Resource::at(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn the_scheme_may_be_in_any_case() {
        assert_eq!(bearer(b"Bearer k"), Some(&b"k"[..]));
        assert_eq!(bearer(b"bEARER   k "), Some(&b"k"[..]));
        for bad in [&b"k"[..], b"Basic k", b"", b"Bearerk"] {
            assert_eq!(bearer(bad), None);
        }
    }

    #[test]
    fn a_request_keeps_a_sane_id_of_its_own() {
        let id = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(REQUEST_ID, HeaderValue::from_str(value).unwrap());
            request_id(&headers).to_string()
        };
        assert_eq!(id("abc-1"), "abc-1");
        for bad in ["", "a b", &"x".repeat(MAX_REQUEST_ID + 1)] {
            assert_eq!(id(bad).len(), 36, "{bad}");
        }
    }
}
