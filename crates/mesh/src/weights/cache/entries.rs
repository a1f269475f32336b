//! The files of a cache.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// A slice on the disk, complete or not.
#[derive(Debug)]
pub(super) struct Entry {
    /// The slice's id.
    pub(super) name: String,
    /// Bytes that it takes on the disk.
    pub(super) bytes: u64,
    /// When it was last used or written to.
    pub(super) used: SystemTime,
    complete: bool,
    partial: bool,
}

impl Entry {
    pub(super) fn remove(&self, folder: &Path) -> io::Result<()> {
        if self.complete {
            remove(&folder.join(format!("{}.gguf", self.name)))?;
        }
        if self.partial {
            remove(&folder.join(format!("{}.partial", self.name)))?;
        }
        Ok(())
    }
}

/// Every slice in `folder`, in no order. Other files are none of a cache's business.
pub(super) fn all(folder: &Path) -> io::Result<Vec<Entry>> {
    let mut entries: BTreeMap<String, Entry> = BTreeMap::new();
    for file in std::fs::read_dir(folder)? {
        let file = file?;
        let file_name = file.file_name();
        let Some((name, kind)) = file_name.to_str().and_then(|name| name.split_once('.')) else { continue };
        let is_id = name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !is_id || !matches!(kind, "gguf" | "partial") {
            continue;
        }
        let meta = match file.metadata() {
            Ok(meta) => meta,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let (bytes, used) = (mesh_gguf::allocated_bytes(&meta), meta.modified()?);
        let entry = entries.entry(name.to_owned()).or_insert_with(|| Entry {
            name: name.to_owned(),
            bytes: 0,
            used,
            complete: false,
            partial: false,
        });
        // Two names of one file, if it has both.
        entry.bytes = entry.bytes.max(bytes);
        entry.used = entry.used.max(used);
        entry.complete |= kind == "gguf";
        entry.partial |= kind == "partial";
    }
    Ok(entries.into_values().collect())
}

/// Removes unfinished slices that were last written to longer than `stale` ago, and those under names of no slice. One
/// that has both names was not known to be on the disk when its node ended: it counts as unfinished.
pub(super) fn sweep(folder: &Path, stale: Duration) -> io::Result<()> {
    for file in std::fs::read_dir(folder)? {
        let file = file?;
        let name = file.file_name();
        if name.to_str().is_some_and(|name| name.starts_with('.') && name.ends_with(".partial")) {
            remove(&file.path())?;
        }
    }
    for entry in all(folder)?.into_iter().filter(|entry| entry.partial) {
        if entry.used.elapsed().is_ok_and(|age| age > stale) {
            entry.remove(folder)?;
        } else if entry.complete {
            remove(&folder.join(format!("{}.gguf", entry.name)))?;
        }
    }
    Ok(())
}

fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
