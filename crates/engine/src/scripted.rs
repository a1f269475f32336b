//! A stage without weights: fast, deterministic, and as strict about its slots as llama.cpp.
//!
//! It computes with real token ids through every layer that it claims to hold, so that a chain of scripted slices gives
//! exactly what one scripted stage of the whole model gives, and any row that is lost, swapped or damaged on the way
//! changes what follows. The last stage draws its tokens from a [`Script`] instead of from logits.
//!
//! Owns: the script, the slots' bookkeeping, service time and injected faults. Does not own: vocabulary and templates
//! (the caller gives token ids). Start with [`ScriptedStage`].

mod slots;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use mesh_types::TokenId;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::drawn;
use crate::error::StageError;
use crate::frame::{Frame, MicroBatch, Output, Rows, Segment, SeqId, StepFailure, StepResult, Want};
use crate::run::log_probabilities;
use crate::stage::{LINK_DEPTH, Stage, StageLink, StageSpec};
use slots::Slots;

/// Decides what a scripted model says.
///
/// A function of its arguments alone: a run that is replayed elsewhere must say the same.
pub trait Script: Send + Sync + 'static {
    /// The token drawn after `tokens` (the prompt and everything drawn so far, never empty); `index` counts the drawn
    /// tokens from 0.
    fn next(&self, tokens: &[TokenId], index: u32) -> TokenId;
}

impl<F: Fn(&[TokenId], u32) -> TokenId + Send + Sync + 'static> Script for F {
    fn next(&self, tokens: &[TokenId], index: u32) -> TokenId {
        self(tokens, index)
    }
}

/// Faults that a scripted stage is told to have. Steps are counted over the stage's life, from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// This batch is answered with a [`StepFailure`].
    pub fail_at: Option<u64>,
    /// On this batch the stage is lost: its link ends with [`StageError::Lost`], and no other can be opened.
    pub die_at: Option<u64>,
}

/// See the module's documentation. Cheap; a stage of any range of any model shape.
pub struct ScriptedStage {
    shared: Arc<Shared>,
    /// Ends the link opened last.
    current: Mutex<CancellationToken>,
}

struct Shared {
    spec: StageSpec,
    script: Arc<dyn Script>,
    per_step: Duration,
    per_token: Duration,
    faults: Faults,
    life: Mutex<Life>,
}

#[derive(Default)]
struct Life {
    steps: u64,
    dead: bool,
}

impl ScriptedStage {
    /// A stage of `spec` that answers at once. Only the last stage asks `script`.
    pub fn new(spec: StageSpec, script: impl Script) -> Self {
        let shared = Shared {
            spec,
            script: Arc::new(script),
            per_step: Duration::ZERO,
            per_token: Duration::ZERO,
            faults: Faults::default(),
            life: Mutex::default(),
        };
        Self { shared: Arc::new(shared), current: Mutex::new(CancellationToken::new()) }
    }

    /// Makes each batch take `per_token` times its tokens (in tokio's time; its clock ticks in milliseconds).
    #[must_use]
    pub fn with_service_time(self, per_token: Duration) -> Self {
        self.change(|shared| shared.per_token = per_token)
    }

    /// Makes each batch take `per_step` besides, as a way to another host does.
    #[must_use]
    pub fn with_step_time(self, per_step: Duration) -> Self {
        self.change(|shared| shared.per_step = per_step)
    }

    /// Injects faults.
    #[must_use]
    pub fn with_faults(self, faults: Faults) -> Self {
        self.change(|shared| shared.faults = faults)
    }

    fn change(self, change: impl FnOnce(&mut Shared)) -> Self {
        let old = &self.shared;
        let mut shared = Shared {
            spec: old.spec.clone(),
            script: old.script.clone(),
            per_step: old.per_step,
            per_token: old.per_token,
            faults: old.faults,
            life: Mutex::default(),
        };
        change(&mut shared);
        Self { shared: Arc::new(shared), current: self.current }
    }
}

#[async_trait]
impl Stage for ScriptedStage {
    fn spec(&self) -> &StageSpec {
        &self.shared.spec
    }

    async fn connect(&self) -> Result<StageLink, StageError> {
        let fence = CancellationToken::new();
        let earlier = {
            let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *current, fence.clone())
        };
        earlier.cancel();
        if self.shared.life().dead {
            return Err(self.shared.lost());
        }
        let (input, frames) = mpsc::channel(LINK_DEPTH);
        let (results, output) = mpsc::channel(LINK_DEPTH);
        let mut tasks = JoinSet::new();
        let worker = Worker { slots: Slots::new(&self.shared.spec), shared: self.shared.clone(), results };
        tasks.spawn(worker.run(frames, fence));
        Ok(StageLink { input, output, tasks })
    }
}

impl Shared {
    fn life(&self) -> std::sync::MutexGuard<'_, Life> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lost(&self) -> StageError {
        StageError::Lost {
            model: self.spec.model.clone(),
            layers: self.spec.layers,
            host: "this node".to_owned(),
            reason: "its script says so".to_owned(),
        }
    }
}

/// The task behind one link.
struct Worker {
    shared: Arc<Shared>,
    slots: Slots,
    results: mpsc::Sender<Result<Frame, StageError>>,
}

impl Worker {
    async fn run(mut self, mut frames: mpsc::Receiver<Frame>, fence: CancellationToken) {
        let end = tokio::select! {
            biased;
            () = fence.cancelled() => Err(StageError::Closed),
            end = self.serve(&mut frames) => end,
        };
        if let Err(error) = end {
            // Nobody listening is fine: the link was dropped.
            let _ = self.results.send(Err(error)).await;
        }
    }

    /// Applies frames until the input is closed.
    async fn serve(&mut self, frames: &mut mpsc::Receiver<Frame>) -> Result<(), StageError> {
        while let Some(frame) = frames.recv().await {
            let answer = match frame {
                Frame::Batch(batch) => Some(self.batch(batch).await?),
                Frame::Command(command) => {
                    command.check(&self.shared.spec)?;
                    self.slots.apply(&command)?;
                    (!self.shared.spec.is_last()).then_some(Frame::Command(command))
                }
                Frame::Failure(failure) if !self.shared.spec.is_first() => Some(Frame::Failure(failure)),
                Frame::Failure(_) => return Err(StageError::InvalidFrame("a failure into the first stage".into())),
                Frame::Result(_) => return Err(StageError::InvalidFrame("a result on the way down".into())),
            };
            if let Some(answer) = answer
                && self.results.send(Ok(answer)).await.is_err()
            {
                return Ok(());
            }
        }
        Ok(())
    }

    async fn batch(&mut self, batch: MicroBatch) -> Result<Frame, StageError> {
        batch.check(&self.shared.spec)?;
        for segment in
            batch.segments.iter().filter(|s| matches!(s.want, Want::Token | Want::Verified | Want::Scored(_)))
        {
            if self.slots.prompt_len(segment.seq).is_none() && self.shared.spec.is_last() {
                return Err(StageError::InvalidFrame(format!(
                    "a token wanted of slot {} without a run",
                    segment.seq.0
                )));
            }
        }
        let step = {
            let mut life = self.shared.life();
            life.steps += 1;
            life.steps - 1
        };
        let takes = self.shared.per_step + self.shared.per_token * batch.tokens.len() as u32;
        if !takes.is_zero() {
            tokio::time::sleep(takes).await;
        }
        if self.shared.faults.die_at == Some(step) {
            self.shared.life().dead = true;
            return Err(self.shared.lost());
        }
        if self.shared.faults.fail_at == Some(step) {
            return Ok(failure(&batch, "its script says so".to_owned()));
        }
        Ok(self.compute(batch).unwrap_or_else(|(batch, reason)| failure(&batch, reason)))
    }

    fn compute(&mut self, mut batch: MicroBatch) -> Result<Frame, (MicroBatch, String)> {
        let over = drawn::fill_in(&mut batch, |seq, position| self.drawn(seq, position));
        if let Err(reason) = self.slots.extend(&batch) {
            return Err((batch, reason));
        }
        let n_embd = self.shared.spec.n_embd as usize;
        let mut data = match batch.rows.take() {
            Some(rows) => rows.data,
            None => embed(&batch.tokens, n_embd),
        };
        let mut rows = data.chunks_exact_mut(n_embd);
        for segment in &batch.segments {
            for position in segment.start..segment.start + segment.len {
                let history = self.slots.history(segment.seq, position);
                let Some(row) = rows.next() else { break };
                for layer in self.shared.spec.layers.start()..self.shared.spec.layers.end() {
                    apply_layer(row, layer, history);
                }
            }
        }
        if !self.shared.spec.is_last() {
            batch.rows = Some(Rows { n_embd: self.shared.spec.n_embd, data });
            return Ok(Frame::Batch(batch));
        }
        Ok(Frame::Result(StepResult { step: batch.step, outputs: over.among(self.outputs(&batch, &data)) }))
    }

    fn outputs(&self, batch: &MicroBatch, data: &[f32]) -> Vec<Output> {
        let mut rows = data.chunks_exact(self.shared.spec.n_embd as usize);
        let mut outputs = Vec::new();
        for segment in &batch.segments {
            let rows: Vec<&[f32]> = rows.by_ref().take(segment.len as usize).collect();
            let end = segment.start + segment.len;
            let output = match segment.want {
                Want::Nothing => continue,
                Want::Token => self.token(segment.seq, end, rows.last().copied().unwrap_or_default()),
                Want::Verified => {
                    outputs.extend(self.verified(segment, &rows));
                    continue;
                }
                Want::Scored(next) => {
                    outputs.extend(self.scored(segment, &rows, next));
                    continue;
                }
                Want::Logits => {
                    let all = (segment.start..end).zip(rows);
                    let all = all.flat_map(|(at, row)| self.logits(row, self.next(segment.seq, at + 1)));
                    Output::logits(segment.seq, end, all.collect())
                }
            };
            outputs.push(output);
        }
        outputs
    }

    /// A token behind each row, up to the first that is not the one which the slot holds there.
    fn verified(&self, segment: &Segment, rows: &[&[f32]]) -> Vec<Output> {
        let mut outputs: Vec<Output> = Vec::new();
        for (row, end) in rows.iter().zip(segment.start + 1..) {
            let draft = self.slots.tokens(segment.seq, end).last().copied();
            if outputs.last().is_some_and(|before| before.token != draft) {
                break;
            }
            outputs.push(self.token(segment.seq, end, row));
        }
        outputs
    }

    /// How likely the tokens behind the rows were, the last of which is `next`, or is drawn.
    fn scored(&self, segment: &Segment, rows: &[&[f32]], next: Option<TokenId>) -> Vec<Output> {
        let seq = segment.seq;
        let score = |(row, end): (&&[f32], u32)| {
            let is_last = end == segment.start + segment.len;
            let token = if is_last { next } else { self.slots.tokens(seq, end + 1).last().copied() };
            let Some(token) = token else { return self.token(seq, end, row) };
            let logits: Vec<f32> = self.logits(row, self.next(seq, end)).collect();
            let top = usize::from(self.slots.logprobs(seq).unwrap_or(0));
            Output { logprobs: Some(log_probabilities(&logits, token, top)), ..Output::token(seq, end, token) }
        };
        rows.iter().zip(segment.start + 1..).map(score).collect()
    }

    fn token(&self, seq: SeqId, end: u32, row: &[f32]) -> Output {
        let token = self.next(seq, end);
        let logprobs = self.slots.logprobs(seq).map(|top| {
            let logits: Vec<f32> = self.logits(row, token).collect();
            log_probabilities(&logits, token, usize::from(top))
        });
        Output { logprobs, ..Output::token(seq, end, token) }
    }

    /// What was drawn for `position`, if the slot ends there and the run goes on behind it.
    fn drawn(&self, seq: SeqId, position: u32) -> Option<TokenId> {
        let stop_tokens = self.slots.stop_tokens_behind(seq, position)?;
        Some(self.next(seq, position)).filter(|token| !stop_tokens.contains(token))
    }

    /// What the script says after the slot's first `len` positions, folded into the vocabulary.
    fn next(&self, seq: SeqId, len: u32) -> TokenId {
        let tokens = self.slots.tokens(seq, len);
        let index = len.saturating_sub(self.slots.prompt_len(seq).unwrap_or(len));
        let token = self.shared.script.next(tokens, index).0;
        TokenId(token.rem_euclid(self.shared.spec.n_vocab.cast_signed()))
    }

    /// 16 at the next token, and below 1 a value for every other that depends on the whole row.
    fn logits(&self, row: &[f32], next: TokenId) -> impl Iterator<Item = f32> + use<> {
        let digest = row.iter().fold(0u32, |sum, value| mix(sum ^ value.to_bits()));
        (0..self.shared.spec.n_vocab.cast_signed())
            .map(move |id| if id == next.0 { 16.0 } else { fraction(mix(digest ^ id.cast_unsigned())) })
    }
}

fn failure(batch: &MicroBatch, reason: String) -> Frame {
    Frame::Failure(StepFailure { step: batch.step, reason })
}

fn embed(tokens: &[TokenId], n_embd: usize) -> Vec<f32> {
    let row = |token: &TokenId| {
        let seed = mix(token.0.cast_unsigned());
        (0..n_embd as u32).map(move |i| fraction(mix(seed ^ i)))
    };
    tokens.iter().flat_map(row).collect()
}

/// One layer: every value depends on its own, on the layer, and on all tokens up to its position.
fn apply_layer(row: &mut [f32], layer: u32, history: u32) {
    let seed = mix(history ^ layer.wrapping_mul(0x9e37_79b9));
    for (value, i) in row.iter_mut().zip(0u32..) {
        *value = fraction(mix(value.to_bits() ^ seed.wrapping_add(i)));
    }
}

/// Avalanches all bits (the finaliser of MurmurHash3).
fn mix(mut x: u32) -> u32 {
    x ^= x >> 16;
    x = x.wrapping_mul(0x85eb_ca6b);
    x ^= x >> 13;
    x = x.wrapping_mul(0xc2b2_ae35);
    x ^ (x >> 16)
}

/// `0.0..1.0`, exact in an f32.
fn fraction(x: u32) -> f32 {
    (x >> 8) as f32 / (1 << 24) as f32
}

#[cfg(test)]
mod tests;
