//! The running mesh: one task that drives the libp2p swarm, and the handle through which the other rooms use it.
//!
//! [`Mesh`] is the handle. [`state`] is what it shares with the tasks, [`swarm`] the one that drives libp2p and
//! [`behaviour`] what it drives, [`dialer`] whom that dials, [`paths`] how they are reached and [`reach`] how this node is, [`lan`] who is found without
//! being told of, [`leaders`] and [`search`] whom to ask for a model, [`copies`] who is there twice, [`table`] what is
//! known of peers, [`links`] and [`grpc`] the streams to them, [`membership_service`] what peers tell each other, [`own`]
//! and [`telling`] what this node does and when.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use libp2p::Multiaddr;
use mesh_proto::v1;
use mesh_types::{ByteSize, MeshView, ModelId, ModelView, PeerId, Speed, StageView};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::transport::Channel;

use crate::admission::{Credentials, Door};
use crate::token::MeshId;
use crate::weights::{self, WeightSource};
use crate::{Identity, JoinToken, Membership, address, identity};

mod behaviour;
mod copies;
mod dialer;
mod error;
mod grpc;
mod joining;
mod lan;
mod leaders;
mod left_out;
pub(crate) mod links;
mod membership_service;
mod own;
mod paths;
mod reach;
mod reason;
mod record;
mod renewal;
mod search;
pub(crate) mod stall;
mod state;
mod swarm;
mod table;
mod telling;
#[cfg(test)]
pub(crate) mod tests;

pub use error::MeshError;
use links::Links;
pub use record::{AddressReach, PeerRecord};
use state::{Core, Parts, Tasks};

const COMMANDS: usize = 256;

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
    /// Whether members on the local network find each other by mDNS. Without effect where only loopback is listened on.
    pub mdns: bool,
}

impl Config {
    /// Whether members are looked for on the local network.
    fn searches_lan(&self) -> bool {
        self.mdns && !self.listen.ip().is_loopback()
    }
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
    /// How fast it computes; `None`: not measured yet.
    pub speed: Option<Speed>,
    /// It takes no new stages and no new requests, and stays otherwise.
    pub draining: bool,
    /// It is going: give it nothing new.
    pub leaving: bool,
}

/// What tests set otherwise.
#[derive(Clone, Copy, Debug)]
struct Tuning {
    /// Peers that the node looks for at most by itself.
    room: usize,
    /// Before a member is asked whether it reaches this node, and between the first few.
    probe_pause: Duration,
}

impl Default for Tuning {
    fn default() -> Self {
        Self { room: dialer::MAX_TARGETS, probe_pause: Duration::from_secs(3) }
    }
}

/// Stands in the extensions of every gRPC request that the mesh serves: who calls. The identity is the one that the
/// connection proved; the local node's own for calls to itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller(pub PeerId);

/// Handle of the running mesh; clones are the same mesh.
#[derive(Clone)]
pub struct Mesh {
    core: Arc<Core>,
}

impl Mesh {
    /// Listens, and starts connecting to the peers that the membership knows. Returns when the listen address is known;
    /// nobody may be connected yet.
    ///
    /// # Errors
    /// [`MeshError::Listen`], which names the address.
    pub async fn start(config: Config) -> Result<Self, MeshError> {
        let door = door(&config.identity, &config.membership);
        Self::start_with(config, door, Tuning::default()).await
    }

    async fn start_with(config: Config, door: Door, tuning: Tuning) -> Result<Self, MeshError> {
        let door = Arc::new(door);
        let connections = TaskTracker::new();
        let spawner = connections.clone();
        let mut process = [0; 8];
        getrandom::fill(&mut process).map_err(|error| MeshError::Network(std::io::Error::other(error)))?;
        let agent = copies::agent(&config.version, u64::from_be_bytes(process));
        let swarm =
            behaviour::build(&config.identity, door.clone(), agent, tuning, move |task| _ = spawner.spawn(task))?;
        let behaviour::Listening { swarm, address } = behaviour::listen(swarm, config.listen).await?;
        let (commands, inbox) = mpsc::channel(COMMANDS);
        let searches_lan = config.searches_lan();
        let parts = Parts { control: behaviour::control(&swarm), tasks: Tasks::new(connections), commands, door };
        let core = Core::new(config, address, parts);
        core.tasks.own.spawn(swarm::Driver::new(core.clone(), swarm, inbox, tuning.room).run());
        let serving = core.clone();
        core.tasks.own.spawn(async move { serving.grpc.serve().await });
        let keeping = core.clone();
        core.tasks.own.spawn(async move { keeping.keep_membership().await });
        if searches_lan {
            core.tasks.own.spawn(lan::run(core.clone(), lan::Interfaces::OfNetworks));
        }
        Ok(Self { core })
    }

    /// Waits until at least one peer is admitted, and the membership is on disk; 15 s is a good `within`.
    ///
    /// # Errors
    /// [`MeshError::NoRoute`] names each address tried and what went wrong there; at once where every answer was final.
    ///
    /// # Cancel safety
    /// May be dropped.
    pub async fn joined(&self, within: Duration) -> Result<(), MeshError> {
        self.core.joining.wait(within).await.map_err(MeshError::NoRoute)?;
        // Who is told that it has joined has the mesh's secret, and can come back after a crash.
        let mut kept = self.core.kept.subscribe();
        let keeping = tokio::time::timeout(within, kept.wait_for(|kept| *kept)).await;
        let untold = "admitted, but nobody told this node the mesh's secret in time";
        keeping.map(|_| ()).map_err(|_| MeshError::NoRoute(untold.to_owned()))
    }

    /// This node's id.
    pub fn local_id(&self) -> &PeerId {
        &self.core.id
    }

    /// The mesh's id.
    pub fn id(&self) -> MeshId {
        self.core.membership().mesh()
    }

    /// A token with which others can join through this node, at its present addresses.
    pub fn token(&self) -> JoinToken {
        let bootstrap = self.core.full_addresses();
        let membership = self.core.membership();
        let (mesh, epoch, secret) = (membership.mesh(), membership.epoch(), membership.secret().clone());
        JoinToken { mesh, epoch, expires: None, secret, bootstrap }
    }

    /// The same, with which others can join for so long, by the clocks of those who admit them. It does not hold the
    /// mesh's secret: who has joined is told.
    pub fn token_for(&self, valid: Duration) -> JoinToken {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // A token says whole seconds; it is good for no less than was asked.
        let until = now.saturating_add(valid).as_millis().div_ceil(1000);
        let until = u64::try_from(until).unwrap_or(u64::MAX);
        let token = self.token();
        JoinToken { expires: Some(until), secret: token.secret.invitation(until), ..token }
    }

    /// A key for `purpose` that every member of this mesh derives alike, and nobody else can. Changes with the mesh's
    /// secret.
    pub fn derive_key(&self, purpose: &str) -> [u8; 32] {
        self.core.membership().secret().derive(purpose)
    }

    /// Replaces the mesh's secret: tokens made before stop working, and members stay, those that are away too. Returns
    /// when it is on this node's disk; peers hear of it meanwhile.
    ///
    /// # Errors
    /// Where the new secret cannot be made or kept; then the old one stays in force.
    pub async fn rotate_token(&self) -> Result<(), MeshError> {
        self.core.rotate().await
    }

    /// Keeps `peer` out from now on, whatever it proves, and closes its connections; connected peers do the same.
    /// Returns whether that is news. Whoever has the present token can come back under another id: rotate it as well.
    pub fn block(&self, peer: &PeerId) -> bool {
        let is_news = self.core.block(peer);
        self.core.tell_all(v1::RenewRequest { block: vec![peer.to_string()], ..Default::default() });
        is_news
    }

    /// Lets `peer` in again, here and at connected peers. Returns whether it was kept out.
    pub fn unblock(&self, peer: &PeerId) -> bool {
        let is_news = self.core.unblock(peer);
        self.core.tell_all(v1::RenewRequest { unblock: vec![peer.to_string()], ..Default::default() });
        is_news
    }

    /// Peers that are kept out.
    pub fn blocked(&self) -> Vec<PeerId> {
        self.core.membership().blocked().to_vec()
    }

    /// Multiaddresses at which others can reach this node, `/p2p/` part included.
    pub fn listen_addresses(&self) -> Vec<String> {
        self.core.full_addresses().iter().map(Multiaddr::to_string).collect()
    }

    /// Where libp2p listens, with the port that was picked.
    pub fn listen_addr(&self) -> SocketAddr {
        self.core.listen
    }

    /// IP addresses at which others can reach this node: what the stage endpoint advertises with its own port.
    pub fn advertised_ips(&self) -> Vec<IpAddr> {
        address::reachable(self.core.listen.ip())
    }

    /// Sets what this node says of itself; peers hear of it within about 200 ms. Until the first call peers see this
    /// node as joining: call [`Mesh::serve_grpc`] before.
    pub fn publish(&self, status: LocalStatus) {
        self.core.local().said = Some(status);
        self.core.changed();
    }

    /// Changes what this node says of itself in place; begins with an empty status.
    pub fn update(&self, change: impl FnOnce(&mut LocalStatus)) {
        change(self.core.local().said.get_or_insert_default());
        self.core.changed();
    }

    /// The mesh as this node sees it, now and on every change.
    pub fn view(&self) -> watch::Receiver<Arc<MeshView>> {
        self.core.view.subscribe()
    }

    /// Whether a present node lists `model`. Where none of those does that this node is connected to, members are asked
    /// whether they know of one, for up to 1.5 s; it is then connected, and in the view. Names that were not found are not
    /// asked for again for some seconds, and few are at the same time.
    ///
    /// # Cancel safety
    /// May be dropped.
    pub async fn find(&self, model: &ModelId) -> bool {
        self.core.find(model).await
    }

    /// All known peers with their last statuses, in the order of the view.
    pub fn peers(&self) -> Vec<PeerRecord> {
        let order: BTreeMap<PeerId, usize> =
            self.core.view.borrow().peers.iter().enumerate().map(|(at, peer)| (peer.id.clone(), at)).collect();
        let copied = self.core.local().copied.clone();
        let mut peers = self.core.table().records(Instant::now(), &copied);
        peers.push(self.core.local_record());
        peers.sort_by_key(|peer| order.get(&PeerId::new(peer.status.peer_id.clone())).copied().unwrap_or(usize::MAX));
        peers
    }

    /// Serves `routes` to admitted peers and to the local node; requests carry [`Caller`] in their extensions. A second
    /// call replaces the routes of the first.
    pub fn serve_grpc(&self, routes: tonic::service::Routes) {
        let core = &self.core;
        let (said, table, closing) = (core.said.subscribe(), core.table.clone(), core.closing());
        let service = membership_service::Service { said, table, closing };
        core.grpc.replace_routes(renewal::routes(core, membership_service::routes(service, routes)));
    }

    /// A gRPC channel to `peer`, which may be the local node. Cheap: one HTTP/2 connection a peer is kept, made on first
    /// use, and made anew after it broke. Calls to a peer that is not connected fail at once, as unavailable.
    pub fn channel(&self, peer: &PeerId) -> Channel {
        self.core.channel(peer)
    }

    /// Cancelled the moment the last connection to `peer` closes; already cancelled where there is none. For the local
    /// node: cancelled when the mesh has shut down.
    pub fn presence(&self, peer: &PeerId) -> CancellationToken {
        if *peer == self.core.id {
            return self.core.tasks.grpc.closed.clone();
        }
        self.core.links.presence(peer).unwrap_or_else(|| {
            let absent = CancellationToken::new();
            absent.cancel();
            absent
        })
    }

    /// Whether `peer` is connected, and so has proven the mesh's secret, and is not kept out; true for the local node.
    /// The stage transport accepts these only.
    pub fn is_admitted(&self, peer: &PeerId) -> bool {
        // The connection of one that was blocked a moment ago may still be closing.
        let is_member = || self.core.links.presence(peer).is_some() && !self.core.membership().blocked().contains(peer);
        *peer == self.core.id || is_member()
    }

    /// Serves weights from `source` to admitted peers. To be called once.
    pub fn serve_weights(&self, source: Arc<dyn WeightSource>) {
        self.spawn(weights::serve(self.core.links.clone(), source));
    }

    /// Says that this node is leaving, lets calls that peers make here end for up to 2 s, closes all connections and
    /// ends all tasks. Idempotent.
    ///
    /// # Cancel safety
    /// Dropping it leaves the tasks to end on their own.
    pub async fn shutdown(&self) {
        self.update(|status| status.leaving = true);
        self.core.shutdown().await;
    }

    /// Opens streams to peers.
    pub(crate) fn links(&self) -> &Arc<Links> {
        &self.core.links
    }

    /// Runs `task` until the mesh shuts down; it is joined there.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let closing = self.core.closing();
        self.core.tasks.own.spawn(async move {
            closing.run_until_cancelled(task).await;
        });
    }
}

impl fmt::Debug for Mesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mesh").field("id", &self.id()).field("node", &self.core.id).finish_non_exhaustive()
    }
}

/// What opens for the members of `membership`.
fn door(identity: &Identity, membership: &Membership) -> Door {
    let secret = membership.secret().clone();
    let past = membership.past().to_vec();
    let (mesh, epoch, invited) = (membership.mesh(), membership.epoch(), membership.invited());
    let credentials = Credentials { mesh, secret, epoch, invited, past };
    let door = Door::new(identity.keypair().public().to_peer_id(), credentials);
    membership.blocked().iter().filter_map(identity::to_libp2p).for_each(|peer| door.block(peer));
    membership.known_peers().filter_map(|(peer, _)| identity::to_libp2p(peer)).for_each(|peer| door.know(peer));
    door
}
