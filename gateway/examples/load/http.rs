//! A gateway, asked over HTTP/1.1 connections that are kept.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// Tokens of an answer whose first text is waited for.
pub(super) const ANSWER: u32 = 2;
/// Tokens of an answer that is held.
const LONG: u32 = 1000;

/// What is asked.
pub(super) fn question(number: usize) -> String {
    format!("Question {number}: which colour has the sea on a clear day?")
}

#[derive(Clone)]
pub(super) struct Http {
    authority: Arc<str>,
    model: Arc<str>,
    idle: Arc<Mutex<Vec<Connection>>>,
}

struct Connection {
    sender: SendRequest<Full<Bytes>>,
    /// Drives it; ends with it.
    _driver: JoinSet<()>,
}

/// A stream that is being answered.
pub(super) struct Open {
    response: Response<Incoming>,
    _connection: Connection,
}

impl Http {
    pub(super) fn new(url: &str, model: &str) -> anyhow::Result<Self> {
        let rest = url.strip_prefix("http://").context("a URL begins with http://")?;
        let authority = rest.split('/').next().unwrap_or_default().into();
        Ok(Self { authority, model: model.into(), idle: Arc::default() })
    }

    /// Asks, and takes the answer in. When its first text came.
    pub(super) async fn first(self, number: usize) -> anyhow::Result<Instant> {
        let (mut connection, mut response) = self.ask(number, ANSWER).await?;
        wait_for_text(&mut response).await?;
        let first = Instant::now();
        while let Some(frame) = response.body_mut().frame().await {
            frame?;
        }
        connection.sender.ready().await?;
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
        Ok(first)
    }

    /// Opens a long stream, and waits for its first text.
    pub(super) async fn open(self, number: usize) -> anyhow::Result<Open> {
        let (connection, mut response) = self.ask(number, LONG).await?;
        wait_for_text(&mut response).await?;
        Ok(Open { response, _connection: connection })
    }

    async fn ask(&self, number: usize, max_tokens: u32) -> anyhow::Result<(Connection, Response<Incoming>)> {
        let kept = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut connection = match kept {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        let body = json!({
            "model": &*self.model, "stream": true, "max_tokens": max_tokens,
            "messages": [{"role": "user", "content": question(number)}],
        });
        let request = Request::post("/v1/chat/completions")
            .header("host", &*self.authority)
            .header("content-type", "application/json")
            .body(Full::from(body.to_string()))?;
        let response = connection.sender.send_request(request).await?;
        if response.status() != 200 {
            let status = response.status();
            let body = response.into_body().collect().await?.to_bytes();
            bail!("{status}: {}", String::from_utf8_lossy(&body));
        }
        Ok((connection, response))
    }

    async fn connect(&self) -> anyhow::Result<Connection> {
        let stream = TcpStream::connect(&*self.authority).await?;
        stream.set_nodelay(true)?;
        let (sender, driving) = handshake(TokioIo::new(stream)).await?;
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            // A broken connection is seen by whoever waits for its answer.
            let _ = driving.await;
        });
        Ok(Connection { sender, _driver: driver })
    }
}

impl Open {
    /// Waits for `count` more events.
    pub(super) async fn events(&mut self, count: usize) -> anyhow::Result<()> {
        for _ in 0..count {
            self.response.body_mut().frame().await.context("the stream ended")??;
        }
        Ok(())
    }
}

async fn wait_for_text(response: &mut Response<Incoming>) -> anyhow::Result<()> {
    // Before the first text comes a chunk with the role, whose text is empty.
    while let Some(frame) = response.body_mut().frame().await {
        let frame = frame?;
        let events = frame.data_ref().map(|bytes| String::from_utf8_lossy(bytes)).unwrap_or_default();
        if events.contains("\"error\"") {
            bail!("{events}");
        }
        if events.split("\"content\":\"").skip(1).any(|text| !text.starts_with('"')) {
            return Ok(());
        }
    }
    bail!("an end without a text")
}
