//! What runs a model: the [`Stage`] and [`Generator`] traits, the frames that flow through stages, and the stages of
//! this machine.
//!
//! A stage holds a contiguous range of a model's layers and transforms a stream of [`frame::Frame`]s in order. Stages
//! compose: a [`chain::Chain`] of stages is a stage, and a stage in a child process ([`child`]) or on another machine
//! (`mesh-transport`) is one as well. All of them pass the same kit ([`conformance`]).
//!
//! Owns: the traits, the frame types and their codec, the scripted, llama and child stages, sampling and what constrains
//! it; vectors of texts ([`pooler`]).
//! Does not own: scheduling (`mesh-pipeline`), sockets between machines (`mesh-transport`), unsafe code (`kernels-ffi`).
//! Start with [`stage::Stage`], then [`frame::Frame`].
#![forbid(unsafe_code)]

pub mod chain;
pub mod child;
pub mod codec;
pub mod conformance;
pub mod constraint;
mod drawn;
mod error;
pub mod frame;
pub mod generator;
pub mod llama;
pub mod pooler;
pub mod run;
pub mod sampling;
pub mod scripted;
pub mod stage;
#[doc(hidden)]
pub mod testkit;

pub use error::StageError;
pub use frame::{
    Command, DRAWN, DrawFailure, Frame, MAX_EXTRA_ROWS, MicroBatch, Open, Output, Rows, Segment, SeqId, StepFailure,
    StepId, StepResult, Want,
};
pub use generator::{GenerateError, Generation, Generator, TokenEvent};
pub use stage::{Stage, StageLink, StageSpec};
