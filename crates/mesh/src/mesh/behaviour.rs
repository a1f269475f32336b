//! The swarm as it is made: its transport with admission in it, the protocols that run over admitted connections, and
//! their limits. [`super::swarm`] drives it.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use libp2p::connection_limits::{self, ConnectionLimits};
use libp2p::core::Transport as _;
use libp2p::core::transport::TransportError;
use libp2p::core::upgrade::Version;
use libp2p::swarm::{NetworkBehaviour, SwarmEvent};
use libp2p::{Swarm, autonat, dcutr, dns, identify, noise, ping, relay, tcp};

use super::leaders::{self, Dht};
use super::{MeshError, Tuning, paths, reach};
use crate::address;
use crate::admission::{Admit, Door};

/// Both sides ping, so that neither is silent for longer. Who is gone is noticed by that ([`super::stall`]).
const PING_INTERVAL: Duration = Duration::from_secs(3);
/// An answer may have to wait behind other data; but a peer that never answers, and says other things, is broken.
const PING_TIMEOUT: Duration = Duration::from_secs(60);
/// For connecting and encryption; admission has its own.
const CONNECT_DEADLINE: Duration = Duration::from_secs(3);
const LISTEN_DEADLINE: Duration = Duration::from_secs(5);
/// Connections are kept while both sides live.
const IDLE: Duration = Duration::from_secs(365 * 24 * 3600);
const MAX_PENDING_INBOUND: u32 = 64;
const MAX_CONNECTIONS: u32 = 1024;
/// Two peers may dial each other at the same time, and again before an old connection is seen to be dead.
const MAX_CONNECTIONS_PER_PEER: u32 = 6;

/// What a connection carries once it is admitted; before, nothing.
#[derive(NetworkBehaviour)]
pub(super) struct Behaviour {
    limits: connection_limits::Behaviour,
    ping: ping::Behaviour,
    identify: identify::Behaviour,
    streams: libp2p_stream::Behaviour,
    relays: relay::client::Behaviour,
    relay: relay::Behaviour,
    punching: dcutr::Behaviour,
    pub(super) dht: Dht,
    pub(super) autonat: autonat::v1::Behaviour,
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
    tuning: Tuning,
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
        dht: leaders::dht(local),
        autonat: reach::autonat(local, tuning.probe_pause),
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
