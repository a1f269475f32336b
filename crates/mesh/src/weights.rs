//! Weights between nodes: a holder serves the tensors of the files it has; a worker fetches those of its slice,
//! verified chunk by chunk, into its cache.
//!
//! Only tensor bytes and the source's header travel. The worker makes the slice's own header, so that nothing a holder
//! says decides what is loaded but the bytes of the manifest that the worker asked for by digest.
//!
//! [`WeightSource`] and [`Holdings`] are the holder's side, [`SliceFetcher`] and [`SliceCache`] are the worker's.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, PoisonError, RwLock};

use mesh_gguf::{Manifest, Source};
use mesh_types::Digest;

pub mod cache;
mod fetch;
mod holder;
#[cfg(test)]
mod tests;
mod transfer;
mod wire;

pub use cache::{CacheError, Lease, SliceCache};
pub use fetch::{FetchError, SliceFetcher, SliceRequest};
pub use holder::{HolderError, HolderFault};
pub use mesh_gguf::Progress;
pub(crate) use transfer::serve;

/// Where a holder's weights come from. Methods may block; they are called off the async threads.
pub trait WeightSource: Send + Sync + 'static {
    /// The manifest with digest `digest`; `None`: not held here.
    ///
    /// # Errors
    /// Where it cannot be had now.
    fn manifest(&self, digest: &Digest) -> io::Result<Option<Arc<Manifest>>>;

    /// Fills `into` with the bytes of tensor number `tensor` of the manifest's header, from `offset` on. The span exists.
    ///
    /// # Errors
    /// Where the file cannot be read.
    fn read(&self, digest: &Digest, tensor: usize, offset: u64, into: &mut [u8]) -> io::Result<()>;
}

/// The model files that a node has, by manifest digest.
#[derive(Default)]
pub struct Holdings {
    files: RwLock<HashMap<Digest, Held>>,
}

#[derive(Clone)]
struct Held {
    manifest: Arc<Manifest>,
    source: Arc<Source>,
}

impl Holdings {
    /// Offers `source`, whose manifest is `manifest`.
    pub fn add(&self, manifest: Arc<Manifest>, source: Arc<Source>) {
        let mut files = self.files.write().unwrap_or_else(PoisonError::into_inner);
        files.insert(manifest.digest(), Held { manifest, source });
    }

    /// Offers the source with this digest no more.
    pub fn remove(&self, digest: &Digest) {
        self.files.write().unwrap_or_else(PoisonError::into_inner).remove(digest);
    }

    fn get(&self, digest: &Digest) -> Option<Held> {
        self.files.read().unwrap_or_else(PoisonError::into_inner).get(digest).cloned()
    }
}

impl WeightSource for Holdings {
    fn manifest(&self, digest: &Digest) -> io::Result<Option<Arc<Manifest>>> {
        Ok(self.get(digest).map(|held| held.manifest))
    }

    fn read(&self, digest: &Digest, tensor: usize, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let held = self.get(digest).ok_or(io::ErrorKind::NotFound)?;
        held.source.read(tensor, offset, into).map_err(io::Error::other)
    }
}
