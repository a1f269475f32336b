//! Peers of other protocol versions, as the view and the command line show them: seen, named and left out.

use mesh_proto::v1;
use mesh_types::{PeerId, PeerState, PeerView};
use tokio::time::Instant;

use super::{PeerRecord, table};
use crate::admission::{FORGET, Foreigner};
use crate::identity;

/// Those that were met lately.
#[derive(Default)]
pub(super) struct LeftOut(Vec<Foreigner>);

impl LeftOut {
    /// These are they. Returns whether that is news for people.
    pub(super) fn replace(&mut self, mut foreigners: Vec<Foreigner>) -> bool {
        foreigners.sort_by_key(|foreigner| foreigner.peer);
        let before = std::mem::replace(&mut self.0, foreigners);
        let shown = |of: &[Foreigner]| of.iter().map(view).collect::<Vec<_>>();
        shown(&before) != shown(&self.0)
    }

    /// `peer` was admitted after all.
    pub(super) fn admit(&mut self, peer: &PeerId) {
        self.0.retain(|foreigner| identity::from_libp2p(&foreigner.peer) != *peer);
    }

    /// When the next one is to be forgotten.
    pub(super) fn next_expiry(&self) -> Option<Instant> {
        self.0.iter().map(|foreigner| foreigner.met + FORGET).min()
    }

    pub(super) fn views(&self) -> impl Iterator<Item = PeerView> {
        self.0.iter().map(view)
    }

    pub(super) fn records(&self, now: Instant) -> impl Iterator<Item = PeerRecord> {
        self.0.iter().map(move |foreigner| record(foreigner, now))
    }
}

fn view(foreigner: &Foreigner) -> PeerView {
    let Foreigner { peer, address, versions, .. } = foreigner;
    let ip = address.iter().find_map(|part| match part {
        libp2p::multiaddr::Protocol::Ip4(ip) => Some(ip.to_string()),
        libp2p::multiaddr::Protocol::Ip6(ip) => Some(ip.to_string()),
        _ => None,
    });
    PeerView {
        name: ip.unwrap_or_else(|| address.to_string()),
        version: format!("protocol {versions}"),
        addresses: vec![address.to_string()],
        ..table::blank(identity::from_libp2p(peer), PeerState::OtherVersion)
    }
}

fn record(foreigner: &Foreigner, now: Instant) -> PeerRecord {
    let PeerView { id, name, version, addresses, state, .. } = view(foreigner);
    let peer_id = id.to_string();
    let status = v1::NodeStatus { peer_id, name, version, addresses, ..Default::default() };
    let age = now.saturating_duration_since(foreigner.met);
    PeerRecord { status, state, age, local: false, copied_at: Vec::new(), relay: None, reach: Vec::new() }
}
