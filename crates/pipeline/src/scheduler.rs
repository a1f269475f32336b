//! Decides what the stages compute next: a state machine that is told what happened and asked what to do.
//!
//! A run waits in the queue until a KV slot is free, is prefilled in chunks, then decoded token by token. Micro-batches
//! carry decode tokens and prefill chunks together, and as many of them are under way as the chain has stages, so that
//! every stage has work: with `depth` under way and k sequences decoding, about k / `depth` ride in each.
//!
//! A slot keeps what it holds when its run is over. A run whose prompt begins with it starts behind it: on that slot
//! (cut back to what they share), or on another that gets a copy, where the slot is busy or its own conversation is
//! likely to go on. Where the shared part is still being computed by another run, it is waited for. What gives way, or
//! has been idle for long while others ran, moves to a place on the host, if there is room, and is fetched from there
//! (`scheduler/parking.rs`). A slot that cannot be cut back is set back to a checkpoint (`scheduler/checkpoints.rs`).
//!
//! Rules that hold at any time (and that the property test checks):
//! - a slot belongs to one run; its positions are computed in order, without gaps; the last stage's answer to a token
//!   is needed before the next token of that sequence, but not between the chunks of a prompt, nor where the stage that
//!   has drawn it fills it in;
//! - a slot that was in use is opened anew only behind its `Close` or `Retain` on the same link, so that frames of the
//!   run before cannot touch it, and what still comes home for that run is dropped;
//! - a prefix that is used was sent through the same link before, token by token, and at least one token of every
//!   prompt is computed. Should a stage not have it (a step of it failed, a sliding window moved on), it fails the first
//!   chunk behind it, which rides alone, and the run is begun again without it;
//! - all that runs may come to hold fits into the stages' cells, together with what is kept;
//! - a ready token rides in the very next micro-batches but for those alone; prefill fills up what room they leave:
//!   decode waits at most for the chunks already under way, and for one alone;
//! - a run ends exactly once, with `Finished` or an error.
//!
//! With a run's next token ride drafts of those that may follow, where that is likely to save time
//! (`scheduler/speculate.rs`): from its own text, or of a second model (`scheduler/drafting.rs`). The last stage draws
//! behind each of them, up to the first that is not what was drawn: so the text is that which single steps would have
//! given. What did not come true is cut off on every stage, by a command before the next micro-batch.
//!
//! Where one stage is the whole model, it has drawn a token before anybody is told: the next micro-batch is sent while
//! that is under way (`scheduler/ahead.rs`).
//!
//! A seam, for what is not built yet: *priority* is the order of `queue`.
//!
//! Start with [`Scheduler::submit`], [`Scheduler::next_frame`] and [`Scheduler::result`].

mod admission;
mod ahead;
mod batch;
mod checkpoints;
mod drafting;
mod home;
mod parking;
mod run;
mod slots;
mod speculate;

use std::collections::{HashMap, VecDeque};

use mesh_engine::{Command, Frame, GenerateError, SeqId, StageSpec, StepId, TokenEvent, Want};
use mesh_types::{FinishReason, GenerateSpec, Logprobs, TokenId};

use crate::pipeline::Config;
use drafting::Drafting;
use run::{Phase, Run};
use slots::{Origin, Slots};

pub use drafting::{DraftCost, DraftRequest};
pub(crate) use speculate::MAX_TOKENS;
pub use speculate::StepCost;

/// Fewer tokens than this are neither kept nor looked for: a command more would cost more than they do.
const MIN_REUSE: u32 = 16;

/// What bounds a scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// KV slots.
    pub n_seq: u32,
    /// Runs that have one at the same time; at most `n_seq`.
    pub n_parallel: u32,
    /// Positions of all slots together; at least `n_ctx`.
    pub n_cells: u32,
    /// Whether a slot can be cut back.
    pub cuts_back: bool,
    /// Whether drafts may be sent: they can always be taken back.
    pub rolls_back: bool,
    /// Whether a micro-batch of next tokens may follow one that draws them, before that is home.
    pub runs_ahead: bool,
    /// Positions that idle slots may leave on the host, in places of their own.
    pub n_parked: u32,
    /// Such places.
    pub n_places: u32,
    /// Running states that may be on the host, where slots cannot be cut back: checkpoints, and one for each place.
    pub n_states: u32,
    /// Fewest tokens that are kept, or taken from another slot; at least 1.
    pub min_reuse: u32,
    /// Positions of a sequence.
    pub n_ctx: u32,
    /// Size of the vocabulary.
    pub n_vocab: u32,
    /// Most tokens in a micro-batch.
    pub n_batch: u32,
    /// Most prompt tokens in a micro-batch; 1 to `n_batch`.
    pub prefill_chunk: u32,
    /// Most micro-batches under way, without one that runs ahead; at least 1.
    pub depth: usize,
    /// Most runs that wait for a slot.
    pub max_queue: usize,
}

impl Limits {
    /// The limits of `stage` run as `config` says, all brought into their ranges.
    pub fn new(stage: &StageSpec, config: &Config) -> Self {
        let n_batch = stage.n_batch.max(1);
        Self {
            n_seq: stage.n_seq,
            n_parallel: config.parallel.unwrap_or(stage.n_seq).clamp(1, stage.n_seq.max(1)),
            n_cells: stage.n_cells,
            cuts_back: stage.cuts_back,
            rolls_back: stage.rolls_back && config.speculate,
            runs_ahead: stage.rolls_back && config.runs_ahead && config.depth <= 1,
            n_parked: stage.n_parked,
            n_places: stage.places(),
            n_states: stage.n_states,
            min_reuse: MIN_REUSE,
            n_ctx: stage.n_ctx.min(stage.n_cells),
            n_vocab: stage.n_vocab,
            n_batch,
            prefill_chunk: config.prefill_chunk.unwrap_or(n_batch).clamp(1, n_batch),
            depth: config.depth.max(1),
            max_queue: config.max_queue,
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
    /// Tokens of decoding sequences computed, drafts among them.
    pub decode_tokens: u32,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Scheduler {
    limits: Limits,
    runs: HashMap<RunId, Run>,
    /// Runs without a slot, in order of arrival.
    queue: VecDeque<RunId>,
    /// Who has which slot, and what they hold.
    slots: Slots,
    /// Commands that were not sent yet. Where there are many, nothing is admitted.
    commands: VecDeque<Command>,
    /// Runs whose last token is to be computed next, the one that waits longest first; without those held back.
    ready: VecDeque<RunId>,
    /// Runs with prompt tokens left to send, in turn.
    prefill: VecDeque<RunId>,
    /// Most prompt tokens in a micro-batch while sequences are being decoded; at most `Limits::prefill_chunk`.
    shared_chunk: u32,
    /// What a micro-batch takes.
    cost: StepCost,
    /// Whether a second model drafts.
    has_draft_model: bool,
    /// What it takes, once that is known.
    draft_cost: Option<DraftCost>,
    /// Runs that it is to be asked for.
    draft_requests: VecDeque<RunId>,
    /// The last micro-batch was for one run alone, though others could have gone on.
    was_alone: bool,
    /// Whether the half of a micro-batch that decoding sequences get beside prompts is rounded up the next time.
    rounds_up: bool,
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
    decode_tokens: u32,
}

/// Whose segment, and what is expected of it.
#[derive(Debug)]
struct Part {
    run: RunId,
    /// Of a run that was begun again: whether this is of its second try.
    afresh: bool,
    seq: SeqId,
    /// Of the cells that it computes.
    origin: Option<Origin>,
    want: Want,
    start: u32,
    /// Of the token that comes home; of the first of several.
    position: u32,
    /// Drafts, which may come home before a token that is drawn; or the tokens that are scored, which have to.
    expected: Vec<TokenId>,
}

impl Scheduler {
    /// All slots free, nothing under way.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            runs: HashMap::new(),
            queue: VecDeque::new(),
            slots: Slots::new(limits),
            commands: VecDeque::new(),
            ready: VecDeque::new(),
            prefill: VecDeque::new(),
            shared_chunk: limits.prefill_chunk,
            cost: StepCost::default(),
            has_draft_model: false,
            draft_cost: None,
            draft_requests: VecDeque::new(),
            was_alone: false,
            rounds_up: false,
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
        let run = RunId(self.next_run);
        self.next_run += 1;
        let state = Run::new(spec, self.limits.rolls_back);
        let nothing_to_draw = state.spec.max_tokens == 0;
        let nothing_to_compute = nothing_to_draw && (state.scores.is_none() || state.computed_len() == 0);
        self.runs.insert(run, state);
        if nothing_to_compute {
            self.take_scores(run, Vec::new());
            return Ok(run);
        }
        self.queue.push_back(run);
        self.admit();
        if self.queue.len() > self.limits.max_queue {
            self.close(run);
            return Err(GenerateError::QueueFull { queued: self.queued() });
        }
        Ok(run)
    }

    /// Forgets a run, wherever it is: its slot is free at once, and no event follows. A run that is over: no effect.
    pub fn cancel(&mut self, run: RunId) {
        self.close(run);
        self.events.retain(|event| event.run != run);
    }

    /// Computes no further token of `run` until [`Self::release`]: its client takes its time. What is under way for it
    /// still comes home: at most one micro-batch, or two with one that runs ahead.
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
            && state.drafting != Drafting::Asked
        {
            self.ready.push_back(run);
        }
    }

    /// Prompts take turns in chunks of this many tokens while sequences are being decoded, so that these do not wait
    /// long; within the limits.
    pub fn set_shared_chunk(&mut self, tokens: u32) {
        self.shared_chunk = tokens.clamp(1, self.limits.prefill_chunk);
    }

    /// What micro-batches of decoding sequences take: how many drafts are worth it.
    pub fn set_cost(&mut self, cost: StepCost) {
        self.cost = cost;
    }

    /// Whether [`Self::next_frame`] gives one.
    pub fn has_frame(&self) -> bool {
        !self.commands.is_empty() || self.has_batch()
    }

    /// The next frame to send. Once taken, it counts as sent.
    pub fn next_frame(&mut self) -> Option<Frame> {
        if let Some(command) = self.commands.pop_front() {
            self.admit();
            return Some(Frame::Command(command));
        }
        self.has_batch().then(|| Frame::Batch(self.form_batch()))
    }

    fn has_batch(&self) -> bool {
        let has_work = !(self.ready.is_empty() && self.prefill.is_empty());
        (has_work && self.in_flight.len() < self.limits.depth) || self.may_run_ahead()
    }

    /// The next thing to tell a client.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
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
        self.slots.busy()
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
}

#[cfg(test)]
mod ends;
#[cfg(test)]
mod model;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod reuse;
#[cfg(test)]
mod set_back;
#[cfg(test)]
mod tests;
