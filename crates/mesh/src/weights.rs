//! Weights between nodes: a holder serves the tensors of the files it has; a worker fetches those of its slice,
//! verified chunk by chunk, into its cache.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mesh_types::{Digest, LayerRange, PeerId};

/// Where a holder's weights come from. Methods may block; they are called off the async threads.
pub trait WeightSource: Send + Sync + 'static {
    /// The header and chunk digests of the source with manifest digest `digest`; `None`: not held here.
    ///
    /// # Errors
    /// Where the file cannot be read.
    fn manifest(&self, digest: &Digest) -> io::Result<Option<Arc<mesh_proto::v1::Manifest>>>;

    /// Fills `into` with the bytes of tensor `tensor` (index in the header) from `offset` on.
    ///
    /// # Errors
    /// Where the span does not exist or the file cannot be read.
    fn read(&self, digest: &Digest, tensor: u32, offset: u64, into: &mut [u8]) -> io::Result<()>;
}

/// What a worker wants.
#[derive(Clone, Debug)]
pub struct SliceRequest {
    /// Manifest digest of the source.
    pub digest: Digest,
    /// The layers of the slice.
    pub layers: LayerRange,
    /// Peers that have the source, in the order in which they are asked.
    pub holders: Vec<PeerId>,
}

/// How far a fetch has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes fetched and verified.
    pub done: u64,
    /// Bytes in all.
    pub total: u64,
}

/// Fetches slices into a cache directory.
#[derive(Clone)]
pub struct SliceFetcher {}

impl SliceFetcher {
    /// A fetcher whose slices lie in `<cache>/slices`.
    pub fn new(_mesh: crate::Mesh, _cache: impl AsRef<Path>) -> Self {
        unimplemented!()
    }

    /// The path of the slice, fetched and verified unless it is in the cache. `progress` is called now and then, from
    /// any thread.
    ///
    /// # Errors
    /// See [`FetchError`]. A holder that fails is followed by the next one.
    ///
    /// # Cancel safety
    /// May be dropped: the unfinished file is removed, or taken up by the next fetch of the same slice.
    pub async fn fetch(
        &self,
        _request: SliceRequest,
        _progress: impl Fn(Progress) + Send + Sync + 'static,
    ) -> Result<PathBuf, FetchError> {
        unimplemented!()
    }
}

/// Why a slice could not be fetched.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// A holder's bytes are not what its manifest says.
    #[error("{holder} sent bytes that do not match its manifest")]
    Mismatch {
        /// Who sent them.
        holder: PeerId,
    },
}
