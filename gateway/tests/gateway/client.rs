//! A gateway under test, and raw HTTP clients of it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use mesh_gateway::{Config, Gateway};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::fake::Mesh;

/// Nothing in these tests takes longer unless it is broken.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("within 10 s")
}

/// A running gateway.
pub(crate) struct Served {
    pub(crate) addr: std::net::SocketAddr,
    pub(crate) stop: CancellationToken,
    pub(crate) tasks: JoinSet<()>,
}

pub(crate) fn config() -> Config {
    Config::new(([127, 0, 0, 1], 0).into())
}

pub(crate) async fn serve(mesh: &Arc<Mesh>, config: Config) -> Served {
    let gateway = Gateway::bind(config, Arc::clone(mesh) as _).await.unwrap();
    let addr = gateway.local_addr();
    let stop = CancellationToken::new();
    let mut tasks = JoinSet::new();
    tasks.spawn(gateway.run(stop.clone()));
    Served { addr, stop, tasks }
}

/// One HTTP/1.1 connection; dropping it closes the socket.
pub(crate) struct Client {
    sender: http1::SendRequest<Full<Bytes>>,
    pub(crate) connection: JoinSet<()>,
}

impl Served {
    pub(crate) async fn client(&self) -> Client {
        let stream = TcpStream::connect(self.addr).await.unwrap();
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let _ = connection.await;
        });
        Client { sender, connection: tasks }
    }

    /// One HTTP/2 connection with prior knowledge.
    pub(crate) async fn client2(&self) -> (http2::SendRequest<Full<Bytes>>, JoinSet<()>) {
        let stream = TcpStream::connect(self.addr).await.unwrap();
        let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let _ = connection.await;
        });
        (sender, tasks)
    }

    /// The answer to one request on a connection of its own.
    pub(crate) async fn ask(&self, request: Request<Full<Bytes>>) -> Answer {
        self.client().await.ask(request).await
    }

    /// The answer to a chat completion.
    pub(crate) async fn chat(&self, body: &Value) -> Answer {
        self.ask(post(body)).await
    }
}

impl Client {
    pub(crate) async fn send(&mut self, request: Request<Full<Bytes>>) -> Response<Incoming> {
        soon(self.sender.ready()).await.unwrap();
        soon(self.sender.send_request(request)).await.unwrap()
    }

    /// Sends, and waits for as long as it takes.
    pub(crate) async fn send_only(&mut self, request: Request<Full<Bytes>>) -> Response<Incoming> {
        self.sender.ready().await.unwrap();
        self.sender.send_request(request).await.unwrap()
    }

    pub(crate) async fn ask(&mut self, request: Request<Full<Bytes>>) -> Answer {
        Answer::read(self.send(request).await).await
    }
}

/// A response with its whole body.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) head: http::response::Parts,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) async fn read(response: Response<Incoming>) -> Self {
        let (head, body) = response.into_parts();
        let body = soon(body.collect()).await.unwrap().to_bytes();
        Self { head, body: String::from_utf8(body.into()).unwrap() }
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.head.status
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.head.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }

    /// Status, `param` and `code` of an error.
    pub(crate) fn error(&self) -> (u16, Option<String>, Option<String>) {
        let error = &self.json()["error"];
        assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{self:?}");
        assert!(error["type"].is_string(), "{self:?}");
        let text = |name: &str| error[name].as_str().map(str::to_owned);
        (self.status().as_u16(), text("param"), text("code"))
    }

    /// The data of each event, comments left out.
    pub(crate) fn events(&self) -> Vec<String> {
        assert!(self.body.ends_with("\n\n"), "{}", self.body);
        let events = self.body.split_terminator("\n\n").filter(|event| !event.starts_with(':'));
        events.map(|event| event.strip_prefix("data: ").unwrap().to_owned()).collect()
    }
}

/// A chat completion request for the model `m`, with `extra` fields.
pub(crate) fn chat(extra: Value) -> Value {
    let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
    if let (Some(body), Value::Object(extra)) = (body.as_object_mut(), extra) {
        body.extend(extra);
    }
    body
}

pub(crate) fn post(body: &Value) -> Request<Full<Bytes>> {
    request(Method::POST, "/v1/chat/completions", body.to_string())
}

pub(crate) fn get(path: &str) -> Request<Full<Bytes>> {
    request(Method::GET, path, "")
}

pub(crate) fn request(method: Method, path: &str, body: impl Into<Bytes>) -> Request<Full<Bytes>> {
    let request = Request::builder().method(method).uri(path).header("host", "gateway");
    request.body(Full::new(body.into())).unwrap()
}

/// The next piece of a response's body.
pub(crate) async fn frame(response: &mut Response<Incoming>) -> String {
    let frame = soon(response.body_mut().frame()).await.expect("the body goes on").unwrap();
    String::from_utf8(frame.into_data().unwrap().into()).unwrap()
}
