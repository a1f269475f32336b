//! The canonical chat request: what every dialect of the gateway is turned into, and what a stage-0 node answers.

use crate::ids::{ModelId, RequestId};

/// A chat completion as a stage-0 node sees it, free of any dialect.
#[derive(Clone, Debug, PartialEq)]
pub struct ChatRequest {
    /// Made by the gateway.
    pub request: RequestId,
    /// The model asked for.
    pub model: ModelId,
    /// The conversation; never empty.
    pub messages: Vec<Message>,
    /// Ceiling on generated tokens; `None`: up to the context.
    pub max_tokens: Option<u32>,
    /// What the client set of the sampling; unset fields take the model's, then the product's defaults.
    pub sampling: SamplingOverrides,
    /// Texts that end the answer and are not part of it.
    pub stop: Vec<String>,
}

/// One turn of a conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// `system`, `user`, `assistant`, or another role that the template may know.
    pub role: String,
    /// The turn's text; `None` where the client sent null or nothing.
    pub content: Option<String>,
    /// The participant's name, where given.
    pub name: Option<String>,
}

/// The sampling fields that a client set, and only those.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SamplingOverrides {
    /// See [`crate::Sampling::temperature`].
    pub temperature: Option<f32>,
    /// See [`crate::Sampling::top_k`].
    pub top_k: Option<u32>,
    /// See [`crate::Sampling::top_p`].
    pub top_p: Option<f32>,
    /// See [`crate::Sampling::min_p`].
    pub min_p: Option<f32>,
    /// See [`crate::Sampling::seed`]; unset: drawn at random.
    pub seed: Option<u64>,
    /// See [`crate::Sampling::ignore_eos`].
    pub ignore_eos: Option<bool>,
}
