//! Writes a slice chunk by chunk, in any order and from several threads, into a file beside the slice that takes its
//! name when it is complete.
//!
//! The unfinished file is laid out as the finished one, with holes for what is missing, and it is its own journal: who
//! takes it up again keeps what the manifest says is right, and clears the rest ([`SliceWriter::resume`]). A slice has
//! both names while it is not known to be on the disk ([`Unsynced`]).

use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Bytes, Columns, SlicePlan};
use crate::copy::{self, read_exact_at, write_all_at};
use crate::error::Error;
use crate::manifest::{Manifest, Zeros, sha256};
use crate::source::Source;
use crate::{CHUNK_BYTES, Progress, Watch};

static NAMES: AtomicU64 = AtomicU64::new(0);

/// A slice that is being written. The unfinished file stays when this is dropped.
#[derive(Debug)]
pub struct SliceWriter {
    file: File,
    partial: PathBuf,
    parts: Vec<Span>,
    total: u64,
    missing: Mutex<Missing>,
}

/// Where a part's bytes belong, and where they come from.
#[derive(Debug)]
struct Span {
    offset: u64,
    /// Bytes of the source's tensor.
    len: u64,
    /// Index of the source's tensor; `None` for a hole.
    tensor: Option<usize>,
    /// Where only some columns of it are taken.
    columns: Option<Columns>,
}

#[derive(Debug)]
struct Missing {
    /// Of each part, whether each chunk is missing.
    chunks: Vec<Vec<bool>>,
    bytes: u64,
}

/// A chunk that is not written yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissingChunk {
    /// Index into the plan's parts.
    pub part: usize,
    /// Index of the tensor in the source's header.
    pub tensor: usize,
    /// The chunk's number in it.
    pub chunk: u64,
    /// Its bytes, at most [`CHUNK_BYTES`].
    pub len: u64,
}

/// A slice that can be loaded, and that a power cut could still undo. It keeps the name of the unfinished file as well
/// until [`Self::sync`]; one that has both names later must be taken up again like an unfinished one.
#[must_use = "a slice that is not synced is verified again at the next start"]
#[derive(Debug)]
pub struct Unsynced {
    file: File,
    partial: Option<PathBuf>,
}

impl SliceWriter {
    /// Begins the slice of `plan` in the file `partial`, in place of one that is there: the header is written, all else
    /// is a hole.
    ///
    /// # Errors
    /// Where the file cannot be made.
    pub fn create(plan: &SlicePlan, partial: &Path) -> Result<Self, Error> {
        let io = |error| Error::io("create", partial, error);
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(partial).map_err(io)?;
        file.set_len(plan.file_len()).map_err(io)?;
        write_all_at(&file, plan.header(), 0).map_err(io)?;
        Ok(Self::over(plan, file, partial))
    }

    /// Goes on with the file `partial`: keeps the chunks that `manifest` knows, clears all others. Begins anew where
    /// there is no such file, or one of another slice. Holds one chunk in memory at a time; `watch` sees the bytes
    /// looked at.
    ///
    /// # Errors
    /// Where the file cannot be read or written, or `watch` cancels.
    pub fn resume(plan: &SlicePlan, partial: &Path, manifest: &Manifest, watch: Watch<'_>) -> Result<Self, Error> {
        let io = |error| Error::io("open", partial, error);
        let file = match OpenOptions::new().read(true).write(true).open(partial) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Self::create(plan, partial),
            Err(error) => return Err(io(error)),
        };
        let meta = file.metadata().map_err(io)?;
        if meta.len() != plan.file_len() || !begins_with(&file, plan.header()).map_err(io)? {
            return Self::create(plan, partial);
        }
        let writer = Self::over(plan, file, partial);
        let (mut zeros, mut buffer) = (Zeros::default(), Vec::new());
        let (mut done, total) = (0, plan.weight_bytes());
        for job in writer.missing() {
            if writer.holds(job, manifest, &mut zeros, &mut buffer)? {
                writer.written(job.part, job.chunk, job.len);
            }
            done += job.len;
            if watch(Progress { done, total }).is_break() {
                return Err(Error::Cancelled);
            }
        }
        Ok(writer)
    }

    /// The chunks that are missing, in the order of the file.
    pub fn missing(&self) -> Vec<MissingChunk> {
        let missing = self.lock();
        let mut out = Vec::new();
        for (part, (span, chunks)) in self.parts.iter().zip(&missing.chunks).enumerate() {
            let Some(tensor) = span.tensor else { continue };
            for (chunk, _) in chunks.iter().enumerate().filter(|(_, missing)| **missing) {
                let chunk = chunk as u64;
                out.push(MissingChunk { part, tensor, chunk, len: span.chunk_len(chunk) });
            }
        }
        out
    }

    /// Bytes of all chunks.
    pub fn slice_bytes(&self) -> u64 {
        self.total
    }

    /// Bytes of the chunks that are missing.
    pub fn missing_bytes(&self) -> u64 {
        self.lock().bytes
    }

    /// Writes chunk number `chunk` of part number `part`: [`CHUNK_BYTES`] bytes, or what is left of the part. Zeros
    /// alone are left as a hole.
    ///
    /// # Errors
    /// [`Error::NoSuchChunk`] where these bytes belong nowhere; [`Error::Io`].
    pub fn write_chunk(&self, part: usize, chunk: u64, bytes: &[u8]) -> Result<(), Error> {
        let (span, start) = self.place(part, chunk, bytes.len() as u64)?;
        let io = |error| Error::io("write", &self.partial, error);
        if let Some(columns) = span.columns {
            for (from, to, len) in columns.pieces(start, bytes.len() as u64) {
                let piece = &bytes[from as usize..(from + len) as usize];
                write_all_at(&self.file, piece, span.offset + to).map_err(io)?;
            }
        } else if bytes.iter().any(|byte| *byte != 0) {
            write_all_at(&self.file, bytes, span.offset + start).map_err(io)?;
        }
        self.written(part, chunk, bytes.len() as u64);
        Ok(())
    }

    /// Copies all that is missing from `source`, whose header was planned for. `watch` sees the slice's bytes, those
    /// that were there included.
    ///
    /// # Errors
    /// Where a file cannot be read or written or changes meanwhile, or `watch` cancels.
    pub fn copy_missing(&self, source: &Source, watch: Watch<'_>) -> Result<(), Error> {
        let (total, mut buffer) = (self.total, Vec::new());
        for MissingChunk { part, tensor, chunk, len } in self.missing() {
            let (span, start) = self.place(part, chunk, len)?;
            if span.columns.is_some() {
                buffer.resize(len as usize, 0);
                source.read(tensor, start, &mut buffer)?;
                self.write_chunk(part, chunk, &buffer)?;
            } else {
                source.copy(tensor, start, len, (&self.file, span.offset + start))?;
                self.written(part, chunk, len);
            }
            if watch(Progress { done: total - self.missing_bytes(), total }).is_break() {
                return Err(Error::Cancelled);
            }
        }
        source.check_unchanged()
    }

    /// Makes the slice durable and gives it its name, which replaces a file of that name.
    ///
    /// # Errors
    /// [`Error::Incomplete`] where chunks are missing; [`Error::Io`].
    pub fn finish(&self, target: &Path) -> Result<(), Error> {
        self.check_complete()?;
        let io = |error| Error::io("write", target, error);
        self.file.sync_all().map_err(io)?;
        fs::rename(&self.partial, target).map_err(io)
    }

    /// Gives the slice its name, which nothing has yet, before it is durable: a large one can be loaded while the disk
    /// still writes. Where the file system knows no second names, this is [`Self::finish`].
    ///
    /// # Errors
    /// [`Error::Incomplete`] where chunks are missing; [`Error::Io`].
    pub fn publish(self, target: &Path) -> Result<Unsynced, Error> {
        self.check_complete()?;
        if fs::hard_link(&self.partial, target).is_ok() {
            return Ok(Unsynced { file: self.file, partial: Some(self.partial) });
        }
        let file = self.file.try_clone().map_err(|error| Error::io("write", target, error))?;
        self.finish(target)?;
        Ok(Unsynced { file, partial: None })
    }

    fn over(plan: &SlicePlan, file: File, partial: &Path) -> Self {
        let span = |part: &super::Part| {
            let (tensor, columns) = match part.bytes {
                Bytes::Source { tensor } => (Some(tensor), None),
                Bytes::Columns { tensor, columns } => (Some(tensor), Some(columns)),
                Bytes::Hole => (None, None),
            };
            Span { offset: part.offset, len: part.source_len(), tensor, columns }
        };
        let chunks = plan.parts().iter().map(|part| vec![true; part.chunks() as usize]).collect();
        let missing = Mutex::new(Missing { chunks, bytes: plan.weight_bytes() });
        let parts = plan.parts().iter().map(span).collect();
        Self { file, partial: partial.to_owned(), parts, total: plan.weight_bytes(), missing }
    }

    /// Whether a chunk is there and right; if not, it is zeros from now on.
    fn holds(
        &self,
        job: MissingChunk,
        manifest: &Manifest,
        zeros: &mut Zeros,
        buffer: &mut Vec<u8>,
    ) -> Result<bool, Error> {
        let (span, start) = self.place(job.part, job.chunk, job.len)?;
        if span.columns.is_some() {
            // Its digest is that of bytes which are not all here: it is made again.
            return Ok(false);
        }
        let offset = span.offset + start;
        let expected = manifest.chunk(job.tensor, job.chunk);
        if copy::is_hole(&self.file, offset, job.len) {
            return Ok(expected == Some(&zeros.digest(job.len)));
        }
        buffer.resize(job.len as usize, 0);
        read_exact_at(&self.file, buffer, offset).map_err(|error| Error::io("read", &self.partial, error))?;
        if expected == Some(&sha256(buffer)) {
            return Ok(true);
        }
        copy::clear(&self.file, offset, job.len).map_err(|error| Error::io("write", &self.partial, error))?;
        Ok(false)
    }

    /// The part, and where in it the chunk begins.
    fn place(&self, part: usize, chunk: u64, len: u64) -> Result<(&Span, u64), Error> {
        let none = || Error::NoSuchChunk { part, chunk, len: len as usize };
        let span = self.parts.get(part).filter(|span| span.tensor.is_some()).ok_or_else(none)?;
        let start = chunk.checked_mul(CHUNK_BYTES).filter(|start| *start < span.len).ok_or_else(none)?;
        if len == span.chunk_len(chunk) { Ok((span, start)) } else { Err(none()) }
    }

    fn written(&self, part: usize, chunk: u64, len: u64) {
        let mut missing = self.lock();
        if let Some(slot) = missing.chunks.get_mut(part).and_then(|chunks| chunks.get_mut(chunk as usize))
            && std::mem::take(slot)
        {
            missing.bytes -= len;
        }
    }

    fn check_complete(&self) -> Result<(), Error> {
        let missing = self.lock().chunks.iter().flatten().filter(|missing| **missing).count();
        if missing > 0 { Err(Error::Incomplete { missing: missing as u64 }) } else { Ok(()) }
    }

    fn lock(&self) -> MutexGuard<'_, Missing> {
        self.missing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Span {
    fn chunk_len(&self, chunk: u64) -> u64 {
        CHUNK_BYTES.min(self.len.saturating_sub(chunk * CHUNK_BYTES))
    }
}

impl Unsynced {
    /// Waits until the slice is on the disk; from then on it has one name.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn sync(self) -> Result<(), Error> {
        let Some(partial) = self.partial else { return Ok(()) };
        let io = |error| Error::io("write", &partial, error);
        self.file.sync_all().map_err(io)?;
        fs::remove_file(&partial).map_err(io)
    }
}

fn begins_with(file: &File, header: &[u8]) -> std::io::Result<bool> {
    let mut piece = vec![0; header.len().min(1 << 20)];
    for (index, expected) in header.chunks(1 << 20).enumerate() {
        let found = &mut piece[..expected.len()];
        read_exact_at(file, found, (index << 20) as u64)?;
        if found != expected {
            return Ok(false);
        }
    }
    Ok(true)
}

/// A hidden name beside `target` that no other writer uses.
pub(crate) fn partial_path(target: &Path) -> PathBuf {
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    let number = NAMES.fetch_add(1, Ordering::Relaxed);
    target.with_file_name(format!(".{name}.{}-{number}.partial", std::process::id()))
}
