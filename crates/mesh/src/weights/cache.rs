//! The slices of this machine: where they lie, how much disk they may take, and which of them are in use.
//!
//! A folder of `<slice id>.gguf`, and of `<slice id>.partial` for those that are not complete; there is one cache for it.
//! Whoever uses a slice holds a [`Lease`]; what nobody holds goes when room is needed, least recently used first.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use mesh_gguf::SliceId;
use mesh_types::ByteSize;
use tokio::sync::OwnedMutexGuard;
use tokio_util::task::TaskTracker;

mod entries;
#[cfg(test)]
mod tests;

use entries::Entry;

/// The part of the disk that a cache may take unless told otherwise.
const SHARE_OF_DISK: u64 = 5;
/// An unfinished slice that nobody took up again in so long is removed at the start.
const STALE_AFTER: Duration = Duration::from_secs(7 * 24 * 3600);

/// A folder of slices with a size limit. Clones share it.
#[derive(Clone, Debug)]
pub struct SliceCache {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    folder: PathBuf,
    limit: ByteSize,
    state: Mutex<State>,
    /// What still goes to the disk.
    syncing: TaskTracker,
}

#[derive(Debug, Default)]
struct State {
    /// Slices in use, by name.
    held: HashMap<String, Held>,
    /// One maker at a time for each slice.
    turns: HashMap<SliceId, Weak<tokio::sync::Mutex<()>>>,
}

#[derive(Debug, Default)]
struct Held {
    leases: usize,
    /// Bytes that it will take when it is complete.
    reserved: u64,
}

/// Holds a slice, or the room for one, in the cache.
#[derive(Debug)]
pub struct Lease {
    name: String,
    path: PathBuf,
    shared: Arc<Shared>,
}

/// Why the cache cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// The operating system refused.
    #[error("cannot use the cache {}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The limit leaves no room, even without all that is not in use.
    #[error("the slice takes {needed} and the cache may hold {limit} (--cache), of which {in_use} are in use")]
    Limit {
        /// Bytes of the slice.
        needed: ByteSize,
        /// The limit.
        limit: ByteSize,
        /// Bytes of other slices in use.
        in_use: ByteSize,
    },
    /// The disk is full.
    #[error("{needed} are still to be fetched and the disk of the cache has {free} left")]
    Disk {
        /// Bytes to fetch.
        needed: ByteSize,
        /// Bytes that are free.
        free: ByteSize,
    },
}

impl SliceCache {
    /// The cache in `folder`, which is made where there is none. It holds at most `limit`; without one, a fifth of the
    /// disk. Leftovers of earlier runs that nobody can use are removed.
    ///
    /// # Errors
    /// [`CacheError::Io`].
    pub fn open(folder: impl Into<PathBuf>, limit: Option<ByteSize>) -> Result<Self, CacheError> {
        let folder = folder.into();
        let io = |source| CacheError::Io { path: folder.clone(), source };
        std::fs::create_dir_all(&folder).map_err(io)?;
        let limit = match limit {
            Some(limit) => limit,
            None => ByteSize(fs4::total_space(&folder).map_err(io)? / SHARE_OF_DISK),
        };
        entries::sweep(&folder, STALE_AFTER).map_err(io)?;
        let shared = Shared { folder: folder.clone(), limit, state: Mutex::default(), syncing: TaskTracker::new() };
        let cache = Self { shared: Arc::new(shared) };
        // A lower limit than last time: nothing is in use yet, so this cannot fail for want of room.
        cache.evict(&cache.lock(), &HashSet::new(), 0).map_err(io)?;
        Ok(cache)
    }

    /// The most that it holds.
    pub fn limit(&self) -> ByteSize {
        self.shared.limit
    }

    /// Bytes on the disk.
    ///
    /// # Errors
    /// [`CacheError::Io`].
    pub fn used(&self) -> Result<ByteSize, CacheError> {
        let entries = entries::all(&self.shared.folder).map_err(|source| self.io(source))?;
        Ok(ByteSize(entries.iter().map(|entry| entry.bytes).sum()))
    }

    /// Where the slice lies when it is complete.
    pub fn path(&self, id: SliceId) -> PathBuf {
        self.shared.folder.join(format!("{id}.gguf"))
    }

    /// The slice, if it is complete. It counts as used now.
    pub fn lease(&self, id: SliceId) -> Option<Lease> {
        let path = self.path(id);
        let mut state = self.lock();
        let file = std::fs::File::options().write(true).open(&path).ok()?;
        // A time that cannot be written makes it go earlier than others, no more.
        let _ = file.set_modified(SystemTime::now());
        Some(self.hold(&mut state, id, 0))
    }

    /// Waits until nobody else makes this slice.
    ///
    /// # Cancel safety
    /// May be dropped.
    pub(super) async fn turn(&self, id: SliceId) -> OwnedMutexGuard<()> {
        let turn = {
            let mut state = self.lock();
            state.turns.retain(|_, turn| turn.strong_count() > 0);
            let known = state.turns.get(&id).and_then(Weak::upgrade);
            known.unwrap_or_else(|| {
                let turn = Arc::default();
                state.turns.insert(id, Arc::downgrade(&turn));
                turn
            })
        };
        turn.lock_owned().await
    }

    /// Makes room for a slice of `bytes`, and holds it. Removes others, least recently used first.
    ///
    /// # Errors
    /// [`CacheError::Limit`], [`CacheError::Io`].
    pub(super) fn room(&self, id: SliceId, bytes: u64) -> Result<Lease, CacheError> {
        let mut state = self.lock();
        let own = HashSet::from([id.to_string()]);
        let in_use = self.evict(&state, &own, bytes).map_err(|source| self.io(source))?;
        if in_use.saturating_add(bytes) > self.shared.limit.0 {
            let (needed, limit) = (ByteSize(bytes), self.shared.limit);
            return Err(CacheError::Limit { needed, limit, in_use: ByteSize(in_use) });
        }
        Ok(self.hold(&mut state, id, bytes))
    }

    /// Checks that the disk has room for `bytes` more.
    ///
    /// # Errors
    /// [`CacheError::Disk`], [`CacheError::Io`].
    pub(super) fn check_disk(&self, bytes: u64) -> Result<(), CacheError> {
        let free = fs4::available_space(&self.shared.folder).map_err(|source| self.io(source))?;
        if free < bytes { Err(CacheError::Disk { needed: ByteSize(bytes), free: ByteSize(free) }) } else { Ok(()) }
    }

    /// Where an unfinished slice lies.
    pub(super) fn partial(&self, id: SliceId) -> PathBuf {
        self.shared.folder.join(format!("{id}.partial"))
    }

    /// Runs `sync`, which [`Self::close`] waits for.
    pub(super) fn sync_later(&self, sync: impl FnOnce() + Send + 'static) {
        self.shared.syncing.spawn_blocking(sync);
    }

    /// Waits until all slices are on the disk. Without it, those that are not are verified again at the next start.
    ///
    /// # Cancel safety
    /// May be dropped.
    pub async fn close(&self) {
        self.shared.syncing.close();
        self.shared.syncing.wait().await;
    }

    /// Removes what is not in use until `bytes` fit under the limit, or nothing is left to remove. `besides` are names
    /// that do not count, and stay. Gives the bytes that the others take.
    fn evict(&self, state: &State, besides: &HashSet<String>, bytes: u64) -> io::Result<u64> {
        let mut entries = entries::all(&self.shared.folder)?;
        entries.retain(|entry| !besides.contains(&entry.name));
        let size = |entry: &Entry| entry.bytes.max(state.held.get(&entry.name).map_or(0, |held| held.reserved));
        let known: HashSet<&str> = entries.iter().map(|entry| entry.name.as_str()).collect();
        // Room that was given and of which nothing is on the disk yet.
        let promised = state.held.iter().filter(|(name, _)| !known.contains(name.as_str()) && !besides.contains(*name));
        let mut taken: u64 = promised.map(|(_, held)| held.reserved).sum();
        taken += entries.iter().map(size).sum::<u64>();
        entries.sort_by_key(|entry| entry.used);
        for entry in entries.iter().filter(|entry| !state.held.contains_key(&entry.name)) {
            if taken.saturating_add(bytes) <= self.shared.limit.0 {
                break;
            }
            tracing::info!(slice = %entry.name, "removed from the cache: {}", ByteSize(entry.bytes));
            entry.remove(&self.shared.folder)?;
            taken -= size(entry);
        }
        Ok(taken)
    }

    fn hold(&self, state: &mut State, id: SliceId, reserved: u64) -> Lease {
        let name = id.to_string();
        let held = state.held.entry(name.clone()).or_default();
        held.leases += 1;
        held.reserved = held.reserved.max(reserved);
        Lease { name, path: self.path(id), shared: Arc::clone(&self.shared) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.lock()
    }

    fn io(&self, source: io::Error) -> CacheError {
        CacheError::Io { path: self.shared.folder.clone(), source }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lease {
    /// The slice's file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Clone for Lease {
    fn clone(&self) -> Self {
        self.shared.lock().held.entry(self.name.clone()).or_default().leases += 1;
        Self { name: self.name.clone(), path: self.path.clone(), shared: Arc::clone(&self.shared) }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        if let Some(held) = state.held.get_mut(&self.name) {
            held.leases -= 1;
            if held.leases == 0 {
                state.held.remove(&self.name);
            }
        }
    }
}
