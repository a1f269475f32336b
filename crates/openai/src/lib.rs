//! The dialects in which clients ask: reading a request's JSON into the canonical [`mesh_types::ChatRequest`], and
//! writing answers, streams and errors in the dialect's shapes.
//!
//! Pure: bytes in, bytes out; no sockets, no clock, no randomness, no keys (the caller gives them in [`Context`]). It
//! knows no peers and no templates. Start with [`parse`] for requests, whose [`Reply`] writes the answer, with
//! [`Event`] for what an answer is made of, with [`error::ApiError`] for every error that a client can see, and with
//! [`fields`] for what is done with each field.
#![forbid(unsafe_code)]

mod completions;
pub mod docs;
pub mod embeddings;
pub mod error;
mod event;
pub mod fields;
mod ignored;
mod json;
mod logprobs;
mod messages;
pub mod openapi;
mod reply;
mod request;
pub mod response;
mod responses;
mod seal;
mod settings;
pub mod sse;
mod stream;
#[cfg(test)]
mod testkit;
pub mod tokens;

pub use error::ApiError;
pub use event::{Answer, Event, Part, TokenLogprob};
pub use messages::{count_tokens, token_count};
pub use reply::{Context, Dialect, Parsed, Reply, parse};
pub use request::{MAX_TOOL_NAME, MAX_TOOLS};
pub use response::{Model, ModelList};
pub use seal::Seal;
pub use settings::{MAX_CHOICES, MAX_STOPS};
