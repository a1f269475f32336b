//! The node's data directory: made private, locked to one process, and written to atomically.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use fs4::fs_std::FileExt as _;

const LOCK: &str = "lock";

/// A data directory that this process alone uses, for as long as this value lives.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    /// Holds the lock; the kernel releases it when the process ends, however it ends.
    _lock: File,
}

/// Why a data directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DataDirError {
    /// Another process holds the lock.
    #[error("another mesh-node is using {} (pid {pid})", path.display())]
    InUse {
        /// The directory.
        path: PathBuf,
        /// The other's process id, or `unknown`.
        pid: String,
    },
    /// A file or the directory itself cannot be read or written.
    #[error("cannot use {}: {source}", path.display())]
    Io {
        /// What could not be used.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file in it is not what this program writes.
    #[error("{} is damaged: {reason}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong, and what to do.
        reason: String,
    },
}

impl DataDir {
    /// Creates `path` (mode 0700, parents too) unless it exists, and locks it.
    ///
    /// # Errors
    /// [`DataDirError::InUse`] where another process has it.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, DataDirError> {
        let path = path.into();
        let fail = |path: &Path| {
            let path = path.to_owned();
            move |source| DataDirError::Io { path, source }
        };
        DirBuilder::new().recursive(true).mode(0o700).create(&path).map_err(fail(&path))?;
        let lock_path = path.join(LOCK);
        let mut lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&lock_path)
            .map_err(fail(&lock_path))?;
        if !lock.try_lock_exclusive().map_err(fail(&lock_path))? {
            return Err(DataDirError::InUse { path, pid: holder(&mut lock) });
        }
        lock.set_len(0).map_err(fail(&lock_path))?;
        writeln!(lock, "{}", std::process::id()).map_err(fail(&lock_path))?;
        Ok(Self { path, _lock: lock })
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of the file or folder `name` in it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

/// The process id that the lock's holder wrote into it.
fn holder(lock: &mut File) -> String {
    let mut text = String::new();
    match lock.take(20).read_to_string(&mut text) {
        Ok(_) if text.trim().parse::<u32>().is_ok() => text.trim().to_owned(),
        _ => "unknown".to_owned(),
    }
}

/// Replaces the file at `path` by `bytes` in one step; readable by its owner alone.
pub(crate) fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(format!(".{}.tmp", std::process::id()));
    let temporary = PathBuf::from(temporary);
    let written = write_new(&temporary, bytes).and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
        return written;
    }
    // The new name is durable once its directory is.
    match path.parent() {
        Some(parent) => File::open(parent)?.sync_all(),
        None => Ok(()),
    }
}

fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    // Left behind by a crash of a process that had the same id; nobody else is in a locked directory.
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// The contents of a private file, or `None` where it does not exist. A mode that lets others read is tightened.
pub(crate) fn read_private(path: &Path, limit: u64) -> io::Result<Option<Vec<u8>>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let metadata = file.metadata()?;
    if metadata.permissions().mode() & 0o077 != 0 {
        tracing::warn!(path = %path.display(), "others could read this file: its mode is now 0600");
        file.set_permissions(fs::Permissions::from_mode(0o600))?;
    }
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the file is longer than it can be"));
    }
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_directory_is_private_and_has_one_user() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("a/b");
        let dir = DataDir::open(&path).unwrap();
        assert_eq!(mode(&path), 0o700);
        let error = DataDir::open(&path).unwrap_err().to_string();
        assert_eq!(error, format!("another mesh-node is using {} (pid {})", path.display(), std::process::id()));
        drop(dir);
        DataDir::open(&path).unwrap();
    }

    #[test]
    fn a_private_file_is_replaced_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        assert_eq!(read_private(&path, 10).unwrap(), None);
        write_private(&path, b"one").unwrap();
        write_private(&path, b"two").unwrap();
        assert_eq!(mode(&path), 0o600);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(read_private(&path, 10).unwrap().as_deref(), Some(&b"two"[..]));
        assert_eq!(mode(&path), 0o600);
        assert!(read_private(&path, 2).is_err());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no temporary file stays behind");
    }
}
