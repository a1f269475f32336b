//! What the ends of a link say to each other beside frames. Travels as [`mesh_engine::codec::Message::Control`].

use std::net::SocketAddr;

use mesh_engine::{StageError, StageSpec};
use mesh_types::{PeerId, StageId};
use serde::{Deserialize, Serialize};

/// Pairs a link with its return stream. Random: whoever knows it belongs to the link.
pub(crate) type Session = u128;

/// Longest route that is accepted.
pub(crate) const MAX_HOPS: usize = 64;
/// Most addresses of a hop that are tried.
pub(crate) const MAX_ADDRESSES: usize = 16;

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Control {
    /// First on a stream: open a link to the first stage of the route. Answered, then followed by frames.
    Link(LinkRequest),
    /// First on a stream: the answering direction of this stream takes the results of that session.
    Return(Session),
    /// The stage asked for, and all behind it, are open.
    Ready,
    /// They are not.
    Refused(StageError),
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct LinkRequest {
    pub(crate) session: Session,
    /// The node of stage 0. Proven by its return stream, where there is one.
    pub(crate) origin: PeerId,
    /// Whether that node has opened a return stream to the last hop.
    pub(crate) direct: bool,
    /// Milliseconds in which the sender expects an answer.
    pub(crate) budget_ms: u32,
    /// The hop that sends this; `None`: the node of stage 0.
    pub(crate) previous: Option<WireHop>,
    /// The receiver first.
    pub(crate) route: Vec<WireHop>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct WireHop {
    pub(crate) peer: PeerId,
    /// Node name, for people.
    pub(crate) name: String,
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) stage: StageId,
    /// What the node of stage 0 takes the stage to be. The hop compares it with what it has loaded.
    pub(crate) spec: StageSpec,
}

impl WireHop {
    /// This hop's stage is lost.
    pub(crate) fn lost(&self, reason: impl Into<String>) -> StageError {
        StageError::Lost {
            model: self.spec.model.clone(),
            layers: self.spec.layers,
            host: self.name.clone(),
            reason: reason.into(),
        }
    }
}
