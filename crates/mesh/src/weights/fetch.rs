//! The worker's side: a slice from its holders into the cache, or from a file of this machine.

use std::sync::Arc;

use mesh_gguf::{Manifest, ManifestCache, Progress, SliceId, SlicePlan, SliceWriter, Source};
use mesh_types::{ByteSize, Digest, ErrorClass, LayerRange, PeerId};
use tokio::sync::OwnedMutexGuard;
use tokio_util::sync::CancellationToken;

use super::cache::{CacheError, Lease, SliceCache};
use super::holder::{HolderError, HolderFault};
use crate::Mesh;

mod faults;
mod ledger;
mod transfer;

use faults::Faults;
use transfer::Transfer;

/// What a worker wants.
#[derive(Clone, Debug)]
pub struct SliceRequest {
    /// Manifest digest of the source.
    pub digest: Digest,
    /// The layers of the slice.
    pub layers: LayerRange,
    /// Peers that have the source; several are asked at the same time.
    pub holders: Vec<PeerId>,
}

/// Gets slices into a cache. Clones share their work.
#[derive(Clone)]
pub struct SliceFetcher {
    mesh: Mesh,
    cache: SliceCache,
    manifests: Arc<ManifestCache>,
}

/// Why a slice could not be had.
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
    /// The cache has no room, or cannot be used.
    #[error(transparent)]
    Cache(#[from] CacheError),
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
            Self::Cache(CacheError::Limit { .. } | CacheError::Disk { .. }) => ErrorClass::Overloaded,
            Self::Plan(_) => ErrorClass::InvalidRequest,
            Self::Write(_) | Self::Cache(_) | Self::Internal => ErrorClass::Internal,
        }
    }
}

impl SliceFetcher {
    /// A fetcher of slices into `cache`, which keeps the manifests of other nodes' models in `manifests`.
    pub fn new(mesh: Mesh, cache: SliceCache, manifests: Arc<ManifestCache>) -> Self {
        Self { mesh, cache, manifests }
    }

    /// The manifest of the source that `request` names: the one that is kept here, or that of the first holder that has
    /// it, which is kept from now on.
    ///
    /// # Errors
    /// [`FetchError::NoHolders`], [`FetchError::Holders`].
    ///
    /// # Cancel safety
    /// May be dropped.
    pub async fn manifest(&self, request: &SliceRequest) -> Result<Arc<Manifest>, FetchError> {
        let (manifests, digest) = (Arc::clone(&self.manifests), request.digest);
        let kept = tokio::task::spawn_blocking(move || manifests.kept(&digest)).await;
        if let Some(manifest) = kept.map_err(|_| FetchError::Internal)? {
            return Ok(Arc::new(manifest));
        }
        if request.holders.is_empty() {
            return Err(FetchError::NoHolders);
        }
        let manifest = Arc::new(Faults::default().first_manifest(&self.mesh, request).await?);
        let (manifests, keeping) = (Arc::clone(&self.manifests), Arc::clone(&manifest));
        let kept = tokio::task::spawn_blocking(move || manifests.keep(&keeping)).await;
        if let Err(error) = kept.map_err(|_| FetchError::Internal)? {
            tracing::warn!(%error, "a manifest cannot be kept, and will be asked for again");
        }
        Ok(manifest)
    }

    /// The slice, fetched and verified; what the cache has of it already is not fetched again. One that is complete
    /// costs nothing: no peer is asked, nothing is read or copied. `manifest` is the one that `request` names;
    /// `progress` sees the bytes that are there, first those that were.
    ///
    /// # Errors
    /// See [`FetchError`]. A holder that fails is asked a few times and then left out; what has come is kept, here and
    /// for the next fetch of the same slice, also after a restart.
    ///
    /// # Cancel safety
    /// May be dropped.
    pub async fn fetch(
        &self,
        request: SliceRequest,
        manifest: Arc<Manifest>,
        progress: impl Fn(Progress) + Send + Sync + 'static,
    ) -> Result<Lease, FetchError> {
        let id = SliceId::new(request.digest, request.layers);
        let turn = Arc::new(self.cache.turn(id).await);
        if let Some(lease) = self.cache.lease(id) {
            return Ok(lease);
        }
        if request.holders.is_empty() {
            return Err(FetchError::NoHolders);
        }
        let (lease, writer) = self.begin(id, request.layers, Arc::clone(&manifest), Arc::clone(&turn)).await?;
        let (total, missing) = (writer.slice_bytes(), writer.missing_bytes());
        self.cache.disk_room(missing)?;
        progress(Progress { done: total - missing, total });
        let (layers, here) = (request.layers, ByteSize(total - missing));
        tracing::info!(%layers, holders = request.holders.len(), "fetching {}, {here} are here", ByteSize(total));
        let started = tokio::time::Instant::now();
        let transfer = Transfer::new(&self.mesh, &request, manifest, writer, (turn, Box::new(progress)));
        transfer.run(&self.cache.path(id)).await?;
        tracing::info!(%layers, "fetched {} in {:.1} s", ByteSize(missing), started.elapsed().as_secs_f64());
        Ok(lease)
    }

    /// Room for the slice, and its unfinished file, with what is right in it.
    async fn begin(
        &self,
        id: SliceId,
        layers: LayerRange,
        manifest: Arc<Manifest>,
        turn: Arc<OwnedMutexGuard<()>>,
    ) -> Result<(Lease, SliceWriter), FetchError> {
        let cancel = CancellationToken::new();
        let _cancelled_when_dropped = cancel.clone().drop_guard();
        let cache = self.cache.clone();
        let beginning = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            let plan = SlicePlan::new(manifest.header(), layers).map_err(FetchError::Plan)?;
            let lease = cache.room(id, plan.weight_bytes() + plan.header().len() as u64)?;
            let writer = SliceWriter::resume(&plan, &cache.partial(id), &manifest, &mut |_| unless(&cancel));
            Ok((lease, writer.map_err(FetchError::Write)?))
        });
        beginning.await.map_err(|_| FetchError::Internal)?
    }
}

impl SliceCache {
    /// The slice with these layers, cut from a file of this machine unless it is there. It can be loaded before it is on
    /// the disk: what is not there when the machine loses power is verified and cut again at the next start.
    ///
    /// # Errors
    /// [`FetchError::Plan`], [`FetchError::Write`], [`FetchError::Cache`].
    ///
    /// # Cancel safety
    /// Dropping the future stops the cutting; the next one goes on where it was.
    pub async fn cut(
        &self,
        source: Arc<Source>,
        manifest: Arc<Manifest>,
        layers: LayerRange,
        progress: impl Fn(Progress) + Send + Sync + 'static,
    ) -> Result<Lease, FetchError> {
        let id = SliceId::new(manifest.digest(), layers);
        let turn = self.turn(id).await;
        if let Some(lease) = self.lease(id) {
            return Ok(lease);
        }
        let cancel = CancellationToken::new();
        let _cancelled_when_dropped = cancel.clone().drop_guard();
        let cache = self.clone();
        let cutting = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            let plan = SlicePlan::new(source.header(), layers).map_err(FetchError::Plan)?;
            let lease = cache.room(id, plan.weight_bytes() + plan.header().len() as u64)?;
            let written = SliceWriter::resume(&plan, &cache.partial(id), &manifest, &mut |_| unless(&cancel)).and_then(
                |writer| {
                    writer.copy_missing(&source, &mut |now| {
                        progress(now);
                        unless(&cancel)
                    })?;
                    writer.publish(&cache.path(id))
                },
            );
            let unsynced = written.map_err(FetchError::Write)?;
            let held = lease.clone();
            cache.sync_later(move || {
                let _held = held;
                if let Err(error) = unsynced.sync() {
                    tracing::warn!(%error, "a slice cannot be made durable; it will be verified at the next start");
                }
            });
            Ok(lease)
        });
        cutting.await.map_err(|_| FetchError::Internal)?
    }
}

fn unless(cancelled: &CancellationToken) -> std::ops::ControlFlow<()> {
    if cancelled.is_cancelled() { std::ops::ControlFlow::Break(()) } else { std::ops::ControlFlow::Continue(()) }
}

fn join(errors: &[HolderError]) -> String {
    errors.iter().map(HolderError::to_string).collect::<Vec<_>>().join("; ")
}
