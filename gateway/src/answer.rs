//! Answers: from a request's body in some dialect to runs at a node, and from their events to JSON or SSE.
//!
//! The first run is opened before the response's head is written, so that every refusal has its own status.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::{HeaderName, Response, StatusCode};
use mesh_openai::{Answer, ApiError, Context, Dialect, Event, Parsed, Reply};
use mesh_types::{Fault, RequestId, Usage};
use tokio::time::timeout;
use tracing::Instrument as _;

use crate::body::{self, ResponseBody};
use crate::metrics::Metrics;
use crate::request_body::RequestBody;
use crate::routes::Shared;
use crate::runs::Runs;
use crate::ticket::{Outcome, Ticket};

/// Most bytes of one unstreamed answer. A context's worth of text is far smaller; a peer that sends more is broken.
const MAX_ANSWER: usize = 64 << 20;
const MAX_HEADER: usize = 1024;

/// A request for an answer, whose body has been read.
pub(crate) struct Asked {
    pub(crate) dialect: Dialect,
    pub(crate) body: RequestBody,
    pub(crate) id: RequestId,
    /// The client's name for the conversation, where a header gives one.
    pub(crate) session: Option<String>,
}

/// Answers a request.
///
/// # Errors
/// What is wrong with the request, or why nobody could answer it.
///
/// # Cancel safety
/// Dropping it cancels the runs.
pub(crate) async fn answer(
    shared: &Shared,
    asked: Asked,
    mut ticket: Ticket,
) -> Result<Response<ResponseBody>, ApiError> {
    let opened = open(shared, asked).await;
    let (stream, ignored, mut reply, mut runs) = opened.map_err(|fault| failed(&mut ticket, &fault))?;
    let ignored: Vec<String> = ignored.iter().chain(runs.relaxed()).cloned().collect();
    let mut response = if stream {
        let (keep_alive, metrics) = (shared.limits.keep_alive, Arc::clone(&shared.metrics));
        event_stream(Streamed { reply, runs, keep_alive, metrics, ticket, state: State::Begin })
    } else {
        let answers = collect(&mut runs, &shared.metrics, &ticket).await;
        let answers = answers.map_err(|fault| failed(&mut ticket, &fault))?;
        ticket.outcome = Outcome::Finished;
        body::json(StatusCode::OK, reply.whole(&answers))
    };
    name_ignored(&mut response, ignored.iter());
    Ok(response)
}

type Opened = (bool, Vec<String>, Box<dyn Reply>, Runs);

async fn open(shared: &Shared, asked: Asked) -> Result<Opened, Fault> {
    let Asked { dialect, body, id, session } = asked;
    let context = context(shared, id);
    let parsed = body.parse(move |bytes| mesh_openai::parse(dialect, bytes, &context)).await?;
    let Parsed { mut runs, stream, ignored, reply } = parsed;
    if session.is_some() {
        runs.iter_mut().for_each(|run| run.conversation.clone_from(&session));
    }
    let runs = Runs::open(shared.upstream(), runs).await.map_err(|fault| dialect.renamed(fault))?;
    Ok((stream, ignored, reply, runs))
}

/// What of the world the request `id` is read with.
pub(crate) fn context(shared: &Shared, id: RequestId) -> Context {
    let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let unique = uuid::Uuid::now_v7().simple().to_string();
    Context { request: id, unique, created, seal: shared.seal() as _ }
}

/// All choices whole.
async fn collect(runs: &mut Runs, metrics: &Metrics, ticket: &Ticket) -> Result<Vec<Answer>, Fault> {
    let mut answers = vec![Answer::default(); runs.choices()];
    let mut left = MAX_ANSWER;
    while let Some(next) = runs.next().await {
        let (choice, event) = next?;
        left = left.checked_sub(event.bytes()).ok_or_else(|| runs.violation("an answer without an end"))?;
        count(metrics, ticket, &event);
        if let Some(answer) = answers.get_mut(choice as usize) {
            answer.push(&event);
        }
    }
    Ok(answers)
}

fn count(metrics: &Metrics, ticket: &Ticket, event: &Event) {
    match event {
        Event::Finished(_, Usage { prompt_tokens, completion_tokens, cached_tokens, .. }) => {
            metrics.tokens(*prompt_tokens, *cached_tokens, *completion_tokens);
        }
        _ => ticket.begun(),
    }
}

/// A streamed answer on its way.
struct Streamed {
    reply: Box<dyn Reply>,
    runs: Runs,
    /// After how much silence something goes out.
    keep_alive: Duration,
    metrics: Arc<Metrics>,
    ticket: Ticket,
    state: State,
}

enum State {
    Begin,
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
        loop {
            let bytes = match self.state {
                State::Begin => {
                    self.state = State::Turn;
                    self.reply.begin(self.runs.prompt_tokens())
                }
                State::Turn => self.event().await,
                State::Over => return None,
            };
            if !bytes.is_empty() {
                return Some(bytes.into());
            }
        }
    }

    async fn event(&mut self) -> Vec<u8> {
        match timeout(self.keep_alive, self.runs.next()).await {
            Err(_) => self.reply.keep_alive().to_vec(),
            Ok(Some(Ok((choice, event)))) => {
                count(&self.metrics, &self.ticket, &event);
                self.reply.event(choice, &event)
            }
            Ok(None) => {
                self.state = State::Over;
                self.ticket.outcome = Outcome::Finished;
                self.reply.end()
            }
            Ok(Some(Err(fault))) => {
                self.state = State::Over;
                self.reply.error(&failed(&mut self.ticket, &fault))
            }
        }
    }
}

fn failed(ticket: &mut Ticket, fault: &Fault) -> ApiError {
    tracing::info!(class = %fault.class, %fault, "failed");
    ticket.outcome = Outcome::Failed;
    fault.into()
}

/// Says in the head of `response` what of the request has no effect, by path.
pub(crate) fn name_ignored<'a>(response: &mut Response<ResponseBody>, paths: impl Iterator<Item = &'a String>) {
    if let Some(paths) = listed(paths) {
        response.headers_mut().insert(HeaderName::from_static("x-mesh-ignored"), paths);
    }
}

/// The paths of what has no effect, as far as a header can hold them.
fn listed<'a>(paths: impl Iterator<Item = &'a String>) -> Option<HeaderValue> {
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
