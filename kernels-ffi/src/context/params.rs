//! How a context is made, and what is checked before llama.cpp is asked to.

use std::str::FromStr;

use llama_cpp_sys_2 as sys;
use serde::{Deserialize, Serialize};

use super::probe;
use crate::model::Model;

/// How a context is made.
#[derive(Clone, Debug, PartialEq)]
pub struct ContextParams {
    /// Cells of the KV cache, over all sequences.
    pub n_cells: u32,
    /// Sequences that may be held at the same time; at most 256.
    pub n_seq: u32,
    /// Most tokens in one decode.
    pub n_batch: u32,
    /// Most tokens of one decode that may be marked as output. Memory: `n_vocab` floats each, twice.
    pub n_outputs: u32,
    /// Threads that compute.
    pub threads: u32,
    /// Type of the cached keys and values.
    pub kv_type: KvType,
    /// Fused attention.
    pub flash_attention: FlashAttention,
    /// Tensor to copy out; the graph is cancelled behind it.
    pub tap: Option<String>,
    /// Tensor to overwrite with the rows that came in.
    pub inject: Option<String>,
    /// What every layer multiplies its queries with, in place of what llama.cpp derived; the result of `Qcur-LAYER` is
    /// what is multiplied.
    pub query_factor: Option<f32>,
}

/// Type of cached keys and values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KvType {
    /// 32 bits.
    F32,
    /// 16 bits; the default.
    #[default]
    F16,
    /// 16 bits, with the range of 32.
    Bf16,
    /// 8.5 bits.
    Q8_0,
    /// 6 bits.
    Q5_1,
    /// 5.5 bits.
    Q5_0,
    /// 5 bits.
    Q4_1,
    /// 4.5 bits.
    Q4_0,
    /// 4.5 bits, non-linear.
    #[serde(rename = "iq4_nl")]
    Iq4Nl,
}

const KV_TYPES: [(KvType, &str, sys::ggml_type); 9] = [
    (KvType::F32, "f32", sys::GGML_TYPE_F32),
    (KvType::F16, "f16", sys::GGML_TYPE_F16),
    (KvType::Bf16, "bf16", sys::GGML_TYPE_BF16),
    (KvType::Q8_0, "q8_0", sys::GGML_TYPE_Q8_0),
    (KvType::Q5_1, "q5_1", sys::GGML_TYPE_Q5_1),
    (KvType::Q5_0, "q5_0", sys::GGML_TYPE_Q5_0),
    (KvType::Q4_1, "q4_1", sys::GGML_TYPE_Q4_1),
    (KvType::Q4_0, "q4_0", sys::GGML_TYPE_Q4_0),
    (KvType::Iq4Nl, "iq4_nl", sys::GGML_TYPE_IQ4_NL),
];

impl KvType {
    /// The name in settings.
    pub fn name(self) -> &'static str {
        self.entry().1
    }

    fn ggml_type(self) -> sys::ggml_type {
        self.entry().2
    }

    fn entry(self) -> &'static (Self, &'static str, sys::ggml_type) {
        KV_TYPES.iter().find(|(kind, ..)| *kind == self).unwrap_or(&KV_TYPES[1])
    }
}

impl FromStr for KvType {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = KV_TYPES.iter().find(|(_, name, _)| name.eq_ignore_ascii_case(text));
        found.map(|(kind, ..)| *kind).ok_or_else(|| {
            let names: Vec<_> = KV_TYPES.iter().map(|(_, name, _)| *name).collect();
            format!("`{text}` is no type for the KV cache; there are: {}", names.join(", "))
        })
    }
}

/// Whether attention is computed in one fused step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FlashAttention {
    /// Where the back end can.
    #[default]
    Auto,
    /// Never.
    Off,
    /// Always; an error where the back end cannot.
    On,
}

impl FlashAttention {
    fn raw(self) -> sys::llama_flash_attn_type {
        match self {
            Self::Auto => sys::LLAMA_FLASH_ATTN_TYPE_AUTO,
            Self::Off => sys::LLAMA_FLASH_ATTN_TYPE_DISABLED,
            Self::On => sys::LLAMA_FLASH_ATTN_TYPE_ENABLED,
        }
    }
}

/// Why there is no context.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContextError {
    /// A parameter is out of range.
    #[error("{0}")]
    Invalid(String),
    /// llama.cpp did not make one; mostly for lack of memory.
    #[error("llama.cpp could not make a context: {log}")]
    Refused {
        /// Its error lines.
        log: String,
    },
}

impl ContextParams {
    /// Checks what llama.cpp would answer with an assertion.
    pub(super) fn check(&self, model: &Model) -> Result<(), ContextError> {
        let invalid = |what: &str| Err(ContextError::Invalid(what.to_owned()));
        if model.is_vocab_only() {
            return invalid("only the vocabulary of this model was loaded");
        }
        let max = crate::Backend::init().max_sequences();
        if self.n_seq == 0 || self.n_seq > max {
            return Err(ContextError::Invalid(format!("{} sequences where 1 to {max} are possible", self.n_seq)));
        }
        if self.n_batch == 0 || self.n_cells == 0 || self.threads == 0 || self.n_outputs == 0 {
            return invalid("cells, batch, outputs and threads must be at least 1");
        }
        let names = [&self.tap, &self.inject];
        if names.into_iter().flatten().any(|name| name.is_empty() || name.len() >= probe::MAX_NAME) {
            return invalid("a tensor name has 1 to 63 bytes");
        }
        Ok(())
    }

    /// As llama.cpp wants them, without callbacks.
    pub(super) fn to_raw(&self) -> sys::llama_context_params {
        // SAFETY: returns a struct by value.
        let mut raw = unsafe { sys::llama_context_default_params() };
        raw.n_ctx = self.n_cells;
        raw.n_batch = self.n_batch;
        raw.n_ubatch = self.n_batch;
        raw.n_seq_max = self.n_seq;
        // llama.cpp asserts that its output buffer, at least one row per sequence, is within this limit.
        raw.n_outputs_max = self.n_outputs.max(self.n_seq);
        raw.n_threads = i32::try_from(self.threads).unwrap_or(i32::MAX);
        raw.n_threads_batch = raw.n_threads;
        raw.flash_attn_type = self.flash_attention.raw();
        raw.type_k = self.kv_type.ggml_type();
        raw.type_v = self.kv_type.ggml_type();
        raw.kv_unified = true;
        raw.swa_full = true;
        raw.no_perf = true;
        raw
    }
}
