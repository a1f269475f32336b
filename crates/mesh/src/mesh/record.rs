//! Peers as the admin shows them.

use std::net::SocketAddr;
use std::time::Duration;

use mesh_proto::v1;
use mesh_types::{PeerId, PeerState};

/// A peer as the admin shows it.
#[derive(Clone, Debug)]
pub struct PeerRecord {
    /// The last status; for a peer that has not sent one, only its id.
    pub status: v1::NodeStatus,
    /// Where it is in its life.
    pub state: PeerState,
    /// Since its status arrived; zero for one that has sent none since it connected, and for the local node.
    pub age: Duration,
    /// Whether this is the local node.
    pub local: bool,
    /// Where processes that share this one identity are, because its data directory was copied; empty: there is one.
    pub copied_at: Vec<String>,
    /// The member through which it is connected, where there is no direct way; `None` for the local node.
    pub relay: Option<PeerId>,
    /// What members found of this node's addresses, each that was tried; empty for other nodes.
    pub reach: Vec<AddressReach>,
}

/// Who could open a connection to this node at one address, and who could not. Holds for those pairs: a host on a second
/// network is reachable for some only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressReach {
    /// Where (TCP).
    pub address: SocketAddr,
    /// Members that did.
    pub reached_by: Vec<PeerId>,
    /// Members that failed to.
    pub missed_by: Vec<PeerId>,
}

impl AddressReach {
    /// Whether anybody did.
    pub fn is_reached(&self) -> bool {
        !self.reached_by.is_empty()
    }
}
