//! What a model file is, without running it: reads GGUF headers from untrusted bytes, knows which model families split
//! exactly into stages, plans and writes the slice of a layer range, and gives a source its identity.
//!
//! Owns: the GGUF format ([`header`], [`source`]), the family table ([`family`]), slices ([`mod@slice`]) and manifests
//! ([`manifest`]), and what a stage takes in memory ([`memory`]). Does not own: loading a model (`kernels-ffi`), fetching
//! bytes from peers, placement.
//!
//! Start with [`Source::open`] for a file on disk and [`Header::parse`] for a header that a peer sent; then
//! [`ModelInfo::of`], [`SlicePlan::new`] and [`Manifest::compute`]. Pure: files through `std`, no clock, no runtime.
#![forbid(unsafe_code)]

mod copy;
pub mod error;
pub mod family;
pub mod ggml;
pub mod header;
pub mod info;
pub mod manifest;
pub mod memory;
pub mod metadata;
pub mod slice;
pub mod source;
pub mod value;

#[cfg(test)]
mod craft;

use std::ops::ControlFlow;

pub use copy::allocated_bytes;
pub use error::{Error, HeaderError};
pub use family::{Boundary, Family, Inject, Input};
pub use ggml::GgmlType;
pub use header::{Header, TensorInfo};
pub use info::{ModelInfo, allowed_cuts, avoided_sizes, check_range};
pub use manifest::{CHUNK_BYTES, Manifest, ManifestCache};
pub use memory::{Footprint, LayerCache, Room};
pub use metadata::Metadata;
pub use slice::{
    Bytes, Columns, EmbeddingSource, MissingChunk, Part, SLICER_VERSION, SliceId, SliceKind, SlicePlan, SliceWriter,
    Unsynced,
};
pub use source::Source;
pub use value::{Array, Value, ValueType};

/// How far a long piece of work is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes done.
    pub done: u64,
    /// Bytes in all.
    pub total: u64,
}

/// Called after every chunk of a long piece of work; `Break` cancels it ([`Error::Cancelled`]).
pub type Watch<'a> = &'a mut dyn FnMut(Progress) -> ControlFlow<()>;
