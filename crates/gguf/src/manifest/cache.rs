//! Remembers manifests on disk, so that a large model is hashed once and not at every start.
//!
//! An entry for a file here is valid while all files of the source have the paths, sizes and times of change that they
//! had. It holds the chunk digests only: the header is read from the source anyway. A manifest that came from a peer is
//! kept whole, by its digest, which proves it.

use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use mesh_types::Digest;
use sha2::{Digest as _, Sha256};

use super::{CHUNK_BYTES, Manifest};
use crate::Watch;
use crate::error::Error;
use crate::header::{Header, MAX_HEADER_BYTES};
use crate::slice::partial_path;
use crate::source::Source;

const MAGIC: &[u8; 8] = b"meshman1";
/// Begins a manifest that is kept whole: then its header's length as 64 bits, the header, and all digests.
const WHOLE_MAGIC: &[u8; 8] = b"meshsrc1";
/// Most bytes of such a file: the largest header, and the digests of 16 TB.
const MAX_WHOLE: u64 = MAX_HEADER_BYTES + (64 << 20);
/// A manifest of a peer's model that nothing asked for in so long is forgotten.
const FORGET_AFTER: Duration = Duration::from_secs(30 * 24 * 3600);

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

    /// The manifest with this digest, if it was kept; what is damaged counts as nothing.
    pub fn kept(&self, digest: &Digest) -> Option<Manifest> {
        let path = self.whole_path(digest);
        if fs::metadata(&path).ok()?.len() > MAX_WHOLE {
            return None;
        }
        let manifest = Manifest::from_whole(&fs::read(&path).ok()?)?;
        // When it was last asked for; of no consequence where that cannot be written.
        let _ = File::options().write(true).open(&path).and_then(|file| file.set_modified(SystemTime::now()));
        (manifest.digest() == *digest).then_some(manifest)
    }

    /// Keeps a manifest that came from a peer, and forgets those that nobody asked for in a month.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn keep(&self, manifest: &Manifest) -> Result<(), Error> {
        let path = self.whole_path(&manifest.digest());
        let partial = partial_path(&path);
        let write = || {
            fs::create_dir_all(&self.folder)?;
            let mut out = BufWriter::new(File::create(&partial)?);
            out.write_all(WHOLE_MAGIC)?;
            out.write_all(&manifest.header().data_offset().to_le_bytes())?;
            manifest.header().write_to(&mut out)?;
            manifest.chunks.iter().flatten().try_for_each(|digest| out.write_all(&digest.0))?;
            out.flush()?;
            fs::rename(&partial, &path)
        };
        write().map_err(|error| Error::io("write", &path, error))?;
        self.forget_old();
        Ok(())
    }

    fn forget_old(&self) {
        let Ok(entries) = fs::read_dir(&self.folder) else { return };
        for entry in entries.flatten().filter(|entry| entry.path().extension().is_some_and(|kind| kind == "source")) {
            let age = entry.metadata().and_then(|meta| meta.modified()).ok().and_then(|time| time.elapsed().ok());
            if age.is_some_and(|age| age > FORGET_AFTER) {
                // The next one tries again.
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    pub(super) fn whole_path(&self, digest: &Digest) -> PathBuf {
        self.folder.join(format!("{digest}.source"))
    }

    /// One entry a path: a changed file replaces what was known of it.
    fn path(&self, source: &Source) -> PathBuf {
        let name = Sha256::digest(absolute(source.path()).as_os_str().as_encoded_bytes());
        self.folder.join(format!("{}.manifest", Digest(name.into())))
    }
}

impl Manifest {
    /// A manifest as [`ManifestCache::keep`] writes it.
    fn from_whole(bytes: &[u8]) -> Option<Self> {
        let (length, rest) = bytes.strip_prefix(WHOLE_MAGIC)?.split_first_chunk::<8>()?;
        let (header, digests) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
        let header = Header::parse(header).ok()?;
        let (digests, odd) = digests.as_chunks::<32>();
        let mut digests = digests.iter().copied().map(Digest);
        let mut chunks = Vec::with_capacity(header.tensors().len());
        for tensor in header.tensors() {
            let expected = usize::try_from(tensor.n_bytes().div_ceil(CHUNK_BYTES)).ok()?;
            let found: Vec<Digest> = digests.by_ref().take(expected).collect();
            chunks.push((found.len() == expected).then_some(found)?);
        }
        (odd.is_empty() && digests.next().is_none()).then(|| Self::assemble(header, chunks))
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
