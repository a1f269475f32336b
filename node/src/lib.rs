//! `mesh-node`: serves models to a mesh, joins meshes, and administers the local node.
//!
//! Puts the rooms together; what each does stands in its own crate. Start with [`app::Node`].
#![forbid(unsafe_code)]

pub mod admin;
pub mod app;
mod backoff;
pub mod board;
pub mod cli;
pub mod doctor;
pub mod draft;
pub mod fleet;
pub mod holdings;
pub mod inspect;
pub mod logs;
pub mod pooling;
pub mod script;
pub mod serve;
pub mod settings;
pub mod stages;
pub mod supervisor;
pub mod template;
