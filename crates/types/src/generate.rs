//! What a run of a model is asked to do, and how it ended.

use serde::{Deserialize, Serialize};

use crate::ids::{RequestId, TokenId};

/// How the next token is drawn from the logits.
///
/// The draw for the i-th generated token is a function of (`seed`, i) and the final distribution alone, so that a run
/// resumed elsewhere goes on as if nothing had happened.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// Divides the logits; 0 means greedy. Default 0.8.
    pub temperature: f32,
    /// Keeps the k most likely tokens; 0 keeps all. Default 40.
    pub top_k: u32,
    /// Keeps the smallest set whose probability reaches this; 1 keeps all. Default 0.95.
    pub top_p: f32,
    /// Drops tokens less likely than this times the most likely; 0 keeps all. Default 0.05.
    pub min_p: f32,
    /// Seed of the counter-based generator.
    pub seed: u64,
    /// Never draw a token that ends the generation.
    pub ignore_eos: bool,
}

impl Default for Sampling {
    fn default() -> Self {
        Self { temperature: 0.8, top_k: 40, top_p: 0.95, min_p: 0.05, seed: 0, ignore_eos: false }
    }
}

impl Sampling {
    /// Always the most likely token.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }
}

/// One run of a model: a prompt to a stream of tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerateSpec {
    /// Whose run this is.
    pub request: RequestId,
    /// The whole prompt; never empty.
    pub prompt: Vec<TokenId>,
    /// Ceiling on generated tokens; the context bounds it as well.
    pub max_tokens: u32,
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// Tokens that end the run; a drawn one is reported and not computed further. Empty where `ignore_eos` holds.
    pub stop_tokens: Vec<TokenId>,
}

/// Why a run ended by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// The model drew a stop token, or a stop string appeared.
    Stop,
    /// `max_tokens` or the context's end was reached.
    Length,
    /// The answer ends with calls of tools, for the client to make. No run of tokens ends so, only the answer that is
    /// read from them.
    ToolCalls,
}

/// Token counts of one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens drawn, the one that ended the run included.
    pub completion_tokens: u32,
    /// Tokens of the prompt whose KV was already there.
    pub cached_tokens: u32,
}
