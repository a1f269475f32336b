//! The OpenAI chat completions dialect: reading a request's JSON into the canonical [`mesh_types::ChatRequest`], and
//! writing answers, streams and errors in the dialect's shapes.
//!
//! Pure: bytes in, bytes out; no sockets, no clock, no randomness (ids and times are given by the caller). It knows no
//! peers and no templates. Start with [`parse`] for requests, [`stream::ChunkWriter`] for streamed answers,
//! [`response::completion`] for whole ones and [`error::ApiError`] for every error that a client can see.
#![forbid(unsafe_code)]

pub mod error;
pub mod request;
pub mod response;
pub mod sse;
pub mod stream;

pub use error::ApiError;
pub use request::{ParsedChat, parse};
pub use response::{Answer, Head, Model, ModelList};
pub use stream::ChunkWriter;
