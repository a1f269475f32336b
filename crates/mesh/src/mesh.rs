//! The running mesh: one task that drives the libp2p swarm, and the handle through which the other rooms use it.
//!
//! [`Mesh`] is the handle. [`swarm`] has the task, [`dialer`] whom it dials, [`table`] what is known of peers,
//! [`links`] and [`grpc`] the streams to them, [`membership_service`] what peers tell each other.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;
use mesh_proto::{convert, v1};
use mesh_types::{ByteSize, ErrorClass, MeshView, ModelView, PeerId, PeerState, PeerView, StageView};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::transport::Channel;

use crate::admission::{Credentials, Door};
use crate::token::MeshId;
use crate::weights::{self, WeightSource};
use crate::{Identity, JoinToken, Membership, address, identity};

mod dialer;
mod grpc;
mod joining;
pub(crate) mod links;
mod membership_service;
mod reason;
mod swarm;
mod table;
#[cfg(test)]
pub(crate) mod tests;

use grpc::Grpc;
use joining::Joining;
use links::Links;
use reason::Reason;
use swarm::Command;
use table::Table;

/// How long calls of peers may go on after shutdown began.
const CLOSING_DEADLINE: Duration = Duration::from_secs(2);
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
    /// Since its status arrived; zero for one that has sent none since it connected, and for the local node.
    pub age: Duration,
    /// Whether this is the local node.
    pub local: bool,
}

/// Stands in the extensions of every gRPC request that the mesh serves: who calls. The identity is the one that the
/// connection proved; the local node's own for calls to itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller(pub PeerId);

/// Why a mesh did not start or could not be joined.
#[derive(Debug, thiserror::Error)]
pub enum MeshError {
    /// Nobody at the token's addresses could be joined: what was tried, and what happened there.
    #[error("could not join the mesh: {0}")]
    NoRoute(String),
    /// The listen address cannot be used.
    #[error("cannot listen on {address}: {reason}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why not.
        reason: String,
    },
    /// The system's network facilities are not there.
    #[error("cannot start the network: {0}")]
    Network(#[from] std::io::Error),
}

impl MeshError {
    /// The class that policy looks at.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::NoRoute(_) => ErrorClass::Unavailable,
            Self::Listen { .. } => ErrorClass::InvalidRequest,
            Self::Network(_) => ErrorClass::Internal,
        }
    }

    fn listen(address: SocketAddr, why: &std::io::Error) -> Self {
        let reason = match why.kind() {
            std::io::ErrorKind::AddrInUse => {
                "another program is using that port; stop it, or choose another with --listen".to_owned()
            }
            std::io::ErrorKind::AddrNotAvailable if address.ip().is_unspecified() => why.to_string(),
            std::io::ErrorKind::AddrNotAvailable => "no interface of this host has that address".to_owned(),
            _ => why.to_string(),
        };
        Self::Listen { address, reason }
    }
}

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
        Self::start_with(config, door).await
    }

    async fn start_with(config: Config, door: Door) -> Result<Self, MeshError> {
        let door = Arc::new(door);
        let connections = TaskTracker::new();
        let spawner = connections.clone();
        let agent = format!("mesh-node/{}", config.version);
        let swarm = swarm::build(&config.identity, door, agent, move |task| _ = spawner.spawn(task))?;
        let swarm::Listening { swarm, address } = swarm::listen(swarm, config.listen).await?;
        let (commands, inbox) = mpsc::channel(COMMANDS);
        let core = Core::new(config, address, swarm::control(&swarm), Tasks::new(connections), commands);
        core.tasks.own.spawn(swarm::Driver::new(core.clone(), swarm, inbox).run());
        let serving = core.clone();
        core.tasks.own.spawn(async move { serving.grpc.serve().await });
        let keeping = core.clone();
        core.tasks.own.spawn(async move { keeping.keep_membership().await });
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
        // Who is told that it has joined can come back after a crash.
        let _ = self.core.kept.subscribe().wait_for(|kept| *kept).await;
        Ok(())
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
        let membership = self.core.membership();
        JoinToken {
            mesh: membership.mesh(),
            epoch: membership.epoch(),
            expires: None,
            secret: membership.secret().clone(),
            bootstrap: self.core.full_addresses(),
        }
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

    /// All known peers with their last statuses, in the order of the view.
    pub fn peers(&self) -> Vec<PeerRecord> {
        let order: BTreeMap<PeerId, usize> =
            self.core.view.borrow().peers.iter().enumerate().map(|(at, peer)| (peer.id.clone(), at)).collect();
        let mut peers = self.core.table().records(Instant::now());
        peers.push(self.core.local_record());
        peers.sort_by_key(|peer| order.get(&PeerId::new(peer.status.peer_id.clone())).copied().unwrap_or(usize::MAX));
        peers
    }

    /// Serves `routes` to admitted peers and to the local node; requests carry [`Caller`] in their extensions. A second
    /// call replaces the routes of the first.
    pub fn serve_grpc(&self, routes: tonic::service::Routes) {
        let core = &self.core;
        core.grpc.replace_routes(membership_service::routes(core.status.subscribe(), core.closing(), routes));
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

    /// Whether `peer` is connected, and so has proven the mesh's secret; true for the local node. The stage transport
    /// accepts these only.
    pub fn is_admitted(&self, peer: &PeerId) -> bool {
        *peer == self.core.id || self.core.links.presence(peer).is_some()
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
    let credentials = Credentials { mesh: membership.mesh(), secret, epoch: membership.epoch() };
    let door = Door::new(identity.keypair().public().to_peer_id(), credentials);
    membership.blocked().iter().filter_map(identity::to_libp2p).for_each(|peer| door.block(peer));
    membership.known_peers().filter_map(|(peer, _)| identity::to_libp2p(peer)).for_each(|peer| door.know(peer));
    door
}

/// What the handle and the tasks share.
struct Core {
    id: PeerId,
    name: String,
    version: String,
    listen: SocketAddr,
    membership: Mutex<Membership>,
    membership_changed: Notify,
    /// Whether the membership was written since a member accepted it, or that was tried.
    kept: watch::Sender<bool>,
    local: Mutex<Local>,
    table: Mutex<Table>,
    view: watch::Sender<Arc<MeshView>>,
    /// This node's status as peers hear it; `None` until it is published.
    status: watch::Sender<Option<v1::NodeStatus>>,
    joining: Joining,
    links: Arc<Links>,
    grpc: Grpc,
    commands: mpsc::Sender<Command>,
    tasks: Tasks,
}

/// What this node knows of itself.
struct Local {
    said: Option<LocalStatus>,
    addresses: Vec<Multiaddr>,
    sequence: u64,
}

/// Every task of the mesh, by how it ends.
struct Tasks {
    /// The mesh's own, which end by themselves when it closes.
    own: TaskTracker,
    /// libp2p's connections.
    connections: TaskTracker,
    grpc: grpc::Tasks,
}

impl Tasks {
    fn new(connections: TaskTracker) -> Self {
        Self { own: TaskTracker::new(), connections, grpc: grpc::Tasks::default() }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Core {
    fn new(
        config: Config,
        listen: SocketAddr,
        control: libp2p_stream::Control,
        tasks: Tasks,
        commands: mpsc::Sender<Command>,
    ) -> Arc<Self> {
        let id = config.identity.id().clone();
        let (status, watched) = watch::channel(None);
        let links = Arc::new(Links::new(control));
        let routes = membership_service::routes(watched, tasks.grpc.closing.clone(), Default::default());
        let grpc = Grpc::new(id.clone(), links.clone(), tasks.grpc.clone(), routes);
        let core = Arc::new(Self {
            name: config.name,
            version: config.version,
            listen,
            joining: Joining::new(&config.membership),
            kept: watch::Sender::new(config.membership.is_proven()),
            membership: Mutex::new(config.membership),
            membership_changed: Notify::new(),
            local: Mutex::new(Local { said: None, addresses: Vec::new(), sequence: 0 }),
            table: Mutex::default(),
            view: watch::Sender::new(Arc::default()),
            status,
            links,
            grpc,
            commands,
            tasks,
            id,
        });
        core.addresses_changed();
        core
    }

    fn membership(&self) -> MutexGuard<'_, Membership> {
        lock(&self.membership)
    }

    fn local(&self) -> MutexGuard<'_, Local> {
        lock(&self.local)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        lock(&self.table)
    }

    fn closing(&self) -> CancellationToken {
        self.tasks.grpc.closing.clone()
    }

    fn channel(&self, peer: &PeerId) -> Channel {
        self.grpc.channel(peer)
    }

    fn full_addresses(&self) -> Vec<Multiaddr> {
        let Some(id) = identity::to_libp2p(&self.id) else { return Vec::new() };
        self.local().addresses.iter().map(|address| address.clone().with(Protocol::P2p(id))).collect()
    }

    fn known_peers(&self) -> Vec<(libp2p::PeerId, Vec<Multiaddr>)> {
        let membership = self.membership();
        membership.known_peers().filter_map(|(id, list)| Some((identity::to_libp2p(id)?, list.to_vec()))).collect()
    }

    /// The host's interfaces changed, or were read for the first time.
    fn addresses_changed(&self) {
        let ips = address::reachable(self.listen.ip());
        self.local().addresses = ips.into_iter().map(|ip| address::multiaddr(ip, self.listen.port())).collect();
        self.changed();
    }

    /// The first connection to `peer` stands. `address` is where it was dialled.
    fn connected(self: &Arc<Self>, peer: libp2p::PeerId, address: Option<Multiaddr>) {
        let peer = identity::from_libp2p(&peer);
        let presence = self.links.connected(&peer);
        {
            let mut membership = self.membership();
            // Somebody knows the secret: the token was right.
            let proven = membership.proven();
            let moved = address.as_ref().is_some_and(|address| membership.reached(&peer, address));
            if proven || moved {
                self.membership_changed.notify_one();
            }
        }
        self.table().connected(&peer, address);
        self.joining.connected();
        self.changed();
        self.tasks.own.spawn(membership_service::watch(self.clone(), peer, presence));
    }

    /// The last connection to `peer` is gone.
    fn disconnected(&self, peer: &PeerId) {
        self.links.disconnected(peer);
        self.table().disconnected(peer, Instant::now());
        self.changed();
    }

    fn dial_failed(&self, peer: libp2p::PeerId, reasons: Vec<(Multiaddr, Reason)>) {
        self.joining.failed(&identity::from_libp2p(&peer), reasons);
    }

    /// `peer` says what it is, and whom it knows.
    fn heard(&self, peer: &PeerId, status: v1::NodeStatus) {
        let addresses = parse_addresses(&status.addresses);
        let others = status.peers.clone();
        if !self.table().heard(peer, status, Instant::now()) {
            return;
        }
        self.learn(peer, addresses.clone(), true);
        for other in others.iter().take(table::MAX_ITEMS).filter(|other| other.peer_id != self.id.as_str()) {
            self.learn(&PeerId::new(other.peer_id.clone()), parse_addresses(&other.addresses), false);
        }
        if self.membership().remember(peer, &addresses) {
            self.membership_changed.notify_one();
        }
        self.changed();
    }

    /// Passes on where a peer is. Where the swarm is too busy to hear it, the next status says it again.
    fn learn(&self, peer: &PeerId, addresses: Vec<Multiaddr>, own: bool) {
        let Some(peer) = identity::to_libp2p(peer).filter(|_| !addresses.is_empty()) else { return };
        if self.commands.try_send(Command::Learn { peer, addresses, own }).is_err() {
            tracing::debug!(%peer, "no room to remember where a peer is");
        }
    }

    fn next_expiry(&self) -> Option<Instant> {
        self.table().next_expiry()
    }

    /// Drops peers that have been gone for long.
    fn expire(&self, now: Instant) {
        let expired = self.table().expire(now);
        if !expired.is_empty() {
            expired.iter().for_each(|peer| self.grpc.forget(peer));
            self.changed();
        }
    }

    /// Makes the view, and what peers hear, anew.
    fn changed(&self) {
        let mut local = self.local();
        let table = self.table();
        let status = self.compose(&local, &table);
        if let Some(status) = &status {
            self.status.send_if_modified(|before| {
                let same =
                    before.as_ref().is_some_and(|before| v1::NodeStatus { sequence: 0, ..before.clone() } == *status);
                if !same {
                    local.sequence += 1;
                    *before = Some(v1::NodeStatus { sequence: local.sequence, ..status.clone() });
                }
                !same
            });
        }
        let view = Arc::new(table.view(self.local_view(&local, status)));
        self.view.send_if_modified(|before| {
            let news = *before != view;
            *before = view;
            news
        });
    }

    /// This node's status without its number; `None` until it is published.
    fn compose(&self, local: &Local, table: &Table) -> Option<v1::NodeStatus> {
        let said = local.said.as_ref()?;
        Some(v1::NodeStatus {
            peer_id: self.id.to_string(),
            name: self.name.clone(),
            version: self.version.clone(),
            addresses: local.addresses.iter().map(Multiaddr::to_string).collect(),
            stage_addresses: said.stage_addresses.clone(),
            memory_bytes: said.memory.0,
            memory_free_bytes: said.memory_free.0,
            models: said.models.iter().map(Into::into).collect(),
            stages: said.stages.iter().map(Into::into).collect(),
            leaving: said.leaving,
            sequence: 0,
            peers: table.reachable(),
        })
    }

    fn local_view(&self, local: &Local, status: Option<v1::NodeStatus>) -> PeerView {
        let state = match &local.said {
            None => PeerState::Joining,
            Some(said) if said.leaving => PeerState::Leaving,
            Some(_) => PeerState::Ready,
        };
        let blank = || PeerView {
            local: true,
            name: self.name.clone(),
            version: self.version.clone(),
            addresses: local.addresses.iter().map(Multiaddr::to_string).collect(),
            ..table::blank(self.id.clone(), state)
        };
        status.and_then(|status| convert::peer_view(self.id.clone(), status, state, true).ok()).unwrap_or_else(blank)
    }

    fn local_record(&self) -> PeerRecord {
        let local = self.local();
        let status = self.compose(&local, &self.table()).unwrap_or_else(|| v1::NodeStatus {
            peer_id: self.id.to_string(),
            name: self.name.clone(),
            version: self.version.clone(),
            addresses: local.addresses.iter().map(Multiaddr::to_string).collect(),
            ..Default::default()
        });
        let status = v1::NodeStatus { sequence: local.sequence, ..status };
        let state = self.local_view(&local, None).state;
        PeerRecord { status, state, age: Duration::ZERO, local: true }
    }

    /// Writes the membership whenever it changed.
    async fn keep_membership(&self) {
        let closing = self.closing();
        loop {
            let closed = closing.run_until_cancelled(self.membership_changed.notified()).await.is_none();
            let membership = self.membership().clone();
            let saved = tokio::task::spawn_blocking(move || membership.save()).await;
            if let Ok(Err(error)) = saved {
                tracing::error!(%error, "cannot keep the membership: this node may not find the mesh again");
            }
            self.kept.send_if_modified(|kept| self.membership().is_proven() && !std::mem::replace(kept, true));
            if closed {
                return;
            }
        }
    }

    async fn shutdown(&self) {
        let Tasks { own, connections, grpc } = &self.tasks;
        // Peers that watch get the last status, and their streams end.
        grpc.closing.cancel();
        grpc.serving.close();
        if tokio::time::timeout(CLOSING_DEADLINE, grpc.serving.wait()).await.is_err() {
            tracing::debug!("calls of peers did not end in time");
        }
        grpc.closed.cancel();
        let (done, closed) = oneshot::channel();
        if self.commands.send(Command::Close(done)).await.is_ok() {
            let _ = closed.await;
        }
        for tasks in [&grpc.serving, &grpc.helping, own, connections] {
            tasks.close();
            tasks.wait().await;
        }
    }
}

fn parse_addresses(texts: &[String]) -> Vec<Multiaddr> {
    const MAX: usize = 16;
    texts.iter().take(MAX).filter_map(|text| text.parse().ok()).collect()
}
