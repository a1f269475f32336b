//! The identity of a source: its canonical header, and the SHA-256 of every chunk of every tensor.
//!
//! Two sources of the same model have the same manifest whether they are sharded or not. A manifest from a peer is
//! checked against its own header; every chunk that a peer sends is checked against the manifest.

use std::collections::HashMap;

use mesh_types::Digest;
use sha2::{Digest as _, Sha256};

use crate::error::Error;
use crate::header::Header;
use crate::source::Source;
use crate::{Progress, Watch};

mod cache;

pub use cache::ManifestCache;

/// Bytes of a chunk; the last of a tensor may be shorter.
pub const CHUNK_BYTES: u64 = 8 << 20;

/// What a source consists of.
#[derive(Clone, Debug, PartialEq)]
pub struct Manifest {
    header: Header,
    chunks: Vec<Vec<Digest>>,
    digest: Digest,
}

impl Manifest {
    /// Reads and hashes all of `source`, but for its holes. Holds one chunk in memory at a time.
    ///
    /// # Errors
    /// Where reading fails, a file changes meanwhile, or `watch` cancels.
    pub fn compute(source: &Source, watch: Watch<'_>) -> Result<Self, Error> {
        let tensors = source.header().tensors();
        let total: u64 = tensors.iter().map(|tensor| tensor.n_bytes()).sum();
        let largest = tensors.iter().map(|tensor| tensor.n_bytes()).max().unwrap_or(0);
        let mut buffer = vec![0u8; largest.min(CHUNK_BYTES) as usize];
        let mut done = 0;
        let mut zeros = Zeros::default();
        let mut chunks = Vec::with_capacity(tensors.len());
        for (index, tensor) in tensors.iter().enumerate() {
            let mut digests = Vec::with_capacity(tensor.n_bytes().div_ceil(CHUNK_BYTES) as usize);
            while let Some(len) = chunk_len(tensor.n_bytes(), digests.len() as u64) {
                let offset = digests.len() as u64 * CHUNK_BYTES;
                digests.push(if source.is_hole(index, offset, len) {
                    zeros.digest(len)
                } else {
                    let bytes = &mut buffer[..len as usize];
                    source.read(index, offset, bytes)?;
                    sha256(bytes)
                });
                done += len;
                if watch(Progress { done, total }).is_break() {
                    return Err(Error::Cancelled);
                }
            }
            chunks.push(digests);
        }
        source.check_unchanged()?;
        Ok(Self::assemble(source.header().clone(), chunks))
    }

    /// A manifest as a peer sends it: the canonical header's bytes, and per tensor the digests of its chunks one after
    /// the other.
    ///
    /// # Errors
    /// Where the header is unusable or not canonical, or the digests are not as many as its tensors have chunks.
    pub fn from_parts(header: &[u8], tensor_chunks: &[impl AsRef<[u8]>]) -> Result<Self, Error> {
        let parsed = Header::parse(header)?;
        if !parsed.is_canonical() || !parsed.is_written_as(header) {
            return Err(Error::Manifest("its header is not in the canonical form".to_owned()));
        }
        if tensor_chunks.len() != parsed.tensors().len() {
            let (found, expected) = (tensor_chunks.len(), parsed.tensors().len());
            return Err(Error::Manifest(format!("it has digests for {found} tensors, its header has {expected}")));
        }
        let mut chunks = Vec::with_capacity(tensor_chunks.len());
        for (tensor, digests) in parsed.tensors().iter().zip(tensor_chunks) {
            let (digests, rest) = digests.as_ref().as_chunks::<32>();
            if !rest.is_empty() || digests.len() as u64 != tensor.n_bytes().div_ceil(CHUNK_BYTES) {
                let name = crate::error::shown(tensor.name());
                return Err(Error::Manifest(format!("the digests of `{name}` do not fit its size")));
            }
            chunks.push(digests.iter().copied().map(Digest).collect());
        }
        Ok(Self::assemble(parsed, chunks))
    }

    /// The model's header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The digest over all of it: what a model is known by in the mesh.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// Per tensor of the header, the digests of its chunks.
    pub fn chunks(&self) -> impl Iterator<Item = &[Digest]> + '_ {
        self.chunks.iter().map(Vec::as_slice)
    }

    /// The digest of chunk number `chunk` of tensor number `tensor`, if there is one.
    pub fn chunk(&self, tensor: usize, chunk: u64) -> Option<&Digest> {
        self.chunks.get(tensor)?.get(usize::try_from(chunk).ok()?)
    }

    /// Checks that `bytes` are chunk number `chunk` of tensor number `tensor`.
    ///
    /// # Errors
    /// [`Error::ChunkMismatch`], also where there is no such chunk.
    pub fn verify_chunk(&self, tensor: usize, chunk: u64, bytes: &[u8]) -> Result<(), Error> {
        let info = self.header.tensors().get(tensor);
        let digest = self.chunk(tensor, chunk);
        let len = info.and_then(|info| chunk_len(info.n_bytes(), chunk));
        if len == Some(bytes.len() as u64) && digest.is_some_and(|digest| *digest == sha256(bytes)) {
            return Ok(());
        }
        let tensor = info.map_or_else(|| format!("#{tensor}"), |info| crate::error::shown(info.name()));
        Err(Error::ChunkMismatch { tensor, chunk })
    }

    fn assemble(header: Header, chunks: Vec<Vec<Digest>>) -> Self {
        let mut hash = Sha256::new();
        hash.update(b"mesh-node manifest 1\0");
        // A canonical header ends where the data begins.
        hash.update(header.data_offset().to_le_bytes());
        // Hashing does not fail.
        let _ = header.write_to(&mut hash);
        chunks.iter().flatten().for_each(|digest| hash.update(digest.0));
        Self { digest: Digest(hash.finalize().into()), header, chunks }
    }
}

/// Digests of chunks that hold nothing but zeros.
#[derive(Default)]
pub(crate) struct Zeros(HashMap<u64, Digest>);

impl Zeros {
    /// The digest of `len` zeros, at most [`CHUNK_BYTES`].
    pub(crate) fn digest(&mut self, len: u64) -> Digest {
        *self.0.entry(len).or_insert_with(|| sha256(&vec![0; len.min(CHUNK_BYTES) as usize]))
    }
}

/// Length of chunk number `chunk` of a tensor of `n_bytes`; `None` past its end.
fn chunk_len(n_bytes: u64, chunk: u64) -> Option<u64> {
    let left = n_bytes.checked_sub(chunk.checked_mul(CHUNK_BYTES)?)?;
    (left > 0).then_some(left.min(CHUNK_BYTES))
}

pub(crate) fn sha256(bytes: &[u8]) -> Digest {
    Digest(Sha256::digest(bytes).into())
}

#[cfg(test)]
mod tests;
