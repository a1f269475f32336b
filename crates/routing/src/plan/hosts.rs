//! The nodes that could take a part of a model, drawn out of the view of the mesh.

use mesh_types::{ByteSize, LinkView, MeshView, PeerId, PeerState, PeerView, Speed};

use super::ASSUMED;

/// Round trips within one step of this count as equal, in microseconds: measured noise must not reorder a chain.
const RTT_STEP: u32 = 2_000;
/// For a pair of nodes without a direct way.
const NO_WAY: u32 = u32::MAX;
/// For a pair of nodes that never measured each other, in microseconds: a LAN.
const UNKNOWN_RTT: u32 = 500;

/// A node that could take a part of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Host {
    /// Its id.
    pub peer: PeerId,
    /// Its name.
    pub name: String,
    /// Whether it is the holder, which takes layer 0.
    pub local: bool,
    /// What it has for this model.
    pub memory: ByteSize,
    /// How fast it is.
    pub speed: Speed,
    /// Whether that was measured there; else it is what nodes like those measured have.
    pub measured: bool,
    /// Round trips to the others in microseconds, by their place among the hosts.
    pub rtt: Vec<u32>,
    /// Why it takes nothing at all, as in `it is leaving`.
    pub unfit: Option<String>,
}

/// All nodes of `view`, the local one first, the others by name and id. `own` is what the local node has for the model.
pub fn hosts(view: &MeshView, own: ByteSize) -> Vec<Host> {
    let mut peers: Vec<&PeerView> = view.peers.iter().collect();
    peers.sort_by_key(|peer| (!peer.local, &peer.name, &peer.id));
    if !peers.first().is_some_and(|peer| peer.local) {
        return Vec::new();
    }
    let typical = typical(&peers);
    let host = |peer: &&PeerView| Host {
        peer: peer.id.clone(),
        name: peer.name.clone(),
        local: peer.local,
        memory: if peer.local { own } else { peer.memory_free },
        speed: peer.speed.unwrap_or(typical),
        measured: peer.speed.is_some(),
        rtt: peers.iter().map(|other| rtt(peer, other)).collect(),
        unfit: unfit(peer).or_else(|| peers.first().and_then(|head| relayed(head, peer))),
    };
    peers.iter().map(host).collect()
}

/// What a node without figures of its own is taken for: the slower half's best.
fn typical(peers: &[&PeerView]) -> Speed {
    let mut measured: Vec<Speed> = peers.iter().filter_map(|peer| peer.speed).collect();
    measured.sort_by_key(|speed| speed.decode);
    measured.get(measured.len().saturating_sub(1) / 2).copied().unwrap_or(ASSUMED)
}

fn unfit(peer: &PeerView) -> Option<String> {
    let reason = match peer.state {
        _ if peer.local => return None,
        PeerState::Gone => "its connection is lost",
        PeerState::OtherVersion => "it speaks another version of the protocol",
        PeerState::Leaving => "it is leaving the mesh",
        PeerState::Joining => "it has not said yet what it offers",
        PeerState::Ready if peer.draining => "it is being drained",
        PeerState::Ready if peer.stage_addresses.is_empty() => "it takes no stages (a gateway)",
        PeerState::Ready => return None,
    };
    Some(reason.to_owned())
}

fn relayed(head: &PeerView, peer: &PeerView) -> Option<String> {
    let reason = "only a relayed path leads to it, and stages need a direct one";
    MeshView::is_relayed(head, peer).then(|| reason.to_owned())
}

/// As either of the two measured it.
fn rtt(one: &PeerView, other: &PeerView) -> u32 {
    if one.id == other.id {
        return 0;
    }
    if MeshView::is_relayed(one, other) {
        return NO_WAY;
    }
    let measured = |link: &&LinkView| link.rtt_us > 0;
    let said = |from: &PeerView, to: &PeerView| {
        from.links.iter().find(|link| link.peer == to.id).filter(measured).map(|link| link.rtt_us)
    };
    said(one, other).or_else(|| said(other, one)).unwrap_or(UNKNOWN_RTT)
}

/// The order in which a chain visits `chosen` (the holder excepted): always on to the nearest, by name where that is
/// equal.
pub(super) fn visit(hosts: &[Host], chosen: &[usize]) -> Vec<usize> {
    let mut left: Vec<usize> = chosen.to_vec();
    let mut chain = vec![0];
    while let Some(last) = chain.last()
        && let Some(next) = left.iter().copied().min_by_key(|at| (way(&hosts[*last], *at) / RTT_STEP, *at))
    {
        left.retain(|at| *at != next);
        chain.push(next);
    }
    chain
}

/// Whether each host of a chain has a direct way to the next.
pub(super) fn is_joined(hosts: &[Host], chain: &[usize]) -> bool {
    chain.windows(2).all(|pair| way(&hosts[pair[0]], pair[1]) != NO_WAY)
}

/// The round trip from `host` to the host at `at`, in microseconds.
pub(super) fn way(host: &Host, at: usize) -> u32 {
    host.rtt.get(at).copied().unwrap_or(UNKNOWN_RTT)
}
