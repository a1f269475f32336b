//! llama.cpp behind types that cannot be misused: the only crate of this workspace with `unsafe`.
//!
//! Owns: the process-wide back end and its log ([`backend`], [`log`]), models and vocabularies ([`model`], [`vocab`]),
//! the decoding context of a stage with its taps ([`context`]), the context that makes vectors of texts ([`pooled`]),
//! embedding rows read straight from a file ([`embedding`]), the filters that turn logits into a distribution
//! ([`sampler`]), and made-up weights ([`synth`], [`quantize`]).
//! Does not own: what a stage is, how models are cut, how tokens are drawn (`mesh-engine`, `mesh-gguf`).
//!
//! Three rules hold everywhere. A value that points into another keeps it alive (a context its model, a vocabulary its
//! model). Nothing unwinds across C: callbacks catch panics. And what llama.cpp answers with an assertion, which would
//! end the process, is checked before it is asked. Start with [`model::Model::load`], then [`context::Context`].

pub mod backend;
pub mod context;
pub mod embedding;
pub mod log;
pub mod model;
pub mod pooled;
pub mod quantize;
pub mod sampler;
pub mod synth;
pub mod vocab;

pub use backend::{Backend, Device, DeviceKind};
pub use context::{
    AbortHandle, Allocated, Checkpoint, Context, ContextError, ContextParams, DecodeError, DecodeInput, FlashAttention,
    Input, KvType, Place, Saved,
};
pub use embedding::{EmbeddingError, EmbeddingTable, TableLayout};
pub use model::{LoadError, Model, ModelParams};
pub use pooled::{PooledContext, Pooling};
pub use sampler::{Candidate, Filter, SampleError, Sampler};
pub use vocab::{TokenAttr, TokenizeError, Vocab, VocabError};
