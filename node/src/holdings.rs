//! The model files of this node, by the digest of their manifest: what their slices are named by, and what peers may
//! fetch them by.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use mesh_gguf::{Error, Manifest, ManifestCache, Source};
use mesh_mesh::weights;
use mesh_types::Digest;
use tokio_util::sync::CancellationToken;

/// Gives files their digests, and offers them to peers from then on.
pub struct Holdings {
    manifests: Arc<ManifestCache>,
    offered: Arc<weights::Holdings>,
}

impl Holdings {
    /// No files yet. Manifests are kept in a folder of `cache`.
    pub fn new(cache: &Path) -> Self {
        Self { manifests: Arc::new(ManifestCache::new(cache.join("manifests"))), offered: Arc::default() }
    }

    /// What peers may fetch.
    pub fn offered(&self) -> Arc<weights::Holdings> {
        Arc::clone(&self.offered)
    }

    /// Manifests, of files here and of what peers hold.
    pub fn manifests(&self) -> Arc<ManifestCache> {
        Arc::clone(&self.manifests)
    }

    /// The digest of `source`: see [`Self::manifest`].
    ///
    /// # Errors
    /// Where it cannot be read.
    ///
    /// # Cancel safety
    /// Dropping the future stops the reading.
    pub async fn digest(&self, source: &Arc<Source>) -> Result<Digest, Error> {
        self.manifest(source).await.map(|manifest| manifest.digest())
    }

    /// The digest of `source`, if it is known without reading the file; then it is offered from now on.
    ///
    /// # Cancel safety
    /// May be dropped.
    pub async fn remembered(&self, source: &Arc<Source>) -> Option<Digest> {
        let (manifests, reading) = (Arc::clone(&self.manifests), Arc::clone(source));
        let manifest = Arc::new(tokio::task::spawn_blocking(move || manifests.load(&reading)).await.ok()??);
        self.offered.add(Arc::clone(&manifest), Arc::clone(source));
        Some(manifest.digest())
    }

    /// The manifest of `source`, which is offered from now on. Reads the whole file the first time.
    ///
    /// # Errors
    /// Where it cannot be read.
    ///
    /// # Cancel safety
    /// Dropping the future stops the reading.
    pub async fn manifest(&self, source: &Arc<Source>) -> Result<Arc<Manifest>, Error> {
        let cancel = CancellationToken::new();
        let _cancelled_when_dropped = cancel.clone().drop_guard();
        let (manifests, reading) = (Arc::clone(&self.manifests), Arc::clone(source));
        let manifest = tokio::task::spawn_blocking(move || manifests.get(&reading, &mut |_| unless(&cancel)));
        let manifest = Arc::new(manifest.await.unwrap_or(Err(Error::Cancelled))?);
        self.offered.add(Arc::clone(&manifest), Arc::clone(source));
        Ok(manifest)
    }
}

/// For work on files that asks now and then whether to go on.
fn unless(cancelled: &CancellationToken) -> ControlFlow<()> {
    if cancelled.is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}
