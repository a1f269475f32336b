//! What a micro-batch does to the context: the stage without its thread and links. What a command does to its sequences
//! is in `llama/sequences.rs`.

use std::ops::Range;

use kernels_ffi::{
    Allocated, Context, ContextParams, DecodeError, DecodeInput, EmbeddingTable, Input, Model, ModelParams, Place,
    Vocab,
};
use mesh_types::TokenId;

use super::config::{Fed, LlamaStageConfig};
use super::sequences::{Parked, Slot};
use crate::constraint::{Enforcer, Lexicon};
use crate::drawn;
use crate::error::StageError;
use crate::frame::{
    DrawFailure, Frame, MAX_EXTRA_ROWS, MicroBatch, Output, Rows, Segment, SeqId, StepFailure, StepResult, Want,
};
use crate::run::{Drawn, Run};
use crate::sampling::Drawer;
use crate::stage::StageSpec;

/// A loaded stage.
pub(super) struct Engine {
    pub(super) spec: StageSpec,
    pub(super) context: Context,
    /// Makes the rows of a first stage that is fed with rows.
    embedding: Option<EmbeddingTable>,
    /// What the graph is fed with where rows enter it.
    fed: Fed,
    /// Whether rows leave without being marked as outputs.
    keeps_rows: bool,
    /// Whether sequences are decoded one after the other: llama.cpp reorders the tokens of a micro-batch for recurrent
    /// layers, and tapped rows with them.
    one_by_one: bool,
    /// Of the last stage.
    pub(super) head: Option<Head>,
    pub(super) slots: Vec<Slot>,
    pub(super) places_on_host: Vec<Option<Parked>>,
    places: Vec<Place>,
    tokens: Vec<i32>,
}

/// What draws tokens.
pub(super) struct Head {
    drawer: Drawer,
    pub(super) enforcer: Enforcer,
}

/// What came of a micro-batch so far.
struct Done {
    /// Of a stage that is not the last.
    rows: Vec<f32>,
    /// Of the last stage.
    outputs: Vec<Output>,
}

/// Why a batch gives no rows and no result.
enum Stop {
    /// The link is going: nobody waits for an answer.
    Aborted,
    /// The batch fails, the link lives.
    Failed(String),
}

impl Engine {
    pub(super) fn load(config: &LlamaStageConfig) -> Result<Self, StageError> {
        let spec = &config.spec;
        check_config(config)?;
        let devices = config.compute.device.iter().cloned().collect();
        let params = ModelParams { gpu_layers: config.compute.gpu_layers, devices, ..ModelParams::default() };
        let model = Model::load(&config.model_path, &params).map_err(load_error)?;
        check_model(config, &model)?;
        let (embedding, head) = (open_embedding(config)?, open_head(spec, &model)?);
        let context = Context::new(&model, context_params(config)?).map_err(load_error)?;
        Ok(Self {
            context,
            embedding,
            one_by_one: model.is_recurrent() && !(spec.is_first() && spec.is_last()),
            fed: config.inject.as_ref().map_or(Fed::Rows, |inject| inject.fed),
            keeps_rows: config.keeps_rows,
            head,
            slots: (0..spec.n_seq).map(|_| Slot::default()).collect(),
            places_on_host: (0..spec.places()).map(|_| None).collect(),
            spec: spec.clone(),
            places: Vec::new(),
            tokens: Vec::new(),
        })
    }

    pub(super) fn weight_bytes(&self) -> u64 {
        self.context.model().size_bytes()
    }

    pub(super) fn allocated(&self) -> Allocated {
        self.context.allocated()
    }

    /// Empties all slots, for a link whose computations `abort` ends.
    pub(super) fn reset(&mut self, abort: kernels_ffi::AbortHandle) {
        self.context.set_abort(abort);
        self.context.clear();
        self.slots.fill_with(Slot::default);
        self.places_on_host.fill_with(|| None);
    }

    /// Applies one frame; returns the one to hand on.
    ///
    /// # Errors
    /// The end of the link: [`StageError::InvalidFrame`], or [`StageError::Closed`] where a decode was aborted.
    pub(super) fn apply(&mut self, frame: Frame) -> Result<Option<Frame>, StageError> {
        match frame {
            Frame::Batch(batch) => self.batch(batch).map(Some),
            Frame::Command(command) => {
                command.check(&self.spec)?;
                self.command(&command)?;
                Ok((!self.spec.is_last()).then_some(Frame::Command(command)))
            }
            Frame::Failure(failure) if !self.spec.is_first() => Ok(Some(Frame::Failure(failure))),
            Frame::Failure(_) => Err(StageError::InvalidFrame("a failure into the first stage".to_owned())),
            Frame::Result(_) => Err(StageError::InvalidFrame("a result on the way down".to_owned())),
        }
    }

    fn batch(&mut self, batch: MicroBatch) -> Result<Frame, StageError> {
        batch.check(&self.spec)?;
        let needs_run = |want| matches!(want, Want::Token | Want::Verified | Want::Scored(_));
        let draws = |segment: &&Segment| needs_run(segment.want) && self.spec.is_last();
        let without_run = |segment: &&Segment| self.slots[segment.seq.0 as usize].run.is_none();
        if let Some(segment) = batch.segments.iter().filter(draws).find(without_run) {
            let what = format!("a token wanted of slot {} without a run", segment.seq.0);
            return Err(StageError::InvalidFrame(what));
        }
        let step = batch.step;
        match self.compute(batch) {
            Ok(frame) => Ok(frame),
            Err(Stop::Aborted) => Err(StageError::Closed),
            Err(Stop::Failed(reason)) => {
                let reason = format!("layers {} of {}: {reason}", self.spec.layers, self.spec.model);
                tracing::warn!(step = step.0, reason, "step failed");
                Ok(Frame::Failure(StepFailure { step, reason }))
            }
        }
    }

    fn compute(&mut self, mut batch: MicroBatch) -> Result<Frame, Stop> {
        let over = drawn::fill_in(&mut batch, |seq, position| self.drawn(seq, position));
        if batch.segments.is_empty() {
            return Ok(Frame::Result(StepResult { step: batch.step, outputs: over.among(Vec::new()) }));
        }
        self.check_slots(&batch)?;
        self.place(&batch);
        let rows = match (batch.rows.take(), &mut self.embedding) {
            (Some(rows), _) => Some(rows.data),
            (None, Some(table)) => Some(table.rows(&self.tokens).map_err(|error| Stop::Failed(chain(&error)))?),
            (None, None) => None,
        };
        let mut done = Done { rows: Vec::new(), outputs: Vec::new() };
        let at_a_time = if self.one_by_one { 1 } else { batch.segments.len().max(1) };
        let (mut decoded, mut first) = (0, 0);
        for segments in batch.segments.chunks(at_a_time) {
            if let Err(stop) = self.decode(segments, first, rows.as_deref(), &mut done) {
                // Nothing of a failed step stays.
                batch.segments[..decoded].iter().for_each(|earlier| self.truncate(earlier.seq, earlier.start));
                return Err(stop);
            }
            decoded += segments.len();
            first += segments.iter().map(|segment| segment.len as usize).sum::<usize>();
        }
        if !self.spec.is_last() {
            batch.rows = Some(Rows { n_embd: self.spec.n_embd, data: done.rows });
            return Ok(Frame::Batch(batch));
        }
        Ok(Frame::Result(StepResult { step: batch.step, outputs: over.among(done.outputs) }))
    }

    /// What was drawn last for the slot, if `position` is where it belongs and the run goes on behind it.
    fn drawn(&self, seq: SeqId, position: u32) -> Option<TokenId> {
        let slot = &self.slots[seq.0 as usize];
        slot.run.as_ref().filter(|_| slot.len == position)?.drawn(position)
    }

    /// Decodes `segments`, which begin at place `first` of the micro-batch, and appends what comes of them to `done`.
    fn decode(
        &mut self,
        segments: &[Segment],
        first: usize,
        rows: Option<&[f32]>,
        done: &mut Done,
    ) -> Result<(), Stop> {
        let places = first..first + segments.iter().map(|segment| segment.len as usize).sum::<usize>();
        let n_embd = self.spec.n_embd as usize;
        let rows = rows.map(|rows| &rows[places.start * n_embd..places.end * n_embd]);
        let tokens = &self.tokens[places.clone()];
        let input = match (rows, self.fed) {
            (Some(rows), Fed::Rows) => Input::Rows(rows),
            (Some(rows), Fed::Placeholders) => Input::Covered(rows),
            (Some(rows), Fed::Tokens) => Input::Beside(rows, tokens),
            (None, _) => Input::Tokens(tokens),
        };
        let decoded = self.context.decode(&DecodeInput { input, places: &self.places[places] });
        let (place, mut first) = (first, first);
        for segment in segments {
            let tokens = first..first + segment.len as usize;
            first = tokens.end;
            // Where the decode failed, what is left of the slot is the context's to say.
            let len = if decoded.is_ok() { segment.start + segment.len } else { self.context.seq_len(segment.seq.0) };
            let slot = &mut self.slots[segment.seq.0 as usize];
            slot.len = len;
            if let (Some(run), true) = (&mut slot.run, self.spec.is_last()) {
                run.computed(segment.start, self.tokens[tokens].iter().copied().map(TokenId));
                run.truncate(len);
            }
        }
        decoded.map_err(|error| match error {
            DecodeError::Aborted => Stop::Aborted,
            error => Stop::Failed(self.name_requests(segments, &error)),
        })?;
        match self.spec.is_last() {
            true => self.outputs(segments, place, &mut done.outputs),
            false if done.rows.is_empty() => {
                done.rows = self.context.take_rows();
                Ok(())
            }
            false => {
                done.rows.extend(self.context.take_rows());
                Ok(())
            }
        }
    }

    fn check_slots(&self, batch: &MicroBatch) -> Result<(), Stop> {
        for Segment { seq, start, .. } in &batch.segments {
            let slot = &self.slots[seq.0 as usize];
            if slot.spoilt {
                return Err(Stop::Failed(format!("slot {} cannot be cut back, only emptied", seq.0)));
            }
            if slot.len != *start {
                return Err(Stop::Failed(format!("slot {} holds {} positions, and got {start}", seq.0, slot.len)));
            }
        }
        Ok(())
    }

    /// Fills `places` and `tokens`, in the order of the frame.
    fn place(&mut self, batch: &MicroBatch) {
        let is_last = self.spec.is_last();
        self.places.clear();
        for segment in &batch.segments {
            let end = segment.start + segment.len;
            let output = |pos| match segment.want {
                _ if !is_last => !self.keeps_rows,
                Want::Nothing => false,
                Want::Token => pos + 1 == end,
                Want::Logits | Want::Verified | Want::Scored(_) => true,
            };
            let places = (segment.start..end).map(|pos| Place { pos, seq: segment.seq.0, output: output(pos) });
            self.places.extend(places);
        }
        self.tokens.clear();
        self.tokens.extend(batch.tokens.iter().map(|token| token.0));
    }

    /// Reads the last decode's logits, which were those of `segments`, from place `place` of the micro-batch on.
    fn outputs(&mut self, segments: &[Segment], place: usize, outputs: &mut Vec<Output>) -> Result<(), Stop> {
        let mut first = 0;
        for segment in segments {
            let rows = first..first + segment.len as usize;
            first = rows.end;
            let position = segment.start + segment.len;
            let output = match segment.want {
                Want::Nothing => continue,
                Want::Token => self.draw(segment.seq, position, rows.end - 1)?,
                Want::Verified => {
                    self.verify(segment, (place, rows), outputs)?;
                    continue;
                }
                Want::Scored(next) => {
                    self.score(segment, (place, rows), next, outputs)?;
                    continue;
                }
                Want::Logits => {
                    let mut all = Vec::with_capacity(rows.len() * self.spec.n_vocab as usize);
                    for row in rows {
                        all.extend_from_slice(self.context.logits(row).ok_or_else(no_logits)?);
                    }
                    Output::logits(segment.seq, position, all)
                }
            };
            outputs.push(output);
        }
        Ok(())
    }

    /// Draws after each row of a segment with drafts, up to the first draft that is not what was drawn before it.
    fn verify(
        &mut self,
        segment: &Segment,
        (place, rows): (usize, Range<usize>),
        outputs: &mut Vec<Output>,
    ) -> Result<(), Stop> {
        for (row, position) in rows.clone().zip(segment.start + 1..) {
            let output = self.draw(segment.seq, position, row)?;
            let token = output.token;
            outputs.push(output);
            let draft = self.tokens[..place + rows.end].get(place + row + 1).copied().map(TokenId);
            if token.is_none() || token != draft {
                break;
            }
        }
        Ok(())
    }

    /// Scores the token behind each row of a segment, the last of which is `next`: where there is none, it is drawn.
    fn score(
        &mut self,
        segment: &Segment,
        (place, rows): (usize, Range<usize>),
        next: Option<TokenId>,
        outputs: &mut Vec<Output>,
    ) -> Result<(), Stop> {
        let seq = segment.seq;
        for (row, position) in rows.clone().zip(segment.start + 1..) {
            let token = match row + 1 == rows.end {
                false => self.tokens.get(place + row + 1).copied().map(TokenId),
                true => next,
            };
            let Some(token) = token else {
                outputs.push(self.draw(seq, position, row)?);
                break;
            };
            let Some(run) = &self.slots[seq.0 as usize].run else { return Err(no_logits()) };
            let logits = self.context.logits(row).ok_or_else(no_logits)?;
            match run.score(logits, token) {
                Ok(logprobs) => {
                    outputs.push(Output { logprobs: Some(logprobs), ..Output::token(seq, position, token) })
                }
                Err(failure) => {
                    outputs.push(failed(run, position, failure));
                    break;
                }
            }
        }
        Ok(())
    }

    /// Draws the token that goes to `position`. What is wrong with the run alone does not fail the step.
    fn draw(&mut self, seq: SeqId, position: u32, row: usize) -> Result<Output, Stop> {
        let run = self.slots[seq.0 as usize].run.as_mut();
        let (Some(run), Some(head)) = (run, &mut self.head) else { return Err(no_logits()) };
        let logits = self.context.logits(row).ok_or_else(no_logits)?;
        Ok(match run.draw(&mut head.drawer, logits, position) {
            Ok(Drawn { token, logprobs }) => Output { logprobs, ..Output::token(seq, position, token) },
            Err(failure) => failed(run, position, failure),
        })
    }

    /// An error, and the requests whose step it was.
    fn name_requests(&self, segments: &[Segment], error: &DecodeError) -> String {
        let run = |segment: &Segment| self.slots[segment.seq.0 as usize].run.as_ref();
        let requests: Vec<_> = segments.iter().filter_map(run).map(|run| run.open().request.as_str()).collect();
        match requests.is_empty() {
            true => error.to_string(),
            false => format!("{error} (requests {})", requests.join(", ")),
        }
    }
}

/// What is said of a run that cannot go on.
fn failed(run: &Run, position: u32, failure: DrawFailure) -> Output {
    tracing::warn!(request = %run.open().request, %failure, "no token could be drawn");
    Output { seq: run.seq(), position, token: None, logprobs: None, logits: None, failure: Some(failure) }
}

fn no_logits() -> Stop {
    Stop::Failed("llama.cpp has no logits for a row that was marked as output".to_owned())
}

fn load_error(error: impl std::error::Error) -> StageError {
    StageError::Load(chain(&error))
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}

fn check_config(config: &LlamaStageConfig) -> Result<(), StageError> {
    let spec = &config.spec;
    let bad = |what: &str| Err(StageError::Load(format!("layers {} of {}: {what}", spec.layers, spec.model)));
    if config.tap.is_some() == spec.is_last() {
        return bad("every stage but the last needs the name of the tensor that its rows are taken from");
    }
    if config.embedding.is_some() && !spec.is_first() {
        return bad("only the first stage makes rows from tokens");
    }
    match &config.embedding {
        Some(place) if place.n_embd != spec.n_embd || place.n_vocab < spec.n_vocab => {
            bad("the token embeddings are those of another model")
        }
        _ => Ok(()),
    }
}

/// The file has to be what the spec says: nothing in a frame is checked against the file again.
fn check_model(config: &LlamaStageConfig, model: &Model) -> Result<(), StageError> {
    let spec = &config.spec;
    let wrong = |what: &str, found: u32, expected: u32| {
        let path = config.model_path.display();
        Err(StageError::Load(format!("{path} has {found} {what} where {expected} belong")))
    };
    let beside_tokens = config.inject.as_ref().is_some_and(|inject| inject.fed == Fed::Tokens);
    let layers = spec.layers.len() + u32::from(beside_tokens);
    // Layers that predict further tokens stay with the last stage and may be counted.
    if model.n_layer() != layers && !(spec.is_last() && model.n_layer() > layers) {
        return wrong("layers", model.n_layer(), layers);
    }
    if model.n_embd() != spec.n_embd {
        return wrong("values in a row", model.n_embd(), spec.n_embd);
    }
    let takes_tokens = spec.is_first() && config.embedding.is_none();
    if (takes_tokens || beside_tokens || spec.is_last()) && model.n_vocab() != spec.n_vocab {
        return wrong("tokens in its vocabulary", model.n_vocab(), spec.n_vocab);
    }
    Ok(())
}

fn open_embedding(config: &LlamaStageConfig) -> Result<Option<EmbeddingTable>, StageError> {
    let open = |place: &super::EmbeddingPlace| EmbeddingTable::open(&place.path, place.layout());
    config.embedding.as_ref().map(open).transpose().map_err(load_error)
}

fn open_head(spec: &StageSpec, model: &Model) -> Result<Option<Head>, StageError> {
    let head = |vocab: Vocab| Head { drawer: Drawer::new(&vocab), enforcer: Enforcer::new(Lexicon::of(&vocab)) };
    let open = || Vocab::of(model).map(head);
    spec.is_last().then(open).transpose().map_err(load_error)
}

fn context_params(config: &LlamaStageConfig) -> Result<ContextParams, StageError> {
    let (spec, compute) = (&config.spec, &config.compute);
    let n_outputs = match (spec.is_last(), config.keeps_rows) {
        (true, _) => compute.max_logits_rows.saturating_add(spec.n_seq).saturating_add(MAX_EXTRA_ROWS),
        (false, true) => spec.n_seq,
        (false, false) => spec.n_batch,
    };
    Ok(ContextParams {
        n_cells: spec.n_cells,
        n_seq: spec.n_seq,
        n_batch: spec.n_batch,
        n_outputs: n_outputs.min(spec.n_batch),
        threads: compute.threads,
        kv_type: compute.kv_type,
        flash_attention: compute.flash_attention,
        tap: config.tap.clone(),
        inject: config.inject.as_ref().map(|inject| inject.tensor.clone()),
        query_factor: config.query_factor,
    })
}
