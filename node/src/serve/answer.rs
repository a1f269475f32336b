//! One answer as it is generated: token ids from the pipeline become canonical events.

use std::sync::Arc;

use futures::{Stream, stream};
use mesh_chat::{Detokenizer, StopScanner};
use mesh_engine::{GenerateError, Generation, TokenEvent};
use mesh_proto::convert::finished;
use mesh_proto::v1;
use mesh_proto::v1::generate_event::Event;
use mesh_types::{ChatRequest, Fault, FinishReason, GenerateSpec, Message, TokenId, Usage};

use super::model::ServedModel;
use super::prompt;

/// Most tokens that one delta carries; more than one only where the reader is slower than the model.
const TOKENS_PER_DELTA: usize = 64;

/// A running answer. Dropping it cancels the run on every stage.
pub struct Answer {
    model: Arc<ServedModel>,
    state: State,
    detokenizer: Detokenizer,
    stops: StopScanner,
    seed: u64,
    usage: Usage,
}

enum State {
    Accepted(Generation),
    Running(Generation),
    /// The text is out; this is still to be said.
    Ending(Event),
    Over,
}

impl Answer {
    /// Renders and tokenises the conversation, and queues the run.
    ///
    /// # Errors
    /// The fault to refuse the request with; an over-long prompt among them.
    ///
    /// # Cancel safety
    /// Dropping it cancels the run.
    pub async fn start(model: &Arc<ServedModel>, request: ChatRequest) -> Result<Self, Fault> {
        refuse_tools(&request)?;
        let generator = model.generator()?;
        let ChatRequest { request: id, messages, max_tokens, sampling, stop, template_kwargs, .. } = request;
        let tokenising = Arc::clone(model);
        let prompt = tokio::task::spawn_blocking(move || prompt::tokens(&tokenising, &messages, template_kwargs))
            .await
            .map_err(|_| Fault::new(mesh_types::ErrorClass::Internal, "the prompt could not be tokenised"))??;
        let sampling = model.sampling(&sampling);
        let usage = Usage { prompt_tokens: count(prompt.len()), ..Usage::default() };
        let spec = GenerateSpec {
            request: id,
            prompt,
            max_tokens: max_tokens.unwrap_or(u32::MAX),
            stop_tokens: if sampling.ignore_eos { Vec::new() } else { model.end_tokens() },
            sampling,
        };
        let generation = generator.generate(spec).await.map_err(fault)?;
        Ok(Self {
            model: Arc::clone(model),
            state: State::Accepted(generation),
            detokenizer: Detokenizer::new(),
            stops: StopScanner::new(stop),
            seed: sampling.seed,
            usage,
        })
    }

    /// The events of this answer: `Started`, deltas, and `Finished` or `Fault` as the last.
    pub fn into_stream(self) -> impl Stream<Item = v1::GenerateEvent> + Send {
        stream::unfold(self, |mut answer| async move {
            let event = answer.next().await?;
            Some((v1::GenerateEvent { event: Some(event) }, answer))
        })
    }

    async fn next(&mut self) -> Option<Event> {
        match std::mem::replace(&mut self.state, State::Over) {
            State::Accepted(generation) => {
                self.state = State::Running(generation);
                Some(Event::Started(v1::Started { prompt_tokens: self.usage.prompt_tokens, seed: self.seed }))
            }
            State::Running(generation) => Some(self.advance(generation).await),
            State::Ending(event) => Some(event),
            State::Over => None,
        }
    }

    /// Waits for the next event of the run, and takes the tokens that are already there with it.
    async fn advance(&mut self, mut generation: Generation) -> Event {
        let mut delta = Delta::default();
        let mut next = generation.events.recv().await;
        loop {
            let end = match next {
                Some(Ok(TokenEvent::Token { token, position })) => self.take(token, position, &mut delta),
                Some(Ok(TokenEvent::Finished { reason, usage })) => {
                    self.usage = usage;
                    delta.text += &self.flush();
                    Some(Event::Finished(finished(reason, usage)))
                }
                Some(Err(error)) => {
                    delta.text += &self.flush();
                    Some(Event::Fault((&fault(error)).into()))
                }
                None => Some(Event::Fault((&Fault::unavailable("the run ended without a word")).into())),
            };
            if let Some(event) = end {
                return self.end(delta, event);
            }
            if delta.tokens.len() >= TOKENS_PER_DELTA {
                break;
            }
            match generation.events.try_recv() {
                Ok(event) => next = Some(event),
                Err(_) => break,
            }
        }
        self.state = State::Running(generation);
        Event::Delta(delta.into())
    }

    /// Adds a token to the delta. An event where its text completes a stop string.
    fn take(&mut self, token: TokenId, position: u32, delta: &mut Delta) -> Option<Event> {
        delta.push(token, position);
        self.usage.completion_tokens += 1;
        let text = self.detokenizer.push(&self.model.vocab.piece(token.0, false));
        let stopped = self.stops.push(&text);
        delta.text += &stopped.text;
        stopped.stopped.then(|| Event::Finished(finished(FinishReason::Stop, self.usage)))
    }

    /// What was held back becomes text.
    fn flush(&mut self) -> String {
        let tail = self.detokenizer.flush();
        let mut text = self.stops.push(&tail).text;
        text += &self.stops.finish();
        text
    }

    fn end(&mut self, delta: Delta, event: Event) -> Event {
        if delta.text.is_empty() && delta.tokens.is_empty() {
            return event;
        }
        self.state = State::Ending(event);
        Event::Delta(delta.into())
    }
}

#[derive(Default)]
struct Delta {
    text: String,
    tokens: Vec<TokenId>,
    position: u32,
}

impl Delta {
    fn push(&mut self, token: TokenId, position: u32) {
        if self.tokens.is_empty() {
            self.position = position;
        }
        self.tokens.push(token);
    }
}

impl From<Delta> for v1::Delta {
    fn from(delta: Delta) -> Self {
        Self {
            text: delta.text,
            tokens: delta.tokens.into_iter().map(|token| token.0).collect(),
            position: delta.position,
        }
    }
}

/// Tools would be ignored otherwise.
fn refuse_tools(request: &ChatRequest) -> Result<(), Fault> {
    let calls = |message: &Message| message.role == "tool" || !message.tool_calls.is_empty();
    let (what, param) = if !request.tools.is_empty() {
        ("`tools` are".to_owned(), "tools".to_owned())
    } else if let Some(index) = request.messages.iter().position(calls) {
        (format!("the tool calls of `messages[{index}]` are"), format!("messages[{index}]"))
    } else {
        return Ok(());
    };
    let message = format!("{what} not supported by this node yet");
    Err(Fault::invalid(message).with_param(param).with_code("unsupported_parameter"))
}

fn fault(error: GenerateError) -> Fault {
    let fault = Fault::new(error.class(), error.to_string());
    match error {
        GenerateError::PromptTooLong { .. } => fault.with_param("messages").with_code("context_length_exceeded"),
        _ => fault,
    }
}

fn count(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use mesh_types::{ModelId, RequestId, Tool, ToolCall, ToolChoice};

    #[test]
    fn tools_calls_and_results_are_refused_by_name() {
        let said = |role: &str| Message { role: role.to_owned(), content: Some("x".to_owned()), ..Message::default() };
        let request = |messages, tools| ChatRequest {
            request: RequestId::new("r"),
            model: ModelId::new("m"),
            messages,
            max_tokens: None,
            sampling: Default::default(),
            stop: Vec::new(),
            tools,
            tool_choice: ToolChoice::Auto,
            parallel_tool_calls: true,
            template_kwargs: Default::default(),
        };
        let refused = |messages, tools| refuse_tools(&request(messages, tools)).err().and_then(|fault| fault.param);
        let tool = Tool::from_definition(serde_json::json!({"name": "f"})).unwrap();
        let calling = Message { tool_calls: vec![ToolCall::default()], ..said("assistant") };
        assert_eq!(refused(vec![said("user")], Vec::new()), None);
        assert_eq!(refused(vec![said("user")], vec![tool]).as_deref(), Some("tools"));
        assert_eq!(refused(vec![said("user"), calling], Vec::new()).as_deref(), Some("messages[1]"));
        assert_eq!(refused(vec![said("user"), said("tool")], Vec::new()).as_deref(), Some("messages[1]"));
    }
}
