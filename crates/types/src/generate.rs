//! What a run of a model is asked to do, and how it ended.

use serde::{Deserialize, Serialize};

use crate::constraint::Constraint;
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
    /// Divides the positive logits of the tokens among the last [`Self::repeat_last_n`], and multiplies their negative
    /// ones; 1 changes nothing. Default 1.
    pub repeat_penalty: f32,
    /// How many of the last tokens, those of the prompt included, are penalised by [`Self::repeat_penalty`]. Default 64;
    /// at most [`Self::MAX_LAST_N`] count.
    pub repeat_last_n: u32,
    /// Taken off the logit of every token that this run has generated. Default 0.
    pub presence_penalty: f32,
    /// Taken off the logit of a token as often as this run has generated it. Default 0.
    pub frequency_penalty: f32,
    /// Seed of the counter-based generator.
    pub seed: u64,
    /// Never draw a token that ends the generation.
    pub ignore_eos: bool,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 0.8,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            repeat_penalty: 1.0,
            repeat_last_n: 64,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            seed: 0,
            ignore_eos: false,
        }
    }
}

impl Sampling {
    /// Most tokens that [`Self::repeat_last_n`] looks back.
    pub const MAX_LAST_N: u32 = 1 << 16;

    /// Always the most likely token.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }
}

/// One run of a model: a prompt to a stream of tokens. [`GenerateSpec::new`] has the defaults.
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
    /// Added to the raw logits of these tokens, at most [`Self::MAX_LOGIT_BIAS`].
    pub logit_bias: Vec<(TokenId, f32)>,
    /// How many of the most likely tokens are reported with each drawn one and its own log probability, at most
    /// [`Logprobs::MAX_TOP`]; `None`: nothing is.
    pub logprobs: Option<u8>,
    /// Whether the same is reported of the prompt's tokens. The whole prompt is computed then, whatever is cached.
    pub score_prompt: bool,
    /// Whether a cached beginning of the prompt may be taken over; `None`: unless it costs what [`Self::repeatable`] asks
    /// for.
    pub reuse: Option<bool>,
    /// Whether the run is to give the same tokens whenever it runs alone: nothing is drafted, and where nothing else runs
    /// it is computed as on stages that hold nothing. Kernels add up in another order otherwise.
    pub repeatable: bool,
    /// What may be generated.
    pub constraint: Option<Constraint>,
    /// Tokens that end the run; a drawn one is reported and not computed further. Empty where `ignore_eos` holds and no
    /// constraint ends the run.
    pub stop_tokens: Vec<TokenId>,
}

impl GenerateSpec {
    /// Most entries of [`Self::logit_bias`].
    pub const MAX_LOGIT_BIAS: usize = 1024;

    /// A run of `prompt` with default sampling and nothing else asked for, which ends with the context.
    pub fn new(request: RequestId, prompt: Vec<TokenId>) -> Self {
        Self {
            request,
            prompt,
            max_tokens: u32::MAX,
            sampling: Sampling::default(),
            logit_bias: Vec::new(),
            logprobs: None,
            score_prompt: false,
            reuse: None,
            repeatable: false,
            constraint: None,
            stop_tokens: Vec::new(),
        }
    }
}

/// How likely a token was: natural logarithms of the softmax of the raw logits, before biases, penalties, grammars
/// and filters.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Logprobs {
    /// Of the token that was drawn, or that stands in the prompt.
    pub chosen: f32,
    /// The most likely tokens, the most likely first and equal ones by id; as many as were asked for.
    pub top: Vec<(TokenId, f32)>,
}

impl Logprobs {
    /// Most tokens in [`Self::top`].
    pub const MAX_TOP: u8 = 20;
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
    /// Of [`Self::completion_tokens`], those of what the model thinks. Only who reads an answer knows.
    pub reasoning_tokens: u32,
    /// Drafts that came true: drawn tokens that took no step of their own.
    pub accepted_tokens: u32,
    /// Drafts that did not.
    pub rejected_tokens: u32,
}
