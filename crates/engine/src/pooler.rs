//! Vectors of texts, made by a model that pools, in a child process of this one.
//!
//! Such a model is never split: one process holds all of it, and answers one text after the other. Both ends speak
//! [`crate::codec`] over a UNIX socket pair, the child's end being its standard input:
//!
//! ```text
//! parent                                   child
//!   configuration (JSON) ────────────────▶   loads the model
//!   ◀──────────────────── Ready or Failed
//!   a text's tokens ─────────────────────▶
//!   ◀──────────────────── its vector, or why there is none
//! ```
//!
//! Owns: the process, its socket and its end. Does not own: restarts, tokens, what is done with vectors. Start with
//! [`Pooler::spawn`] on one side and [`serve`] on the other.

mod parent;
mod serve;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::llama::Compute;

pub use parent::{PoolError, Pooler};
pub use serve::serve;

/// Bytes of a message in either direction: a text's tokens, or a vector.
const MESSAGE_MAX: u32 = 4 << 20;

/// How a model that pools is loaded. Travels to the child as JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PoolerConfig {
    /// The GGUF file (the first shard of a sharded one).
    pub model_path: PathBuf,
    /// Most tokens of a text.
    pub n_ctx: u32,
    /// How it computes; what is said of caches has no effect.
    pub compute: Compute,
}

/// What a loaded model says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolerSpec {
    /// Values of a vector.
    pub dimensions: u32,
    /// How rows are pooled: `mean`, `cls` or `last`.
    pub pooling: String,
    /// Most tokens of a text.
    pub n_ctx: u32,
    /// Bytes of its weights.
    pub weight_bytes: u64,
}

#[derive(Debug, Serialize, Deserialize)]
enum ToChild {
    /// First of all: the configuration as JSON.
    Config(String),
    /// Tokens of a text.
    Embed(Vec<i32>),
}

#[derive(Debug, Serialize, Deserialize)]
enum FromChild {
    Ready(PoolerSpec),
    /// It could not be loaded: why.
    Failed(String),
    Vector(Vec<f32>),
    /// There is no vector of that text: why.
    Refused(String),
}
