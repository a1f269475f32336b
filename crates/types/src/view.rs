//! The immutable snapshot of the mesh that routers, planners and the admin read.

use serde::Serialize;

use crate::ids::{Digest, ModelId, PeerId};
use crate::layers::LayerRange;
use crate::size::ByteSize;

/// What one node knows of the mesh at one moment. Cheap to share behind an `Arc`; never changed in place.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct MeshView {
    /// All known peers, this node first, the others by name and then id.
    pub peers: Vec<PeerView>,
}

/// One peer as last heard of.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PeerView {
    /// Its identity.
    pub id: PeerId,
    /// Its chosen name (host name by default). Not unique.
    pub name: String,
    /// Where it is in its life.
    pub state: PeerState,
    /// Whether this is the node that made the view.
    pub local: bool,
    /// Product version, as in `0.1.0`.
    pub version: String,
    /// libp2p multiaddresses at which it says it listens.
    pub addresses: Vec<String>,
    /// `IP:PORT`s of its stage endpoint (UDP); empty for a peer that takes no stages.
    pub stage_addresses: Vec<String>,
    /// Bytes it offers for weights and KV in all, and what is left of them.
    pub memory: ByteSize,
    /// See `memory`.
    pub memory_free: ByteSize,
    /// Models of which it holds the whole file or serves as stage 0.
    pub models: Vec<ModelView>,
    /// Stages that it has loaded.
    pub stages: Vec<StageView>,
    /// How fast it computes; `None`: it has not run a stage yet.
    pub speed: Option<Speed>,
    /// Round trips from it to others.
    pub links: Vec<LinkView>,
    /// It takes no new stages and no new requests, and stays otherwise.
    pub draining: bool,
}

/// How fast a node computes, measured on the stages it has run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Speed {
    /// Bytes of weights per second, one token at a time.
    pub decode: u64,
    /// Bytes of weights times tokens per second, in large batches.
    pub prefill: u64,
}

/// The way from one peer to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LinkView {
    /// The other one.
    pub peer: PeerId,
    /// Round trip in microseconds; 0: not measured.
    pub rtt_us: u32,
    /// Whether it leads through a third member, because there is no direct one.
    pub relayed: bool,
}

/// Where a peer is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PeerState {
    /// Connected and admitted; its status has not arrived yet.
    Joining,
    /// In the mesh.
    Ready,
    /// Said that it is going.
    Leaving,
    /// Was here, and its connection is lost.
    Gone,
    /// Speaks another version of the protocol, and so is no member: one of the two has to be updated.
    OtherVersion,
}

/// A model at the stage-0 node that serves it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModelView {
    /// The name it is served under.
    pub name: ModelId,
    /// Identity of the source file, once computed.
    pub digest: Option<Digest>,
    /// Whether it answers now.
    pub ready: bool,
    /// What is missing or going on, for people; empty when ready.
    pub detail: String,
    /// Tokens one sequence can hold.
    pub context: u32,
    /// Layers in all.
    pub layers: u32,
    /// Node names in stage order.
    pub nodes: Vec<String>,
    /// Layer ranges in stage order, one per node.
    pub ranges: Vec<LayerRange>,
    /// Sequences being served, and waiting for a slot.
    pub active: u32,
    /// See `active`.
    pub queued: u32,
    /// Milliseconds since the last complete forward pass at the time of the status; `None`: never.
    pub last_forward_ms: Option<u64>,
    /// Whether a script answers instead of weights.
    pub scripted: bool,
    /// How it calls tools, for people: `native (FORMAT)` or `emulated: REASON`; empty: not said.
    pub tools: String,
}

/// A loaded stage at the node that runs it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StageView {
    /// The model it is a part of.
    pub model: ModelId,
    /// Its layers.
    pub layers: LayerRange,
    /// `loading`, `ready` or `failed`.
    pub state: String,
    /// Bytes of weights.
    pub weights: ByteSize,
    /// Bytes set aside for it: weights, KV cache and compute buffers.
    pub memory: ByteSize,
    /// For people: progress, or why it failed.
    pub detail: String,
}

impl PeerView {
    /// Whether it is here and stays.
    pub fn is_present(&self) -> bool {
        self.state == PeerState::Ready || (self.local && self.state == PeerState::Joining)
    }
}

impl MeshView {
    /// The peer with this id.
    pub fn peer(&self, id: &PeerId) -> Option<&PeerView> {
        self.peers.iter().find(|peer| &peer.id == id)
    }

    /// Whether a node that is here and stays lists `model`, ready or not.
    pub fn lists(&self, model: &ModelId) -> bool {
        let mut present = self.peers.iter().filter(|peer| peer.is_present());
        present.any(|peer| peer.models.iter().any(|listed| listed.name == *model))
    }

    /// Whether the two are connected through a third member only, as either of them says: no stage link can be made.
    pub fn is_relayed(one: &PeerView, other: &PeerView) -> bool {
        let says = |from: &PeerView, to: &PeerView| from.links.iter().any(|link| link.peer == to.id && link.relayed);
        says(one, other) || says(other, one)
    }

    /// This node.
    pub fn local(&self) -> Option<&PeerView> {
        self.peers.iter().find(|peer| peer.local)
    }
}
