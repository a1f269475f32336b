//! What the handle of the mesh and its tasks share, and how news runs through it: connections and statuses come in,
//! the view and this node's own status come out.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;
use mesh_proto::{convert, v1};
use mesh_types::{MeshView, PeerId, PeerState, PeerView};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::transport::Channel;

use super::grpc::{self, Grpc};
use super::joining::Joining;
use super::links::Links;
use super::reason::Reason;
use super::swarm::Command;
use super::table::{self, Table};
use super::{Config, LocalStatus, PeerRecord, membership_service};
use crate::{Membership, address, identity};

/// How long calls of peers may go on after shutdown began.
const CLOSING_DEADLINE: Duration = Duration::from_secs(2);

/// What the handle and the tasks share.
pub(super) struct Core {
    pub(super) id: PeerId,
    pub(super) name: String,
    pub(super) version: String,
    pub(super) listen: SocketAddr,
    pub(super) membership: Mutex<Membership>,
    pub(super) membership_changed: Notify,
    /// Whether the membership was written since a member accepted it, or that was tried.
    pub(super) kept: watch::Sender<bool>,
    pub(super) local: Mutex<Local>,
    pub(super) table: Mutex<Table>,
    pub(super) view: watch::Sender<Arc<MeshView>>,
    /// This node's status as peers hear it; `None` until it is published.
    pub(super) status: watch::Sender<Option<v1::NodeStatus>>,
    pub(super) joining: Joining,
    pub(super) links: Arc<Links>,
    pub(super) grpc: Grpc,
    pub(super) commands: mpsc::Sender<Command>,
    pub(super) tasks: Tasks,
}

/// What this node knows of itself.
pub(super) struct Local {
    pub(super) said: Option<LocalStatus>,
    pub(super) addresses: Vec<Multiaddr>,
    pub(super) sequence: u64,
}

/// Every task of the mesh, by how it ends.
pub(super) struct Tasks {
    /// The mesh's own, which end by themselves when it closes.
    pub(super) own: TaskTracker,
    /// libp2p's connections.
    pub(super) connections: TaskTracker,
    pub(super) grpc: grpc::Tasks,
}

impl Tasks {
    pub(super) fn new(connections: TaskTracker) -> Self {
        Self { own: TaskTracker::new(), connections, grpc: grpc::Tasks::default() }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Core {
    pub(super) fn new(
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

    pub(super) fn membership(&self) -> MutexGuard<'_, Membership> {
        lock(&self.membership)
    }

    pub(super) fn local(&self) -> MutexGuard<'_, Local> {
        lock(&self.local)
    }

    pub(super) fn table(&self) -> MutexGuard<'_, Table> {
        lock(&self.table)
    }

    pub(super) fn closing(&self) -> CancellationToken {
        self.tasks.grpc.closing.clone()
    }

    pub(super) fn channel(&self, peer: &PeerId) -> Channel {
        self.grpc.channel(peer)
    }

    pub(super) fn full_addresses(&self) -> Vec<Multiaddr> {
        let Some(id) = identity::to_libp2p(&self.id) else { return Vec::new() };
        self.local().addresses.iter().map(|address| address.clone().with(Protocol::P2p(id))).collect()
    }

    pub(super) fn known_peers(&self) -> Vec<(libp2p::PeerId, Vec<Multiaddr>)> {
        let membership = self.membership();
        membership.known_peers().filter_map(|(id, list)| Some((identity::to_libp2p(id)?, list.to_vec()))).collect()
    }

    /// The host's interfaces changed, or were read for the first time.
    pub(super) fn addresses_changed(&self) {
        let ips = address::reachable(self.listen.ip());
        self.local().addresses = ips.into_iter().map(|ip| address::multiaddr(ip, self.listen.port())).collect();
        self.changed();
    }

    /// The first connection to `peer` stands. `address` is where it was dialled.
    pub(super) fn connected(self: &Arc<Self>, peer: libp2p::PeerId, address: Option<Multiaddr>) {
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
    pub(super) fn disconnected(&self, peer: &PeerId) {
        self.links.disconnected(peer);
        self.table().disconnected(peer, Instant::now());
        self.changed();
    }

    /// A ping to `peer` came back.
    pub(super) fn measured(&self, peer: &libp2p::PeerId, rtt: Duration) {
        if self.table().measured(&identity::from_libp2p(peer), rtt) {
            self.changed();
        }
    }

    pub(super) fn dial_failed(&self, peer: libp2p::PeerId, reasons: Vec<(Multiaddr, Reason)>) {
        self.joining.failed(&identity::from_libp2p(&peer), reasons);
    }

    /// `peer` says what it is, and whom it knows.
    pub(super) fn heard(&self, peer: &PeerId, status: v1::NodeStatus) {
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
    pub(super) fn learn(&self, peer: &PeerId, addresses: Vec<Multiaddr>, own: bool) {
        let Some(peer) = identity::to_libp2p(peer).filter(|_| !addresses.is_empty()) else { return };
        if self.commands.try_send(Command::Learn { peer, addresses, own }).is_err() {
            tracing::debug!(%peer, "no room to remember where a peer is");
        }
    }

    pub(super) fn next_expiry(&self) -> Option<Instant> {
        self.table().next_expiry()
    }

    /// Drops peers that have been gone for long.
    pub(super) fn expire(&self, now: Instant) {
        let expired = self.table().expire(now);
        if !expired.is_empty() {
            expired.iter().for_each(|peer| self.grpc.forget(peer));
            self.changed();
        }
    }

    /// Makes the view, and what peers hear, anew.
    pub(super) fn changed(&self) {
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
    pub(super) fn compose(&self, local: &Local, table: &Table) -> Option<v1::NodeStatus> {
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
            speed: said.speed.map(Into::into),
            draining: said.draining,
            sequence: 0,
            peers: table.reachable(),
        })
    }

    pub(super) fn local_view(&self, local: &Local, status: Option<v1::NodeStatus>) -> PeerView {
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

    pub(super) fn local_record(&self) -> PeerRecord {
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
    pub(super) async fn keep_membership(&self) {
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

    pub(super) async fn shutdown(&self) {
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
