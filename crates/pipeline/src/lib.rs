//! Runs many sequences at once through one [`mesh_engine::Stage`], which may be a chain of stages on several machines:
//! the pipeline does not know.
//!
//! Owns: which sequence has which KV slot, what goes into a micro-batch and when, the queue, and the stream of each
//! run.
//! Does not own: texts (token ids only), the draw of a token (the last stage does that), placing and re-placing stages.
//!
//! [`scheduler`] decides, as a state machine without time or tasks; [`pipeline`] carries out: one task that moves
//! frames and tokens. [`prefix`] finds what prompts have in common, `lookup` what an answer may repeat; `guesses` keeps what a
//! second model says will come. Start with [`Pipeline`], then [`scheduler::Scheduler`].
#![forbid(unsafe_code)]

mod cost;
mod guesses;
mod lookup;
mod pace;
pub mod pipeline;
pub mod prefix;
pub mod pulse;
mod record;
pub mod scheduler;

pub use pipeline::{Config, Pipeline};
pub use pulse::Pulse;
