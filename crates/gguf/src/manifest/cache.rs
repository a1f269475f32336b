//! Remembers manifests on disk, so that a large model is hashed once and not at every start.
//!
//! An entry is valid while all files of the source have the paths, sizes and times of change that they had. It holds
//! the chunk digests only: the header is read from the source anyway.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use mesh_types::Digest;
use sha2::{Digest as _, Sha256};

use super::{CHUNK_BYTES, Manifest};
use crate::Watch;
use crate::error::Error;
use crate::slice::partial_path;
use crate::source::Source;

const MAGIC: &[u8; 8] = b"meshman1";

/// A folder of manifests.
#[derive(Clone, Debug)]
pub struct ManifestCache {
    folder: PathBuf,
}

impl ManifestCache {
    /// Manifests kept in `folder`, which is made when it is first needed.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// The manifest of `source`: remembered, or computed and then remembered.
    ///
    /// # Errors
    /// As [`Manifest::compute`]; and where it cannot be stored.
    pub fn get(&self, source: &Source, watch: Watch<'_>) -> Result<Manifest, Error> {
        if let Some(manifest) = self.load(source) {
            return Ok(manifest);
        }
        let manifest = Manifest::compute(source, watch)?;
        self.store(source, &manifest)?;
        Ok(manifest)
    }

    /// The manifest of `source` if it is remembered. An entry that is damaged or of another version counts as none.
    pub fn load(&self, source: &Source) -> Option<Manifest> {
        let expected = Entry::layout(source);
        let path = self.path(source);
        // The length is known, so that a planted file cannot fill the memory.
        if fs::metadata(&path).ok()?.len() != expected.len {
            return None;
        }
        let bytes = fs::read(&path).ok()?;
        let (body, seal) = bytes.split_last_chunk::<32>()?;
        let body = body.strip_prefix(MAGIC)?;
        let (print, digests) = body.split_first_chunk::<32>()?;
        if *print != expected.fingerprint || *seal != <[u8; 32]>::from(Sha256::digest(body)) {
            return None;
        }
        let mut digests = digests.as_chunks::<32>().0.iter().copied().map(Digest);
        let tensors = source.header().tensors().iter();
        let chunks = tensors
            .map(|tensor| digests.by_ref().take(tensor.n_bytes().div_ceil(CHUNK_BYTES) as usize).collect())
            .collect();
        Some(Manifest::assemble(source.header().clone(), chunks))
    }

    /// Remembers the manifest of `source`, in place of an older one of the same path.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn store(&self, source: &Source, manifest: &Manifest) -> Result<(), Error> {
        let path = self.path(source);
        let mut body = Entry::layout(source).fingerprint.to_vec();
        manifest.chunks.iter().flatten().for_each(|digest| body.extend(digest.0));
        let seal: [u8; 32] = Sha256::digest(&body).into();
        let bytes = [MAGIC.as_slice(), &body, &seal].concat();
        let partial = partial_path(&path);
        fs::create_dir_all(&self.folder)
            .and_then(|()| fs::write(&partial, bytes))
            .and_then(|()| fs::rename(&partial, &path))
            .map_err(|error| Error::io("write", &path, error))
    }

    /// One entry a path: a changed file replaces what was known of it.
    fn path(&self, source: &Source) -> PathBuf {
        let name = Sha256::digest(absolute(source.path()).as_os_str().as_encoded_bytes());
        self.folder.join(format!("{}.manifest", Digest(name.into())))
    }
}

/// What an entry of a source has to look like.
struct Entry {
    len: u64,
    fingerprint: [u8; 32],
}

impl Entry {
    fn layout(source: &Source) -> Self {
        let mut hash = Sha256::new();
        hash.update(source.header().to_bytes());
        for file in source.files() {
            let path = absolute(file.path());
            let path = path.as_os_str().as_encoded_bytes();
            hash.update((path.len() as u64).to_le_bytes());
            hash.update(path);
            hash.update(file.len().to_le_bytes());
            let nanos = match file.modified().duration_since(UNIX_EPOCH) {
                Ok(after) => after.as_nanos() as i128,
                Err(before) => -(before.duration().as_nanos() as i128),
            };
            hash.update(nanos.to_le_bytes());
        }
        let chunks: u64 = source.header().tensors().iter().map(|tensor| tensor.n_bytes().div_ceil(CHUNK_BYTES)).sum();
        Self { len: MAGIC.len() as u64 + 32 + chunks * 32 + 32, fingerprint: hash.finalize().into() }
    }
}

fn absolute(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}
