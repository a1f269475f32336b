//! The chunks of a fetch, on their way from several holders to the disk.
//!
//! A chunk is verified before it is written, so at most [`CHUNKS_IN_MEMORY`] of them are in memory, however many
//! holders send.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};
use mesh_gguf::{Manifest, MissingChunk, Progress, SliceWriter};
use mesh_types::PeerId;
use tokio::sync::{Notify, OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;

use super::faults::Faults;
use super::ledger::{HolderIndex, Ledger};
use super::{FetchError, SliceRequest};
use crate::Mesh;
use crate::weights::holder::{Holder, HolderFault};

/// Holders that are asked at the same time.
const HOLDERS_AT_ONCE: usize = 3;
/// Chunks that are being received, verified or written.
const CHUNKS_IN_MEMORY: usize = HOLDERS_AT_ONCE + 1;
/// Chunks of one holder that may be on their way to the disk before the next is received.
const WRITES_AT_ONCE: usize = 1;
/// How soon an idle holder looks again whether another is late.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Sees the bytes that are there.
pub(super) type Watcher = Box<dyn Fn(Progress) + Send + Sync>;

/// A fetch under way.
pub(super) struct Transfer<'a> {
    mesh: &'a Mesh,
    request: &'a SliceRequest,
    shared: Arc<Shared>,
    room: Arc<Semaphore>,
}

/// What the threads that verify and write share. It holds the slice's turn while any of them is at work.
struct Shared {
    manifest: Arc<Manifest>,
    writer: SliceWriter,
    ledger: Mutex<Ledger>,
    /// The ledger changed.
    changed: Notify,
    watcher: Watcher,
    _turn: Arc<OwnedMutexGuard<()>>,
}

/// Why a holder's work ended before the fetch was done.
enum Stop {
    Holder(HolderFault),
    Disk(Box<FetchError>),
}

/// A chunk on its way to the disk.
type Writing = JoinHandle<Result<(), Stop>>;

impl<'a> Transfer<'a> {
    /// Fetches what `writer` misses. `by` is the slice's turn, and who watches.
    pub(super) fn new(
        mesh: &'a Mesh,
        request: &'a SliceRequest,
        manifest: Arc<Manifest>,
        writer: SliceWriter,
        by: (Arc<OwnedMutexGuard<()>>, Watcher),
    ) -> Self {
        let ledger = Mutex::new(Ledger::new(writer.missing()));
        let (turn, watcher) = by;
        let shared = Shared { manifest, writer, ledger, changed: Notify::new(), watcher, _turn: turn };
        Self { mesh, request, shared: Arc::new(shared), room: Arc::new(Semaphore::new(CHUNKS_IN_MEMORY)) }
    }

    /// Takes all chunks, and gives the slice the name `target`.
    pub(super) async fn run(self, target: &Path) -> Result<(), FetchError> {
        let mut faults = Faults::default();
        let mut idle: VecDeque<HolderIndex> = (0..self.request.holders.len()).collect();
        let mut at_work = FuturesUnordered::new();
        while !self.shared.ledger().is_done() {
            while at_work.len() < HOLDERS_AT_ONCE
                && let Some(holder) = idle.pop_front()
            {
                let peer = &self.request.holders[holder];
                if faults.may_ask(peer) {
                    at_work.push(self.work(holder, faults.pause(peer)).map(move |ended| (holder, ended)));
                }
            }
            let done = self.done();
            tokio::select! {
                () = done => {}
                ended = at_work.next() => {
                    let Some((holder, (delivered, ended))) = ended else {
                        return Err(faults.exhausted(self.mesh, self.request));
                    };
                    let peer = &self.request.holders[holder];
                    if delivered {
                        faults.forgive(peer);
                    }
                    match ended {
                        Ok(()) => {}
                        Err(Stop::Holder(fault)) => faults.note(peer, fault),
                        Err(Stop::Disk(error)) => return Err(*error),
                    }
                    idle.push_back(holder);
                }
            }
        }
        drop(at_work);
        self.finish(target.to_owned()).await
    }

    /// Asks one holder for chunks until all have landed. Says whether any came of it.
    async fn work(&self, holder: HolderIndex, pause: Duration) -> (bool, Result<(), Stop>) {
        tokio::time::sleep(pause).await;
        let peer: &PeerId = &self.request.holders[holder];
        let mut stream = match Holder::open(self.mesh, peer, self.request.digest).await {
            Ok(stream) => stream,
            Err(fault) => return (false, Err(Stop::Holder(fault))),
        };
        let delivered = Arc::new(AtomicBool::new(false));
        let ended = self.drain(holder, &mut stream, &delivered).await;
        self.shared.ledger().give_back(holder);
        self.shared.changed.notify_waiters();
        (delivered.load(Ordering::Relaxed), ended)
    }

    async fn drain(&self, holder: HolderIndex, stream: &mut Holder, delivered: &Arc<AtomicBool>) -> Result<(), Stop> {
        let mut writing: VecDeque<Writing> = VecDeque::new();
        loop {
            while stream.has_room() {
                let batch = self.shared.ledger().take(holder, Instant::now());
                if batch.is_empty() {
                    break;
                }
                stream.request(batch).await.map_err(Stop::Holder)?;
            }
            if stream.is_idle() {
                while let Some(chunk) = writing.pop_front() {
                    landed(chunk).await?;
                }
                if self.shared.ledger().is_done() {
                    return Ok(());
                }
                // Another holder fails, or is late, or the fetch is done.
                let _ = tokio::time::timeout(LOOK_AGAIN, self.shared.changed.notified()).await;
                continue;
            }
            // Never closed.
            let Ok(permit) = Arc::clone(&self.room).acquire_owned().await else { return Ok(()) };
            match stream.receive().await.map_err(Stop::Holder) {
                Ok(Some((job, bytes))) => writing.push_back(self.write(job, bytes, permit, delivered)),
                Ok(None) => {}
                Err(stop) => {
                    // What it gave before it failed counts.
                    while let Some(chunk) = writing.pop_front() {
                        landed(chunk).await?;
                    }
                    return Err(stop);
                }
            }
            if writing.len() > WRITES_AT_ONCE
                && let Some(chunk) = writing.pop_front()
            {
                landed(chunk).await?;
            }
        }
    }

    /// Verifies and writes a chunk on another thread.
    fn write(
        &self,
        job: MissingChunk,
        bytes: Vec<u8>,
        permit: OwnedSemaphorePermit,
        delivered: &Arc<AtomicBool>,
    ) -> Writing {
        let (shared, delivered) = (Arc::clone(&self.shared), Arc::clone(delivered));
        tokio::task::spawn_blocking(move || {
            let _permit = permit;
            let genuine = shared.manifest.verify_chunk(job.tensor, job.chunk, &bytes);
            genuine.map_err(|_| Stop::Holder(HolderFault::Mismatch))?;
            let written = shared.writer.write_chunk(job.part, job.chunk, &bytes);
            written.map_err(|error| Stop::Disk(Box::new(FetchError::Write(error))))?;
            delivered.store(true, Ordering::Relaxed);
            shared.landed(&job);
            Ok(())
        })
    }

    /// Waits until all chunks have landed.
    async fn done(&self) {
        loop {
            let changed = self.shared.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.shared.ledger().is_done() {
                return;
            }
            changed.await;
        }
    }

    async fn finish(self, target: std::path::PathBuf) -> Result<(), FetchError> {
        let shared = self.shared;
        let finished = tokio::task::spawn_blocking(move || shared.writer.finish(&target)).await;
        finished.map_err(|_| FetchError::Internal)?.map_err(FetchError::Write)
    }
}

impl Shared {
    fn landed(&self, job: &MissingChunk) {
        let mut ledger = self.ledger();
        ledger.landed(job);
        // Under the lock, so that who watches never sees it go back.
        let total = self.writer.slice_bytes();
        (self.watcher)(Progress { done: total - self.writer.missing_bytes(), total });
        drop(ledger);
        self.changed.notify_waiters();
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn landed(chunk: Writing) -> Result<(), Stop> {
    chunk.await.unwrap_or(Err(Stop::Disk(Box::new(FetchError::Internal))))
}
