//! What a slice is called, wherever it lies.

use std::fmt;

use mesh_types::{Digest, LayerRange};
use sha2::{Digest as _, Sha256};

/// Stands in a [`SliceId`]; counts up whenever the same source and range would give other bytes.
pub const SLICER_VERSION: u32 = 2;

/// Names a slice by its content: the source's manifest digest, the range, and the slicer's version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SliceId(pub Digest);

impl SliceId {
    /// The id of layers `range` of the source whose manifest has the digest `source`.
    pub fn new(source: Digest, range: LayerRange) -> Self {
        let mut hash = Sha256::new();
        hash.update(b"mesh-node slice\0");
        hash.update(source.0);
        hash.update(range.start().to_le_bytes());
        hash.update(range.end().to_le_bytes());
        hash.update(SLICER_VERSION.to_le_bytes());
        Self(Digest(hash.finalize().into()))
    }
}

impl fmt::Display for SliceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
