//! The peer table: what each peer last said of itself and whether it is here, and the view made of it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use libp2p::Multiaddr;
use mesh_proto::{convert, v1};
use mesh_types::{ByteSize, MeshView, PeerId, PeerState, PeerView};
use tokio::time::Instant;

use super::PeerRecord;
use super::left_out::LeftOut;
use super::telling::Link;
use crate::admission::Foreigner;

#[cfg(test)]
mod tests;

/// How long a lost peer stays visible.
pub(super) const GONE_FOR: Duration = Duration::from_secs(60);
/// What a new ping weighs against those before.
const SMOOTHING: f64 = 0.25;
/// Changes of a round trip that say nothing, in microseconds.
const RTT_NOISE: f64 = 2_000.0;
/// Bounds on what a peer may say of itself.
const MAX_NAME: usize = 128;
pub(super) const MAX_ITEMS: usize = 256;
const MAX_COPIES: usize = 16;

/// All peers but the local one.
#[derive(Default)]
pub(super) struct Table {
    peers: BTreeMap<PeerId, Entry>,
    /// The peers that others are told of, by the number of the last change.
    news: BTreeMap<u64, PeerId>,
    version: u64,
    left_out: LeftOut,
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
    /// The member through which it is connected; `None`: directly.
    relay: Option<PeerId>,
    /// Whom it says it is connected to; addresses are left out.
    links: BTreeMap<String, v1::PeerAddress>,
    /// What others are told of it.
    told: Option<Link>,
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
        self.left_out.admit(peer);
        let entry = self.peers.entry(peer.clone()).or_insert_with(|| Entry {
            address: None,
            status: None,
            before: None,
            gone: None,
            rtt: Rtt::default(),
            relay: None,
            links: BTreeMap::new(),
            told: None,
        });
        entry.gone = None;
        entry.address = address.or(entry.address.take());
        entry.before = entry.status.take().map(|heard| heard.status).or(entry.before.take());
        entry.links.clear();
        self.tell(peer);
    }

    /// `peer` is connected through `relay`, or directly. Returns whether that is news.
    pub(super) fn reached_through(&mut self, peer: &PeerId, relay: Option<PeerId>) -> bool {
        let news =
            self.peers.get_mut(peer).is_some_and(|entry| std::mem::replace(&mut entry.relay, relay.clone()) != relay);
        self.tell(peer);
        news
    }

    /// A ping to `peer` took so long. Returns whether others should hear of it.
    pub(super) fn measured(&mut self, peer: &PeerId, rtt: Duration) -> bool {
        let news = self.peers.get_mut(peer).is_some_and(|entry| entry.rtt.measured(rtt));
        self.tell(peer);
        news
    }

    /// The last connection to `peer` closed.
    pub(super) fn disconnected(&mut self, peer: &PeerId, now: Instant) {
        if let Some(entry) = self.peers.get_mut(peer) {
            entry.gone.get_or_insert(now);
        }
        self.tell(peer);
    }

    /// From now on `peer` is listened to anew: what it says next counts, whatever it said before it was restarted.
    pub(super) fn watches(&mut self, peer: &PeerId) {
        if let Some(entry) = self.peers.get_mut(peer) {
            entry.links.clear();
            if let Some(heard) = &mut entry.status {
                heard.status.sequence = 0;
            }
        }
    }

    /// `peer` says what it is, and whom it is connected to. Returns whether that was taken: it is older than what is
    /// known, or malformed, or the peer is not connected, else.
    pub(super) fn heard(&mut self, peer: &PeerId, update: v1::Update, now: Instant) -> bool {
        let Some(entry) = self.peers.get_mut(peer).filter(|entry| entry.gone.is_none()) else { return false };
        let known = entry.status.as_ref();
        if update.status.as_ref().zip(known).is_some_and(|(new, known)| known.status.sequence >= new.sequence) {
            return false;
        }
        for link in update.peers {
            if entry.links.len() < MAX_ITEMS || entry.links.contains_key(&link.peer_id) {
                entry.links.insert(link.peer_id.clone(), v1::PeerAddress { addresses: Vec::new(), ..link });
            }
        }
        let Some(mut status) = update.status.or_else(|| known.map(|known| known.status.clone())) else { return true };
        status.peers = entry.links.values().cloned().collect();
        clamp(&mut status, peer);
        let state = if status.leaving { PeerState::Leaving } else { PeerState::Ready };
        match convert::peer_view(peer.clone(), status.clone(), state, false) {
            Ok(view) => entry.status = Some(Heard { status, view, at: now }),
            Err(error) => {
                tracing::warn!(%peer, %error, "ignored a peer's status");
                return false;
            }
        }
        self.tell(peer);
        true
    }

    /// Notes what others are to be told of `peer`.
    fn tell(&mut self, peer: &PeerId) {
        let Some(entry) = self.peers.get_mut(peer) else { return };
        let to = entry.address(peer);
        if entry.told.as_ref().map(|told| &told.to) == to.as_ref() {
            return;
        }
        if let Some(before) = &entry.told {
            self.news.remove(&before.version);
        }
        // Of who is gone, nothing is told: every peer sees that for itself.
        entry.told = to.map(|to| Link { version: self.version + 1, to });
        if entry.told.is_some() {
            self.version += 1;
            self.news.insert(self.version, peer.clone());
        }
    }

    /// Where `peer` is in its life.
    #[cfg(test)]
    pub(super) fn state(&self, peer: &PeerId) -> Option<PeerState> {
        self.peers.get(peer).map(Entry::state)
    }

    /// The number of the last change of what others are told of peers.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// Connected peers, where they can be reached and how far they are, by when that changed: what this node tells others
    /// who know everything up to the change `after`.
    pub(super) fn links(&self, after: u64) -> impl Iterator<Item = Link> {
        self.news.range(after + 1..).filter_map(|(_, peer)| self.peers.get(peer)?.told.clone())
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
        let gone = self.peers.values().filter_map(|entry| entry.gone).min().map(|gone| gone + GONE_FOR);
        gone.into_iter().chain(self.left_out.next_expiry()).min()
    }

    /// These are of other protocol versions. Returns whether that is news for people.
    pub(super) fn leave_out(&mut self, foreigners: Vec<Foreigner>) -> bool {
        self.left_out.replace(foreigners)
    }

    /// Connected peers.
    pub(super) fn present(&self) -> Vec<PeerId> {
        self.peers.iter().filter(|(_, entry)| entry.gone.is_none()).map(|(peer, _)| peer.clone()).collect()
    }

    /// The view: `local` first, the others by name and id.
    pub(super) fn view(&self, local: PeerView) -> MeshView {
        let members = self.peers.iter().map(|(peer, entry)| entry.view(peer));
        let mut peers: Vec<PeerView> = members.chain(self.left_out.views()).collect();
        peers.sort_by(|a, b| (&a.name, &a.id).cmp(&(&b.name, &b.id)));
        peers.insert(0, local);
        MeshView { peers }
    }

    /// The raw statuses, in no particular order. `copied` is whose identity this node sees used twice.
    pub(super) fn records(&self, now: Instant, copied: &[v1::CopiedIdentity]) -> Vec<PeerRecord> {
        let record = |(peer, entry): (&PeerId, &Entry)| {
            let mut copied_at = self.copied_at(peer);
            copied_at.extend(copied.iter().filter(|c| c.peer_id == peer.as_str()).flat_map(|c| c.ips.clone()));
            PeerRecord { copied_at: copied_at.into_iter().collect(), ..entry.record(peer, now) }
        };
        self.peers.iter().map(record).chain(self.left_out.records(now)).collect()
    }

    /// Where present peers see processes that use `peer`'s identity, if they see more than one.
    pub(super) fn copied_at(&self, peer: &PeerId) -> BTreeSet<String> {
        let present = self.peers.values().filter(|entry| entry.gone.is_none());
        let said = present.filter_map(|entry| entry.status.as_ref()).flat_map(|heard| &heard.status.copied);
        said.filter(|copied| copied.peer_id == peer.as_str()).flat_map(|copied| copied.ips.clone()).collect()
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
    /// What others are told of it; `None`: nothing, it is gone, or going, or nobody knows where it is.
    fn address(&self, peer: &PeerId) -> Option<v1::PeerAddress> {
        let addresses = match &self.status {
            Some(heard) => heard.status.addresses.clone(),
            None => self.address.iter().map(Multiaddr::to_string).collect(),
        };
        let leaving = self.status.as_ref().is_some_and(|heard| heard.status.leaving);
        (self.gone.is_none() && !leaving && !addresses.is_empty()).then(|| v1::PeerAddress {
            peer_id: peer.to_string(),
            addresses,
            rtt_us: self.rtt.said,
            relayed: self.relay.is_some(),
        })
    }

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
        PeerRecord {
            status,
            state: self.state(),
            age,
            local: false,
            copied_at: Vec::new(),
            relay: self.relay.clone(),
            reach: Vec::new(),
        }
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
    status.copied.truncate(MAX_ITEMS);
    status.copied.iter_mut().for_each(|copied| copied.ips.truncate(MAX_COPIES));
}
