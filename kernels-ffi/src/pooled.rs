//! A context that makes one vector of a text, for models that pool: nothing is generated, and nothing is kept from one
//! text to the next.

use std::ptr::NonNull;

use llama_cpp_sys_2 as sys;

use crate::context::{ContextError, DecodeError};
use crate::log;
use crate::model::Model;

/// How the rows of a text become one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// Their mean.
    Mean,
    /// The first row.
    Cls,
    /// The last row.
    Last,
}

impl Pooling {
    /// The pooling with this number in `*.pooling_type`; `None`: rows are not pooled, or into something that is no
    /// vector of the text (a rank).
    pub fn of(number: u32) -> Option<Self> {
        match number {
            1 => Some(Self::Mean),
            2 => Some(Self::Cls),
            3 => Some(Self::Last),
            _ => None,
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mean => "mean",
            Self::Cls => "cls",
            Self::Last => "last",
        }
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub struct PooledContext {
    raw: NonNull<sys::llama_context>,
    pooling: Pooling,
    n_ctx: u32,
    model: Model,
}

// SAFETY: a llama_context may be used from any thread, one at a time, which `&mut self` ensures.
unsafe impl Send for PooledContext {}

impl Drop for PooledContext {
    fn drop(&mut self) {
        // SAFETY: `raw` came from llama_init_from_model and is freed once, before the model (a field, dropped later).
        unsafe { sys::llama_free(self.raw.as_ptr()) };
    }
}

impl PooledContext {
    /// A context for texts of up to `n_ctx` tokens, on `threads` threads. All of a text is computed at once.
    ///
    /// # Errors
    /// [`ContextError::Invalid`] where the model does not pool, [`ContextError::Refused`] where llama.cpp has no room.
    pub fn new(model: &Model, n_ctx: u32, threads: u32) -> Result<Self, ContextError> {
        if model.is_vocab_only() || n_ctx == 0 || threads == 0 {
            return Err(ContextError::Invalid(
                "a whole model, and at least one token and thread, are needed".to_owned(),
            ));
        }
        // SAFETY: returns a struct by value.
        let mut params = unsafe { sys::llama_context_default_params() };
        params.n_ctx = n_ctx;
        params.n_batch = n_ctx;
        params.n_ubatch = n_ctx;
        params.n_seq_max = 1;
        params.n_threads = i32::try_from(threads).unwrap_or(i32::MAX);
        params.n_threads_batch = params.n_threads;
        params.pooling_type = sys::LLAMA_POOLING_TYPE_UNSPECIFIED;
        params.embeddings = true;
        params.kv_unified = true;
        params.no_perf = true;
        let (context, log) = {
            let _one_at_a_time = model.init_lock().lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            // SAFETY: the model is live and this struct keeps it so.
            log::capture(|| unsafe { sys::llama_init_from_model(model.raw(), params) })
        };
        let raw = NonNull::new(context).ok_or(ContextError::Refused { log })?;
        // SAFETY: the context is live.
        let kind = unsafe { sys::llama_pooling_type(raw.as_ptr()) };
        let pooling = u32::try_from(kind).ok().and_then(Pooling::of);
        // Owns the context from here on, so that it is freed where it is of no use.
        let context = Self { raw, pooling: pooling.unwrap_or(Pooling::Mean), n_ctx, model: model.clone() };
        pooling.map(|_| context).ok_or_else(|| ContextError::Invalid("the model does not pool".to_owned()))
    }

    /// How it pools.
    pub fn pooling(&self) -> Pooling {
        self.pooling
    }

    /// Most tokens of a text.
    pub fn n_ctx(&self) -> u32 {
        self.n_ctx
    }

    /// Values of a vector.
    pub fn dimensions(&self) -> u32 {
        // SAFETY: the model is live.
        u32::try_from(unsafe { sys::llama_model_n_embd_out(self.model.raw()) }).unwrap_or(0)
    }

    /// The vector of a text, as it comes out of the model: not scaled to a length.
    ///
    /// # Errors
    /// [`DecodeError`]; the context can be used further.
    pub fn embed(&mut self, tokens: &[i32]) -> Result<Vec<f32>, DecodeError> {
        if tokens.is_empty() || tokens.len() > self.n_ctx as usize {
            return Err(DecodeError::Invalid(format!("{} tokens where 1 to {} fit", tokens.len(), self.n_ctx)));
        }
        let in_vocabulary = |token: &i32| u32::try_from(*token).is_ok_and(|id| id < self.model.n_vocab());
        if let Some(token) = tokens.iter().find(|token| !in_vocabulary(token)) {
            return Err(DecodeError::Invalid(format!("token {token} is not in the vocabulary")));
        }
        let mut tokens = tokens.to_vec();
        let context = self.raw.as_ptr();
        // SAFETY: the context is live; where it has no memory, nothing happens.
        unsafe { sys::llama_memory_clear(sys::llama_get_memory(context), false) };
        // SAFETY: the batch points to `tokens`, alive and unchanged over the call; positions count from 0, since the
        // memory is empty, and every row is an output where rows are pooled. A model without memory is encoded.
        let (code, log) = log::capture(|| unsafe {
            sys::llama_decode(context, sys::llama_batch_get_one(tokens.as_mut_ptr(), tokens.len() as i32))
        });
        match code {
            0 => {}
            1 => return Err(DecodeError::NoRoom { tokens: tokens.len() }),
            -1 => return Err(DecodeError::Rejected { log }),
            code => return Err(DecodeError::Failed { code, log }),
        }
        // SAFETY: the context is live.
        let vector = unsafe { sys::llama_get_embeddings_seq(context, 0) };
        let missing = DecodeError::Failed { code, log: "there is no vector".to_owned() };
        let vector = NonNull::new(vector).ok_or(missing)?;
        // SAFETY: not null means as many values as the model has dimensions, valid until the next decode.
        Ok(unsafe { std::slice::from_raw_parts(vector.as_ptr(), self.dimensions() as usize) }.to_vec())
    }
}
