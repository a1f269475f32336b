//! The wire contract between nodes, and between a node and its command line: messages and services generated from
//! `mesh/v1/*.proto`.
//!
//! Wire types stop at the rim: rooms convert them to `mesh-types` where they enter.
#![forbid(unsafe_code)]

/// Package `mesh.v1`.
#[allow(missing_docs, clippy::all, clippy::pedantic)]
pub mod v1 {
    tonic::include_proto!("mesh.v1");
}

pub mod convert;
