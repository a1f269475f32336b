//! Cross-origin requests: pages in a browser may use the gateway (<https://fetch.spec.whatwg.org/#http-cors-protocol>).
//!
//! Any origin is allowed where there is a key, which is what authenticates, and not a cookie; credentials are never
//! allowed. A gateway without a key answers pages of this machine alone, and under local names alone: any site in its
//! user's browser could spend its time otherwise.

use std::net::IpAddr;

use http::header::{self, HeaderMap, HeaderValue};
use http::{HeaderName, Method, Request, Response, StatusCode};

use crate::body::{self, ResponseBody};

const REQUEST_HEADERS: HeaderValue =
    HeaderValue::from_static("authorization, x-api-key, content-type, anthropic-version, anthropic-beta, x-request-id");
const EXPOSED: HeaderValue = HeaderValue::from_static("x-request-id, request-id, x-mesh-ignored, retry-after");
/// Browsers remember a preflight for this many seconds.
const MAX_AGE: HeaderValue = HeaderValue::from_static("86400");

/// Endings of names that lead to this machine or its neighbours, and never to another site.
const LOCAL_ENDINGS: [&str; 3] = [".localhost", ".local", ".internal"];

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

/// The name under which `request` asks, where it is one of the internet.
///
/// A page may have its own name point at this machine once it is loaded: to the browser, the gateway is then the page's
/// own server, and `GET` carries no `Origin`. Such a name has a dot, and its ending is none of those that no public name
/// has (RFC 6761, RFC 6762, and ICANN's `.internal`).
pub(crate) fn foreign_host<B>(request: &Request<B>) -> Option<String> {
    let given = request.headers().get(header::HOST).map(|host| host.to_str().unwrap_or("?."));
    let host = request.uri().authority().map(http::uri::Authority::as_str).or(given)?;
    let name = host_of(host).trim_end_matches('.');
    let is_local = name.parse::<IpAddr>().is_ok()
        || !name.contains('.')
        || LOCAL_ENDINGS.iter().any(|ending| name.to_ascii_lowercase().ends_with(ending));
    (!is_local).then(|| name.to_owned())
}

/// `HOST` of `HOST:PORT` or `[HOST]:PORT`.
fn host_of(authority: &str) -> &str {
    match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => authority.split([':', '/']).next().unwrap_or_default(),
    }
}

/// Whether a page of `origin` came from this machine: from a loopback address, or out of a program that is no browser
/// (`app://`, `tauri://`, an extension).
fn is_local(origin: &str) -> bool {
    let Some((scheme, rest)) = origin.split_once("://") else { return false };
    if !["http", "https"].contains(&scheme) {
        return true;
    }
    let host = host_of(rest);
    let is_name = host == "localhost" || host.ends_with(".localhost");
    is_name || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_internet_are_known() {
        let host = |host: &str| foreign_host(&Request::get("/").header("host", host).body(()).unwrap());
        for local in [
            "127.0.0.1:9337",
            "[::1]:9337",
            "10.1.2.3",
            "localhost",
            "LOCALHOST:1",
            "gateway:9337",
            "mac.local",
            "api.localhost",
            "host.docker.internal:9337",
        ] {
            assert_eq!(host(local), None, "{local}");
        }
        for foreign in ["rebound.example:9337", "127.0.0.1.example", "localhost.example.", "notlocal.com"] {
            assert!(host(foreign).is_some(), "{foreign}");
        }
        assert_eq!(foreign_host(&Request::get("/").body(()).unwrap()), None);
        assert!(foreign_host(&Request::get("http://rebound.example/").body(()).unwrap()).is_some());
    }

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
