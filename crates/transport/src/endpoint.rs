//! The node's QUIC endpoint: dials, is dialled, and hands streams of admitted peers to whom they are for.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use futures::future::BoxFuture;
use libp2p::identity::Keypair;
use mesh_engine::Stage;
use mesh_engine::codec::{Limits, Message};
use mesh_types::{PeerId, StageId};
use quinn::{Connection, ConnectionError, Incoming, RecvStream, SendStream, VarInt};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::doorstep::Doorstep;
use crate::error::TransportError;
use crate::peers::{Peer, Peers};
use crate::returns::{Return, Returns};
use crate::stream::{self, describe};
use crate::wire::{Control, MAX_ADDRESSES};
use crate::{hop, tls};

/// Decides who may hold a connection. Asked after every handshake, before the first byte of a stage, and again for
/// every link.
pub trait Gate: Send + Sync + 'static {
    /// Whether `peer` is admitted now.
    fn admits(&self, peer: &PeerId) -> bool;
}

/// The stages of this node, for links from other nodes.
pub trait StageDirectory: Send + Sync + 'static {
    /// The stage `id`, for the node of stage 0 of its model. `peer` is that node as the previous hop names it, itself
    /// an admitted peer.
    fn stage(&self, id: &StageId, peer: &PeerId) -> Option<Arc<dyn Stage>>;
}

/// How long a link may take to open, all hops included.
pub(crate) const OPEN_DEADLINE: Duration = Duration::from_secs(5);
/// Connections at the same time. More are refused before their handshake.
const MAX_CONNECTIONS: usize = 1024;
/// Handshakes beyond this number of connections must prove their address first.
const BUSY: usize = 256;

const CLOSE_NOT_ADMITTED: VarInt = VarInt::from_u32(2);
const CLOSE_DUPLICATE: VarInt = VarInt::from_u32(3);
const CLOSE_SHUTDOWN: VarInt = VarInt::from_u32(4);
const CLOSE_LOST: VarInt = VarInt::from_u32(5);

/// See the crate's documentation. Clones share the socket; the last one dropped closes it.
#[derive(Clone)]
pub struct Endpoint {
    inner: Arc<Inner>,
    _stop: Arc<DropGuard>,
}

pub(crate) struct Inner {
    quinn: quinn::Endpoint,
    keypair: Keypair,
    pub(crate) local: PeerId,
    gate: Arc<dyn Gate>,
    pub(crate) directory: OnceLock<Arc<dyn StageDirectory>>,
    peers: Peers,
    doorstep: Doorstep,
    pub(crate) returns: Returns,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Endpoint {
    /// Binds the UDP socket `addr` and listens. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// [`TransportError::Bind`], [`TransportError::Certificate`].
    pub fn bind(addr: SocketAddr, keypair: &Keypair, gate: Arc<dyn Gate>) -> Result<Self, TransportError> {
        let quinn = quinn::Endpoint::server(tls::server(keypair)?, addr).map_err(TransportError::Bind)?;
        let stop = CancellationToken::new();
        let inner = Arc::new(Inner {
            quinn,
            keypair: keypair.clone(),
            local: PeerId::new(keypair.public().to_peer_id().to_base58()),
            gate,
            directory: OnceLock::new(),
            peers: Peers::default(),
            doorstep: Doorstep::default(),
            returns: Returns::default(),
            stop: stop.clone(),
            tasks: TaskTracker::new(),
        });
        inner.spawn(accept(inner.clone()));
        Ok(Self { inner, _stop: Arc::new(stop.drop_guard()) })
    }

    /// The address that the socket is bound to.
    ///
    /// # Errors
    /// What the system says.
    pub fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.inner.quinn.local_addr()
    }

    /// This node's id.
    pub fn local_peer(&self) -> &PeerId {
        &self.inner.local
    }

    /// Lets admitted peers open links to the stages of `directory`; before, they are refused. The first directory stays.
    pub fn serve(&self, directory: Arc<dyn StageDirectory>) {
        let _ = self.inner.directory.set(directory);
    }

    /// Makes sure that there is a connection to `peer`: for a node that others cannot dial.
    ///
    /// # Errors
    /// [`TransportError`].
    ///
    /// # Cancel safety
    /// May be dropped.
    pub async fn connect(&self, peer: &PeerId, addresses: &[SocketAddr]) -> Result<(), TransportError> {
        self.inner.peer(peer, addresses).await.map(drop)
    }

    /// Whether a stage endpoint answers at `address` now, whoever's it is. A handshake is begun that cannot succeed, so
    /// that no connection comes of it, here or there.
    ///
    /// # Errors
    /// [`TransportError::Unreachable`] where nothing answers within the idle timeout of 5 s.
    ///
    /// # Cancel safety
    /// May be dropped.
    pub async fn answers_at(&self, address: SocketAddr) -> Result<(), TransportError> {
        let config = tls::probe(&self.inner.keypair)?;
        let unreachable = |error: &dyn std::fmt::Display| TransportError::Unreachable(error.to_string());
        let connecting =
            self.inner.quinn.connect_with(config, address, "mesh.invalid").map_err(|error| unreachable(&error))?;
        match connecting.await {
            Err(error @ (ConnectionError::TimedOut | ConnectionError::LocallyClosed)) => {
                Err(unreachable(&describe(&error)))
            }
            // A refusal is an answer.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Closes the connection to `peer`, and with it all its links: it is lost, or no longer admitted.
    pub fn disconnect(&self, peer: &PeerId) {
        self.inner.disconnect(peer);
    }

    /// Connections that are open or being opened.
    pub fn connections(&self) -> usize {
        self.inner.quinn.open_connections()
    }

    /// Ends all links and connections, and waits until every task has ended.
    ///
    /// # Cancel safety
    /// May be dropped: everything is told to end at the first poll.
    pub async fn shutdown(&self) {
        self.inner.stop.cancel();
        self.inner.quinn.close(CLOSE_SHUTDOWN, b"shutting down");
        self.inner.peers.clear();
        self.inner.tasks.close();
        self.inner.tasks.wait().await;
        // Peers that are gone do not acknowledge the close.
        let _ = tokio::time::timeout(OPEN_DEADLINE, self.inner.quinn.wait_idle()).await;
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }
}

impl Inner {
    /// Runs `task` until it ends or the endpoint does.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = task => {}
            }
        });
    }

    pub(crate) fn disconnect(&self, peer: &PeerId) {
        if let Some(peer) = self.peers.remove(peer) {
            peer.connection.close(CLOSE_LOST, b"given up");
        }
    }

    /// The connection to `id`, dialled at `addresses` where there is none.
    ///
    /// Boxed: streams that come in on it open links, which dial peers.
    pub(crate) fn peer<'a>(
        self: &'a Arc<Self>,
        id: &'a PeerId,
        addresses: &'a [SocketAddr],
    ) -> BoxFuture<'a, Result<Arc<Peer>, TransportError>> {
        Box::pin(self.find_or_dial(id, addresses))
    }

    async fn find_or_dial(
        self: &Arc<Self>,
        id: &PeerId,
        addresses: &[SocketAddr],
    ) -> Result<Arc<Peer>, TransportError> {
        if self.stop.is_cancelled() {
            return Err(TransportError::Closed);
        }
        if !self.gate.admits(id) {
            return Err(TransportError::NotAdmitted(id.clone()));
        }
        let dialling = self.peers.dialling(id);
        let _dialling = dialling.lock().await;
        if let Some(live) = self.peers.live(id) {
            return Ok(live);
        }
        let connection = self.dial(id, addresses).await?;
        let new = Arc::new(Peer { id: id.clone(), connection, dialled: true });
        let used = self.peers.enter(&self.local, new.clone());
        if Arc::ptr_eq(&used, &new) {
            self.spawn(serve_dialled(self.clone(), new.connection.clone(), Arc::downgrade(&new)));
        } else {
            new.connection.close(CLOSE_DUPLICATE, b"dialled each other");
        }
        Ok(used)
    }

    /// Dials all addresses at the same time; the first that answers as `id` wins.
    async fn dial(&self, id: &PeerId, addresses: &[SocketAddr]) -> Result<Connection, TransportError> {
        let peer = id.as_str().parse().map_err(|_| TransportError::NotAdmitted(id.clone()))?;
        let config = tls::client(&self.keypair, peer)?;
        let mut reasons = Vec::new();
        let mut dials = JoinSet::new();
        for address in addresses.iter().take(MAX_ADDRESSES).copied() {
            // The name is not looked at: the certificate is checked against the peer id.
            match self.quinn.connect_with(config.clone(), address, "mesh.invalid") {
                Ok(connecting) => {
                    dials.spawn(async move { connecting.await.map_err(|error| (address, error)) });
                }
                Err(error) => reasons.push(format!("{address}: {error}")),
            }
        }
        while let Some(end) = dials.join_next().await {
            match end {
                Ok(Ok(connection)) => return Ok(connection),
                Ok(Err((address, error))) => reasons.push(format!("{address}: {}", describe(&error))),
                Err(_) => {}
            }
        }
        if reasons.is_empty() {
            reasons.push("it has no address, and has not connected to this node".to_owned());
        }
        Err(TransportError::Unreachable(reasons.join("; ")))
    }
}

/// Takes connections until the endpoint is closed.
async fn accept(inner: Arc<Inner>) {
    while let Some(incoming) = inner.quinn.accept().await {
        let (open, ip) = (inner.quinn.open_connections(), incoming.remote_address().ip());
        let welcome_there = || inner.peers.has_one_at(ip) || inner.doorstep.may_come(ip, Instant::now());
        if open >= MAX_CONNECTIONS || !welcome_there() {
            tracing::debug!(%ip, "turned a stage connection away before its handshake");
            incoming.refuse();
        } else if open >= BUSY && !incoming.remote_address_validated() && incoming.may_retry() {
            // Fails only where `may_retry` is false.
            let _ = incoming.retry();
        } else {
            inner.spawn(welcome(inner.clone(), incoming));
        }
    }
}

/// One connection that was opened by someone else.
async fn welcome(inner: Arc<Inner>, incoming: Incoming) {
    let from = incoming.remote_address();
    let Ok(Ok(connection)) = tokio::time::timeout(OPEN_DEADLINE, incoming).await else { return };
    let Some(id) = tls::peer_of(&connection).filter(|id| inner.gate.admits(id)) else {
        tracing::warn!(%from, "refused a stage connection from a peer that is not admitted");
        inner.doorstep.refused(from.ip(), Instant::now());
        connection.close(CLOSE_NOT_ADMITTED, b"not admitted");
        return;
    };
    let peer = Arc::new(Peer { id, connection, dialled: false });
    inner.peers.enter(&inner.local, peer.clone());
    while let Ok((send, recv)) = peer.connection.accept_bi().await {
        inner.spawn(serve_stream(inner.clone(), peer.clone(), send, recv));
    }
    inner.peers.leave(&peer);
}

/// The streams that the other side opens on a connection that was dialled here.
async fn serve_dialled(inner: Arc<Inner>, connection: Connection, peer: Weak<Peer>) {
    while let Ok((send, recv)) = connection.accept_bi().await {
        let Some(peer) = peer.upgrade() else { return };
        inner.spawn(serve_stream(inner.clone(), peer, send, recv));
    }
    if let Some(peer) = peer.upgrade() {
        inner.peers.leave(&peer);
    }
}

/// One stream: its first message says what it is for.
async fn serve_stream(inner: Arc<Inner>, peer: Arc<Peer>, send: SendStream, recv: RecvStream) {
    let (send, mut recv) = stream::both(send, recv);
    if !inner.gate.admits(&peer.id) {
        peer.connection.close(CLOSE_NOT_ADMITTED, b"not admitted");
        return;
    }
    let first = tokio::time::timeout(OPEN_DEADLINE, recv.next(Limits::control())).await;
    match first {
        Ok(Ok(Message::Control(Control::Link(request)))) => hop::serve(&inner, send, recv, request).await,
        Ok(Ok(Message::Control(Control::Return(session)))) => {
            inner.returns.offer(session, Return { peer, send, recv });
            // Its link comes within this time, or never.
            tokio::time::sleep(OPEN_DEADLINE).await;
            inner.returns.withdraw(session);
        }
        other => tracing::debug!(peer = peer.id.short(), ?other, "a stream that opens nothing"),
    }
}
