//! Writes a slice chunk by chunk, in any order, into a file that takes its name only when it is complete.

use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::SlicePlan;
use crate::CHUNK_BYTES;
use crate::error::Error;

static NAMES: AtomicU64 = AtomicU64::new(0);

/// A slice that is being written. Dropped before [`Self::finish`], it leaves nothing behind.
#[derive(Debug)]
pub struct SliceWriter {
    file: File,
    /// Removed on drop until it is renamed.
    partial: Option<PathBuf>,
    target: PathBuf,
    parts: Vec<Progress>,
}

/// What is still missing of a part.
#[derive(Debug)]
struct Progress {
    offset: u64,
    len: u64,
    missing: Vec<bool>,
}

impl SliceWriter {
    /// Begins the slice of `plan` at `target`: the header is written, all else is a hole.
    ///
    /// # Errors
    /// Where the file cannot be made.
    pub fn create(plan: &SlicePlan, target: &Path) -> Result<Self, Error> {
        let partial = partial_path(target);
        let io = |error| Error::io("create", &partial, error);
        let file = OpenOptions::new().write(true).create_new(true).open(&partial).map_err(io)?;
        let progress = |part: &super::Part| {
            let missing = vec![true; part.chunks() as usize];
            Progress { offset: part.offset, len: part.len, missing }
        };
        let mut writer = Self {
            file,
            target: target.to_owned(),
            parts: plan.parts().iter().map(progress).collect(),
            partial: Some(partial.clone()),
        };
        writer.file.set_len(plan.file_len()).map_err(io)?;
        writer.file.write_all(plan.header()).map_err(io)?;
        Ok(writer)
    }

    /// Writes chunk number `chunk` of part number `part`: [`CHUNK_BYTES`] bytes, or what is left of the part.
    ///
    /// # Errors
    /// [`Error::NoSuchChunk`] where these bytes belong nowhere; [`Error::Io`].
    pub fn write_chunk(&mut self, part: usize, chunk: u64, bytes: &[u8]) -> Result<(), Error> {
        let none = || Error::NoSuchChunk { part, chunk, len: bytes.len() };
        let progress = self.parts.get_mut(part).ok_or_else(none)?;
        let missing = usize::try_from(chunk).ok().and_then(|chunk| progress.missing.get_mut(chunk)).ok_or_else(none)?;
        let start = chunk * CHUNK_BYTES;
        if bytes.len() as u64 != CHUNK_BYTES.min(progress.len - start) {
            return Err(none());
        }
        let io = |error| Error::io("write", self.partial.as_deref().unwrap_or(&self.target), error);
        self.file.seek(SeekFrom::Start(progress.offset + start)).map_err(io)?;
        self.file.write_all(bytes).map_err(io)?;
        *missing = false;
        Ok(())
    }

    /// Makes the slice durable and gives it its name.
    ///
    /// # Errors
    /// [`Error::Incomplete`] where chunks are missing; [`Error::Io`].
    pub fn finish(mut self) -> Result<(), Error> {
        let missing: usize =
            self.parts.iter().map(|part| part.missing.iter().filter(|missing| **missing).count()).sum();
        if missing > 0 {
            return Err(Error::Incomplete { missing: missing as u64 });
        }
        let io = |error| Error::io("write", &self.target, error);
        self.file.sync_all().map_err(io)?;
        if let Some(partial) = &self.partial {
            std::fs::rename(partial, &self.target).map_err(io)?;
        }
        self.partial = None;
        Ok(())
    }
}

impl Drop for SliceWriter {
    fn drop(&mut self) {
        if let Some(partial) = &self.partial {
            // Nothing to be done about a failure here.
            let _ = std::fs::remove_file(partial);
        }
    }
}

/// A hidden name beside `target` that no other writer uses.
pub(crate) fn partial_path(target: &Path) -> PathBuf {
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    let number = NAMES.fetch_add(1, Ordering::Relaxed);
    target.with_file_name(format!(".{name}.{}-{number}.partial", std::process::id()))
}
