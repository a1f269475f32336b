//! The dialects: which there are, what comes out of reading a request in one, and how an answer is written in it.

use std::sync::Arc;

use mesh_types::{ChatRequest, Fault, RequestId};

use crate::error::ApiError;
use crate::event::{Answer, Event};
use crate::seal::Seal;
use crate::{completions, messages, request, responses, sse};

/// A way to ask for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// `POST /v1/chat/completions`
    Chat,
    /// `POST /v1/completions`
    Completions,
    /// `POST /v1/responses`
    Responses,
    /// `POST /v1/messages`
    Messages,
}

impl Dialect {
    /// `fault` under this dialect's names of fields, where they are those of chat completions, as a node has them.
    pub fn renamed(self, mut fault: Fault) -> Fault {
        let names: &[(&str, &str)] = match self {
            Self::Chat | Self::Completions => &[],
            Self::Responses => &[("messages", "input"), ("response_format", "text.format")],
            Self::Messages => &[("response_format", "output_config.format")],
        };
        if let Some((_, name)) = names.iter().find(|(of_chat, _)| fault.param.as_deref() == Some(*of_chat)) {
            fault.param = Some((*name).to_owned());
        }
        fault
    }
}

/// What of the world a request is read with.
#[derive(Clone)]
pub struct Context {
    /// The request's id.
    pub request: RequestId,
    /// What makes the ids of this answer unique: letters, digits and `_` only.
    pub unique: String,
    /// Unix time in seconds.
    pub created: u64,
    /// For reasoning that the client carries.
    pub seal: Arc<dyn Seal>,
}

/// A request, read.
pub struct Parsed {
    /// The runs that it takes: one for each choice, in their order. Never empty.
    pub runs: Vec<ChatRequest>,
    /// Whether the answer is streamed.
    pub stream: bool,
    /// Fields, by path, that have no effect here: those that nobody knows, and those that mean nothing to this server.
    pub ignored: Vec<String>,
    /// Writes the answer.
    pub reply: Box<dyn Reply>,
}

/// Writes one answer.
///
/// A streamed one: [`Self::begin`], then [`Self::event`] for each event of each choice, then [`Self::end`] or
/// [`Self::error`]. One that is not: [`Self::whole`].
pub trait Reply: Send {
    /// The first bytes of the stream. `prompt_tokens` is the length of the first choice's prompt.
    fn begin(&mut self, prompt_tokens: u32) -> Vec<u8>;

    /// The bytes for an event of `choice`; may be none.
    fn event(&mut self, choice: u32, event: &Event) -> Vec<u8>;

    /// The last bytes of a stream whose choices are all finished.
    fn end(&mut self) -> Vec<u8>;

    /// The last bytes of a stream that failed.
    fn error(&mut self, error: &ApiError) -> Vec<u8>;

    /// What goes out while nothing happens.
    fn keep_alive(&self) -> &'static [u8] {
        sse::KEEP_ALIVE
    }

    /// A whole answer as JSON: one for each choice, all of them finished.
    fn whole(&mut self, answers: &[Answer]) -> Vec<u8>;
}

/// Reads the body of a request in `dialect`.
///
/// # Errors
/// An invalid request whose message is for the client, with the field's path in `param` where there is one.
pub fn parse(dialect: Dialect, body: &[u8], context: &Context) -> Result<Parsed, Fault> {
    match dialect {
        Dialect::Chat => request::parse(body, context),
        Dialect::Completions => completions::parse(body, context),
        Dialect::Responses => responses::parse(body, context),
        Dialect::Messages => messages::parse(body, context),
    }
}
