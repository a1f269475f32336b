//! One answer as it is generated: token ids from the pipeline become canonical events.

use std::collections::VecDeque;
use std::sync::Arc;

use futures::{Stream, stream};
use mesh_chat::ledger::{PromptMark, Said};
use mesh_chat::{Detokenizer, Ending, Enforced, StopScanner, Turn, TurnEvent, TurnOptions, TurnParser};
use mesh_engine::{GenerateError, Generation, TokenEvent};
use mesh_proto::convert::finished;
use mesh_proto::v1;
use mesh_proto::v1::generate_event::Event;
use mesh_types::{ChatRequest, Fault, FinishReason, GenerateSpec, Logprobs, TokenId, Usage};

use super::demand;
use super::model::ServedModel;
use super::prompt::Prompt;
use super::reading::Reading;

/// Most tokens that are taken at a time; more than one only where the reader is slower than the model.
const TOKENS_AT_ONCE: usize = 64;

/// A running answer. Dropping it cancels the run on every stage.
pub struct Answer {
    model: Arc<ServedModel>,
    /// `None` once the answer is complete.
    generation: Option<Generation>,
    detokenizer: Detokenizer,
    stops: StopScanner,
    parser: Reading,
    /// Events that are still to be said.
    ready: VecDeque<Event>,
    /// The prompt, which is said once it is known how likely its tokens are.
    echo: Option<Echo>,
    ending: Ending,
    usage: Usage,
    thinking: Thinking,
    /// For the ledger: what it answers, its tokens, and what the client is told. `None`: it is not to be remembered.
    remembered: Option<Remembered>,
}

/// A prompt that the answer begins with.
struct Echo {
    text: String,
    tokens: Vec<TokenId>,
    /// Tokens at its beginning that are not in the text.
    unwritten: usize,
}

struct Remembered {
    prompt: PromptMark,
    said: Said,
    turn: Turn,
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
        let generator = model.generator()?;
        let Ready { request, prompt, enforced } = Ready::of(request, model).await?;
        // Not the request's id, which a client may choose and use again.
        let call_ids = uuid::Uuid::now_v7().to_string();
        let parser = match request.raw {
            Some(_) => Reading::Plain,
            None => Reading::Turn(Box::new(TurnParser::new(&TurnOptions {
                strategy: model.capability.strategy.clone(),
                tools: &request.tools,
                choice: &request.tool_choice,
                any_tool: false,
                parallel: request.parallel_tool_calls,
                prompt: &prompt.text,
                seed: &call_ids,
            }))),
        };
        let mut sampling = model.sampling(&request.sampling);
        sampling.ignore_eos &= !demand::ends(enforced.constraint.as_ref());
        let prompt_tokens = u32::try_from(prompt.tokens.len()).unwrap_or(u32::MAX);
        let prompt_field = if request.raw.is_some() { "prompt" } else { "messages" };
        let echoes = request.raw.is_some_and(|raw| raw.echo);
        let score_prompt = echoes && request.logprobs.is_some();
        let echo = Echo {
            text: prompt.text,
            tokens: if score_prompt { prompt.tokens.clone() } else { Vec::new() },
            unwritten: prompt.unwritten,
        };
        let spec = GenerateSpec {
            max_tokens: request.max_tokens.unwrap_or(u32::MAX),
            stop_tokens: if sampling.ignore_eos { Vec::new() } else { model.end_tokens() },
            sampling,
            logit_bias: request.logit_bias,
            logprobs: request.logprobs,
            score_prompt,
            reuse: request.cache_prompt,
            repeatable: request.sampling.seed.is_some(),
            constraint: enforced.constraint,
            ..GenerateSpec::new(request.request, prompt.tokens)
        };
        let generation = generator.generate(spec).await.map_err(|error| match error {
            GenerateError::PromptTooLong { .. } => fault(error).with_param(prompt_field),
            error => fault(error),
        })?;
        let mut ready = VecDeque::new();
        ready.push_back(Event::Started(v1::Started { prompt_tokens, seed: sampling.seed, relaxed: enforced.relaxed }));
        let mut echo = echoes.then_some(echo);
        if !score_prompt && let Some(Echo { text, .. }) = echo.take() {
            ready.push_back(Event::Delta(v1::Delta { text, ..v1::Delta::default() }));
        }
        Ok(Self {
            model: Arc::clone(model),
            generation: Some(generation),
            detokenizer: Detokenizer::new(),
            stops: StopScanner::new(request.stop),
            parser,
            ready,
            echo,
            ending: Ending::default(),
            usage: Usage { prompt_tokens, ..Usage::default() },
            thinking: Thinking::default(),
            remembered: prompt.mark.map(|prompt| Remembered { prompt, said: Said::default(), turn: Turn::default() }),
        })
    }

    /// The events of this answer: `Started`, then what comes, and `Finished` or `Fault` as the last.
    pub fn into_stream(self) -> impl Stream<Item = v1::GenerateEvent> + Send {
        stream::unfold(self, |mut answer| async move {
            let event = answer.next().await?;
            Some((v1::GenerateEvent { event: Some(event) }, answer))
        })
    }

    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            let generation = self.generation.as_mut()?;
            let mut next = generation.events.recv().await;
            let mut taken = Taken::default();
            while self.take(next, &mut taken) && taken.tokens.len() < TOKENS_AT_ONCE {
                match self.generation.as_mut().map(|generation| generation.events.try_recv()) {
                    Some(Ok(event)) => next = Some(event),
                    _ => break,
                }
            }
            self.say(taken);
        }
    }

    /// Takes one event of the run; whether there may be more.
    fn take(&mut self, event: Option<Result<TokenEvent, GenerateError>>, taken: &mut Taken) -> bool {
        match event {
            Some(Ok(TokenEvent::Prompt(scores))) => {
                self.say_prompt(&scores);
                return true;
            }
            Some(Ok(TokenEvent::Token { token, position, logprobs, usage })) => {
                taken.push(token, position);
                taken.logprobs.extend(logprobs.map(|logprobs| self.logprob(token, &logprobs)));
                self.usage = usage;
                if let Some(Remembered { said, .. }) = &mut self.remembered {
                    let (bytes, is_special) = self.model.whole_piece(token);
                    said.push(token, &bytes, is_special);
                }
                let text = self.detokenizer.push(&self.model.piece(token));
                let stopped = self.stops.push(&text);
                let events = self.parser.push(&stopped.text);
                self.thinking.token(&events);
                taken.events.extend(events);
                if !stopped.stopped && !self.parser.is_complete() {
                    return true;
                }
                // What a stop string cut off was said, and the client does not know it.
                if stopped.stopped {
                    self.remembered = None;
                }
                self.finish(FinishReason::Stop, taken);
            }
            Some(Ok(TokenEvent::Finished { reason, usage })) => {
                self.usage = usage;
                self.flush(taken);
                self.finish(reason, taken);
            }
            Some(Err(error)) => self.fail(&fault(error), taken),
            None => self.fail(&Fault::unavailable("the run ended without a word"), taken),
        }
        false
    }

    /// What was held back for a character or a stop string becomes text.
    fn flush(&mut self, taken: &mut Taken) {
        let tail = self.detokenizer.flush();
        let mut text = self.stops.push(&tail).text;
        text += &self.stops.finish();
        let events = self.parser.push(&text);
        self.thinking.end(&events);
        taken.events.extend(events);
    }

    fn finish(&mut self, reason: FinishReason, taken: &mut Taken) {
        self.generation = None;
        let events = self.parser.finish(reason);
        self.usage.reasoning_tokens = self.thinking.end(&events);
        taken.events.extend(events);
        taken.is_complete = true;
        self.ending.take(&taken.events);
        let reason = self.ending.reason(reason);
        let stop = self.stops.matched().map(str::to_owned);
        taken.last = Some(Event::Finished(v1::Finished { stop, ..finished(reason, self.usage) }));
    }

    fn logprob(&self, token: TokenId, logprobs: &Logprobs) -> v1::TokenLogprob {
        let piece = |token: TokenId| self.model.vocab.piece(token.0, true);
        let top = |&(token, logprob): &(TokenId, f32)| v1::TopLogprob { piece: piece(token), logprob };
        let top = logprobs.top.iter().map(top).collect();
        v1::TokenLogprob { piece: piece(token), logprob: logprobs.chosen, top, is_first: false }
    }

    /// Queues the prompt, of whose tokens behind the first these are the log probabilities.
    fn say_prompt(&mut self, scores: &[Logprobs]) {
        let Some(Echo { text, tokens, unwritten }) = self.echo.take() else { return };
        let first = tokens
            .first()
            .map(|token| v1::TokenLogprob { is_first: true, ..self.logprob(*token, &Logprobs::default()) });
        let others = tokens.iter().skip(1).zip(scores).map(|(token, scores)| self.logprob(*token, scores));
        let mut logprobs: Vec<_> = first.into_iter().chain(others).collect();
        logprobs.iter_mut().take(unwritten).for_each(|token| token.piece.clear());
        let tokens = tokens.into_iter().map(|token| token.0).collect();
        self.ready.push_back(Event::Delta(v1::Delta { text, tokens, position: 0, logprobs }));
    }

    fn fail(&mut self, fault: &Fault, taken: &mut Taken) {
        self.generation = None;
        self.flush(taken);
        taken.last = Some(Event::Fault(fault.into()));
    }

    /// Takes down what the client is told, and keeps the answer once it is complete.
    fn remember(&mut self, taken: &Taken) {
        let Some(answer) = &mut self.remembered else { return };
        answer.turn.extend(taken.events.iter().cloned());
        if taken.is_complete
            && let Some(Remembered { prompt, said, turn }) = self.remembered.take()
        {
            self.model.ledger().record(prompt, said, turn);
        }
    }

    /// Queues what was taken: the tokens with the first text, then the rest in order.
    fn say(&mut self, taken: Taken) {
        self.remember(&taken);
        if !taken.is_complete {
            self.ending.take(&taken.events);
        }
        let mut events = taken.events.into_iter().peekable();
        if !taken.tokens.is_empty() {
            let text = match events.next_if(|event| matches!(event, TurnEvent::Content(_))) {
                Some(TurnEvent::Content(text)) => text,
                _ => String::new(),
            };
            let tokens = taken.tokens.into_iter().map(|token| token.0).collect();
            let (position, logprobs) = (taken.position, taken.logprobs);
            self.ready.push_back(Event::Delta(v1::Delta { text, tokens, position, logprobs }));
        }
        self.ready.extend(events.map(on_wire));
        self.ready.extend(taken.last);
    }
}

/// Counts the tokens of what the model thinks, its marks' beginning included.
#[derive(Default)]
struct Thinking {
    /// Tokens of which nothing has come yet.
    waiting: u32,
    tokens: u32,
}

impl Thinking {
    /// A token of which `events` came.
    fn token(&mut self, events: &[TurnEvent]) {
        self.waiting += 1;
        self.end(events);
    }

    /// What was held back comes as `events`. Gives the count.
    fn end(&mut self, events: &[TurnEvent]) -> u32 {
        match events.last() {
            None => return self.tokens,
            Some(TurnEvent::Reasoning(_)) => self.tokens += self.waiting,
            Some(_) => {}
        }
        self.waiting = 0;
        self.tokens
    }
}

/// What comes of some tokens.
#[derive(Default)]
struct Taken {
    tokens: Vec<TokenId>,
    /// Of the first token in the sequence.
    position: u32,
    /// One for each token, or none.
    logprobs: Vec<v1::TokenLogprob>,
    events: Vec<TurnEvent>,
    /// The end of the answer.
    last: Option<Event>,
    /// The answer came to its end, and did not fail.
    is_complete: bool,
}

impl Taken {
    fn push(&mut self, token: TokenId, position: u32) {
        if self.tokens.is_empty() {
            self.position = position;
        }
        self.tokens.push(token);
    }
}

/// A request with all that a run of it needs.
struct Ready {
    request: ChatRequest,
    prompt: Prompt,
    enforced: Enforced,
}

impl Ready {
    /// Computes it where it keeps nobody else waiting.
    async fn of(request: ChatRequest, model: &Arc<ServedModel>) -> Result<Self, Fault> {
        let model = Arc::clone(model);
        let preparing = tokio::task::spawn_blocking(move || {
            check_biases(&request, &model)?;
            let prompt = Prompt::of(&request, &model)?;
            let enforced = demand::of(&request, &model, &prompt.text)?;
            Ok(Self { request, prompt, enforced })
        });
        let failed = |_| Fault::new(mesh_types::ErrorClass::Internal, "the prompt could not be made");
        preparing.await.map_err(failed)?
    }
}

/// A bias is of a token that there is.
fn check_biases(request: &ChatRequest, model: &ServedModel) -> Result<(), Fault> {
    let size = model.vocab.n_tokens();
    match request.logit_bias.iter().find(|(token, _)| !u32::try_from(token.0).is_ok_and(|token| token < size)) {
        None => Ok(()),
        Some((TokenId(token), _)) => {
            let name = &model.name;
            let message =
                format!("`logit_bias` names the token {token}; the vocabulary of `{name}` has {size} tokens.");
            Err(Fault::invalid(message).with_param(format!("logit_bias.{token}")))
        }
    }
}

fn on_wire(event: TurnEvent) -> Event {
    let number = |index: usize| u32::try_from(index).unwrap_or(u32::MAX);
    match event {
        TurnEvent::Reasoning(text) => Event::Reasoning(v1::ReasoningDelta { text }),
        TurnEvent::Content(text) => Event::Delta(v1::Delta { text, ..v1::Delta::default() }),
        TurnEvent::Call { index, id, name } => {
            Event::ToolCallStart(v1::ToolCallStart { index: number(index), id, name })
        }
        TurnEvent::Arguments { index, fragment } => {
            Event::ToolCallDelta(v1::ToolCallDelta { index: number(index), text: fragment })
        }
    }
}

fn fault(error: GenerateError) -> Fault {
    let fault = Fault::new(error.class(), error.to_string());
    match error {
        GenerateError::PromptTooLong { .. } => fault.with_code("context_length_exceeded"),
        _ => fault,
    }
}
