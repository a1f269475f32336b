//! The worker's side: a slice from its holders into the cache.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use mesh_gguf::{Bytes, CHUNK_BYTES, Manifest, Progress, SliceId, SlicePlan, SliceWriter};
use mesh_types::{Digest, ErrorClass, LayerRange, PeerId};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::holder::{Holder, HolderError, HolderFault, Job};
use crate::Mesh;

/// Times that a holder whose transfer breaks is asked again, while no chunk comes of it.
const ATTEMPTS: usize = 3;
/// Chunks between the network and the disk.
const WRITE_QUEUE: usize = 2;

/// What a worker wants.
#[derive(Clone, Debug)]
pub struct SliceRequest {
    /// Manifest digest of the source.
    pub digest: Digest,
    /// The layers of the slice.
    pub layers: LayerRange,
    /// Peers that have the source, in the order in which they are asked.
    pub holders: Vec<PeerId>,
}

/// Fetches slices into a cache directory. Clones share their work.
#[derive(Clone)]
pub struct SliceFetcher {
    mesh: Mesh,
    slices: PathBuf,
    /// One fetch at a time for each slice.
    busy: Arc<Mutex<HashMap<Digest, Arc<tokio::sync::Mutex<()>>>>>,
}

/// Why a slice could not be fetched.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// Nobody to ask.
    #[error("no peer holds the model")]
    NoHolders,
    /// No holder did its part: what went wrong with each, last.
    #[error("no holder could give the weights: {}", join(.0))]
    Holders(Vec<HolderError>),
    /// The source cannot be cut so.
    #[error("the model cannot be cut into these layers: {0}")]
    Plan(mesh_gguf::Error),
    /// The slice cannot be written.
    #[error("the slice cannot be written: {0}")]
    Write(mesh_gguf::Error),
    /// The cache directory cannot be used.
    #[error("cannot use the cache {}: {source}", path.display())]
    Cache {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A thread of this program failed.
    #[error("fetching failed inside this program")]
    Internal,
}

impl FetchError {
    /// The class that policy looks at.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::NoHolders => ErrorClass::NotFound,
            Self::Holders(errors) if errors.iter().all(|error| error.fault == HolderFault::Mismatch) => {
                ErrorClass::PeerProtocol
            }
            Self::Holders(_) => ErrorClass::Unavailable,
            Self::Plan(_) => ErrorClass::InvalidRequest,
            Self::Write(_) | Self::Cache { .. } | Self::Internal => ErrorClass::Internal,
        }
    }
}

impl SliceFetcher {
    /// A fetcher whose slices lie in `<cache>/slices`.
    pub fn new(mesh: Mesh, cache: impl AsRef<Path>) -> Self {
        Self { mesh, slices: cache.as_ref().join("slices"), busy: Arc::default() }
    }

    /// Where the slice lies once it is fetched.
    pub fn path(&self, digest: Digest, layers: LayerRange) -> PathBuf {
        self.slices.join(format!("{}.gguf", SliceId::new(digest, layers)))
    }

    /// The manifest of the source that `request` names, from the first holder that has it.
    ///
    /// # Errors
    /// [`FetchError::NoHolders`], [`FetchError::Holders`].
    ///
    /// # Cancel safety
    /// May be dropped.
    pub async fn manifest(&self, request: &SliceRequest) -> Result<Manifest, FetchError> {
        if request.holders.is_empty() {
            return Err(FetchError::NoHolders);
        }
        let (manifest, _) = Fetch { mesh: &self.mesh, request, faults: HashMap::new() }.manifest().await?;
        Ok(manifest)
    }

    /// The path of the slice, fetched and verified unless it is in the cache. `progress` is called after every chunk,
    /// from any thread.
    ///
    /// # Errors
    /// See [`FetchError`]. A holder that fails is followed by the next; chunks that have come are kept.
    ///
    /// # Cancel safety
    /// May be dropped: the unfinished file is removed.
    pub async fn fetch(
        &self,
        request: SliceRequest,
        progress: impl FnMut(Progress) + Send + 'static,
    ) -> Result<PathBuf, FetchError> {
        let path = self.path(request.digest, request.layers);
        let turn = {
            let mut busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
            busy.entry(SliceId::new(request.digest, request.layers).0).or_default().clone()
        };
        let _turn = turn.lock().await;
        let cache = |source| FetchError::Cache { path: self.slices.clone(), source };
        if tokio::fs::try_exists(&path).await.map_err(cache)? {
            return Ok(path);
        }
        tokio::fs::create_dir_all(&self.slices).await.map_err(cache)?;
        if request.holders.is_empty() {
            return Err(FetchError::NoHolders);
        }
        Fetch { mesh: &self.mesh, request: &request, faults: HashMap::new() }.run(&path, progress).await?;
        Ok(path)
    }
}

/// One fetch under way.
struct Fetch<'a> {
    mesh: &'a Mesh,
    request: &'a SliceRequest,
    /// How often each holder failed since a chunk of it last came, and how.
    faults: HashMap<PeerId, (usize, HolderFault)>,
}

impl Fetch<'_> {
    async fn run(mut self, path: &Path, progress: impl FnMut(Progress) + Send + 'static) -> Result<(), FetchError> {
        let (manifest, open) = self.manifest().await?;
        let (target, layers) = (path.to_owned(), self.request.layers);
        let planned = tokio::task::spawn_blocking(move || {
            let plan = SlicePlan::new(manifest.header(), layers).map_err(FetchError::Plan)?;
            let writer = SliceWriter::create(&plan, &target).map_err(FetchError::Write)?;
            Ok((manifest, plan, writer))
        });
        let (manifest, plan, writer) = planned.await.map_err(|_| FetchError::Internal)??;
        let disk = Disk::start(manifest, writer, plan.weight_bytes(), progress);
        match self.take_all(jobs(&plan), open, &disk).await {
            Ok(()) => disk.finish().await,
            Err(error) => {
                disk.abandon().await;
                Err(error)
            }
        }
    }

    /// Asks for `jobs` until all are written, or the disk stops. Begins with the holder that is `open`.
    async fn take_all(
        &mut self,
        mut jobs: VecDeque<Job>,
        mut open: Option<(PeerId, Holder)>,
        disk: &Disk,
    ) -> Result<(), FetchError> {
        while !jobs.is_empty() {
            let (peer, mut holder) = match open.take() {
                Some(open) => open,
                None => self.open().await?,
            };
            // What is not written when the holder fails is asked of the next.
            let mut left = jobs.clone();
            let before = left.len();
            let outcome = drain(&mut holder, &mut jobs, &mut left, disk).await;
            if left.len() < before {
                self.faults.remove(&peer);
            }
            jobs = left;
            match outcome {
                Ok(()) => {}
                Err(Stop::Holder(fault)) => self.fail(peer, fault),
                // It says why when it is finished.
                Err(Stop::Disk) => return Ok(()),
            }
        }
        Ok(())
    }

    /// The manifest, from the first holder that has it, and that holder.
    async fn manifest(&mut self) -> Result<(Manifest, Option<(PeerId, Holder)>), FetchError> {
        loop {
            let (peer, mut holder) = self.open().await?;
            match holder.manifest().await {
                Ok(manifest) => return Ok((manifest, Some((peer, holder)))),
                Err(fault) => self.fail(peer, fault),
            }
        }
    }

    /// A stream to the next holder that may still be asked.
    async fn open(&mut self) -> Result<(PeerId, Holder), FetchError> {
        loop {
            let tries = |peer: &PeerId| self.faults.get(peer).map_or(0, |(count, _)| *count);
            let next = self.request.holders.iter().filter(|peer| tries(peer) < ATTEMPTS).min_by_key(|peer| tries(peer));
            let Some(peer) = next.cloned() else { return Err(self.exhausted()) };
            match Holder::open(self.mesh, &peer, self.request.digest).await {
                Ok(holder) => return Ok((peer, holder)),
                Err(fault) => self.fail(peer, fault),
            }
        }
    }

    fn fail(&mut self, peer: PeerId, fault: HolderFault) {
        tracing::warn!(holder = %peer, %fault, "a holder failed");
        let (count, last) = self.faults.entry(peer).or_insert((0, fault.clone()));
        // A liar is not asked again; neither is one that says no.
        *count = if matches!(fault, HolderFault::Broken(_)) { *count + 1 } else { ATTEMPTS };
        *last = fault;
    }

    fn exhausted(&self) -> FetchError {
        let view = self.mesh.view();
        let view = view.borrow();
        let error = |peer: &PeerId| {
            let name = view.peer(peer).map(|peer| peer.name.clone()).filter(|name| !name.is_empty());
            let fault = self.faults.get(peer)?.1.clone();
            Some(HolderError { holder: peer.clone(), name: name.unwrap_or_else(|| peer.to_string()), fault })
        };
        FetchError::Holders(self.request.holders.iter().filter_map(error).collect())
    }
}

/// Why a holder's chunks were not all taken.
enum Stop {
    Holder(HolderFault),
    Disk,
}

/// Takes all that `holder` gives of `jobs`. `left` are the jobs that are not written yet: the same ones at first.
async fn drain(
    holder: &mut Holder,
    jobs: &mut VecDeque<Job>,
    left: &mut VecDeque<Job>,
    disk: &Disk,
) -> Result<(), Stop> {
    let mut writing = VecDeque::new();
    let outcome = loop {
        match holder.next(jobs).await {
            Ok(Some((job, bytes))) => writing.push_back(disk.write(job, bytes).await?),
            Ok(None) => break Ok(()),
            Err(fault) => break Err(Stop::Holder(fault)),
        }
        if writing.len() > WRITE_QUEUE
            && let Some(first) = writing.pop_front()
        {
            written(first, left).await?;
        }
    };
    for chunk in writing {
        written(chunk, left).await?;
    }
    outcome
}

/// Waits until the first of `left` is written.
async fn written(chunk: Verdict, left: &mut VecDeque<Job>) -> Result<(), Stop> {
    match chunk.await {
        Ok(true) => {
            left.pop_front();
            Ok(())
        }
        Ok(false) => Err(Stop::Holder(HolderFault::Mismatch)),
        Err(_) => Err(Stop::Disk),
    }
}

/// The thread that verifies and writes chunks.
struct Disk {
    queue: mpsc::Sender<Write>,
    thread: JoinHandle<Result<SliceWriter, FetchError>>,
}

struct Write {
    job: Job,
    bytes: Vec<u8>,
    genuine: oneshot::Sender<bool>,
}

/// Whether a chunk is what the manifest says, and written; an error where it could not be written.
type Verdict = oneshot::Receiver<bool>;

impl Disk {
    fn start(
        manifest: Manifest,
        mut writer: SliceWriter,
        total: u64,
        mut progress: impl FnMut(Progress) + Send + 'static,
    ) -> Self {
        let (queue, mut writes) = mpsc::channel::<Write>(WRITE_QUEUE);
        let thread = tokio::task::spawn_blocking(move || {
            let mut done = 0;
            while let Some(Write { job, bytes, genuine }) = writes.blocking_recv() {
                let verified = manifest.verify_chunk(job.tensor, job.chunk, &bytes).is_ok();
                if verified {
                    writer.write_chunk(job.part, job.chunk, &bytes).map_err(FetchError::Write)?;
                    done += job.length;
                    progress(Progress { done, total });
                }
                // Nobody waits for it once the fetch is dropped.
                let _ = genuine.send(verified);
            }
            Ok(writer)
        });
        Self { queue, thread }
    }

    /// Hands a chunk over.
    async fn write(&self, job: Job, bytes: Vec<u8>) -> Result<Verdict, Stop> {
        let (genuine, verdict) = oneshot::channel();
        self.queue.send(Write { job, bytes, genuine }).await.map_err(|_| Stop::Disk)?;
        Ok(verdict)
    }

    /// Removes the unfinished file.
    async fn abandon(self) {
        drop(self.queue);
        let removed = self.thread.await.map(|writer| tokio::task::spawn_blocking(|| drop(writer)));
        if let Ok(removing) = removed {
            let _ = removing.await;
        }
    }

    /// Completes the file. Where the thread could not write, says why.
    async fn finish(self) -> Result<(), FetchError> {
        drop(self.queue);
        let writer = self.thread.await.map_err(|_| FetchError::Internal)??;
        let finished = tokio::task::spawn_blocking(|| writer.finish()).await;
        finished.map_err(|_| FetchError::Internal)?.map_err(FetchError::Write)
    }
}

/// Every chunk that comes from the source, in the order of the file.
fn jobs(plan: &SlicePlan) -> VecDeque<Job> {
    let mut jobs = VecDeque::new();
    for (index, part) in plan.parts().iter().enumerate() {
        let Bytes::Source { tensor } = part.bytes else { continue };
        for chunk in 0..part.chunks() {
            let length = CHUNK_BYTES.min(part.len - chunk * CHUNK_BYTES);
            jobs.push_back(Job { part: index, tensor, chunk, length });
        }
    }
    jobs
}

fn join(errors: &[HolderError]) -> String {
    errors.iter().map(HolderError::to_string).collect::<Vec<_>>().join("; ")
}
