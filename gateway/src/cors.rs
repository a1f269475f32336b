//! Cross-origin requests: pages in a browser may use the gateway (<https://fetch.spec.whatwg.org/#http-cors-protocol>).
//!
//! Any origin is allowed where there is a key, which is what authenticates, and not a cookie; credentials are never
//! allowed. A gateway without a key answers pages of this machine alone: any site in its user's browser could spend its
//! time otherwise.

use http::header::{self, HeaderMap, HeaderValue};
use http::{HeaderName, Method, Request, Response, StatusCode};

use crate::body::{self, ResponseBody};

const REQUEST_HEADERS: HeaderValue =
    HeaderValue::from_static("authorization, x-api-key, content-type, anthropic-version, anthropic-beta, x-request-id");
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

/// The origin of a page from elsewhere, where `headers` name one.
pub(crate) fn foreign_origin(headers: &HeaderMap) -> Option<String> {
    let origin = headers.get(header::ORIGIN)?.to_str().unwrap_or("?");
    (!is_local(origin)).then(|| origin.to_owned())
}

/// Whether a page of `origin` came from this machine: from a loopback address, or out of a program that is no browser
/// (`app://`, `tauri://`, an extension).
fn is_local(origin: &str) -> bool {
    let Some((scheme, rest)) = origin.split_once("://") else { return false };
    if !["http", "https"].contains(&scheme) {
        return true;
    }
    let host = match rest.strip_prefix('[') {
        Some(rest) => rest.split(']').next(),
        None => rest.split([':', '/']).next(),
    };
    let host = host.unwrap_or_default();
    let is_name = host == "localhost" || host.ends_with(".localhost");
    is_name || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_this_machine_are_known() {
        for local in [
            "http://localhost:5173",
            "https://localhost",
            "http://127.0.0.1:80",
            "http://[::1]:3000",
            "app://obsidian.md",
            "tauri://localhost",
            "http://app.localhost:1",
        ] {
            assert!(is_local(local), "{local}");
        }
        for foreign in [
            "null",
            "",
            "https://app.example",
            "http://localhost.example",
            "http://127.0.0.1.example",
            "http://10.0.0.1",
            "http://[::2]",
        ] {
            assert!(!is_local(foreign), "{foreign}");
        }
    }
}
