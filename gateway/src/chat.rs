//! `POST /v1/chat/completions`: from a request's body to a node's run, and from its events to JSON or SSE.
//!
//! A run is opened before the response's head is written, so that every refusal has its own status.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::{HeaderName, Response, StatusCode};
use mesh_openai::{Answer, ApiError, ChunkWriter, Head, ParsedChat, response, sse};
use mesh_types::{ErrorClass, Fault, FinishReason, RequestId, ToolCall, Usage};
use tokio::time::timeout;
use tracing::Instrument as _;

use crate::body::{self, ResponseBody};
use crate::config::Limits;
use crate::peers::Peers;
use crate::ticket::{Outcome, Ticket};
use crate::upstream::{self, Event, Run};

/// A larger body is parsed where it keeps nobody else waiting.
const PARSE_INLINE: usize = 128 << 10;
/// Most bytes of one unstreamed answer. A context's worth of text is far smaller; a peer that sends more is broken.
const MAX_ANSWER: usize = 64 << 20;
const MAX_HEADER: usize = 1024;

/// Answers the request `id`, whose body has been read.
///
/// # Errors
/// What is wrong with the request, or why nobody could answer it.
///
/// # Cancel safety
/// Dropping it cancels the run.
pub(crate) async fn completions(
    peers: &dyn Peers,
    limits: &Limits,
    body: Bytes,
    id: RequestId,
    mut ticket: Ticket,
) -> Result<Response<ResponseBody>, ApiError> {
    let answered = answer(peers, limits, body, id).await;
    let (parsed, head, run) = match answered {
        Ok(opened) => opened,
        Err(fault) => return Err(failed(&mut ticket, &fault)),
    };
    let ignored = ignored(parsed.ignored.iter().chain(run.relaxed()));
    let mut response = if parsed.stream {
        event_stream(Streamed {
            writer: ChunkWriter::new(head, parsed.include_usage),
            run,
            keep_alive: limits.keep_alive,
            ticket,
            state: State::Role,
        })
    } else {
        let (answer, reason, usage) = collect(run).await.map_err(|fault| failed(&mut ticket, &fault))?;
        ticket.outcome = Outcome::Finished;
        body::json(StatusCode::OK, response::completion(&head, &answer, reason, usage))
    };
    if let Some(names) = ignored {
        response.headers_mut().insert(HeaderName::from_static("x-mesh-ignored"), names);
    }
    Ok(response)
}

async fn answer(
    peers: &dyn Peers,
    limits: &Limits,
    body: Bytes,
    id: RequestId,
) -> Result<(ParsedChat, Head, Run), Fault> {
    let parsed = parse(body, id).await?;
    let run = upstream::open(peers, &parsed.chat, limits).await?;
    let head = Head {
        id: format!("chatcmpl-{}", uuid::Uuid::now_v7().simple()),
        created: unix_seconds(),
        model: parsed.chat.model.to_string(),
    };
    Ok((parsed, head, run))
}

async fn parse(body: Bytes, id: RequestId) -> Result<ParsedChat, Fault> {
    if body.len() <= PARSE_INLINE {
        return mesh_openai::parse(&body, id);
    }
    tokio::task::spawn_blocking(move || mesh_openai::parse(&body, id))
        .await
        .unwrap_or_else(|_| Err(Fault::new(ErrorClass::Internal, "The request could not be read.")))
}

/// The whole answer of `run`.
async fn collect(mut run: Run) -> Result<(Answer, FinishReason, Usage), Fault> {
    let mut answer = Answer::default();
    let mut left = MAX_ANSWER;
    loop {
        let event = run.next().await?;
        left = left.checked_sub(event.bytes()).ok_or_else(|| run.violation("an answer without an end"))?;
        match event {
            Event::Text(text) => answer.content += &text,
            Event::Reasoning(text) => answer.reasoning += &text,
            Event::Call { id, name, .. } => answer.calls.push(ToolCall { id, name, arguments: String::new() }),
            Event::Arguments { index, text } => {
                // Calls begin in order, and before their arguments.
                if let Some(call) = answer.calls.get_mut(index as usize) {
                    call.arguments += &text;
                }
            }
            Event::Finished(reason, usage) => return Ok((answer, reason, usage)),
        }
    }
}

/// A streamed answer on its way.
struct Streamed {
    writer: ChunkWriter,
    run: Run,
    /// After how much silence a comment goes out.
    keep_alive: Duration,
    ticket: Ticket,
    state: State,
}

enum State {
    Role,
    Turn,
    Over,
}

fn event_stream(answer: Streamed) -> Response<ResponseBody> {
    let events = futures::stream::unfold(answer, |mut answer| async move {
        let span = answer.ticket.span().clone();
        let bytes = answer.next().instrument(span).await?;
        Some((bytes, answer))
    });
    let mut response = Response::new(body::stream(events));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // nginx would hold events back otherwise.
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    response
}

impl Streamed {
    /// The next bytes of the stream; `None` after the last.
    async fn next(&mut self) -> Option<Bytes> {
        match self.state {
            State::Role => {
                self.state = State::Turn;
                Some(self.writer.role().into())
            }
            State::Turn => Some(self.event().await.into()),
            State::Over => None,
        }
    }

    async fn event(&mut self) -> Vec<u8> {
        match timeout(self.keep_alive, self.run.next()).await {
            Err(_) => sse::KEEP_ALIVE.to_vec(),
            Ok(Ok(Event::Text(text))) => self.writer.text(&text),
            Ok(Ok(Event::Reasoning(text))) => self.writer.reasoning(&text),
            Ok(Ok(Event::Call { index, id, name })) => self.writer.call(index, &id, &name),
            Ok(Ok(Event::Arguments { index, text })) => self.writer.arguments(index, &text),
            Ok(Ok(Event::Finished(reason, usage))) => {
                self.state = State::Over;
                self.ticket.outcome = Outcome::Finished;
                self.writer.finish(reason, usage)
            }
            Ok(Err(fault)) => {
                self.state = State::Over;
                self.writer.error(&failed(&mut self.ticket, &fault))
            }
        }
    }
}

fn failed(ticket: &mut Ticket, fault: &Fault) -> ApiError {
    tracing::info!(class = %fault.class, %fault, "failed");
    ticket.outcome = Outcome::Failed;
    fault.into()
}

/// The paths of what was skipped, as far as a header can hold them.
fn ignored<'a>(paths: impl Iterator<Item = &'a String>) -> Option<HeaderValue> {
    let mut header = String::new();
    for path in paths {
        if header.len() > MAX_HEADER {
            break;
        }
        let before = if header.is_empty() { "" } else { ", " };
        header.extend(before.chars().chain(path.chars().take(MAX_HEADER)));
    }
    let plain = |c: char| if c.is_ascii_graphic() || c == ' ' { c } else { '?' };
    let header: String = header.chars().map(plain).take(MAX_HEADER).collect();
    (!header.is_empty()).then(|| HeaderValue::from_str(&header).ok()).flatten()
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
