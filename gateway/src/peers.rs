//! What the gateway needs of the mesh: the seam behind which it can be tested without one.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use mesh_types::{MeshView, ModelId, PeerId};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

/// The mesh as the gateway uses it.
pub trait Peers: Send + Sync + 'static {
    /// The mesh as this node sees it, now and on every change.
    fn view(&self) -> watch::Receiver<Arc<MeshView>>;

    /// Whether a present node lists `model`. Where the view tells of none, other members are asked for a short time, and
    /// whoever lists it is in the view afterwards.
    fn find<'a>(&'a self, model: &'a ModelId) -> BoxFuture<'a, bool>;

    /// How old each peer's last status is.
    fn ages(&self) -> HashMap<PeerId, Duration>;

    /// A gRPC channel to `peer`, which may be the local node. Cheap; calls to a peer that is not connected fail at once.
    fn channel(&self, peer: &PeerId) -> Channel;

    /// Cancelled the moment the connection to `peer` is lost; already cancelled where there is none.
    fn presence(&self, peer: &PeerId) -> CancellationToken;

    /// A key for `purpose` that all members of the mesh have, and nobody else.
    fn derive_key(&self, purpose: &str) -> [u8; 32];
}

/// The view in which to look for `model`: before it is missing, it has been looked for beyond the view.
///
/// # Cancel safety
/// May be dropped.
pub(crate) async fn view_for(peers: &dyn Peers, model: &ModelId) -> Arc<MeshView> {
    let view = peers.view().borrow().clone();
    if view.lists(model) || !peers.find(model).await {
        return view;
    }
    peers.view().borrow().clone()
}

impl Peers for mesh_mesh::Mesh {
    fn view(&self) -> watch::Receiver<Arc<MeshView>> {
        Self::view(self)
    }

    fn find<'a>(&'a self, model: &'a ModelId) -> BoxFuture<'a, bool> {
        Self::find(self, model).boxed()
    }

    fn ages(&self) -> HashMap<PeerId, Duration> {
        self.peers().into_iter().map(|record| (PeerId::new(record.status.peer_id), record.age)).collect()
    }

    fn channel(&self, peer: &PeerId) -> Channel {
        Self::channel(self, peer)
    }

    fn presence(&self, peer: &PeerId) -> CancellationToken {
        Self::presence(self, peer)
    }

    fn derive_key(&self, purpose: &str) -> [u8; 32] {
        Self::derive_key(self, purpose)
    }
}
