//! The real gateway in front of a real stage 0, with a model that says what a test wants.
#![allow(clippy::unwrap_used)] // every one is a check

mod answers;
mod bodies;
mod rig;
