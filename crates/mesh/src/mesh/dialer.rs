//! Whom to connect to and when: the token's peers at once, peers that others tell of, lost ones again with growing
//! pauses. Pure: is told the time and what happened, says what to dial.

use std::collections::HashMap;
use std::time::Duration;

use libp2p::{Multiaddr, PeerId};
use tokio::time::Instant;

const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// Also the pause after an answer that will not change by itself.
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Of two peers that learn of each other at the same time, the one with the greater id leaves it to the other to dial
/// first.
const YIELD: Duration = Duration::from_secs(1);
/// A peer that is not one of the token's is given up after so long.
const GIVE_UP: Duration = Duration::from_secs(600);
const MAX_TARGETS: usize = 512;
const MAX_ADDRESSES: usize = 16;

/// Everybody this node wants a connection to.
pub(super) struct Dialer {
    local: PeerId,
    targets: HashMap<PeerId, Target>,
}

struct Target {
    addresses: Vec<Multiaddr>,
    /// Known from the token or an earlier run: never given up.
    lasting: bool,
    phase: Phase,
    failures: u32,
    away_since: Instant,
}

#[derive(PartialEq)]
enum Phase {
    Waiting(Instant),
    Dialling,
    Connected,
}

impl Dialer {
    pub(super) fn new(local: PeerId) -> Self {
        Self { local, targets: HashMap::new() }
    }

    /// Wants `peer`, which an earlier run or the token knows, at once.
    pub(super) fn add_lasting(&mut self, peer: PeerId, addresses: Vec<Multiaddr>, now: Instant) {
        if peer != self.local {
            self.add(peer, addresses, now, now).lasting = true;
        }
    }

    /// Somebody tells where `peer` is.
    pub(super) fn learn(&mut self, peer: PeerId, addresses: &[Multiaddr], now: Instant) {
        let room = self.targets.len() < MAX_TARGETS || self.targets.contains_key(&peer);
        if peer != self.local && room {
            let due = now + self.politeness(&peer);
            self.add(peer, addresses.to_vec(), due, now);
        }
    }

    /// `peer` itself says where it is.
    pub(super) fn replace(&mut self, peer: PeerId, mut addresses: Vec<Multiaddr>) {
        addresses.truncate(MAX_ADDRESSES);
        if let Some(target) = self.targets.get_mut(&peer).filter(|_| !addresses.is_empty()) {
            // What the token said may be a way that the peer does not know of, such as a forwarded port.
            let kept: Vec<_> =
                target.addresses.drain(..).filter(|known| target.lasting && !addresses.contains(known)).collect();
            target.addresses = addresses;
            target.addresses.extend(kept);
            target.addresses.truncate(MAX_ADDRESSES);
        }
    }

    /// A connection to `peer` stands, whoever dialled.
    pub(super) fn connected(&mut self, peer: PeerId, address: Option<Multiaddr>, now: Instant) {
        let target = self.add(peer, address.into_iter().collect(), now, now);
        target.phase = Phase::Connected;
        target.failures = 0;
    }

    /// The last connection to `peer` closed.
    pub(super) fn disconnected(&mut self, peer: PeerId, now: Instant) {
        let pause = FIRST_PAUSE + self.politeness(&peer);
        if let Some(target) = self.targets.get_mut(&peer) {
            target.phase = Phase::Waiting(now + pause);
            target.away_since = now;
        }
    }

    /// Dialling `peer` failed; at least `wait` has to pass before the next attempt.
    pub(super) fn failed(&mut self, peer: PeerId, wait: Option<Duration>, now: Instant) {
        let Some(target) = self.targets.get_mut(&peer).filter(|target| target.phase != Phase::Connected) else {
            return;
        };
        if !target.lasting && now >= target.away_since + GIVE_UP {
            self.targets.remove(&peer);
            return;
        }
        let pause = FIRST_PAUSE.saturating_mul(1 << target.failures.min(10)).min(LONGEST_PAUSE);
        target.failures = target.failures.saturating_add(1);
        target.phase = Phase::Waiting(now + pause.max(wait.unwrap_or_default()));
    }

    /// Takes the peers that are due, with their addresses: they count as being dialled.
    pub(super) fn due(&mut self, now: Instant) -> Vec<(PeerId, Vec<Multiaddr>)> {
        self.targets
            .iter_mut()
            .filter(|(_, target)| matches!(target.phase, Phase::Waiting(due) if due <= now))
            .filter(|(_, target)| !target.addresses.is_empty())
            .map(|(peer, target)| {
                target.phase = Phase::Dialling;
                (*peer, target.addresses.clone())
            })
            .collect()
    }

    /// When something is due next.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let due = |target: &Target| match target.phase {
            Phase::Waiting(due) if !target.addresses.is_empty() => Some(due),
            _ => None,
        };
        self.targets.values().filter_map(due).min()
    }

    fn politeness(&self, peer: &PeerId) -> Duration {
        if self.local < *peer { Duration::ZERO } else { YIELD }
    }

    fn add(&mut self, peer: PeerId, addresses: Vec<Multiaddr>, due: Instant, now: Instant) -> &mut Target {
        let target = self.targets.entry(peer).or_insert_with(|| Target {
            addresses: Vec::new(),
            lasting: false,
            phase: Phase::Waiting(due),
            failures: 0,
            away_since: now,
        });
        for address in addresses {
            if target.addresses.len() < MAX_ADDRESSES && !target.addresses.contains(&address) {
                target.addresses.push(address);
            }
        }
        target
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peers() -> (PeerId, PeerId) {
        let (a, b) = (PeerId::random(), PeerId::random());
        if a < b { (a, b) } else { (b, a) }
    }

    fn address() -> Multiaddr {
        "/ip4/192.0.2.1/tcp/1".parse().unwrap()
    }

    #[test]
    fn lost_peers_are_dialled_with_growing_pauses() {
        let (low, high) = peers();
        let (mut dialer, mut now) = (Dialer::new(low), Instant::now());
        dialer.add_lasting(high, vec![address()], now);
        assert_eq!(dialer.due(now), [(high, vec![address()])]);
        assert!(dialer.due(now).is_empty() && dialer.next_due().is_none(), "being dialled");
        for millis in [250, 500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000] {
            dialer.failed(high, None, now);
            assert_eq!(dialer.next_due(), Some(now + Duration::from_millis(millis)));
            now += Duration::from_millis(millis);
            assert_eq!(dialer.due(now).len(), 1);
        }
        dialer.connected(high, None, now);
        dialer.failed(high, None, now);
        assert_eq!(dialer.next_due(), None, "a second dial that failed does not matter");
        dialer.disconnected(high, now);
        assert_eq!(dialer.next_due(), Some(now + FIRST_PAUSE));
        dialer.due(now + FIRST_PAUSE);
        dialer.failed(high, Some(Duration::from_secs(7)), now);
        assert_eq!(dialer.next_due(), Some(now + Duration::from_secs(7)), "it was asked to wait");
    }

    #[test]
    fn of_two_that_learn_of_each_other_one_dials() {
        let (low, high) = peers();
        let now = Instant::now();
        let (mut at_low, mut at_high) = (Dialer::new(low), Dialer::new(high));
        at_low.learn(high, &[address()], now);
        at_high.learn(low, &[address()], now);
        at_high.learn(high, &[address()], now);
        assert_eq!(at_low.next_due(), Some(now));
        assert_eq!(at_high.next_due(), Some(now + YIELD));
    }

    #[test]
    fn hearsay_is_given_up_and_the_token_is_not() {
        let (low, high) = peers();
        let (mut dialer, now) = (Dialer::new(low), Instant::now());
        dialer.learn(high, &[address()], now);
        dialer.due(now);
        dialer.failed(high, None, now + GIVE_UP);
        assert_eq!(dialer.next_due(), None);
        dialer.add_lasting(high, vec![address()], now);
        dialer.due(now);
        dialer.failed(high, None, now + GIVE_UP);
        assert!(dialer.next_due().is_some());
    }
}
