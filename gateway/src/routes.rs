//! From a request's line and headers to what answers it: paths, methods, the key, and the headers that every response
//! carries.

use std::sync::Arc;

use http::header::{self, HeaderMap, HeaderValue};
use http::{HeaderName, Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use mesh_openai::{ApiError, Dialect};
use mesh_types::{ModelId, RequestId};
use tokio::sync::Semaphore;
use tracing::Instrument as _;

use crate::answer::Asked;
use crate::balance::Balancer;
use crate::body::{self, ResponseBody, Shape};
use crate::config::{ApiKey, Limits};
use crate::metrics::Metrics;
use crate::peers::{self, Peers};
use crate::seal::MeshSeal;
use crate::ticket::{Outcome, Ticket};
use crate::upstream::Upstream;
use crate::{answer, cors, health, models, request_body, tokens};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The same under the name that Anthropic's clients log.
const ANTHROPIC_REQUEST_ID: HeaderName = HeaderName::from_static("request-id");
/// Where Anthropic's clients put the key.
const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
const MAX_REQUEST_ID: usize = 128;
/// What the key is for under which reasoning is sealed. A change makes what clients carry unreadable.
const SEAL_PURPOSE: &str = "mesh-gateway sealed reasoning 1";

/// What all requests share.
pub(crate) struct Shared {
    pub(crate) peers: Arc<dyn Peers>,
    /// Where this gateway sent what.
    pub(crate) balancer: Arc<Balancer>,
    pub(crate) api_key: Option<ApiKey>,
    pub(crate) limits: Limits,
    /// One permit for each request that may be answered at the same time.
    pub(crate) requests: Arc<Semaphore>,
    /// One permit for each large body that may be held at the same time.
    pub(crate) large_bodies: Arc<Semaphore>,
    pub(crate) metrics: Arc<Metrics>,
    /// When this gateway began, in Unix seconds: the `created` of models, which have no better one.
    pub(crate) started: u64,
}

/// What is served.
#[derive(Debug, PartialEq, Eq)]
enum Resource {
    Hint,
    Health,
    Ready,
    Metrics,
    OpenApi,
    Models,
    Model(String),
    Answer(Dialect),
    CountTokens,
    Tokenize,
    Detokenize,
    Embeddings,
}

impl Shared {
    /// For reasoning that clients carry: under the mesh's present secret, which may be replaced at any time.
    pub(crate) fn seal(&self) -> Arc<MeshSeal> {
        Arc::new(MeshSeal::new(&self.peers.derive_key(SEAL_PURPOSE)))
    }

    /// The way to the nodes.
    pub(crate) fn upstream(&self) -> Upstream {
        Upstream { peers: Arc::clone(&self.peers), balancer: Arc::clone(&self.balancer), limits: self.limits }
    }

    /// Answers `request`, whatever it is.
    ///
    /// # Cancel safety
    /// Dropping the future, or the response's body, cancels what was asked for.
    pub(crate) async fn handle(&self, request: Request<Incoming>) -> Response<ResponseBody> {
        let id = request_id(request.headers());
        let span = tracing::info_span!(
            "request", request = %id, method = %request.method(), path = %request.uri().path()
        );
        let resource = Resource::at(request.uri().path());
        let (shape, endpoint) = (Resource::shape(resource.as_ref()), Resource::label(resource.as_ref()));
        let answered = self.answer(resource, request, id.clone()).instrument(span).await;
        let mut response = answered.unwrap_or_else(|Refusal { error, allow }| {
            let mut response = body::error(&error, shape, &id);
            if let Some(methods) = allow {
                response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(methods));
            }
            if error.status == 401 {
                response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            response
        });
        self.metrics.answered(endpoint, response.status());
        let headers = response.headers_mut();
        if let Ok(id) = HeaderValue::from_str(id.as_str()) {
            headers.insert(REQUEST_ID, id.clone());
            if shape == Shape::Anthropic {
                headers.insert(ANTHROPIC_REQUEST_ID, id);
            }
        }
        cors::allow(headers);
        response
    }

    async fn answer(
        &self,
        resource: Option<Resource>,
        request: Request<Incoming>,
        id: RequestId,
    ) -> Result<Response<ResponseBody>, Refusal> {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        if let Some(resource) = &resource
            && cors::is_preflight(&request)
        {
            return Ok(cors::preflight(request.headers(), resource.methods()));
        }
        if self.api_key.is_none()
            && let Some(origin) = cors::foreign_origin(request.headers())
        {
            return Err(ApiError::foreign_origin(&origin).into());
        }
        if self.api_key.is_none()
            && let Some(host) = cors::foreign_host(&request)
        {
            return Err(ApiError::foreign_host(&host).into());
        }
        if resource.as_ref().is_none_or(Resource::needs_key)
            && let Some(refusal) = self.refusal(request.headers())
        {
            return Err(refusal.into());
        }
        let Some(resource) = resource else {
            return Err(ApiError::unknown_path(method.as_str(), &path).into());
        };
        if method == Method::OPTIONS {
            let mut response = Response::new(body::empty());
            *response.status_mut() = StatusCode::NO_CONTENT;
            response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(resource.methods()));
            return Ok(response);
        }
        if !resource.methods().split(", ").any(|allowed| allowed == method.as_str()) {
            let error = ApiError::method_not_allowed(method.as_str(), &path, resource.methods());
            return Err(Refusal { error, allow: Some(resource.methods()) });
        }
        self.serve(resource, request, id).await.map_err(Refusal::from)
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
            Resource::Ready => Ok(health::ready(&view)),
            Resource::Metrics => Ok(self.metrics.page(&view)),
            Resource::OpenApi => {
                let document = mesh_openai::openapi::document(env!("CARGO_PKG_VERSION"), self.api_key.is_some());
                Ok(body::json(StatusCode::OK, document.to_string().into_bytes()))
            }
            Resource::Models => Ok(models::list(&view, self.started)),
            Resource::Model(name) => {
                let id = ModelId::new(name);
                models::one(&*peers::view_for(&*self.peers, &id).await, &id, self.started)
            }
            asked => self.post(asked, request, id).await,
        }
    }

    /// What has a body, and counts against the limit of requests.
    async fn post(
        &self,
        resource: Resource,
        request: Request<Incoming>,
        id: RequestId,
    ) -> Result<Response<ResponseBody>, ApiError> {
        let mut ticket = Ticket::take(&self.requests, &self.metrics)?;
        let (head, body) = request.into_parts();
        let reader = request_body::Reader::new(&self.limits, &self.large_bodies);
        let body = reader.read(&head.headers, body).await;
        let body = body.inspect_err(|_| ticket.outcome = Outcome::Failed)?;
        if let Resource::Answer(dialect) = resource {
            let asked = Asked { dialect, body, id, session: session(&head.headers) };
            return answer::answer(self, asked, ticket).await;
        }
        let answered = match resource {
            Resource::CountTokens => tokens::count(self, body, id).await,
            Resource::Tokenize => tokens::tokenize(self, body, id).await,
            Resource::Detokenize => tokens::detokenize(self, body).await,
            _ => tokens::embed(self, body).await,
        };
        ticket.outcome = if answered.is_ok() { Outcome::Finished } else { Outcome::Failed };
        answered
    }

    /// Why the key that came with a request is not enough.
    fn refusal(&self, headers: &HeaderMap) -> Option<ApiError> {
        let key = self.api_key.as_ref()?;
        let given = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes).and_then(bearer);
        let given = given.or_else(|| headers.get(API_KEY).map(HeaderValue::as_bytes));
        match given {
            Some(given) if key.matches(given) => None,
            given => Some(ApiError::unauthorized(given.is_some())),
        }
    }
}

/// An error, and what belongs into its response's head.
struct Refusal {
    error: ApiError,
    /// The methods that would do.
    allow: Option<&'static str>,
}

impl From<ApiError> for Refusal {
    fn from(error: ApiError) -> Self {
        Self { error, allow: None }
    }
}

const HINT: &[u8] =
    br#"{"service":"mesh-node gateway","openai_base_url":"/v1","anthropic_base_url":"/","openapi":"/openapi.json"}"#;

impl Resource {
    /// What is at `path`. Slashes that clients add by joining addresses do not count.
    fn at(path: &str) -> Option<Self> {
        let segments: Vec<_> = path.split('/').filter(|segment| !segment.is_empty()).collect();
        Some(match segments.as_slice() {
            [] => Self::Hint,
            ["health"] | ["v1", "health"] => Self::Health,
            ["ready"] | ["v1", "ready"] => Self::Ready,
            ["metrics"] => Self::Metrics,
            ["openapi.json"] | ["v1", "openapi.json"] => Self::OpenApi,
            ["v1", "models"] => Self::Models,
            // A model's name may hold slashes.
            ["v1", "models", name @ ..] => Self::Model(percent_decode(&name.join("/"))?),
            ["v1", "chat", "completions"] => Self::Answer(Dialect::Chat),
            ["v1", "completions"] => Self::Answer(Dialect::Completions),
            ["v1", "responses"] => Self::Answer(Dialect::Responses),
            ["v1", "messages"] => Self::Answer(Dialect::Messages),
            ["v1", "messages", "count_tokens"] => Self::CountTokens,
            ["v1", "embeddings"] => Self::Embeddings,
            ["tokenize"] | ["v1", "tokenize"] => Self::Tokenize,
            ["detokenize"] | ["v1", "detokenize"] => Self::Detokenize,
            _ => return None,
        })
    }

    fn methods(&self) -> &'static str {
        match self {
            Self::Answer(_) | Self::CountTokens | Self::Tokenize | Self::Detokenize | Self::Embeddings => {
                "POST, OPTIONS"
            }
            _ => "GET, HEAD, OPTIONS",
        }
    }

    /// Whoever watches over a gateway may do so without its key.
    fn needs_key(&self) -> bool {
        !matches!(self, Self::Hint | Self::Health | Self::Ready)
    }

    /// In whose shape its errors are.
    fn shape(resource: Option<&Self>) -> Shape {
        match resource {
            Some(Self::Answer(Dialect::Messages) | Self::CountTokens) => Shape::Anthropic,
            _ => Shape::OpenAi,
        }
    }

    /// Its name in metrics.
    fn label(resource: Option<&Self>) -> &'static str {
        match resource {
            None => "unknown",
            Some(Self::Hint) => "/",
            Some(Self::Health) => "/health",
            Some(Self::Ready) => "/ready",
            Some(Self::Metrics) => "/metrics",
            Some(Self::OpenApi) => "/openapi.json",
            Some(Self::Models | Self::Model(_)) => "/v1/models",
            Some(Self::Answer(Dialect::Chat)) => "/v1/chat/completions",
            Some(Self::Answer(Dialect::Completions)) => "/v1/completions",
            Some(Self::Answer(Dialect::Responses)) => "/v1/responses",
            Some(Self::Answer(Dialect::Messages)) => "/v1/messages",
            Some(Self::CountTokens) => "/v1/messages/count_tokens",
            Some(Self::Tokenize) => "/tokenize",
            Some(Self::Detokenize) => "/detokenize",
            Some(Self::Embeddings) => "/v1/embeddings",
        }
    }
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

/// What agents call the conversation.
fn session(headers: &HeaderMap) -> Option<String> {
    let given = ["x-session-affinity", "x-session-id"].iter().find_map(|name| headers.get(*name));
    let given = given.and_then(|name| name.to_str().ok());
    given.filter(|name| (1..=MAX_REQUEST_ID).contains(&name.len())).map(str::to_owned)
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
        for path in ["/v1/models/", "/v1//models", "//v1/models", "/v1/models//"] {
            assert_eq!(Resource::at(path), Some(Resource::Models), "{path}");
        }
        assert_eq!(Resource::at("/v1//chat/completions/"), Some(Resource::Answer(Dialect::Chat)));
        for unknown in ["/v1", "/v2/models", "/v1/models/%zz", "/v1/models/%f", "/v1/models/%+1", "/V1/models"] {
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
