//! Cross-origin requests: pages in a browser may use the gateway (<https://fetch.spec.whatwg.org/#http-cors-protocol>).
//!
//! Any origin is allowed, since a key and not a cookie is what authenticates; credentials are never allowed.

use http::header::{self, HeaderMap, HeaderValue};
use http::{HeaderName, Method, Request, Response, StatusCode};

use crate::body::{self, ResponseBody};

const REQUEST_HEADERS: HeaderValue = HeaderValue::from_static("authorization, content-type, x-request-id");
const EXPOSED: HeaderValue = HeaderValue::from_static("x-request-id, x-mesh-ignored, retry-after");
/// Browsers remember a preflight for this many seconds.
const MAX_AGE: HeaderValue = HeaderValue::from_static("86400");

/// Whether `request` asks for permission only. A browser sends it without the key.
pub(crate) fn is_preflight<B>(request: &Request<B>) -> bool {
    request.method() == Method::OPTIONS && request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
}

/// The answer to a preflight for a resource with the methods `allow`.
pub(crate) fn preflight(request: &HeaderMap, allow: &'static str) -> Response<ResponseBody> {
    let mut response = Response::new(body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let asked = request.get(header::ACCESS_CONTROL_REQUEST_HEADERS).cloned().unwrap_or(REQUEST_HEADERS);
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static(allow));
    headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, asked);
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, MAX_AGE);
    headers.insert(header::VARY, HeaderValue::from_name(HeaderName::from_static("access-control-request-headers")));
    response
}

/// Lets pages of any origin read the response, and the headers that mean something to them.
pub(crate) fn allow(headers: &mut HeaderMap) {
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
}
