//! Peers of other protocol versions: they are not admitted, but seen, so that somebody can update them.

use std::collections::HashMap;
use std::time::Duration;

use libp2p::{Multiaddr, PeerId};
use tokio::time::Instant;

use super::{Guest, Versions};

/// After so long without a meeting one is forgotten. They come again every half minute at least.
pub(crate) const FORGET: Duration = Duration::from_secs(120);
const MAX_FOREIGNERS: usize = 64;

/// One of them. Nothing of it is proven but its id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Foreigner {
    pub(crate) peer: PeerId,
    /// Where it was met.
    pub(crate) address: Multiaddr,
    /// What it speaks.
    pub(crate) versions: Versions,
    /// When it was met last.
    pub(crate) met: Instant,
}

#[derive(Default)]
pub(super) struct Foreigners(HashMap<PeerId, Foreigner>);

impl Foreigners {
    pub(super) fn seen(&mut self, guest: &Guest, versions: Versions, now: Instant) {
        self.forget(now);
        if self.0.len() >= MAX_FOREIGNERS && !self.0.contains_key(&guest.peer) {
            let oldest = self.0.values().min_by_key(|foreigner| foreigner.met).map(|foreigner| foreigner.peer);
            oldest.and_then(|peer| self.0.remove(&peer));
        }
        let Guest { peer, address } = guest.clone();
        self.0.insert(peer, Foreigner { peer, address, versions, met: now });
    }

    /// It was updated, or this node was.
    pub(super) fn admitted(&mut self, peer: &PeerId) {
        self.0.remove(peer);
    }

    pub(super) fn at(&mut self, now: Instant) -> Vec<Foreigner> {
        self.forget(now);
        self.0.values().cloned().collect()
    }

    fn forget(&mut self, now: Instant) {
        self.0.retain(|_, foreigner| now.saturating_duration_since(foreigner.met) < FORGET);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_forgotten_and_bounded() {
        let (mut foreigners, start) = (Foreigners::default(), Instant::now());
        let versions = Versions { low: 2, high: 3 };
        let guest = || Guest { peer: PeerId::random(), address: "/ip4/192.0.2.1/tcp/1".parse().unwrap() };
        let first = guest();
        foreigners.seen(&first, versions, start);
        for n in 1..=MAX_FOREIGNERS as u64 {
            foreigners.seen(&guest(), versions, start + Duration::from_secs(n));
        }
        let met = foreigners.at(start + Duration::from_secs(64));
        assert_eq!(met.len(), MAX_FOREIGNERS);
        assert!(met.iter().all(|foreigner| foreigner.peer != first.peer), "the oldest made room");
        assert_eq!(foreigners.at(start + FORGET + Duration::from_secs(63)).len(), 1);
        let updated = guest();
        foreigners.seen(&updated, versions, start + FORGET);
        foreigners.admitted(&updated.peer);
        assert!(foreigners.at(start + FORGET + Duration::from_secs(64)).is_empty());
    }
}
