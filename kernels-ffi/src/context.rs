//! The decoding context of one stage: its KV cache, one decode at a time, and what comes out of it.
//!
//! The cache is unified (all sequences share one pool of cells) and a micro-batch is never divided, so rows leave in the
//! order in which they came in. A stage that is not the last names a tensor to *tap*: it is copied out of the graph and
//! the rest of the graph, the head, is cancelled. A stage whose family treats its input specially names a tensor to
//! *inject*: it is overwritten by the rows that came in. Both are done by `context/probe.rs`.

mod allocated;
mod batch;
mod checkpoint;
mod params;
mod probe;
mod saved;

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use llama_cpp_sys_2 as sys;

use self::batch::Scratch;
use self::probe::Probe;
use crate::log;
use crate::model::Model;

pub use self::allocated::Allocated;
pub use self::batch::{DecodeInput, Input, Place};
pub use self::checkpoint::Checkpoint;
pub use self::params::{ContextError, ContextParams, FlashAttention, KvType};
pub use self::probe::ProbeFault;
pub use self::saved::Saved;

/// Ends a running decode from another thread. Cheap to clone; stays raised until it is replaced.
///
/// The CPU back end looks at it after every operation, others only between decodes.
#[derive(Clone, Debug, Default)]
pub struct AbortHandle {
    raised: Arc<AtomicBool>,
}

impl AbortHandle {
    /// A handle that is not raised.
    pub fn new() -> Self {
        Self::default()
    }

    /// Ends the running decode of the context that has this handle, and every later one.
    pub fn abort(&self) {
        self.raised.store(true, Ordering::Release);
    }

    /// Whether [`AbortHandle::abort`] was called.
    pub fn is_aborted(&self) -> bool {
        self.raised.load(Ordering::Acquire)
    }
}

/// Why a decode gave nothing. The positions of its places are not in the cache afterwards.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The input does not fit this context.
    #[error("invalid decode: {0}")]
    Invalid(String),
    /// All cells are taken.
    #[error("the KV cache has no room for {tokens} tokens")]
    NoRoom {
        /// Tokens of this decode.
        tokens: usize,
    },
    /// llama.cpp found the batch inconsistent, mostly a gap in a sequence.
    #[error("llama.cpp rejected the batch: {log}")]
    Rejected {
        /// Its error lines.
        log: String,
    },
    /// An [`AbortHandle`] was raised.
    #[error("the decode was aborted")]
    Aborted,
    /// The computation failed.
    #[error("llama.cpp failed with code {code}: {log}")]
    Failed {
        /// What `llama_decode` returned.
        code: i32,
        /// Its error lines.
        log: String,
    },
    /// The tap or the injection did not work out.
    #[error(transparent)]
    Probe(#[from] ProbeFault),
}

/// A context: the KV cache of a stage and the means to decode with it.
#[derive(Debug)]
pub struct Context {
    raw: NonNull<sys::llama_context>,
    /// llama.cpp holds this pointer; freed after `raw`.
    probe: NonNull<Probe>,
    /// llama.cpp holds a pointer to the flag within; replaced only by [`Context::set_abort`].
    abort: AbortHandle,
    params: ContextParams,
    scratch: Scratch,
    /// Of the last decode: whether place i was an output.
    outputs: Vec<bool>,
    allocated: Allocated,
    model: Model,
}

// SAFETY: a llama_context may be used from any thread, one at a time, which `&mut self` ensures; the raw pointers in
// `scratch` point into itself and are made anew in every decode; `probe` is owned.
unsafe impl Send for Context {}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: `raw` came from llama_init_from_model and is freed once, before the model (a field, dropped later)
        // and before the probe that it points to, which came from Box::into_raw.
        unsafe {
            sys::llama_free(self.raw.as_ptr());
            drop(Box::from_raw(self.probe.as_ptr()));
        }
    }
}

impl Context {
    /// Makes a context with an empty cache. Allocates the whole cache now.
    ///
    /// # Errors
    /// [`ContextError`].
    pub fn new(model: &Model, params: ContextParams) -> Result<Self, ContextError> {
        params.check(model)?;
        let abort = AbortHandle::new();
        let probe = Box::new(Probe::new(&params, model));
        let has_probe = params.tap.is_some() || params.inject.is_some() || params.query_factor.is_some();
        let probe = NonNull::from(Box::leak(probe));
        let mut raw = params.to_raw();
        raw.abort_callback = Some(probe::on_abort_check);
        raw.abort_callback_data = Arc::as_ptr(&abort.raised).cast_mut().cast();
        if has_probe {
            raw.cb_eval = Some(probe::on_eval);
            raw.cb_eval_user_data = probe.as_ptr().cast();
        }
        let (context, log, sizes) = {
            let _one_at_a_time = model.init_lock().lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            // SAFETY: the model is live and this struct keeps it so; the callbacks' data live until after llama_free.
            log::capture_sizes(|| unsafe { sys::llama_init_from_model(model.raw(), raw) })
        };
        let Some(context) = NonNull::new(context) else {
            // SAFETY: nothing else points to the probe: llama.cpp made no context.
            drop(unsafe { Box::from_raw(probe.as_ptr()) });
            return Err(ContextError::Refused { log });
        };
        // llama.cpp lowers it to the size of the cache, and asserts that no batch is larger.
        // SAFETY: the context is live.
        let n_batch = unsafe { sys::llama_n_batch(context.as_ptr()) }.min(params.n_batch);
        let (params, model) = (ContextParams { n_batch, ..params }, model.clone());
        let (scratch, outputs, allocated) = (Scratch::default(), Vec::new(), Allocated::of(&sizes));
        Ok(Self { raw: context, probe, abort, params, scratch, outputs, allocated, model })
    }

    /// Its parameters; `n_batch` is at most the size of the cache.
    pub fn params(&self) -> &ContextParams {
        &self.params
    }

    /// What llama.cpp allocated for it.
    pub fn allocated(&self) -> Allocated {
        self.allocated
    }

    /// Its model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Puts `handle` in the place of the one before, which has no effect any more.
    pub fn set_abort(&mut self, handle: AbortHandle) {
        let data = Arc::as_ptr(&handle.raised).cast_mut().cast();
        // SAFETY: no decode runs (`&mut self`); the flag lives as long as `self.abort`, which is replaced below.
        unsafe { sys::llama_set_abort_callback(self.raw.as_ptr(), Some(probe::on_abort_check), data) };
        self.abort = handle;
    }

    /// Computes one micro-batch: its positions enter the cache, and rows or logits can be read.
    ///
    /// # Errors
    /// [`DecodeError`]; the cache is then as if the batch's positions had never come.
    pub fn decode(&mut self, input: &DecodeInput<'_>) -> Result<(), DecodeError> {
        self.outputs.clear();
        self.check(input)?;
        if self.abort.is_aborted() {
            return Err(DecodeError::Aborted);
        }
        let batch = self.scratch.fill(input, &self.model);
        self.arm_probe(input);
        // SAFETY: the context is live; the batch's arrays are in `scratch` and in `input`, both alive and unchanged over
        // the call, with the lengths that `check` and `fill` ensured.
        let (code, log) = log::capture(|| unsafe { sys::llama_decode(self.raw.as_ptr(), batch) });
        let result = match code {
            0 => self.probe_fault(),
            1 => Err(DecodeError::NoRoom { tokens: input.places.len() }),
            2 => Err(DecodeError::Aborted),
            -1 => Err(DecodeError::Rejected { log }),
            code => Err(DecodeError::Failed { code, log }),
        };
        match &result {
            Ok(()) => self.outputs.extend(input.places.iter().map(|place| place.output)),
            // Nothing entered the cache, and what is there from these positions on is older than this batch.
            Err(DecodeError::Rejected { .. } | DecodeError::NoRoom { .. }) => {}
            Err(_) => self.forget(input.places),
        }
        result
    }

    /// The tapped rows of the last decode, `[places, n_embd]`. Empty without a tap.
    pub fn take_rows(&mut self) -> Vec<f32> {
        // SAFETY: no decode runs, so llama.cpp does not use the probe.
        std::mem::take(unsafe { &mut self.probe.as_mut().rows })
    }

    /// The raw logits (`n_vocab`) of place `index` of the last decode; `None` where it was not marked as output.
    pub fn logits(&mut self, index: usize) -> Option<&[f32]> {
        if self.params.tap.is_some() || !*self.outputs.get(index)? {
            return None;
        }
        let index = i32::try_from(index).ok()?;
        // SAFETY: the context is live and place `index` of the last decode was an output.
        let logits = unsafe { sys::llama_get_logits_ith(self.raw.as_ptr(), index) };
        let n_vocab = self.model.n_vocab() as usize;
        // SAFETY: not null means a row of n_vocab floats, valid until the next decode, which needs `&mut self`.
        NonNull::new(logits).map(|logits| unsafe { std::slice::from_raw_parts(logits.as_ptr(), n_vocab) })
    }

    /// Forgets the positions `from..` of `seq`. False where a part of a sequence cannot be removed (recurrent layers);
    /// nothing is changed then.
    #[must_use]
    pub fn truncate(&mut self, seq: u32, from: u32) -> bool {
        let (Some(seq), Ok(from)) = (self.seq_id(seq), i32::try_from(from)) else { return true };
        // SAFETY: the memory belongs to the live context, and `seq` is one of its sequences.
        unsafe { sys::llama_memory_seq_rm(self.memory(), seq, from, -1) }
    }

    /// Forgets all of `seq`.
    pub fn clear_seq(&mut self, seq: u32) {
        if let Some(seq) = self.seq_id(seq) {
            // SAFETY: as in `truncate`; removing a whole sequence never fails.
            unsafe { sys::llama_memory_seq_rm(self.memory(), seq, -1, -1) };
        }
    }

    /// Shares the positions `..len` of `from` with `to`. No data is copied: both then use the same cells. With
    /// recurrent layers the whole state is copied, whatever `len` says.
    pub fn copy_seq(&mut self, from: u32, to: u32, len: u32) {
        if let (Some(from), Some(to), Ok(len)) = (self.seq_id(from), self.seq_id(to), i32::try_from(len))
            && from != to
            && len > 0
        {
            // Some of these families assert that nothing less is asked for.
            let end = if self.model.is_recurrent() { -1 } else { len };
            // SAFETY: as in `truncate`; a part of a sequence may be copied because the cache is unified.
            unsafe { sys::llama_memory_seq_cp(self.memory(), from, to, 0, end) };
        }
    }

    /// Whether `seq`, cut back to `len` positions, still has all that the next position attends to. A layer with a
    /// sliding window gives up cells behind its window, seen from where the sequence ended before it was cut.
    pub fn can_continue(&self, seq: u32, len: u32) -> bool {
        let Some(seq) = self.seq_id(seq) else { return false };
        let window = self.model.sliding_window();
        if window == 0 || len == 0 {
            return true;
        }
        // SAFETY: as in `truncate`.
        let first = unsafe { sys::llama_memory_seq_pos_min(self.memory(), seq) };
        u32::try_from(first).is_ok_and(|first| first <= len.saturating_sub(window))
    }

    /// Forgets all sequences.
    pub fn clear(&mut self) {
        // SAFETY: the memory belongs to the live context.
        unsafe { sys::llama_memory_clear(self.memory(), false) };
    }

    /// Positions held by `seq`: one more than the largest.
    pub fn seq_len(&self, seq: u32) -> u32 {
        let Some(seq) = self.seq_id(seq) else { return 0 };
        // SAFETY: as in `truncate`.
        u32::try_from(unsafe { sys::llama_memory_seq_pos_max(self.memory(), seq) } + 1).unwrap_or(0)
    }

    fn memory(&self) -> sys::llama_memory_t {
        // SAFETY: the context is live.
        unsafe { sys::llama_get_memory(self.raw.as_ptr()) }
    }

    fn seq_id(&self, seq: u32) -> Option<i32> {
        (seq < self.params.n_seq).then(|| i32::try_from(seq).ok()).flatten()
    }

    fn check(&self, input: &DecodeInput<'_>) -> Result<(), DecodeError> {
        let invalid = |what: String| Err(DecodeError::Invalid(what));
        let n = input.places.len();
        if n == 0 || n > self.params.n_batch as usize {
            return invalid(format!("{n} tokens where at most {} fit", self.params.n_batch));
        }
        if let Some(place) = input.places.iter().find(|p| p.seq >= self.params.n_seq || p.pos >= i32::MAX as u32) {
            return invalid(format!("position {} of sequence {}", place.pos, place.seq));
        }
        let outputs = input.places.iter().filter(|place| place.output).count();
        if outputs > self.params.n_outputs as usize {
            return invalid(format!("{outputs} output rows where at most {} fit", self.params.n_outputs));
        }
        if let Input::Tokens(tokens) | Input::Beside(_, tokens) = input.input {
            if tokens.len() != n {
                return invalid(format!("{} tokens for {n} places", tokens.len()));
            }
            if let Some(token) = tokens.iter().find(|token| !self.is_token(**token)) {
                return invalid(format!("token {token} is not in the vocabulary"));
            }
        }
        match input.input {
            Input::Covered(_) | Input::Beside(..) if self.params.inject.is_none() => {
                invalid("rows to cover a tensor with, where none is injected".to_owned())
            }
            Input::Rows(rows) | Input::Covered(rows) | Input::Beside(rows, _)
                if rows.len() != n * self.model.n_embd() as usize =>
            {
                invalid(format!("{} values for {n} rows of {}", rows.len(), self.model.n_embd()))
            }
            _ => Ok(()),
        }
    }

    fn is_token(&self, token: i32) -> bool {
        u32::try_from(token).is_ok_and(|id| id < self.model.n_vocab())
    }

    fn arm_probe(&mut self, input: &DecodeInput<'_>) {
        let rows = match input.input {
            Input::Rows(rows) | Input::Covered(rows) | Input::Beside(rows, _) => rows,
            Input::Tokens(_) => &[],
        };
        // SAFETY: no decode runs, so llama.cpp does not use the probe. The pointer to the rows that it keeps is used
        // only within the decode that follows, over which `input` lives.
        unsafe { self.probe.as_mut() }.arm(rows, input.places.len());
    }

    fn probe_fault(&mut self) -> Result<(), DecodeError> {
        // SAFETY: no decode runs, so llama.cpp does not use the probe.
        Ok(unsafe { self.probe.as_mut() }.verdict()?)
    }

    /// Removes the positions of `places`, and behind them, from their sequences.
    fn forget(&mut self, places: &[Place]) {
        for (i, place) in places.iter().enumerate() {
            let is_first_of_its_sequence = places[..i].iter().all(|earlier| earlier.seq != place.seq);
            if is_first_of_its_sequence && !self.truncate(place.seq, place.pos) {
                self.clear_seq(place.seq);
            }
        }
    }
}
