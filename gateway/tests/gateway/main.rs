//! The gateway over real sockets, in front of scripted stage-0 nodes.
#![allow(clippy::unwrap_used)] // every one is a check

mod answers;
mod binary;
mod client;
mod conversations;
mod dialects;
mod disconnects;
mod failures;
mod fake;
mod http_rules;
mod lifecycle;
mod mesh_state;
mod replica;
mod tools;
