//! The task that drives the libp2p swarm: listens, dials, and turns connections that come and go into the peer table
//! and presences.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use libp2p::connection_limits::{self, ConnectionLimits};
use libp2p::core::transport::TransportError;
use libp2p::core::upgrade::Version;
use libp2p::core::{ConnectedPoint, Transport as _};
use libp2p::swarm::dial_opts::{DialOpts, PeerCondition};
use libp2p::swarm::{DialError, NetworkBehaviour, SwarmEvent};
use libp2p::{Multiaddr, PeerId, Swarm, dcutr, dns, identify, noise, ping, relay, tcp};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::copies::Copies;
use super::dialer::{self, Dial, Dialer};
use super::paths::{self, Path, Paths};
use super::reason::{self, Reason};
use super::{Core, MeshError};
use crate::admission::{Admit, Door};
use crate::{address, identity};

/// Both sides ping, so that neither is silent for longer. Who is gone is noticed by that ([`super::stall`]).
const PING_INTERVAL: Duration = Duration::from_secs(3);
/// An answer may have to wait behind other data; but a peer that never answers, and says other things, is broken.
const PING_TIMEOUT: Duration = Duration::from_secs(60);
/// For connecting and encryption; admission has its own.
const CONNECT_DEADLINE: Duration = Duration::from_secs(3);
const LISTEN_DEADLINE: Duration = Duration::from_secs(5);
const CLOSE_DEADLINE: Duration = Duration::from_secs(1);
/// Connections are kept while both sides live.
const IDLE: Duration = Duration::from_secs(365 * 24 * 3600);
const MAX_PENDING_INBOUND: u32 = 64;
const MAX_CONNECTIONS: u32 = 1024;
/// Two peers may dial each other at the same time, and again before an old connection is seen to be dead.
const MAX_CONNECTIONS_PER_PEER: u32 = 6;

#[derive(NetworkBehaviour)]
pub(super) struct Behaviour {
    limits: connection_limits::Behaviour,
    ping: ping::Behaviour,
    identify: identify::Behaviour,
    streams: libp2p_stream::Behaviour,
    relays: relay::client::Behaviour,
    relay: relay::Behaviour,
    punching: dcutr::Behaviour,
}

/// What the rest of the mesh asks of the swarm's task.
pub(super) enum Command {
    /// Others, or the peer itself, say where `peer` is.
    Learn { peer: PeerId, addresses: Vec<Multiaddr>, source: Source },
    /// Closes all connections to `peer`, and dials it no more.
    Drop(PeerId),
    /// Dials everybody that is away at once: what kept them from admitting this node may be over.
    Hurry,
    /// Closes every connection, answers, and ends.
    Close(oneshot::Sender<()>),
}

/// Who says where a peer is.
pub(super) enum Source {
    /// The peer itself.
    Itself,
    /// A member that is connected to it directly.
    Member(PeerId),
    /// Somebody else.
    Hearsay,
}

/// The swarm, listening.
pub(super) struct Listening {
    pub(super) swarm: Swarm<Behaviour>,
    pub(super) address: SocketAddr,
}

/// Makes the swarm. `spawn` runs the tasks of its connections.
pub(super) fn build(
    identity: &crate::Identity,
    door: Arc<Door>,
    agent: String,
    spawn: impl Fn(futures::future::BoxFuture<'static, ()>) + Send + 'static,
) -> io::Result<Swarm<Behaviour>> {
    let keypair = identity.keypair();
    let encryption = noise::Config::new(keypair).map_err(io::Error::other)?;
    // One is used up by a resolver that cannot be set up.
    let sockets = || tcp::tokio::Transport::new(tcp::Config::new());
    let resolving = dns::tokio::Transport::system(sockets()).unwrap_or_else(|error| {
        tracing::warn!(%error, "host names cannot be resolved: only IP addresses can be dialled");
        dns::tokio::Transport::custom(sockets(), Default::default(), Default::default())
    });
    let deadline = door.deadline() + CONNECT_DEADLINE;
    let local = keypair.public().to_peer_id();
    let (circuits, relays) = relay::client::new(local);
    let transport = circuits
        .or_transport(resolving)
        .upgrade(Version::V1Lazy)
        .authenticate(encryption)
        .multiplex_ext(move |peer, endpoint| Admit::new(door, *peer, endpoint.get_remote_address().clone()))
        .timeout(deadline)
        .boxed();
    let limits = ConnectionLimits::default()
        .with_max_pending_incoming(Some(MAX_PENDING_INBOUND))
        .with_max_established(Some(MAX_CONNECTIONS))
        .with_max_established_per_peer(Some(MAX_CONNECTIONS_PER_PEER));
    // Addresses travel in statuses, where only those that others can reach are named.
    let identify = identify::Config::new("/mesh-node/1".to_owned(), keypair.public())
        .with_agent_version(agent)
        .with_hide_listen_addrs(true)
        .with_cache_size(0);
    let behaviour = Behaviour {
        limits: connection_limits::Behaviour::new(limits),
        ping: ping::Behaviour::new(ping::Config::new().with_interval(PING_INTERVAL).with_timeout(PING_TIMEOUT)),
        identify: identify::Behaviour::new(identify),
        streams: libp2p_stream::Behaviour::new(),
        relays,
        relay: always(relay::Behaviour::new(local, paths::relay_config())),
        punching: dcutr::Behaviour::new(local),
    };
    let config = libp2p::swarm::Config::with_executor(spawn).with_idle_connection_timeout(IDLE);
    Ok(Swarm::new(transport, behaviour, local, config))
}

/// A relay that does not wait until it is known to be reachable from everywhere: its members reach it.
fn always(mut relay: relay::Behaviour) -> relay::Behaviour {
    relay.set_status(Some(relay::Status::Enable));
    relay
}

/// The handle that opens streams over `swarm`.
pub(super) fn control(swarm: &Swarm<Behaviour>) -> libp2p_stream::Control {
    swarm.behaviour().streams.new_control()
}

/// Listens, and waits until the port is known.
pub(super) async fn listen(mut swarm: Swarm<Behaviour>, listen: SocketAddr) -> Result<Listening, MeshError> {
    let fail = |why: io::Error| MeshError::listen(listen, &why);
    if listen.port() != 0 {
        // libp2p listens with SO_REUSEPORT, which would silently share the port with another node of the same user.
        drop(std::net::TcpListener::bind(listen).map_err(fail)?);
    }
    swarm.listen_on(address::multiaddr(listen.ip(), listen.port())).map_err(|error| match error {
        TransportError::Other(error) => fail(error),
        TransportError::MultiaddrNotSupported(_) => fail(io::ErrorKind::Unsupported.into()),
    })?;
    let first = async {
        loop {
            match swarm.select_next_some().await {
                SwarmEvent::NewListenAddr { address, .. } => return Ok(address::socket_addr(&address)),
                SwarmEvent::ListenerClosed { reason: Err(error), .. } => return Err(error),
                _ => {}
            }
        }
    };
    let no_address = || io::Error::new(io::ErrorKind::AddrNotAvailable, "no network interface has an address");
    let bound = tokio::time::timeout(LISTEN_DEADLINE, first).await.map_err(|_| fail(no_address()))?.map_err(fail)?;
    let port = bound.ok_or_else(|| fail(no_address()))?.port();
    Ok(Listening { swarm, address: SocketAddr::new(listen.ip(), port) })
}

/// The running task.
pub(super) struct Driver {
    core: Arc<Core>,
    swarm: Swarm<Behaviour>,
    dialer: Dialer,
    copies: Copies,
    paths: Paths,
    commands: mpsc::Receiver<Command>,
}

impl Driver {
    pub(super) fn new(core: Arc<Core>, swarm: Swarm<Behaviour>, commands: mpsc::Receiver<Command>) -> Self {
        let mut dialer = Dialer::new(*swarm.local_peer_id());
        let now = Instant::now();
        for (peer, addresses) in core.known_peers() {
            dialer.add_lasting(peer, addresses, now);
        }
        let mut driver = Self { core, swarm, dialer, copies: Copies::default(), paths: Paths::default(), commands };
        driver.advertise();
        driver
    }

    /// Runs until told to close.
    pub(super) async fn run(mut self) {
        let done = loop {
            self.dial_due();
            let wake = [self.dialer.next_due(), self.core.next_expiry()].into_iter().flatten().min();
            tokio::select! {
                event = self.swarm.select_next_some() => self.on_event(event),
                command = self.commands.recv() => match command {
                    Some(Command::Learn { peer, addresses, source }) => self.learn(peer, addresses, &source),
                    Some(Command::Drop(peer)) => {
                        self.dialer.forget(&peer);
                        let _ = self.swarm.disconnect_peer_id(peer);
                    }
                    Some(Command::Hurry) => self.dialer.hurry(Instant::now()),
                    Some(Command::Close(done)) => break Some(done),
                    None => break None,
                },
                () = sleep_until(wake) => self.core.expire(Instant::now()),
            }
        };
        self.close().await;
        if let Some(done) = done {
            let _ = done.send(());
        }
    }

    fn learn(&mut self, peer: PeerId, addresses: Vec<Multiaddr>, source: &Source) {
        match source {
            Source::Itself => self.dialer.replace(peer, addresses),
            Source::Member(member) => self.dialer.learn(peer, &addresses, Some(*member), Instant::now()),
            Source::Hearsay => self.dialer.learn(peer, &addresses, None, Instant::now()),
        }
    }

    /// Tells those who ask for a place at this node where it is.
    fn advertise(&mut self) {
        let addresses = self.core.full_addresses();
        let stale: Vec<_> = self.swarm.external_addresses().cloned().collect();
        for address in stale.iter().filter(|address| !addresses.contains(address) && !paths::is_circuit(address)) {
            self.swarm.remove_external_address(address);
        }
        addresses.into_iter().for_each(|address| self.swarm.add_external_address(address));
    }

    fn dial_due(&mut self) {
        let now = Instant::now();
        for Dial { peer, addresses, upgrade } in self.dialer.due(now) {
            let condition = if upgrade { PeerCondition::NotDialing } else { PeerCondition::DisconnectedAndNotDialing };
            let options = DialOpts::peer_id(peer)
                .condition(condition)
                .addresses(addresses)
                // Another port than the listener's: nothing here needs the same, and redials would collide.
                .allocate_new_port()
                .build();
            match self.swarm.dial(options) {
                Ok(()) => {}
                Err(DialError::DialPeerConditionFalse(_)) if self.swarm.is_connected(&peer) => {
                    self.dialer.connected(peer, None, now);
                }
                Err(error) => self.on_dial_error(peer, &error),
            }
        }
    }

    fn on_event(&mut self, event: SwarmEvent<BehaviourEvent>) {
        match event {
            SwarmEvent::NewListenAddr { address, .. } | SwarmEvent::ExpiredListenAddr { address, .. }
                if !paths::is_circuit(&address) =>
            {
                self.core.addresses_changed();
                self.advertise();
            }
            SwarmEvent::ConnectionEstablished { peer_id, connection_id, endpoint, num_established, .. } => {
                let ip = endpoint.get_remote_address().ip_addr();
                self.copies.connected(&identity::from_libp2p(&peer_id), connection_id, ip, Instant::now());
                let dialled = match &endpoint {
                    ConnectedPoint::Dialer { address, .. } if !paths::is_circuit(address) => {
                        Some(without_peer(address))
                    }
                    _ => None,
                };
                self.paths.opened(peer_id, connection_id, &endpoint);
                if num_established.get() == 1 {
                    tracing::info!(peer = %peer_id, address = %endpoint.get_remote_address(), "connected");
                    self.core.connected(peer_id, dialled.clone());
                }
                self.follow(peer_id, dialled);
            }
            SwarmEvent::ConnectionClosed { peer_id, connection_id, num_established, cause, .. } => {
                let peer = identity::from_libp2p(&peer_id);
                if self.copies.closed(&peer, connection_id) {
                    self.core.sees_copies(&self.copies);
                }
                if num_established == 0 {
                    let cause = cause.map(|cause| cause.to_string());
                    tracing::info!(peer = %peer_id, cause = cause.as_deref().unwrap_or("closed"), "disconnected");
                    self.core.disconnected(&peer);
                    self.dialer.disconnected(peer_id, Instant::now());
                }
                self.paths.closed(peer_id, connection_id);
                self.follow(peer_id, None);
            }
            SwarmEvent::OutgoingConnectionError { peer_id: Some(peer), error, .. } => self.on_dial_error(peer, &error),
            SwarmEvent::IncomingConnectionError { send_back_addr, error, .. } => {
                self.core.sees_foreigners();
                tracing::debug!(address = %send_back_addr, %error, "an inbound connection failed");
            }
            SwarmEvent::Behaviour(BehaviourEvent::Identify(identify::Event::Received {
                peer_id,
                connection_id,
                info,
            })) => self.copies.identified(&identity::from_libp2p(&peer_id), connection_id, &info.agent_version),
            SwarmEvent::Behaviour(BehaviourEvent::Ping(ping::Event { peer, connection, result: Ok(rtt) })) => {
                self.core.measured(&peer, rtt);
                let sent = Instant::now() - rtt;
                if self.copies.answered(&identity::from_libp2p(&peer), connection, sent) {
                    self.core.sees_copies(&self.copies);
                }
            }
            SwarmEvent::Behaviour(BehaviourEvent::Ping(ping::Event { peer, connection, result: Err(error) })) => {
                tracing::info!(%peer, %error, "a silent connection is closed");
                self.swarm.close_connection(connection);
            }
            SwarmEvent::ListenerClosed { listener_id, reason, .. } => match (self.paths.lost(listener_id), reason) {
                (Some(relay), reason) => tracing::debug!(%relay, ?reason, "lost the place at a relay"),
                (None, Err(error)) => tracing::error!(%error, "listening failed"),
                (None, Ok(())) => {}
            },
            SwarmEvent::ListenerError { error, .. } => tracing::debug!(%error, "a listener failed for a moment"),
            _ => {}
        }
    }

    fn on_dial_error(&mut self, peer: PeerId, error: &DialError) {
        let reasons = reason::of_dial(error);
        self.core.sees_foreigners();
        for (address, reason) in &reasons {
            if reason.is_refusal() {
                // Who runs this node has to do something about it, there or here.
                tracing::warn!(%peer, %address, "not let in: {reason}");
            } else {
                tracing::debug!(%peer, %address, %reason, "dialling failed");
            }
        }
        let hopeless = !reasons.is_empty() && reasons.iter().all(|(_, reason)| reason.is_final());
        let asked = reasons.iter().filter_map(|(_, reason)| reason.wait()).max();
        let wait = if hopeless { Some(dialer::LONGEST_PAUSE) } else { asked };
        if !reasons.is_empty() && reasons.iter().all(|(_, reason)| reason.is_silence()) {
            self.dialer.unanswered(peer);
        }
        self.dialer.failed(peer, wait, Instant::now());
        self.keep_places();
        if !self.swarm.is_connected(&peer) {
            let reasons: Vec<(Multiaddr, Reason)> =
                reasons.into_iter().map(|(address, reason)| (without_peer(&address), reason)).collect();
            self.core.dial_failed(peer, reasons);
        }
    }

    /// Takes note of the way to a peer after a connection to it came or went. `dialled` is where it was reached directly.
    fn follow(&mut self, peer: PeerId, dialled: Option<Multiaddr>) {
        let now = Instant::now();
        let relay = match self.paths.to(&peer) {
            None => return,
            Some(Path::Direct) => {
                self.dialer.connected(peer, dialled, now);
                None
            }
            Some(Path::Relayed(relay)) => {
                self.dialer.relayed(peer, now);
                Some(identity::from_libp2p(&relay))
            }
        };
        self.core.reached_through(&identity::from_libp2p(&peer), relay);
    }

    /// Asks for places at the members through which peers may come that this node cannot reach.
    fn keep_places(&mut self) {
        for (relay, address) in self.dialer.relays() {
            if self.paths.has_place(&relay) {
                continue;
            }
            match self.swarm.listen_on(paths::circuit(relay, &address, None)) {
                Ok(listener) => self.paths.asked(relay, listener),
                Err(error) => tracing::debug!(%relay, %error, "cannot ask for a place at a relay"),
            }
        }
    }

    /// Closes all connections, and lets their last bytes go out.
    async fn close(&mut self) {
        let peers: Vec<_> = self.swarm.connected_peers().copied().collect();
        for peer in peers {
            let _ = self.swarm.disconnect_peer_id(peer);
        }
        let emptied = async {
            while self.swarm.connected_peers().next().is_some() {
                if let SwarmEvent::ConnectionClosed { peer_id, num_established: 0, .. } =
                    self.swarm.select_next_some().await
                {
                    self.core.disconnected(&identity::from_libp2p(&peer_id));
                }
            }
        };
        if tokio::time::timeout(CLOSE_DEADLINE, emptied).await.is_err() {
            tracing::debug!("connections did not close in time");
        }
    }
}

fn without_peer(address: &Multiaddr) -> Multiaddr {
    crate::token::split_peer(address).map_or_else(|| address.clone(), |(address, _)| address)
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
