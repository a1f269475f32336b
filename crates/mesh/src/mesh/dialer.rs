//! Whom to connect to and when: the token's peers at once, peers that others tell of, lost ones again with growing
//! pauses. Pure: is told the time and what happened, says what to dial.

use std::collections::HashMap;
use std::time::Duration;

use libp2p::{Multiaddr, PeerId};
use tokio::time::Instant;

use super::paths;

const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// Also the pause after an answer that will not change by itself.
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Of two peers that learn of each other at the same time, the one with the greater id leaves it to the other to dial
/// first.
const YIELD: Duration = Duration::from_secs(1);
/// A peer that is not one of the token's is given up after so long.
const GIVE_UP: Duration = Duration::from_secs(600);
/// Peers that a node looks for by itself.
pub(super) const MAX_TARGETS: usize = 512;
const MAX_ADDRESSES: usize = 16;
/// Members through which a peer is tried at most.
const MAX_RELAYS: usize = 4;
/// After so many failures other ways are tried, whatever answers: it may be another host with the same private address.
const DOUBTFUL: u32 = 5;
/// How often a direct way is looked for to a peer that is connected through another.
const UPGRADE: Duration = Duration::from_secs(60);

/// Everybody this node wants a connection to.
pub(super) struct Dialer {
    local: PeerId,
    room: usize,
    targets: HashMap<PeerId, Target>,
}

struct Target {
    addresses: Vec<Multiaddr>,
    /// Members that say they are connected to it.
    relays: Vec<PeerId>,
    /// Dialled without an answer, not even a refusal, or often in vain, since it was last connected directly.
    unanswered: bool,
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
    /// Connected through another; the next attempt at a direct way is due then.
    Relayed(Instant),
}

/// A peer to dial now.
#[derive(Debug, PartialEq)]
pub(super) struct Dial {
    pub(super) peer: PeerId,
    pub(super) addresses: Vec<Multiaddr>,
    /// It is connected through another: a direct way is looked for.
    pub(super) upgrade: bool,
}

impl Dialer {
    /// Takes up to `room` peers that others tell of.
    pub(super) fn new(local: PeerId, room: usize) -> Self {
        Self { local, room, targets: HashMap::new() }
    }

    /// Wants `peer`, which an earlier run or the token knows, at once.
    pub(super) fn add_lasting(&mut self, peer: PeerId, addresses: Vec<Multiaddr>, now: Instant) {
        if peer != self.local {
            self.add(peer, addresses, now, now).lasting = true;
        }
    }

    /// Somebody tells where `peer` is: `relay`, where it is a member that is connected to both.
    pub(super) fn learn(&mut self, peer: PeerId, addresses: &[Multiaddr], relay: Option<PeerId>, now: Instant) {
        let room = self.targets.len() < self.room || self.targets.contains_key(&peer);
        if peer != self.local && room {
            let due = now + self.politeness(&peer);
            let target = self.add(peer, addresses.to_vec(), due, now);
            if let Some(relay) = relay.filter(|relay| !target.relays.contains(relay)) {
                target.relays.truncate(MAX_RELAYS - 1);
                target.relays.insert(0, relay);
            }
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

    /// Whoever is waited for is due now.
    pub(super) fn hurry(&mut self, now: Instant) {
        for target in self.targets.values_mut() {
            if let Phase::Waiting(due) = &mut target.phase {
                *due = (*due).min(now);
            }
        }
    }

    /// Wants `peer` no more. Returns where it was.
    pub(super) fn forget(&mut self, peer: &PeerId) -> Vec<Multiaddr> {
        self.targets.remove(peer).map(|target| target.addresses).unwrap_or_default()
    }

    /// A direct connection to `peer` stands, whoever dialled.
    pub(super) fn connected(&mut self, peer: PeerId, address: Option<Multiaddr>, now: Instant) {
        let target = self.add(peer, address.into_iter().collect(), now, now);
        target.phase = Phase::Connected;
        target.failures = 0;
        target.unanswered = false;
    }

    /// `peer` is connected, but only through another.
    pub(super) fn relayed(&mut self, peer: PeerId, now: Instant) {
        let target = self.add(peer, Vec::new(), now, now);
        if !matches!(target.phase, Phase::Relayed(_)) {
            target.phase = Phase::Relayed(now + UPGRADE);
        }
        target.failures = 0;
    }

    /// Nothing at `peer`'s addresses answers.
    pub(super) fn unanswered(&mut self, peer: PeerId) {
        if let Some(target) = self.targets.get_mut(&peer) {
            target.unanswered = true;
        }
    }

    /// The members through which peers may come that cannot be reached directly, with an address of each.
    pub(super) fn relays(&self) -> Vec<(PeerId, Multiaddr)> {
        let wanted = self.targets.values().filter(|target| target.unanswered).flat_map(|target| &target.relays);
        let mut relays: Vec<_> = wanted.filter_map(|relay| Some((*relay, self.address(relay)?.clone()))).collect();
        relays.sort_by_key(|(relay, _)| *relay);
        relays.dedup_by_key(|(relay, _)| *relay);
        relays
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
        let absent = |target: &&mut Target| !matches!(target.phase, Phase::Connected | Phase::Relayed(_));
        let Some(target) = self.targets.get_mut(&peer).filter(absent) else { return };
        if !target.lasting && now >= target.away_since + GIVE_UP {
            self.targets.remove(&peer);
            return;
        }
        let pause = FIRST_PAUSE.saturating_mul(1 << target.failures.min(10)).min(LONGEST_PAUSE);
        target.failures = target.failures.saturating_add(1);
        target.unanswered |= target.failures >= DOUBTFUL;
        target.phase = Phase::Waiting(now + pause.max(wait.unwrap_or_default()));
    }

    /// Takes what is to be dialled now: it counts as being dialled.
    pub(super) fn due(&mut self, now: Instant) -> Vec<Dial> {
        let due: Vec<PeerId> = self
            .targets
            .iter()
            .filter(|(_, target)| target.due().is_some_and(|due| due <= now))
            .map(|(p, _)| *p)
            .collect();
        due.into_iter().filter_map(|peer| self.dial(peer, now)).collect()
    }

    /// When something is due next.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.targets.values().filter_map(Target::due).min()
    }

    fn dial(&mut self, peer: PeerId, now: Instant) -> Option<Dial> {
        let target = self.targets.get(&peer)?;
        let upgrade = matches!(target.phase, Phase::Relayed(_));
        let mut addresses = target.addresses.clone();
        if target.unanswered && !upgrade {
            let through = |relay: &PeerId| Some(paths::circuit(*relay, self.address(relay)?, Some(peer)));
            addresses.extend(target.relays.iter().filter_map(through));
        }
        let target = self.targets.get_mut(&peer)?;
        target.phase = if upgrade { Phase::Relayed(now + UPGRADE) } else { Phase::Dialling };
        Some(Dial { peer, addresses, upgrade })
    }

    /// An address of a peer that is connected directly.
    fn address(&self, peer: &PeerId) -> Option<&Multiaddr> {
        self.targets.get(peer).filter(|target| target.phase == Phase::Connected)?.addresses.first()
    }

    fn politeness(&self, peer: &PeerId) -> Duration {
        if self.local < *peer { Duration::ZERO } else { YIELD }
    }

    fn add(&mut self, peer: PeerId, addresses: Vec<Multiaddr>, due: Instant, now: Instant) -> &mut Target {
        let target = self.targets.entry(peer).or_insert_with(|| Target {
            addresses: Vec::new(),
            relays: Vec::new(),
            unanswered: false,
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

impl Target {
    fn due(&self) -> Option<Instant> {
        match self.phase {
            Phase::Waiting(due) | Phase::Relayed(due) if !self.addresses.is_empty() => Some(due),
            _ => None,
        }
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
        let (mut dialer, mut now) = (Dialer::new(low, MAX_TARGETS), Instant::now());
        dialer.add_lasting(high, vec![address()], now);
        assert_eq!(dialer.due(now), [Dial { peer: high, addresses: vec![address()], upgrade: false }]);
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
        dialer.hurry(now);
        assert_eq!(dialer.next_due(), Some(now));
    }

    #[test]
    fn of_two_that_learn_of_each_other_one_dials() {
        let (low, high) = peers();
        let now = Instant::now();
        let (mut at_low, mut at_high) = (Dialer::new(low, MAX_TARGETS), Dialer::new(high, MAX_TARGETS));
        at_low.learn(high, &[address()], None, now);
        at_high.learn(low, &[address()], None, now);
        at_high.learn(high, &[address()], None, now);
        assert_eq!(at_low.next_due(), Some(now));
        assert_eq!(at_high.next_due(), Some(now + YIELD));
    }

    #[test]
    fn hearsay_is_given_up_and_the_token_is_not() {
        let (low, high) = peers();
        let (mut dialer, now) = (Dialer::new(low, MAX_TARGETS), Instant::now());
        dialer.learn(high, &[address()], None, now);
        dialer.due(now);
        dialer.failed(high, None, now + GIVE_UP);
        assert_eq!(dialer.next_due(), None);
        dialer.add_lasting(high, vec![address()], now);
        dialer.due(now);
        dialer.failed(high, None, now + GIVE_UP);
        assert!(dialer.next_due().is_some());
    }

    #[test]
    fn who_does_not_answer_is_tried_through_members_that_know_it() {
        let (low, high) = peers();
        let (relay, now) = (PeerId::random(), Instant::now());
        let at: Multiaddr = "/ip4/192.0.2.9/tcp/9".parse().unwrap();
        let mut dialer = Dialer::new(low, MAX_TARGETS);
        dialer.connected(relay, Some(at.clone()), now);
        dialer.learn(high, &[address()], Some(relay), now);
        assert_eq!(dialer.due(now)[0].addresses, [address()], "directly first");
        dialer.failed(high, None, now);
        assert!(dialer.relays().is_empty(), "a refusal is an answer");
        let now = now + LONGEST_PAUSE;
        dialer.due(now);
        dialer.unanswered(high);
        dialer.failed(high, None, now);
        assert_eq!(dialer.relays(), [(relay, at.clone())]);
        let now = now + LONGEST_PAUSE;
        assert_eq!(dialer.due(now)[0].addresses, [address(), paths::circuit(relay, &at, Some(high))]);

        dialer.relayed(high, now);
        dialer.failed(high, None, now);
        assert_eq!(dialer.next_due(), Some(now + UPGRADE));
        let now = now + UPGRADE;
        assert_eq!(dialer.due(now), [Dial { peer: high, addresses: vec![address()], upgrade: true }]);
        assert_eq!(dialer.next_due(), Some(now + UPGRADE), "again and again");
        dialer.connected(high, None, now);
        assert!(dialer.relays().is_empty() && dialer.next_due().is_none());
        dialer.disconnected(relay, now);
        dialer.unanswered(high);
        assert!(dialer.relays().is_empty(), "who is away relays nothing");
    }
}
