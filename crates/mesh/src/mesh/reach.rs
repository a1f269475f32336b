//! At which of this node's addresses others reach it, as members find out for each other (AutoNAT).
//!
//! Now and then this node asks a member to open a connection to it, at the IP address at which that member sees it. What
//! comes of it holds for the two: a host on a second network is reachable for some only. So an address that one member
//! reached is good, and one that every member failed to reach is told to others last, but told. An address of which this
//! host knows nothing, such as that of a router that passes a port on, is found in this way.
//!
//! Only members can ask, and a connection back is admitted like any other. Told the time.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use libp2p::autonat::v1::{self as autonat, OutboundProbeError, OutboundProbeEvent, ResponseError};
use libp2p::{Multiaddr, PeerId};
use tokio::time::Instant;

use super::{AddressReach, paths};
use crate::{address, identity};

#[cfg(test)]
mod tests;

/// A member that is asked again and again is asked so seldom; others may be asked meanwhile.
const SAME_MEMBER: Duration = Duration::from_secs(10 * 60);
/// After so many answers alike, the next is asked for after [`AGAIN`].
const ENOUGH: usize = 2;
const AGAIN: Duration = Duration::from_secs(15 * 60);
/// For a member to connect, which takes it 13 s where nothing answers, and to say so.
const PROBE_DEADLINE: Duration = Duration::from_secs(20);
/// What this node does for others in a second.
const MAX_PROBES: usize = 8;
/// How long an answer counts.
const GOOD_FOR: Duration = Duration::from_secs(2 * 3600);
const MAX_VERDICTS: usize = 256;
/// Addresses that no interface has and others reach: told to others at most.
const MAX_LEARNED: usize = 4;

/// Makes the node's part of it. The first member is asked after `pause`, the next ones with the same pause between.
pub(super) fn autonat(local: PeerId, pause: Duration) -> autonat::Behaviour {
    let config = autonat::Config {
        timeout: PROBE_DEADLINE,
        boot_delay: pause,
        retry_interval: pause,
        refresh_interval: AGAIN,
        throttle_server_period: SAME_MEMBER,
        use_connected: true,
        confidence_max: ENOUGH,
        throttle_clients_global_max: MAX_PROBES,
        throttle_clients_peer_max: 1,
        // A mesh may live on private addresses alone.
        only_global_ips: false,
        ..autonat::Config::default()
    };
    autonat::Behaviour::new(local, config)
}

/// What members found.
pub(super) struct Reach {
    /// Where this node listens.
    port: u16,
    /// Where each member sees this node.
    seen: HashMap<PeerId, IpAddr>,
    verdicts: BTreeMap<(SocketAddr, PeerId), Verdict>,
}

#[derive(Clone, Copy)]
struct Verdict {
    reached: bool,
    at: Instant,
}

impl Reach {
    pub(super) fn new(port: u16) -> Self {
        Self { port, seen: HashMap::new(), verdicts: BTreeMap::new() }
    }

    /// `peer` sees this node at `observed`.
    pub(super) fn seen(&mut self, peer: PeerId, observed: &Multiaddr) {
        let direct = (!paths::is_circuit(observed)).then(|| observed.ip_addr()).flatten();
        if let Some(ip) = direct {
            self.seen.insert(peer, ip);
        }
    }

    /// A member has answered, perhaps. Returns whether that is an answer.
    pub(super) fn on_probe(&mut self, event: OutboundProbeEvent, now: Instant) -> bool {
        match event {
            OutboundProbeEvent::Response { peer, address, .. } => {
                // A member says what it likes: it cannot name another port than that which this node has.
                let at = address::socket_addr(&address).filter(|at| at.port() == self.port);
                at.map(|at| self.judge(peer, at, true, now)).is_some()
            }
            OutboundProbeEvent::Error {
                peer: Some(peer),
                error: OutboundProbeError::Response(ResponseError::DialError),
                ..
            } => {
                let at = self.seen.get(&peer).map(|ip| SocketAddr::new(*ip, self.port));
                at.map(|at| self.judge(peer, at, false, now)).is_some()
            }
            _ => false,
        }
    }

    fn judge(&mut self, peer: PeerId, at: SocketAddr, reached: bool, now: Instant) {
        self.verdicts.retain(|_, verdict| now < verdict.at + GOOD_FOR);
        if self.verdicts.len() < MAX_VERDICTS || self.verdicts.contains_key(&(at, peer)) {
            self.verdicts.insert((at, peer), Verdict { reached, at: now });
        }
    }

    /// `peer` is no member any more, or has been away for long. Returns whether it had answered.
    pub(super) fn forget(&mut self, peer: &PeerId) -> bool {
        self.seen.remove(peer);
        let before = self.verdicts.len();
        self.verdicts.retain(|(_, by), _| by != peer);
        self.verdicts.len() != before
    }

    /// The host has other addresses now: what was found of the former ones is over.
    pub(super) fn clear(&mut self) {
        self.verdicts.clear();
    }

    /// What was found of each address that was tried.
    pub(super) fn found(&self) -> Vec<AddressReach> {
        let mut found: Vec<AddressReach> = Vec::new();
        for ((at, peer), verdict) in &self.verdicts {
            if found.last().is_none_or(|last| last.address != *at) {
                found.push(AddressReach { address: *at, reached_by: Vec::new(), missed_by: Vec::new() });
            }
            if let Some(last) = found.last_mut() {
                let list = if verdict.reached { &mut last.reached_by } else { &mut last.missed_by };
                list.push(identity::from_libp2p(peer));
            }
        }
        found
    }
}

/// The addresses to tell others, best first: those of this host's interfaces and those that members found, without the
/// ones that nobody else can use.
pub(super) fn rank(own: &[SocketAddr], found: &[AddressReach]) -> Vec<SocketAddr> {
    let of = |at: &SocketAddr| found.iter().find(|found| found.address == *at);
    let learned = found.iter().filter(|found| found.is_reached() && !found.address.ip().is_loopback());
    let learned = learned.map(|found| found.address).filter(|at| !own.contains(at)).take(MAX_LEARNED);
    let mut all: Vec<SocketAddr> = own.iter().copied().chain(learned).collect();
    all.sort_by_key(|at| match of(at) {
        Some(found) if found.is_reached() => 0,
        None => 1,
        Some(_) => 2,
    });
    all
}
