//! Two nodes with one identity: somebody copied a data directory. Each of them connects to the others, which see one
//! peer come from two processes.
//!
//! A restarted node looks alike for a moment: its new process connects before the old connection is known to be dead. So
//! a peer counts as copied only when a process answers a ping that was sent after another process of it had connected.
//! Pure: is told the time and what happened.

use std::collections::BTreeMap;
use std::net::IpAddr;

use libp2p::swarm::ConnectionId;
use mesh_types::PeerId;
use tokio::time::Instant;

/// Marks the process in the agent version that a node tells of itself.
const MARK: &str = " process/";
/// More than the swarm lets through.
const MAX_CONNECTIONS: usize = 16;

/// The agent version of a process of this node.
pub(super) fn agent(version: &str, process: u64) -> String {
    format!("mesh-node/{version}{MARK}{process:016x}")
}

fn process(agent: &str) -> Option<u64> {
    u64::from_str_radix(agent.rsplit_once(MARK)?.1, 16).ok()
}

/// The processes behind each peer's connections.
#[derive(Default)]
pub(super) struct Copies {
    peers: BTreeMap<PeerId, Vec<Seen>>,
    /// Peers that are copied, and where their processes are.
    found: BTreeMap<PeerId, Vec<IpAddr>>,
}

struct Seen {
    connection: ConnectionId,
    ip: Option<IpAddr>,
    since: Instant,
    process: Option<u64>,
    /// When the last ping that it answered was sent.
    answered: Option<Instant>,
}

impl Copies {
    /// A connection to `peer` at `ip` stands.
    pub(super) fn connected(&mut self, peer: &PeerId, connection: ConnectionId, ip: Option<IpAddr>, now: Instant) {
        let seen = self.peers.entry(peer.clone()).or_default();
        if seen.len() < MAX_CONNECTIONS {
            seen.push(Seen { connection, ip, since: now, process: None, answered: None });
        }
    }

    /// The process at the other end of a connection says which it is.
    pub(super) fn identified(&mut self, peer: &PeerId, connection: ConnectionId, agent: &str) {
        if let Some(seen) = self.seen(peer, connection) {
            seen.process = process(agent);
        }
    }

    /// A ping that was sent at `sent` was answered. Returns whether what is known of copies changed.
    pub(super) fn answered(&mut self, peer: &PeerId, connection: ConnectionId, sent: Instant) -> bool {
        if let Some(seen) = self.seen(peer, connection) {
            seen.answered = Some(sent);
        }
        self.judge(peer)
    }

    /// A connection closed. Returns whether what is known of copies changed.
    pub(super) fn closed(&mut self, peer: &PeerId, connection: ConnectionId) -> bool {
        if let Some(seen) = self.peers.get_mut(peer) {
            seen.retain(|seen| seen.connection != connection);
            if seen.is_empty() {
                self.peers.remove(peer);
            }
        }
        self.judge(peer)
    }

    /// The copied peers, and where each one's processes are.
    pub(super) fn found(&self) -> impl Iterator<Item = (&PeerId, &[IpAddr])> {
        self.found.iter().map(|(peer, ips)| (peer, ips.as_slice()))
    }

    fn seen(&mut self, peer: &PeerId, connection: ConnectionId) -> Option<&mut Seen> {
        self.peers.get_mut(peer)?.iter_mut().find(|seen| seen.connection == connection)
    }

    fn judge(&mut self, peer: &PeerId) -> bool {
        let seen = self.peers.get(peer).map_or(&[][..], Vec::as_slice);
        let outlives = |old: &Seen, new: &Seen| {
            let two = old.process.zip(new.process).is_some_and(|(old, new)| old != new);
            two && old.answered.is_some_and(|answered| answered > new.since)
        };
        let copied = seen.iter().any(|old| seen.iter().any(|new| new.since >= old.since && outlives(old, new)));
        let mut ips: Vec<IpAddr> = seen.iter().filter_map(|seen| seen.ip).collect();
        ips.sort();
        ips.dedup();
        match (copied, self.found.get(peer)) {
            (true, known) if known != Some(&ips) => self.found.insert(peer.clone(), ips).is_none_or(|_| true),
            (false, Some(_)) => self.found.remove(peer).is_some(),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn old() -> ConnectionId {
        ConnectionId::new_unchecked(1)
    }

    fn new() -> ConnectionId {
        ConnectionId::new_unchecked(2)
    }

    fn ip(last: u8) -> Option<IpAddr> {
        Some(IpAddr::from([192, 0, 2, last]))
    }

    fn found(copies: &Copies) -> Vec<(String, usize)> {
        copies.found().map(|(peer, ips)| (peer.to_string(), ips.len())).collect()
    }

    /// A peer's process 1, and ten seconds later another connection from process `second`.
    fn two_connections(second: u64) -> (Copies, PeerId, Instant) {
        let (mut copies, peer, start) = (Copies::default(), PeerId::from("p"), Instant::now());
        copies.connected(&peer, old(), ip(1), start);
        copies.identified(&peer, old(), &agent("0.1.0", 1));
        assert!(!copies.answered(&peer, old(), start + Duration::from_secs(9)));
        let later = start + Duration::from_secs(10);
        copies.connected(&peer, new(), ip(2), later);
        copies.identified(&peer, new(), &agent("0.2.0", second));
        (copies, peer, later)
    }

    #[test]
    fn two_processes_that_both_answer_are_copies_until_one_goes() {
        let (mut copies, peer, later) = two_connections(2);
        assert!(!copies.answered(&peer, new(), later + Duration::from_secs(3)));
        assert!(copies.answered(&peer, old(), later + Duration::from_secs(3)));
        assert_eq!(found(&copies), [("p".to_owned(), 2)]);
        assert!(!copies.answered(&peer, old(), later + Duration::from_secs(6)), "no news");
        assert!(copies.closed(&peer, new()));
        assert!(found(&copies).is_empty());
    }

    #[test]
    fn a_restarted_process_is_none() {
        let (mut copies, peer, later) = two_connections(2);
        assert!(!copies.answered(&peer, old(), later - Duration::from_millis(1)), "asked before the new one came");
        assert!(!copies.answered(&peer, new(), later + Duration::from_secs(3)));
        assert!(!copies.closed(&peer, old()));
        assert!(!copies.answered(&peer, new(), later + Duration::from_secs(60)));
    }

    #[test]
    fn one_process_may_connect_twice_and_one_without_a_mark_is_nobody_in_particular() {
        let (mut copies, peer, later) = two_connections(1);
        assert!(!copies.answered(&peer, old(), later + Duration::from_secs(3)));
        copies.identified(&peer, new(), "something-else/1");
        assert!(!copies.answered(&peer, old(), later + Duration::from_secs(6)));
    }
}
