//! Decides what the stages compute next: a state machine that is told what happened and asked what to do.
//!
//! A run waits in the queue until a KV slot is free, is prefilled in chunks, then decoded token by token. Micro-batches
//! carry decode tokens and prefill chunks together, and as many of them are under way as the chain has stages, so that
//! every stage has work: with `depth` under way and k sequences decoding, about k / `depth` ride in each.
//!
//! Rules that hold at any time (and that the property test checks):
//! - a slot belongs to one run; its positions are computed in order, without gaps; the last stage's answer to a token
//!   is needed before the next token of that sequence, but not between the chunks of a prompt;
//! - a slot that was in use is opened anew only behind its `Close` on the same link, so that frames of the run before
//!   cannot touch it, and what still comes home for that run is dropped;
//! - a ready token rides in the very next micro-batches; prefill fills up what room they leave: decode waits at most
//!   for the chunks already under way;
//! - a run ends exactly once, with `Finished` or an error.
//!
//! Seams, for what is not built yet: *prefix reuse* makes `Scheduler::admit` choose a slot whose tokens are a prefix
//! of the prompt, and start prefill behind it (`Usage::cached_tokens`); *speculation* lets a decode segment have more
//! than one token, whose outputs [`Scheduler::result`] may find wrong; *priority* is the order of `queue`.
//!
//! Start with [`Scheduler::submit`], [`Scheduler::next_frame`] and [`Scheduler::result`].

mod batch;
mod run;

use std::collections::{HashMap, VecDeque};

use mesh_engine::{
    Command, DrawFailure, Frame, GenerateError, SeqId, StageError, StageSpec, StepFailure, StepId, StepResult,
    TokenEvent, Want,
};
use mesh_types::{FinishReason, GenerateSpec, Logprobs, TokenId};

use run::{Phase, Run};

/// What bounds a scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// KV slots.
    pub n_seq: u32,
    /// Positions of a sequence.
    pub n_ctx: u32,
    /// Size of the vocabulary.
    pub n_vocab: u32,
    /// Most tokens in a micro-batch.
    pub n_batch: u32,
    /// Most prompt tokens in a micro-batch; 1 to `n_batch`.
    pub prefill_chunk: u32,
    /// Most micro-batches under way; at least 1.
    pub depth: usize,
    /// Most runs that wait for a slot.
    pub max_queue: usize,
}

impl Limits {
    /// The limits of `stage`, with these for the rest; all brought into their ranges.
    pub fn new(stage: &StageSpec, depth: usize, max_queue: usize, prefill_chunk: Option<u32>) -> Self {
        let n_batch = stage.n_batch.max(1);
        Self {
            n_seq: stage.n_seq,
            n_ctx: stage.n_ctx,
            n_vocab: stage.n_vocab,
            n_batch,
            prefill_chunk: prefill_chunk.unwrap_or(n_batch).clamp(1, n_batch),
            depth: depth.max(1),
            max_queue,
        }
    }
}

/// A run in one scheduler. Never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunId(u64);

/// Something that the client of a run is to be told. After [`TokenEvent::Finished`] or an error comes nothing more.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Whose.
    pub run: RunId,
    /// What.
    pub what: Result<TokenEvent, GenerateError>,
}

/// What a micro-batch that came home was worth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Prompt tokens computed.
    pub prompt_tokens: u32,
    /// Tokens drawn for runs that are still there.
    pub generated_tokens: u32,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Scheduler {
    limits: Limits,
    runs: HashMap<RunId, Run>,
    /// Runs without a slot, in order of arrival. Not empty only while no slot is free.
    queue: VecDeque<RunId>,
    /// Who has which slot.
    slots: Vec<Option<RunId>>,
    free: VecDeque<SeqId>,
    /// Commands that were not sent yet. At most a `Close` and an `Open` for each slot.
    commands: VecDeque<Command>,
    /// Runs whose last token is to be computed next, the one that waits longest first; without those held back.
    ready: VecDeque<RunId>,
    /// Runs with prompt tokens left to send, in turn.
    prefill: VecDeque<RunId>,
    /// Micro-batches under way, oldest first.
    in_flight: VecDeque<Flight>,
    events: VecDeque<Event>,
    next_step: u64,
    next_run: u64,
}

/// A micro-batch under way.
#[derive(Debug)]
struct Flight {
    step: StepId,
    parts: Vec<Part>,
    prompt_tokens: u32,
}

/// A drawn token.
struct Drawn {
    token: TokenId,
    logprobs: Option<Logprobs>,
}

/// Whose segment, and what is expected of it.
#[derive(Debug)]
struct Part {
    run: RunId,
    seq: SeqId,
    want: Want,
    /// Where a drawn token goes.
    position: u32,
}

impl Scheduler {
    /// All slots free, nothing under way.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            runs: HashMap::new(),
            queue: VecDeque::new(),
            slots: vec![None; limits.n_seq as usize],
            free: (0..limits.n_seq).map(SeqId).collect(),
            commands: VecDeque::new(),
            ready: VecDeque::new(),
            prefill: VecDeque::new(),
            in_flight: VecDeque::new(),
            events: VecDeque::new(),
            next_step: 0,
            next_run: 0,
        }
    }

    /// Takes a run.
    ///
    /// # Errors
    /// [`GenerateError::PromptTooLong`], [`GenerateError::QueueFull`], [`GenerateError::Invalid`];
    /// [`GenerateError::Step`] for an empty prompt or a token that is not in the vocabulary.
    pub fn submit(&mut self, spec: GenerateSpec) -> Result<RunId, GenerateError> {
        let context = self.limits.n_ctx;
        let prompt = u32::try_from(spec.prompt.len()).unwrap_or(u32::MAX);
        if prompt >= context {
            return Err(GenerateError::PromptTooLong { prompt, context });
        }
        if prompt == 0 {
            return Err(GenerateError::Step("the prompt is empty".to_owned()));
        }
        if let Some(token) = spec.prompt.iter().find(|token| !self.is_token(**token)) {
            return Err(GenerateError::Step(format!("the prompt holds {}, which is no token of the model", token.0)));
        }
        self.check_wishes(&spec)?;
        if self.free.is_empty() && self.queue.len() >= self.limits.max_queue {
            return Err(GenerateError::QueueFull { queued: self.queued() });
        }
        let run = RunId(self.next_run);
        self.next_run += 1;
        let nothing_to_draw = spec.max_tokens == 0;
        self.runs.insert(run, Run::new(spec));
        if nothing_to_draw {
            self.finish(run, FinishReason::Length);
        } else {
            self.queue.push_back(run);
            self.admit();
        }
        Ok(run)
    }

    /// Forgets a run, wherever it is: its slot is free at once, and no event follows. A run that is over: no effect.
    pub fn cancel(&mut self, run: RunId) {
        self.close(run);
        self.events.retain(|event| event.run != run);
    }

    /// Computes no further token of `run` until [`Self::release`]: its client takes its time. What is under way for it
    /// still comes home, at most one token.
    pub fn hold(&mut self, run: RunId) {
        if let Some(state) = self.runs.get_mut(&run) {
            state.held = true;
            self.ready.retain(|ready| *ready != run);
        }
    }

    /// Ends [`Self::hold`].
    pub fn release(&mut self, run: RunId) {
        if let Some(state) = self.runs.get_mut(&run)
            && std::mem::take(&mut state.held)
            && matches!(state.phase, Phase::Ready(_))
        {
            self.ready.push_back(run);
        }
    }

    /// Whether [`Self::next_frame`] gives one.
    pub fn has_frame(&self) -> bool {
        !self.commands.is_empty() || self.has_batch()
    }

    /// The next frame to send. Once taken, it counts as sent.
    pub fn next_frame(&mut self) -> Option<Frame> {
        if let Some(command) = self.commands.pop_front() {
            return Some(Frame::Command(command));
        }
        self.has_batch().then(|| Frame::Batch(self.form_batch()))
    }

    fn has_batch(&self) -> bool {
        self.in_flight.len() < self.limits.depth && !(self.ready.is_empty() && self.prefill.is_empty())
    }

    /// The next thing to tell a client.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// A micro-batch came home.
    ///
    /// # Errors
    /// [`StageError::InvalidFrame`] where this is not what was asked for; then nothing was changed.
    pub fn result(&mut self, result: StepResult) -> Result<Progress, StageError> {
        let flight = self.expect(result.step)?;
        let wanted = flight.parts.iter().filter(|part| part.want != Want::Nothing);
        let drawn = self.drawn(wanted, &result)?;
        let mut progress = Progress { prompt_tokens: flight.prompt_tokens, generated_tokens: 0 };
        self.in_flight.pop_front();
        for (run, drawn) in drawn {
            match drawn {
                Ok(drawn) => progress.generated_tokens += u32::from(self.take_token(run, drawn)),
                Err(failure) => self.fail(run, failure.into()),
            }
        }
        Ok(progress)
    }

    /// A micro-batch could not be computed: its runs fail, the others go on.
    ///
    /// # Errors
    /// [`StageError::InvalidFrame`] where it is not the one whose turn it is; then nothing was changed.
    pub fn failure(&mut self, failure: &StepFailure) -> Result<(), StageError> {
        self.expect(failure.step)?;
        let parts = self.in_flight.pop_front().map(|flight| flight.parts).unwrap_or_default();
        for part in parts {
            self.fail(part.run, GenerateError::Step("a stage reported a failure".to_owned()));
        }
        Ok(())
    }

    /// The link is over, or is to be: every run fails with `error`, and nothing is under way any more.
    pub fn fail_all(&mut self, error: &GenerateError) {
        let mut runs: Vec<RunId> = self.runs.keys().copied().collect();
        runs.sort();
        // From the last to the first, so that none of the queue is admitted in between.
        for run in runs.into_iter().rev() {
            self.fail(run, error.clone());
        }
        self.in_flight.clear();
        self.commands.clear();
    }

    /// Runs that have a slot.
    pub fn active(&self) -> u32 {
        self.limits.n_seq - self.free.len() as u32
    }

    /// Runs that wait for a slot.
    pub fn queued(&self) -> u32 {
        u32::try_from(self.queue.len()).unwrap_or(u32::MAX)
    }

    /// Micro-batches under way.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Whether there is nothing to do, nothing to send and nothing to wait for.
    pub fn is_idle(&self) -> bool {
        self.runs.is_empty() && self.in_flight.is_empty() && self.commands.is_empty()
    }

    /// What a stage would refuse with the end of the link.
    fn check_wishes(&self, spec: &GenerateSpec) -> Result<(), GenerateError> {
        let invalid = |what: String| Err(GenerateError::Invalid(what));
        if spec.logit_bias.len() > GenerateSpec::MAX_LOGIT_BIAS {
            return invalid(format!("more than {} tokens have a logit bias", GenerateSpec::MAX_LOGIT_BIAS));
        }
        if let Some((token, bias)) =
            spec.logit_bias.iter().find(|(token, bias)| !self.is_token(*token) || bias.is_nan())
        {
            return invalid(format!(
                "a logit bias of {bias} for {}, where the model has {} tokens",
                token.0, self.limits.n_vocab
            ));
        }
        if spec.logprobs.is_some_and(|top| top > Logprobs::MAX_TOP) {
            return invalid(format!("more than {} log probabilities are wanted", Logprobs::MAX_TOP));
        }
        spec.constraint.iter().try_for_each(|c| c.check()).or_else(|error| invalid(error.to_string()))
    }

    fn is_token(&self, token: TokenId) -> bool {
        u32::try_from(token.0).is_ok_and(|token| token < self.limits.n_vocab)
    }

    /// The oldest micro-batch under way, if it is `step`.
    fn expect(&self, step: StepId) -> Result<&Flight, StageError> {
        match self.in_flight.front() {
            Some(flight) if flight.step == step => Ok(flight),
            Some(flight) => {
                Err(StageError::InvalidFrame(format!("step {} came home where {} belongs", step.0, flight.step.0)))
            }
            None => Err(StageError::InvalidFrame(format!("step {} came home, and none is under way", step.0))),
        }
    }

    /// Checks all outputs of a result against what was asked for.
    fn drawn<'a>(
        &self,
        mut wanted: impl Iterator<Item = &'a Part>,
        result: &StepResult,
    ) -> Result<Vec<(RunId, Result<Drawn, DrawFailure>)>, StageError> {
        let bad = |what: String| Err(StageError::InvalidFrame(format!("step {}: {what}", result.step.0)));
        let mut drawn = Vec::with_capacity(result.outputs.len());
        for output in &result.outputs {
            let Some(part) = wanted.next() else { return bad("more outputs than were asked for".to_owned()) };
            if (output.seq, output.position) != (part.seq, part.position) {
                let (seq, position) = (output.seq.0, output.position);
                return bad(format!(
                    "an output for position {position} of sequence {seq} where {} of {} belongs",
                    part.position, part.seq.0
                ));
            }
            let logprobs = output.logprobs.clone();
            match (output.token, &output.failure) {
                (Some(token), None) if self.is_token(token) => drawn.push((part.run, Ok(Drawn { token, logprobs }))),
                (Some(token), None) => {
                    return bad(format!("token {} of a vocabulary of {}", token.0, self.limits.n_vocab));
                }
                (None, Some(failure)) => drawn.push((part.run, Err(failure.clone()))),
                _ => return bad("an output without a token".to_owned()),
            }
        }
        match wanted.next() {
            Some(part) => bad(format!("no output for sequence {}", part.seq.0)),
            None => Ok(drawn),
        }
    }

    /// Gives a drawn token to its run; false where that is gone.
    fn take_token(&mut self, run: RunId, drawn: Drawn) -> bool {
        let Drawn { token, logprobs } = drawn;
        let Some(state) = self.runs.get_mut(&run) else { return false };
        let position = state.draw(token);
        let end = state.end_after(token, self.limits.n_ctx);
        let is_held = state.held;
        self.events.push_back(Event { run, what: Ok(TokenEvent::Token { token, position, logprobs }) });
        match end {
            Some(reason) => self.finish(run, reason),
            None if is_held => {}
            None => self.ready.push_back(run),
        }
        true
    }

    fn finish(&mut self, run: RunId, reason: FinishReason) {
        if let Some(state) = self.close(run) {
            self.events.push_back(Event { run, what: Ok(TokenEvent::Finished { reason, usage: state.usage() }) });
        }
    }

    fn fail(&mut self, run: RunId, error: GenerateError) {
        if self.close(run).is_some() {
            self.events.push_back(Event { run, what: Err(error) });
        }
    }

    /// Takes a run out of everything; its slot goes to the next in the queue.
    fn close(&mut self, run: RunId) -> Option<Run> {
        let state = self.runs.remove(&run)?;
        match state.seq {
            None => self.queue.retain(|queued| *queued != run),
            Some(seq) => {
                self.ready.retain(|ready| *ready != run);
                self.prefill.retain(|prefill| *prefill != run);
                self.close_slot(seq);
                self.admit();
            }
        }
        Some(state)
    }

    fn close_slot(&mut self, seq: SeqId) {
        // The stages never hear of a run whose `Open` was not sent.
        let is_open = |command: &Command| matches!(command, Command::Open(open) if open.seq == seq);
        match self.commands.iter().position(is_open) {
            Some(unsent) => drop(self.commands.remove(unsent)),
            None => self.commands.push_back(Command::Close { seq }),
        }
        self.slots[seq.0 as usize] = None;
        self.free.push_back(seq);
    }

    /// Gives free slots to those who wait.
    fn admit(&mut self) {
        while let (Some(&run), Some(&seq)) = (self.queue.front(), self.free.front()) {
            self.queue.pop_front();
            self.free.pop_front();
            let Some(state) = self.runs.get_mut(&run) else { continue };
            state.seq = Some(seq);
            state.phase = Phase::Prefill { sent: 0 };
            self.commands.push_back(Command::Open(Box::new(state.open(seq))));
            self.slots[seq.0 as usize] = Some(run);
            self.prefill.push_back(run);
        }
    }
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
