//! How this crate fails outside of a link.

use std::io;

use mesh_types::{ErrorClass, PeerId};

/// Why an endpoint cannot be had, or a peer not be reached.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// The UDP socket.
    #[error("cannot bind the stage endpoint: {0}")]
    Bind(#[source] io::Error),
    /// The certificate.
    #[error("cannot make the stage endpoint's certificate: {0}")]
    Certificate(String),
    /// The gate does not admit the peer, or the peer is no peer id.
    #[error("peer {} is not admitted", .0.short())]
    NotAdmitted(PeerId),
    /// Nobody answered as that peer at any of its addresses.
    #[error("cannot be reached: {0}")]
    Unreachable(String),
    /// This endpoint is shut down.
    #[error("the stage endpoint is closed")]
    Closed,
}

impl TransportError {
    /// The class of this error.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Bind(_) | Self::Certificate(_) => ErrorClass::Internal,
            Self::NotAdmitted(_) => ErrorClass::PeerProtocol,
            Self::Unreachable(_) | Self::Closed => ErrorClass::Unavailable,
        }
    }
}
