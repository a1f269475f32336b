//! The slices of this machine: where they lie, how much disk they may take, and which of them are in use.
//!
//! A folder of `<slice id>.gguf`, and of `<slice id>.partial` for those that are not complete; there is one cache for it.
//! Whoever uses a slice holds a [`Lease`]; what nobody holds goes when room is needed, least recently used first.

use std::collections::{HashMap, VecDeque};
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

/// What takes room in the cache.
struct Census {
    /// Bytes of slices in use.
    in_use: u64,
    /// Those that are not, the least recently used first.
    idle: VecDeque<Entry>,
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
        // A lower limit than last time: nothing is in use yet.
        let census = cache.census(&cache.lock(), None).map_err(io)?;
        cache.shrink(census, limit.0).map_err(io)?;
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

    /// Makes room for a slice of `bytes`, and holds it. Removes others, least recently used first; none where that would
    /// not help.
    ///
    /// # Errors
    /// [`CacheError::Limit`], [`CacheError::Io`].
    pub(super) fn room(&self, id: SliceId, bytes: u64) -> Result<Lease, CacheError> {
        let mut state = self.lock();
        let census = self.census(&state, Some(id)).map_err(|source| self.io(source))?;
        let limit = self.shared.limit;
        if census.in_use.saturating_add(bytes) > limit.0 {
            return Err(CacheError::Limit { needed: ByteSize(bytes), limit, in_use: ByteSize(census.in_use) });
        }
        self.shrink(census, limit.0 - bytes).map_err(|source| self.io(source))?;
        Ok(self.hold(&mut state, id, bytes))
    }

    /// Makes sure that the disk has room for `bytes` more, as [`Self::room`] does for the limit.
    ///
    /// # Errors
    /// [`CacheError::Disk`], [`CacheError::Io`].
    pub(super) fn disk_room(&self, bytes: u64) -> Result<(), CacheError> {
        let state = self.lock();
        let io = |source| self.io(source);
        let mut census = self.census(&state, None).map_err(io)?;
        let free = || fs4::available_space(&self.shared.folder);
        let possible = free().map_err(io)?.saturating_add(census.idle.iter().map(|entry| entry.bytes).sum());
        if possible < bytes {
            return Err(CacheError::Disk { needed: ByteSize(bytes), free: ByteSize(possible) });
        }
        while free().map_err(io)? < bytes
            && let Some(entry) = census.idle.pop_front()
        {
            self.remove(&entry).map_err(io)?;
        }
        Ok(())
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

    /// What there is, but for `besides`.
    fn census(&self, state: &State, besides: Option<SliceId>) -> io::Result<Census> {
        let besides = besides.map(|id| id.to_string());
        let counts = |name: &String| Some(name) != besides.as_ref();
        let mut entries = entries::all(&self.shared.folder)?;
        entries.retain(|entry| counts(&entry.name));
        entries.sort_by_key(|entry| entry.used);
        let on_disk: HashMap<String, u64> = entries.iter().map(|entry| (entry.name.clone(), entry.bytes)).collect();
        // Room that was given counts, whether anything is in it already or not.
        let size = |(name, held): (&String, &Held)| on_disk.get(name).copied().unwrap_or(0).max(held.reserved);
        let in_use = state.held.iter().filter(|(name, _)| counts(name)).map(size).sum();
        let idle = entries.into_iter().filter(|entry| !state.held.contains_key(&entry.name)).collect();
        Ok(Census { in_use, idle })
    }

    /// Removes what is not in use, least recently used first, until all take no more than `most`.
    fn shrink(&self, mut census: Census, most: u64) -> io::Result<()> {
        let mut taken = census.in_use + census.idle.iter().map(|entry| entry.bytes).sum::<u64>();
        while taken > most
            && let Some(entry) = census.idle.pop_front()
        {
            self.remove(&entry)?;
            taken -= entry.bytes;
        }
        Ok(())
    }

    fn remove(&self, entry: &Entry) -> io::Result<()> {
        tracing::info!(slice = %entry.name, "removed from the cache: {}", ByteSize(entry.bytes));
        entry.remove(&self.shared.folder)
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
