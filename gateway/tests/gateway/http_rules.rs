//! HTTP itself: methods, paths, the key, limits, connections, cross-origin requests.

use http::{Method, Request};
use http_body_util::Full;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::client::{Answer, chat, config, get, post, request, serve, soon};
use crate::fake::{Mesh, whole_answer};

fn mesh() -> std::sync::Arc<Mesh> {
    Mesh::new(vec![("alpha", 0, whole_answer())])
}

#[tokio::test]
async fn unknown_paths_and_methods_are_the_dialects_errors() {
    let served = serve(&mesh(), config()).await;
    for path in ["/nothing", "/v1", "/v1/embedding", "/v1/chat"] {
        assert_eq!(served.ask(get(path)).await.error(), (404, None, Some("unknown_url".into())), "{path}");
    }
    for (method, path, allow) in [
        (Method::GET, "/v1/chat/completions", "POST, OPTIONS"),
        (Method::GET, "/v1/embeddings", "POST, OPTIONS"),
        (Method::DELETE, "/v1/models/m", "GET, HEAD, OPTIONS"),
        (Method::POST, "/health", "GET, HEAD, OPTIONS"),
    ] {
        let answer = served.ask(request(method, path, "")).await;
        assert_eq!(answer.error(), (405, None, Some("method_not_allowed".into())), "{path}");
        assert_eq!(answer.header("allow"), allow);
    }
    assert_eq!(served.ask(get("/")).await.json()["openai_base_url"], "/v1");
    let head = served.ask(request(Method::HEAD, "/v1/models", "")).await;
    assert_eq!((head.status().as_u16(), head.body.as_str()), (200, ""));
    let options = served.ask(request(Method::OPTIONS, "/v1/models", "")).await;
    assert_eq!((options.status().as_u16(), options.header("allow")), (204, "GET, HEAD, OPTIONS"));
}

#[tokio::test]
async fn the_key_is_asked_for_where_there_is_one() {
    let served = serve(&mesh(), config().with_api_key(Some("s3cret".into()))).await;
    let with = |header: Option<&str>| {
        let mut request = post(&chat(json!({})));
        if let Some(header) = header {
            request.headers_mut().insert("authorization", header.parse().unwrap());
        }
        request
    };
    for good in ["Bearer s3cret", "bearer s3cret", "BEARER  s3cret"] {
        assert_eq!(served.ask(with(Some(good))).await.status(), 200, "{good}");
    }
    for bad in
        [None, Some("Bearer s3cre"), Some("Bearer s3crets"), Some("Basic s3cret"), Some("s3cret"), Some("Bearer ")]
    {
        let answer = served.ask(with(bad)).await;
        assert_eq!(answer.error(), (401, None, Some("invalid_api_key".into())), "{bad:?}");
        assert_eq!(answer.header("www-authenticate"), "Bearer");
    }
    assert_eq!(served.ask(get("/v1/models")).await.status(), 401);
    assert_eq!(served.ask(get("/v1/models/m")).await.status(), 401);
    assert_eq!(served.ask(get("/nothing")).await.status(), 401);
    assert_eq!(served.ask(get("/health")).await.status(), 200, "whoever watches over it needs no key");
}

#[tokio::test]
async fn pages_in_browsers_may_ask() {
    let served = serve(&mesh(), config().with_api_key(Some("s3cret".into()))).await;
    let mut preflight = request(Method::OPTIONS, "/v1/chat/completions", "");
    let headers = preflight.headers_mut();
    headers.insert("origin", "https://app.example".parse().unwrap());
    headers.insert("access-control-request-method", "POST".parse().unwrap());
    headers.insert("access-control-request-headers", "authorization,x-stainless-os".parse().unwrap());
    let answer = served.ask(preflight).await;
    assert_eq!(answer.status(), 204);
    assert_eq!(answer.header("access-control-allow-origin"), "*");
    assert_eq!(answer.header("access-control-allow-methods"), "POST, OPTIONS");
    assert_eq!(answer.header("access-control-allow-headers"), "authorization,x-stainless-os");
    let refused = served.chat(&chat(json!({}))).await;
    assert_eq!((refused.status().as_u16(), refused.header("access-control-allow-origin")), (401, "*"));
    assert!(refused.header("access-control-expose-headers").contains("x-request-id"));
}

#[tokio::test]
async fn every_response_carries_a_request_id() {
    let served = serve(&mesh(), config()).await;
    let first = served.ask(get("/nothing")).await.header("x-request-id").to_owned();
    let second = served.chat(&chat(json!({}))).await.header("x-request-id").to_owned();
    assert!(first.len() == 36 && second.len() == 36 && first != second);
    let mut request = post(&chat(json!({"stream": true})));
    request.headers_mut().insert("x-request-id", "mine-1".parse().unwrap());
    assert_eq!(served.ask(request).await.header("x-request-id"), "mine-1");
}

#[tokio::test]
async fn a_body_over_the_limit_is_a_413_that_the_client_gets_to_see() {
    let mut config = config();
    config.limits.body_bytes = 1 << 20;
    let served = serve(&mesh(), config).await;
    let over = vec![b' '; (1 << 20) + 1];
    let expected = (413, None, Some("request_too_large".to_owned()));
    let answer = served.ask(request(Method::POST, "/v1/chat/completions", over.clone())).await;
    assert_eq!(answer.error(), expected, "with a length");

    let mut stream = TcpStream::connect(served.addr).await.unwrap();
    let head =
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n";
    stream.write_all(format!("{head}{:x}\r\n", over.len()).as_bytes()).await.unwrap();
    stream.write_all(&over).await.unwrap();
    stream.write_all(b"\r\n0\r\n\r\n").await.unwrap();
    let mut text = String::new();
    soon(stream.read_to_string(&mut text)).await.unwrap();
    assert!(text.starts_with("HTTP/1.1 413") && text.contains("request_too_large"), "in chunks: {text}");

    let mut stream = TcpStream::connect(served.addr).await.unwrap();
    let head =
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 9999999\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut start = [0; 12];
    soon(stream.read_exact(&mut start)).await.unwrap();
    assert_eq!(&start, b"HTTP/1.1 413", "before anything is sent");

    let mut fits = chat(json!({})).to_string();
    fits.push_str(&" ".repeat((1 << 20) - fits.len()));
    assert_eq!(served.ask(request(Method::POST, "/v1/chat/completions", fits)).await.status(), 200);
}

#[tokio::test]
async fn large_bodies_are_read_a_few_at_a_time() {
    let mut config = config();
    config.limits.large_bodies = 1;
    let served = serve(&mesh(), config).await;
    let large = {
        let mut body = chat(json!({})).to_string();
        body.push_str(&" ".repeat(2 << 20));
        body
    };
    // All but the last byte of the first one.
    let mut first = TcpStream::connect(served.addr).await.unwrap();
    let length = large.len();
    let head = format!("POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n");
    first.write_all(head.as_bytes()).await.unwrap();
    soon(first.write_all(&large.as_bytes()[..length - 1])).await.unwrap();
    // What is written may not have been read yet: until then, others are still answered.
    let mut waiting = None;
    for _ in 0..20 {
        let mut client = served.client().await;
        let ask = request(Method::POST, "/v1/chat/completions", large.clone());
        let mut second = Box::pin(async move { client.send_only(ask).await.status() });
        if tokio::time::timeout(std::time::Duration::from_millis(300), second.as_mut()).await.is_err() {
            waiting = Some(second);
            break;
        }
    }
    let second = waiting.expect("one that waits for the first");
    assert_eq!(served.chat(&chat(json!({}))).await.status(), 200, "a small one does not");
    first.write_all(b" ").await.unwrap();
    let mut start = [0; 12];
    soon(first.read_exact(&mut start)).await.unwrap();
    assert_eq!(&start, b"HTTP/1.1 200");
    assert_eq!(soon(second).await, 200);
}

#[tokio::test]
async fn a_large_body_that_gets_no_place_in_time_is_a_429() {
    let mut config = config();
    config.limits.large_bodies = 0;
    config.limits.body = std::time::Duration::from_millis(100);
    let served = serve(&mesh(), config).await;
    let answer = served.ask(request(Method::POST, "/tokenize", " ".repeat(2 << 20))).await;
    assert_eq!(answer.error(), (429, None, Some("overloaded".into())));
    assert_eq!(answer.header("retry-after"), "1");
}

#[tokio::test]
async fn a_body_that_does_not_come_is_a_408() {
    let mut config = config();
    config.limits.body = std::time::Duration::from_millis(100);
    let served = serve(&mesh(), config).await;
    let mut stream = TcpStream::connect(served.addr).await.unwrap();
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n{";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut start = [0; 12];
    soon(stream.read_exact(&mut start)).await.unwrap();
    assert_eq!(&start, b"HTTP/1.1 408");
}

#[tokio::test]
async fn a_connection_serves_many_requests() {
    let served = serve(&mesh(), config()).await;
    let mut client = served.client().await;
    for stream in [false, true, false, true] {
        assert_eq!(client.ask(post(&chat(json!({"stream": stream})))).await.status(), 200);
    }
    assert_eq!(client.ask(get("/nothing")).await.status(), 404);
    assert_eq!(client.ask(get("/v1/models")).await.status(), 200);
}

#[tokio::test]
async fn http2_works_with_prior_knowledge() {
    let served = serve(&mesh(), config()).await;
    let (mut sender, _connection) = served.client2().await;
    let mut ask = async |body: serde_json::Value| {
        let request = Request::post("http://gateway/v1/chat/completions").body(Full::from(body.to_string())).unwrap();
        soon(sender.ready()).await.unwrap();
        Answer::read(soon(sender.send_request(request)).await.unwrap()).await
    };
    let answer = ask(chat(json!({}))).await;
    assert_eq!(answer.head.version, http::Version::HTTP_2);
    assert_eq!(answer.json()["choices"][0]["message"]["content"], "Hello 🌍");
    let answer = ask(chat(json!({"stream": true}))).await;
    assert_eq!(answer.events().last().unwrap(), "[DONE]");
    assert_eq!(ask(chat(json!({"n": 0}))).await.error().0, 400);
}

#[tokio::test]
async fn bodies_may_come_packed() {
    use std::io::Write as _;
    let served = serve(&mesh(), config()).await;
    let pack = |text: &str| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(text.as_bytes()).unwrap();
        encoder.finish().unwrap()
    };
    let packed = |encoding: &str, body: Vec<u8>| {
        let mut request = request(Method::POST, "/v1/chat/completions", body);
        request.headers_mut().insert("content-encoding", encoding.parse().unwrap());
        request
    };
    let body = chat(json!({})).to_string();
    assert_eq!(served.ask(packed("gzip", pack(&body))).await.status(), 200);
    assert_eq!(served.ask(packed("identity", body.clone().into())).await.status(), 200);
    let mut zstd = Vec::new();
    let level = ruzstd::encoding::CompressionLevel::Fastest;
    ruzstd::encoding::compress(body.as_bytes(), &mut zstd, level);
    assert_eq!(served.ask(packed("ZSTD", zstd)).await.status(), 200);
    assert_eq!(served.ask(packed("br", body.clone().into())).await.error().0, 400);
    let refused = served.ask(packed("compress", body.clone().into())).await;
    assert_eq!(refused.error(), (415, None, Some("unsupported_encoding".into())));
    assert_eq!(served.ask(packed("gzip", body.into())).await.error().0, 400);
    // A few kilobytes that unpack to more than a body may have.
    let bomb = pack(&" ".repeat(33 << 20));
    assert!(bomb.len() < 1 << 20);
    assert_eq!(served.ask(packed("gzip", bomb)).await.error(), (413, None, Some("request_too_large".into())));
}

#[tokio::test]
async fn slashes_that_clients_add_do_not_count() {
    let served = serve(&mesh(), config()).await;
    for path in ["/v1/models/", "/v1//models"] {
        assert_eq!(served.ask(get(path)).await.status(), 200, "{path}");
    }
    for path in ["/v1/chat/completions/", "/v1//chat/completions", "//v1/chat/completions"] {
        assert_eq!(served.ask(request(Method::POST, path, chat(json!({})).to_string())).await.status(), 200, "{path}");
    }
}

#[tokio::test]
async fn without_a_key_only_pages_of_this_machine_may_ask() {
    let from = |origin: &str| {
        let mut request = post(&chat(json!({})));
        request.headers_mut().insert("origin", origin.parse().unwrap());
        request
    };
    let open = serve(&mesh(), config()).await;
    assert_eq!(open.ask(from("http://localhost:5173")).await.status(), 200);
    assert_eq!(open.ask(from("https://app.example")).await.error(), (403, None, Some("origin_not_allowed".into())));
    // A page may have its own name point here: the browser then sends it as the host, and no origin with GET.
    let named = |host: &str| {
        let mut request = get("/v1/models");
        request.headers_mut().insert("host", host.parse().unwrap());
        request
    };
    assert_eq!(open.ask(named("127.0.0.1:9337")).await.status(), 200);
    assert_eq!(open.ask(named("app.example:9337")).await.error(), (403, None, Some("host_not_allowed".into())));
    let keyed = serve(&mesh(), config().with_api_key(Some("k".into()))).await;
    assert_eq!(keyed.ask(from("https://app.example")).await.status(), 401);
    assert_eq!(keyed.ask(named("app.example")).await.status(), 401);
}

#[tokio::test]
async fn a_key_may_come_as_anthropics_clients_send_it() {
    let served = serve(&mesh(), config().with_api_key(Some("s3cret".into()))).await;
    let mut asked = post(&chat(json!({})));
    asked.headers_mut().insert("x-api-key", "s3cret".parse().unwrap());
    assert_eq!(served.ask(asked).await.status(), 200);
}

#[tokio::test]
async fn requests_and_tokens_are_counted() {
    let served = serve(&mesh(), config()).await;
    served.chat(&chat(json!({}))).await;
    served.chat(&chat(json!({"messages": []}))).await;
    let page = served.ask(get("/metrics")).await;
    assert!(page.header("content-type").starts_with("application/openmetrics-text"));
    for line in [
        "mesh_gateway_requests_total{endpoint=\"/v1/chat/completions\",status=\"200\"} 1",
        "mesh_gateway_requests_total{endpoint=\"/v1/chat/completions\",status=\"400\"} 1",
        "mesh_gateway_tokens_total{kind=\"prompt\"} 11",
        "mesh_gateway_tokens_total{kind=\"completion\"} 3",
        "mesh_gateway_active_requests 0",
        "mesh_gateway_time_to_first_event_seconds_count 1",
        "mesh_model_ready{model=\"m\",node=\"alpha\"} 1",
    ] {
        assert!(page.body.lines().any(|seen| seen == line), "{line} is not in {}", page.body);
    }
    assert!(page.body.ends_with("# EOF\n"));
    let document = served.ask(get("/openapi.json")).await.json();
    assert!(document["paths"]["/v1/messages"]["post"].is_object());
}
