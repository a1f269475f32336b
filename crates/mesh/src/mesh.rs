//! The running mesh: one task that drives the libp2p swarm, and the handle through which the other rooms use it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use mesh_proto::v1;
use mesh_types::{ByteSize, ErrorClass, MeshView, ModelView, PeerId, PeerState, StageView};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{Identity, JoinToken, Membership};

/// What it takes to start a mesh.
#[derive(Debug)]
pub struct Config {
    /// This node's key.
    pub identity: Identity,
    /// The mesh it belongs to, or wants to join.
    pub membership: Membership,
    /// Where libp2p listens (TCP). Port 0 picks one.
    pub listen: SocketAddr,
    /// This node's name, for people.
    pub name: String,
    /// Product version, as in `0.1.0`.
    pub version: String,
}

/// What this node says of itself. The mesh adds id, name, version, addresses and peers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LocalStatus {
    /// Models of which this node holds the file or is stage 0.
    pub models: Vec<ModelView>,
    /// Stages it has loaded.
    pub stages: Vec<StageView>,
    /// Bytes it offers for weights and KV in all.
    pub memory: ByteSize,
    /// What is left of them.
    pub memory_free: ByteSize,
    /// `IP:PORT`s of its stage endpoint (UDP); empty: it takes no stages.
    pub stage_addresses: Vec<String>,
    /// It is going: give it nothing new.
    pub leaving: bool,
}

/// A peer as the admin shows it.
#[derive(Clone, Debug)]
pub struct PeerRecord {
    /// The last status; for a peer that has not sent one, only its id.
    pub status: v1::NodeStatus,
    /// Where it is in its life.
    pub state: PeerState,
    /// Since its status arrived.
    pub age: Duration,
    /// Whether this is the local node.
    pub local: bool,
}

/// Stands in the extensions of every gRPC request served by [`Mesh::serve_grpc`]: who calls. The identity is the one
/// that the connection proved; the local node's own id for calls to itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller(pub PeerId);

/// Why a mesh did not start, or a peer cannot be spoken to.
#[derive(Debug, thiserror::Error)]
pub enum MeshError {
    /// Nobody at the token's addresses could be joined.
    #[error("{0}")]
    NoRoute(String),
    /// The listen address cannot be used.
    #[error("{0}")]
    Listen(String),
    /// The peer is not connected.
    #[error("{0} is not connected")]
    NotConnected(PeerId),
}

impl MeshError {
    /// The class that policy looks at.
    pub fn class(&self) -> ErrorClass {
        ErrorClass::Unavailable
    }
}

/// Handle of the running mesh; clones are the same mesh.
#[derive(Clone)]
pub struct Mesh {}

impl Mesh {
    /// Listens and starts connecting. Returns when the listen addresses are known; nobody may be connected yet.
    ///
    /// # Errors
    /// [`MeshError::Listen`], which names the address.
    pub async fn start(_config: Config) -> Result<Self, MeshError> {
        unimplemented!()
    }

    /// Waits until at least one peer is admitted; 15 s is a good `within`.
    ///
    /// # Errors
    /// [`MeshError::NoRoute`] names each address tried and what went wrong there, in one sentence.
    ///
    /// # Cancel safety
    /// May be dropped.
    pub async fn joined(&self, _within: Duration) -> Result<(), MeshError> {
        unimplemented!()
    }

    /// This node's id.
    pub fn local_id(&self) -> &PeerId {
        unimplemented!()
    }

    /// The mesh's id.
    pub fn id(&self) -> &str {
        unimplemented!()
    }

    /// A token with which others can join through this node, at its present addresses.
    pub fn token(&self) -> JoinToken {
        unimplemented!()
    }

    /// Multiaddresses at which others can reach this node, `/p2p/` part included.
    pub fn listen_addresses(&self) -> Vec<String> {
        unimplemented!()
    }

    /// The port that libp2p listens on (TCP).
    pub fn listen_port(&self) -> u16 {
        unimplemented!()
    }

    /// IP addresses at which others can reach this node (for the stage endpoint's addresses).
    pub fn advertised_ips(&self) -> Vec<std::net::IpAddr> {
        unimplemented!()
    }

    /// Sets what this node says of itself; peers hear of it within about 200 ms. Until the first call peers see this
    /// node as joining: call [`Mesh::serve_grpc`] before.
    pub fn publish(&self, _status: LocalStatus) {
        unimplemented!()
    }

    /// Changes what this node says of itself in place.
    pub fn update(&self, _change: impl FnOnce(&mut LocalStatus)) {
        unimplemented!()
    }

    /// The mesh as this node sees it, now and on every change.
    pub fn view(&self) -> watch::Receiver<Arc<MeshView>> {
        unimplemented!()
    }

    /// All known peers with their last statuses, this node first; in the order of the view.
    pub fn peers(&self) -> Vec<PeerRecord> {
        unimplemented!()
    }

    /// Serves `routes` to admitted peers and to the local node; requests carry [`Caller`] in their extensions. A second
    /// call replaces the routes of the first.
    pub fn serve_grpc(&self, _routes: tonic::service::Routes) {
        unimplemented!()
    }

    /// A gRPC channel to `peer`, which may be the local node. Cheap: one HTTP/2 connection a peer is kept, made on first
    /// use, and made anew after it broke. Calls to a peer that is not connected fail at once with `Unavailable`.
    pub fn channel(&self, _peer: &PeerId) -> tonic::transport::Channel {
        unimplemented!()
    }

    /// Cancelled the moment the last connection to `peer` closes; already cancelled where there is none. Never cancelled
    /// for the local node before shutdown.
    pub fn presence(&self, _peer: &PeerId) -> CancellationToken {
        unimplemented!()
    }

    /// Whether `peer` is connected, and so has proven the mesh's secret; true for the local node. The stage transport
    /// accepts these only.
    pub fn is_admitted(&self, _peer: &PeerId) -> bool {
        unimplemented!()
    }

    /// Serves weights from `source` to admitted peers.
    pub fn serve_weights(&self, _source: Arc<dyn crate::weights::WeightSource>) {
        unimplemented!()
    }

    /// Says that this node is leaving, closes all connections and ends all tasks. Idempotent.
    ///
    /// # Cancel safety
    /// Dropping it leaves the tasks ending on their own.
    pub async fn shutdown(&self) {
        unimplemented!()
    }
}
