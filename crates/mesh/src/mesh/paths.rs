//! The ways to peers: direct connections, and those that a third member passes on where no direct one can be made.
//!
//! Any member is a relay for the others. Nothing has to be asked before: only admitted peers have a connection on which
//! they could ask, and what is relayed is encrypted and admitted end to end like any other connection. Who cannot reach
//! a peer that a member tells of reserves a place at that member, so that the peer can come in through it, and tries to
//! go out through it as well. Once a relayed connection stands, libp2p's hole punching and the dialler look for a direct
//! one.

use std::collections::HashMap;
use std::time::Duration;

use libp2p::core::ConnectedPoint;
use libp2p::core::transport::ListenerId;
use libp2p::multiaddr::Protocol;
use libp2p::swarm::ConnectionId;
use libp2p::{Multiaddr, PeerId, relay};

/// What a member relays at the same time, for all and for one peer.
const MAX_CIRCUITS: usize = 512;
const MAX_CIRCUITS_OF_ONE: usize = 128;
const MAX_RESERVATIONS: usize = 1024;
/// A relayed connection is a connection like others: it lives as long as both its ends do.
const CIRCUIT_LIFE: Duration = Duration::from_secs(365 * 24 * 3600);
const NO_LIMIT: u64 = 0;

/// What this node does for others. Rates are not limited: whoever gets to ask is a member.
pub(super) fn relay_config() -> relay::Config {
    relay::Config {
        max_reservations: MAX_RESERVATIONS,
        max_circuits: MAX_CIRCUITS,
        max_circuits_per_peer: MAX_CIRCUITS_OF_ONE,
        max_circuit_duration: CIRCUIT_LIFE,
        max_circuit_bytes: NO_LIMIT,
        reservation_rate_limiters: Vec::new(),
        circuit_src_rate_limiters: Vec::new(),
        ..relay::Config::default()
    }
}

/// The address of `peer` through `relay`, which is at `address`; without `peer`, the place of this node there.
pub(super) fn circuit(relay: PeerId, address: &Multiaddr, peer: Option<PeerId>) -> Multiaddr {
    let place = address.clone().with(Protocol::P2p(relay)).with(Protocol::P2pCircuit);
    match peer {
        Some(peer) => place.with(Protocol::P2p(peer)),
        None => place,
    }
}

/// Whether an address leads through a relay.
pub(super) fn is_circuit(address: &Multiaddr) -> bool {
    address.iter().any(|part| part == Protocol::P2pCircuit)
}

/// How a peer is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Path {
    /// By at least one direct connection.
    Direct,
    /// Through this member only.
    Relayed(PeerId),
}

/// All connections by the way they take, and the places at relays.
#[derive(Default)]
pub(super) struct Paths {
    connections: HashMap<PeerId, Vec<Connection>>,
    places: HashMap<PeerId, ListenerId>,
}

/// One connection to a peer.
struct Connection {
    id: ConnectionId,
    path: Path,
    /// Where its other end is, as libp2p has it.
    remote: Multiaddr,
}

impl Paths {
    /// A connection to `peer` stands.
    pub(super) fn opened(&mut self, peer: PeerId, connection: ConnectionId, endpoint: &ConnectedPoint) {
        let path = match endpoint {
            ConnectedPoint::Dialer { address, .. } => self.path(address),
            ConnectedPoint::Listener { local_addr, .. } => self.path(local_addr),
        };
        let remote = endpoint.get_remote_address().clone();
        self.connections.entry(peer).or_default().push(Connection { id: connection, path, remote });
    }

    fn path(&self, address: &Multiaddr) -> Path {
        let mut way = Multiaddr::empty();
        for part in address {
            match part {
                Protocol::P2pCircuit => return self.relay_at(&way).map_or(Path::Direct, Path::Relayed),
                part => way.push(part),
            }
        }
        Path::Direct
    }

    /// The relay at the beginning of a relayed address. What comes in through a relay that dialled this node is said to
    /// come by that connection's address, which holds no id.
    fn relay_at(&self, way: &Multiaddr) -> Option<PeerId> {
        if let Some(Protocol::P2p(relay)) = way.iter().last() {
            return Some(relay);
        }
        let leads_there = |connections: &Vec<Connection>| connections.iter().any(|one| one.remote == *way);
        let relay = self.connections.iter().find(|(_, connections)| leads_there(connections)).map(|(relay, _)| *relay);
        relay.or_else(|| self.places.keys().next().copied())
    }

    /// A connection closed.
    pub(super) fn closed(&mut self, peer: PeerId, connection: ConnectionId) {
        if let Some(connections) = self.connections.get_mut(&peer) {
            connections.retain(|one| one.id != connection);
            if connections.is_empty() {
                self.connections.remove(&peer);
            }
        }
    }

    /// The last direct connection to `peer` that was dialled at `address`, where there is another direct one beside it.
    pub(super) fn surplus(&self, peer: &PeerId, address: &Multiaddr) -> Option<ConnectionId> {
        let direct = || self.connections.get(peer).into_iter().flatten().filter(|one| one.path == Path::Direct);
        direct().rfind(|one| one.remote == *address).filter(|_| direct().count() > 1).map(|one| one.id)
    }

    /// The best way to `peer`; `None`: it is not connected.
    pub(super) fn to(&self, peer: &PeerId) -> Option<Path> {
        let paths = || self.connections.get(peer).into_iter().flatten().map(|one| one.path);
        paths().find(|path| *path == Path::Direct).or_else(|| paths().next())
    }

    /// Whether this node has a place at `relay`, or asked for one.
    pub(super) fn has_place(&self, relay: &PeerId) -> bool {
        self.places.contains_key(relay)
    }

    /// Asked for a place at `relay`.
    pub(super) fn asked(&mut self, relay: PeerId, listener: ListenerId) {
        self.places.insert(relay, listener);
    }

    /// A listener ended. Returns the relay whose place it was, if it was one.
    pub(super) fn lost(&mut self, listener: ListenerId) -> Option<PeerId> {
        let relay = self.places.iter().find(|(_, id)| **id == listener).map(|(relay, _)| *relay)?;
        self.places.remove(&relay);
        Some(relay)
    }
}

#[cfg(test)]
mod tests {
    use libp2p::core::Endpoint;
    use libp2p::core::transport::PortUse;

    use super::*;

    fn dialled(address: &Multiaddr) -> ConnectedPoint {
        ConnectedPoint::Dialer { address: address.clone(), role_override: Endpoint::Dialer, port_use: PortUse::New }
    }

    #[test]
    fn a_direct_way_counts_before_a_relayed_one() {
        let (relay, peer) = (PeerId::random(), PeerId::random());
        let address: Multiaddr = "/ip4/192.0.2.1/tcp/9338".parse().unwrap();
        let through = circuit(relay, &address, Some(peer));
        assert_eq!(through.to_string(), format!("{address}/p2p/{relay}/p2p-circuit/p2p/{peer}"));
        assert!(is_circuit(&through) && !is_circuit(&address));

        let [one, two, three] = [1, 2, 3].map(ConnectionId::new_unchecked);
        let mut paths = Paths::default();
        paths.opened(peer, one, &dialled(&through));
        assert_eq!(paths.to(&peer), Some(Path::Relayed(relay)));
        let direct = address.with(Protocol::P2p(peer));
        paths.opened(peer, two, &dialled(&direct));
        assert_eq!(paths.to(&peer), Some(Path::Direct));
        assert_eq!(paths.surplus(&peer, &direct), None, "the only direct one");
        paths.opened(peer, three, &dialled(&direct));
        assert_eq!((paths.surplus(&peer, &direct), paths.surplus(&peer, &through)), (Some(three), None));
        paths.closed(peer, three);
        paths.closed(peer, two);
        assert_eq!(paths.to(&peer), Some(Path::Relayed(relay)));
        paths.closed(peer, one);
        assert_eq!(paths.to(&peer), None);
    }

    #[test]
    fn what_comes_in_through_a_relay_that_dialled_is_relayed() {
        let (relay, peer) = (PeerId::random(), PeerId::random());
        let listener: Multiaddr = "/ip4/192.0.2.1/tcp/9338".parse().unwrap();
        let inbound = |local: &Multiaddr, remote: &Multiaddr| ConnectedPoint::Listener {
            local_addr: local.clone(),
            send_back_addr: remote.clone(),
        };
        let [one, two] = [1, 2].map(ConnectionId::new_unchecked);
        let port: Multiaddr = "/ip4/192.0.2.3/tcp/58566".parse().unwrap();
        let mut paths = Paths::default();
        paths.opened(relay, one, &inbound(&listener, &port));
        paths.opened(peer, two, &inbound(&port.with(Protocol::P2pCircuit), &Multiaddr::from(Protocol::P2p(peer))));
        assert_eq!((paths.to(&relay), paths.to(&peer)), (Some(Path::Direct), Some(Path::Relayed(relay))));
    }

    #[test]
    fn a_place_is_asked_for_once_until_it_is_lost() {
        let (mut paths, relay, listener) = (Paths::default(), PeerId::random(), ListenerId::next());
        paths.asked(relay, listener);
        assert!(paths.has_place(&relay));
        assert_eq!(paths.lost(ListenerId::next()), None);
        assert_eq!(paths.lost(listener), Some(relay));
        assert!(!paths.has_place(&relay));
    }
}
