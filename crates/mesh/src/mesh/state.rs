//! What the handle of the mesh and its tasks share, and how news runs through it: connections and statuses come in,
//! the view and this node's own status come out.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use libp2p::Multiaddr;
use mesh_proto::v1;
use mesh_types::{MeshView, PeerId};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::transport::Channel;

use super::copies::Copies;
use super::grpc::{self, Grpc};
use super::joining::Joining;
use super::leaders::ModelKey;
use super::links::Links;
use super::membership_service::Service;
use super::reason::Reason;
use super::search::{self, Searches};
use super::swarm::{Command, Source};
use super::table::{self, Table};
use super::telling::Said;
use super::{AddressReach, Config, LocalStatus, membership_service, renewal};
use crate::admission::Door;
use crate::{Membership, identity};

/// How long calls of peers may go on after shutdown began.
const CLOSING_DEADLINE: Duration = Duration::from_secs(2);

/// What the handle and the tasks share.
///
/// Who holds several locks takes them in this order: `local`, `table`, `membership`. Nothing else is locked under
/// `membership`.
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
    pub(super) table: Arc<Mutex<Table>>,
    pub(super) view: watch::Sender<Arc<MeshView>>,
    /// What peers hear from this node; `None` until it is published.
    pub(super) said: watch::Sender<Option<Said>>,
    pub(super) joining: Joining,
    pub(super) links: Arc<Links>,
    pub(super) grpc: Grpc,
    pub(super) searches: Mutex<Searches>,
    pub(super) commands: mpsc::Sender<Command>,
    pub(super) door: Arc<Door>,
    pub(super) tasks: Tasks,
}

/// What the core and the swarm's task have in common.
pub(super) struct Parts {
    pub(super) control: libp2p_stream::Control,
    pub(super) tasks: Tasks,
    pub(super) commands: mpsc::Sender<Command>,
    pub(super) door: Arc<Door>,
}

/// What this node knows of itself.
#[derive(Default)]
pub(super) struct Local {
    pub(super) said: Option<LocalStatus>,
    /// Where this host's interfaces let others in.
    pub(super) own: Vec<SocketAddr>,
    /// What members found.
    pub(super) reach: Vec<AddressReach>,
    /// What others are told, made of these two.
    pub(super) addresses: Vec<Multiaddr>,
    pub(super) sequence: u64,
    /// Peers whose identity this node sees two processes use.
    pub(super) copied: Vec<v1::CopiedIdentity>,
    /// Where others see processes with this node's own identity; empty: there is one.
    pub(super) copied_at: BTreeSet<String>,
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
    pub(super) fn new(config: Config, listen: SocketAddr, parts: Parts) -> Arc<Self> {
        let Parts { control, tasks, commands, door } = parts;
        let id = config.identity.id().clone();
        let (said, watched) = watch::channel(None);
        let table = Arc::new(Mutex::new(Table::default()));
        let links = Arc::new(Links::new(control));
        let service = Service { said: watched, table: table.clone(), closing: tasks.grpc.closing.clone() };
        let routes = membership_service::routes(service, Default::default());
        let grpc = Grpc::new(id.clone(), links.clone(), tasks.grpc.clone(), routes.clone());
        let joining = Joining::new(&config.membership, config.searches_lan());
        let core = Arc::new(Self {
            name: config.name,
            version: config.version,
            listen,
            joining,
            kept: watch::Sender::new(config.membership.is_proven()),
            membership: Mutex::new(config.membership),
            membership_changed: Notify::new(),
            local: Mutex::new(Local::default()),
            table,
            view: watch::Sender::new(Arc::default()),
            said,
            links,
            grpc,
            searches: search::none(),
            commands,
            door,
            tasks,
            id,
        });
        core.grpc.replace_routes(renewal::routes(&core, routes));
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

    pub(super) fn known_peers(&self) -> Vec<(libp2p::PeerId, Vec<Multiaddr>)> {
        let membership = self.membership();
        membership.known_peers().filter_map(|(id, list)| Some((identity::to_libp2p(id)?, list.to_vec()))).collect()
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
        self.ask_if_invited(&peer);
        self.tasks.own.spawn(membership_service::watch(self.clone(), peer, presence));
    }

    /// The last connection to `peer` is gone.
    pub(super) fn disconnected(&self, peer: &PeerId) {
        self.links.disconnected(peer);
        self.table().disconnected(peer, Instant::now());
        self.changed();
    }

    /// `peer` is connected through the member `relay`, or directly.
    pub(super) fn reached_through(&self, peer: &PeerId, relay: Option<PeerId>) {
        let relayed = relay.clone();
        if self.table().reached_through(peer, relay) {
            match relayed {
                Some(relay) => tracing::info!(%peer, %relay, "connected through another member: it takes no stages"),
                None => tracing::info!(%peer, "connected directly"),
            }
            self.changed();
        }
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
    pub(super) fn heard(self: &Arc<Self>, peer: &PeerId, update: v1::Update) {
        let addresses = update.status.as_ref().map(|status| parse_addresses(&status.addresses)).unwrap_or_default();
        let epoch = update.status.as_ref().map(|status| status.epoch);
        let mesh = self.membership().mesh();
        let models = update.status.iter().flat_map(|status| status.models.iter().take(table::MAX_ITEMS));
        let models: Vec<ModelKey> = models.map(|model| ModelKey::new(&mesh, &model.name)).collect();
        let others = update.peers.clone();
        if !self.table().heard(peer, update, Instant::now()) {
            return;
        }
        if let Some(epoch) = epoch {
            self.tell_if_behind(peer, epoch);
        }
        self.learn(peer, addresses.clone(), Source::Itself(models));
        for other in others.iter().take(table::MAX_ITEMS).filter(|other| other.peer_id != self.id.as_str()) {
            let source = match identity::to_libp2p(peer) {
                Some(member) if !other.relayed => Source::Member(member),
                _ => Source::Hearsay,
            };
            self.learn(&PeerId::new(other.peer_id.clone()), parse_addresses(&other.addresses), source);
        }
        if self.membership().remember(peer, &addresses) {
            self.membership_changed.notify_one();
        }
        self.hear_of_copies();
        self.changed();
    }

    /// This node sees two processes use one identity, or sees no more that they do.
    pub(super) fn sees_copies(&self, copies: &Copies) {
        let texts = |ips: &[IpAddr]| ips.iter().map(IpAddr::to_string).collect();
        let copied =
            copies.found().map(|(peer, ips)| v1::CopiedIdentity { peer_id: peer.to_string(), ips: texts(ips) });
        let copied: Vec<_> = copied.take(table::MAX_ITEMS).collect();
        for v1::CopiedIdentity { peer_id, ips } in &copied {
            tracing::warn!(peer = peer_id, at = ?ips, "two processes use the identity of one node: its data directory \
                was copied; remove identity.key from one of the two and start it again");
        }
        self.local().copied = copied;
        self.changed();
    }

    /// Others may see a second process with this node's own identity.
    fn hear_of_copies(&self) {
        let at = self.table().copied_at(&self.id);
        let mut local = self.local();
        if local.copied_at != at {
            match at.is_empty() {
                true => tracing::info!("this node's identity is its own again"),
                false => {
                    tracing::error!(seen_at = ?at, "another process uses this node's identity: its data directory \
                    was copied; stop one of the two, remove identity.key from its data directory, and start it again: \
                    it comes back as a node of its own")
                }
            }
            local.copied_at = at;
        }
    }

    pub(super) fn is_blocked(&self, peer: &PeerId) -> bool {
        self.membership().blocked().contains(peer)
    }

    /// Passes on where a peer is. Where the swarm is too busy to hear it, the next status says it again.
    pub(super) fn learn(&self, peer: &PeerId, addresses: Vec<Multiaddr>, source: Source) {
        if self.is_blocked(peer) {
            return;
        }
        let Some(peer) = identity::to_libp2p(peer).filter(|_| !addresses.is_empty()) else { return };
        if self.commands.try_send(Command::Learn { peer, addresses, source }).is_err() {
            tracing::debug!(%peer, "no room to remember where a peer is");
        }
    }

    /// Which secret this node has; 0: none, it was only invited.
    pub(super) fn epoch(&self) -> u32 {
        let membership = self.membership();
        if membership.invited().is_some() { 0 } else { membership.epoch() }
    }

    /// A peer of another protocol version was met, perhaps.
    pub(super) fn sees_foreigners(&self) {
        if self.table().leave_out(self.door.foreigners_at(Instant::now())) {
            self.changed();
        }
    }

    pub(super) fn next_expiry(&self) -> Option<Instant> {
        self.table().next_expiry()
    }

    /// Drops peers that have been gone for long. Returns them.
    pub(super) fn expire(&self, now: Instant) -> Vec<PeerId> {
        let expired = self.table().expire(now);
        if !expired.is_empty() {
            expired.iter().for_each(|peer| self.grpc.forget(peer));
            self.changed();
        }
        self.sees_foreigners();
        expired
    }

    /// Makes the view, and what peers hear, anew.
    pub(super) fn changed(&self) {
        let mut local = self.local();
        let table = self.table();
        let status = self.compose(&local);
        if let Some(status) = &status {
            self.said.send_if_modified(|before| {
                let known = before.as_ref().map_or(0, |before| before.status.sequence);
                let same =
                    before.as_ref().is_some_and(|b| v1::NodeStatus { sequence: known, ..status.clone() } == b.status);
                local.sequence += u64::from(!same);
                let status = v1::NodeStatus { sequence: local.sequence, ..status.clone() };
                let said = Some(Said { status, links: table.version() });
                let news = *before != said;
                *before = said;
                news
            });
        }
        let view = Arc::new(table.view(self.local_view(&local, status, &table)));
        self.view.send_if_modified(|before| {
            let news = *before != view;
            *before = view;
            news
        });
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
