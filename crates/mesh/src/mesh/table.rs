//! The peer table: what each peer last said of itself and whether it is here, and the view made of it.

use std::collections::BTreeMap;
use std::time::Duration;

use libp2p::Multiaddr;
use mesh_proto::{convert, v1};
use mesh_types::{ByteSize, MeshView, PeerId, PeerState, PeerView};
use tokio::time::Instant;

use super::PeerRecord;

/// How long a lost peer stays visible.
pub(super) const GONE_FOR: Duration = Duration::from_secs(60);
/// What a new ping weighs against those before.
const SMOOTHING: f64 = 0.25;
/// Changes of a round trip that say nothing, in microseconds.
const RTT_NOISE: f64 = 2_000.0;
/// Bounds on what a peer may say of itself.
const MAX_NAME: usize = 128;
pub(super) const MAX_ITEMS: usize = 256;

/// All peers but the local one.
#[derive(Default)]
pub(super) struct Table {
    peers: BTreeMap<PeerId, Entry>,
}

struct Entry {
    /// Where it was reached, until it says so itself.
    address: Option<Multiaddr>,
    /// What it last said, since it was last connected.
    status: Option<Heard>,
    /// What it last said before that; shown while it is away or back but silent.
    before: Option<v1::NodeStatus>,
    gone: Option<Instant>,
    rtt: Rtt,
}

/// The round trip to a peer.
#[derive(Default)]
struct Rtt {
    /// Averaged over the last few pings, in microseconds.
    mean: Option<f64>,
    /// What others were told last; 0: nothing.
    said: u32,
}

struct Heard {
    status: v1::NodeStatus,
    view: PeerView,
    at: Instant,
}

impl Table {
    /// The first connection to `peer` stands; `address` is where it was dialled.
    pub(super) fn connected(&mut self, peer: &PeerId, address: Option<Multiaddr>) {
        let entry = self.peers.entry(peer.clone()).or_insert_with(|| Entry {
            address: None,
            status: None,
            before: None,
            gone: None,
            rtt: Rtt::default(),
        });
        entry.gone = None;
        entry.address = address.or(entry.address.take());
        entry.before = entry.status.take().map(|heard| heard.status).or(entry.before.take());
    }

    /// A ping to `peer` took so long. Returns whether others should hear of it.
    pub(super) fn measured(&mut self, peer: &PeerId, rtt: Duration) -> bool {
        self.peers.get_mut(peer).is_some_and(|entry| entry.rtt.measured(rtt))
    }

    /// The last connection to `peer` closed.
    pub(super) fn disconnected(&mut self, peer: &PeerId, now: Instant) {
        if let Some(entry) = self.peers.get_mut(peer) {
            entry.gone.get_or_insert(now);
        }
    }

    /// `peer` says what it is. Returns whether that was taken: it is older than what is known, or malformed, or the peer
    /// is not connected, else.
    pub(super) fn heard(&mut self, peer: &PeerId, mut status: v1::NodeStatus, now: Instant) -> bool {
        let Some(entry) = self.peers.get_mut(peer).filter(|entry| entry.gone.is_none()) else { return false };
        if entry.status.as_ref().is_some_and(|heard| heard.status.sequence >= status.sequence) {
            return false;
        }
        clamp(&mut status, peer);
        let state = if status.leaving { PeerState::Leaving } else { PeerState::Ready };
        match convert::peer_view(peer.clone(), status.clone(), state, false) {
            Ok(view) => entry.status = Some(Heard { status, view, at: now }),
            Err(error) => {
                tracing::warn!(%peer, %error, "ignored a peer's status");
                return false;
            }
        }
        true
    }

    /// Drops peers that have been away long enough. Returns them.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<PeerId> {
        let over = |entry: &Entry| entry.gone.is_some_and(|gone| now >= gone + GONE_FOR);
        let expired: Vec<_> =
            self.peers.iter().filter(|(_, entry)| over(entry)).map(|(peer, _)| peer.clone()).collect();
        expired.iter().for_each(|peer| _ = self.peers.remove(peer));
        expired
    }

    /// When the next peer is to be dropped.
    pub(super) fn next_expiry(&self) -> Option<Instant> {
        self.peers.values().filter_map(|entry| entry.gone).min().map(|gone| gone + GONE_FOR)
    }

    /// Connected peers and where they can be reached: what this node tells others.
    pub(super) fn reachable(&self) -> Vec<v1::PeerAddress> {
        let addresses = |entry: &Entry| match &entry.status {
            Some(heard) => heard.status.addresses.clone(),
            None => entry.address.iter().map(Multiaddr::to_string).collect(),
        };
        self.peers
            .iter()
            .filter(|(_, entry)| entry.gone.is_none() && entry.status.as_ref().is_none_or(|h| !h.status.leaving))
            .map(|(peer, entry)| v1::PeerAddress {
                peer_id: peer.to_string(),
                addresses: addresses(entry),
                rtt_us: entry.rtt.said,
            })
            .filter(|peer| !peer.addresses.is_empty())
            .take(MAX_ITEMS)
            .collect()
    }

    /// The view: `local` first, the others by name and id.
    pub(super) fn view(&self, local: PeerView) -> MeshView {
        let mut peers: Vec<PeerView> = self.peers.iter().map(|(peer, entry)| entry.view(peer)).collect();
        peers.sort_by(|a, b| (&a.name, &a.id).cmp(&(&b.name, &b.id)));
        peers.insert(0, local);
        MeshView { peers }
    }

    /// The raw statuses, in no particular order.
    pub(super) fn records(&self, now: Instant) -> Vec<PeerRecord> {
        self.peers.iter().map(|(peer, entry)| entry.record(peer, now)).collect()
    }
}

impl Rtt {
    /// Whether it has moved so far from what others were told that it could change a placement.
    fn measured(&mut self, rtt: Duration) -> bool {
        let now = rtt.as_secs_f64() * 1e6;
        let mean = self.mean.map_or(now, |mean| mean + (now - mean) * SMOOTHING);
        self.mean = Some(mean);
        let said = f64::from(self.said);
        let far = self.said == 0 || (mean - said).abs() > (said / 2.0).max(RTT_NOISE);
        if far {
            self.said = (mean as u32).max(1);
        }
        far
    }
}

impl Entry {
    fn state(&self) -> PeerState {
        match (&self.gone, &self.status) {
            (Some(_), _) => PeerState::Gone,
            (None, Some(heard)) => heard.view.state,
            (None, None) => PeerState::Joining,
        }
    }

    fn view(&self, peer: &PeerId) -> PeerView {
        let state = self.state();
        match &self.status {
            Some(heard) => PeerView { state, ..heard.view.clone() },
            None => PeerView {
                name: self.before.as_ref().map(|status| status.name.clone()).unwrap_or_default(),
                addresses: self.address.iter().map(Multiaddr::to_string).collect(),
                ..blank(peer.clone(), state)
            },
        }
    }

    fn record(&self, peer: &PeerId, now: Instant) -> PeerRecord {
        let (status, age) = match &self.status {
            Some(heard) => (heard.status.clone(), now.saturating_duration_since(heard.at)),
            None => {
                let silent = v1::NodeStatus { peer_id: peer.to_string(), ..Default::default() };
                (self.before.clone().unwrap_or(silent), Duration::ZERO)
            }
        };
        PeerRecord { status, state: self.state(), age, local: false }
    }
}

/// A peer of which nothing is known yet.
pub(super) fn blank(id: PeerId, state: PeerState) -> PeerView {
    PeerView {
        id,
        name: String::new(),
        state,
        local: false,
        version: String::new(),
        addresses: Vec::new(),
        stage_addresses: Vec::new(),
        memory: ByteSize(0),
        memory_free: ByteSize(0),
        models: Vec::new(),
        stages: Vec::new(),
        speed: None,
        links: Vec::new(),
        draining: false,
    }
}

/// Cuts a status to what a sane peer would say, and puts the proven identity into it.
fn clamp(status: &mut v1::NodeStatus, peer: &PeerId) {
    status.peer_id = peer.to_string();
    if let Some((end, _)) = status.name.char_indices().nth(MAX_NAME) {
        status.name.truncate(end);
    }
    status.addresses.truncate(MAX_ITEMS);
    status.stage_addresses.truncate(MAX_ITEMS);
    status.models.truncate(MAX_ITEMS);
    status.stages.truncate(MAX_ITEMS);
    status.peers.truncate(MAX_ITEMS);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(name: &str, sequence: u64) -> v1::NodeStatus {
        v1::NodeStatus { name: name.to_owned(), sequence, ..Default::default() }
    }

    fn states(table: &Table) -> Vec<(String, PeerState)> {
        let local = PeerView { local: true, ..blank(PeerId::from("me"), PeerState::Ready) };
        table.view(local).peers.into_iter().skip(1).map(|peer| (peer.name, peer.state)).collect()
    }

    #[test]
    fn a_peer_comes_goes_and_returns() {
        let (mut table, peer, start) = (Table::default(), PeerId::from("p"), Instant::now());
        assert!(!table.heard(&peer, status("early", 1), start), "not connected");
        table.connected(&peer, None);
        assert_eq!(states(&table), [(String::new(), PeerState::Joining)]);
        assert!(table.heard(&peer, status("p", 5), start));
        assert!(!table.heard(&peer, status("old", 4), start));
        assert_eq!(states(&table), [("p".into(), PeerState::Ready)]);
        assert!(table.heard(&peer, v1::NodeStatus { leaving: true, ..status("p", 6) }, start));
        assert_eq!(states(&table), [("p".into(), PeerState::Leaving)]);
        table.disconnected(&peer, start);
        assert_eq!(states(&table), [("p".into(), PeerState::Gone)]);
        assert_eq!(table.next_expiry(), Some(start + GONE_FOR));

        table.connected(&peer, None);
        assert_eq!(states(&table), [("p".into(), PeerState::Joining)]);
        assert!(table.heard(&peer, status("p", 1), start), "a restarted peer counts anew");
        table.disconnected(&peer, start);
        assert!(table.expire(start + GONE_FOR / 2).is_empty());
        assert_eq!(table.expire(start + GONE_FOR), [peer]);
        assert!(states(&table).is_empty());
    }

    #[test]
    fn a_round_trip_is_told_again_only_when_it_moved() {
        let (mut table, peer) = (Table::default(), PeerId::from("p"));
        assert!(!table.measured(&peer, Duration::from_millis(3)), "not connected");
        table.connected(&peer, Some("/ip4/192.0.2.1/tcp/1".parse().unwrap()));
        assert!(table.measured(&peer, Duration::from_micros(300)));
        assert!((0..100).all(|n| !table.measured(&peer, Duration::from_micros(200 + 10 * n))), "noise");
        assert!((0..10).any(|_| table.measured(&peer, Duration::from_millis(40))));
        assert!(table.reachable()[0].rtt_us > 2000);
    }

    #[test]
    fn peers_are_shown_by_name_and_id() {
        let mut table = Table::default();
        for (id, name) in [("3", "b"), ("2", "a"), ("1", "b")] {
            table.connected(&PeerId::from(id), None);
            assert!(table.heard(&PeerId::from(id), status(name, 1), Instant::now()));
        }
        let view = table.view(blank(PeerId::from("me"), PeerState::Ready));
        let ids: Vec<_> = view.peers.iter().map(|peer| peer.id.as_str()).collect();
        assert_eq!(ids, ["me", "2", "1", "3"]);
    }

    #[test]
    fn nonsense_is_ignored_and_excess_cut() {
        let (mut table, peer) = (Table::default(), PeerId::from("p"));
        table.connected(&peer, None);
        let broken = v1::ModelStatus { digest: vec![1, 2], ..Default::default() };
        assert!(!table.heard(&peer, v1::NodeStatus { models: vec![broken], ..status("p", 1) }, Instant::now()));
        let lie = v1::NodeStatus { peer_id: "other".into(), ..status(&"ü".repeat(1000), 2) };
        assert!(table.heard(&peer, lie, Instant::now()));
        let record = table.records(Instant::now()).remove(0);
        assert_eq!((record.status.peer_id.as_str(), record.status.name.chars().count()), ("p", MAX_NAME));
    }
}
