//! Why a mesh does not start, or is not joined.

use std::net::SocketAddr;

use mesh_types::ErrorClass;

/// Why a mesh did not start or could not be joined.
#[derive(Debug, thiserror::Error)]
pub enum MeshError {
    /// Nobody at the token's addresses could be joined: what was tried, and what happened there.
    #[error("could not join the mesh: {0}")]
    NoRoute(String),
    /// The listen address cannot be used.
    #[error("cannot listen on {address}: {reason}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why not.
        reason: String,
    },
    /// The mesh's new secret could not be made or kept.
    #[error("the token was not replaced: {0}")]
    Rotate(String),
    /// The system's network facilities are not there.
    #[error("cannot start the network: {0}")]
    Network(#[from] std::io::Error),
}

impl MeshError {
    /// The class that policy looks at.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::NoRoute(_) => ErrorClass::Unavailable,
            Self::Listen { .. } => ErrorClass::InvalidRequest,
            Self::Network(_) | Self::Rotate(_) => ErrorClass::Internal,
        }
    }

    pub(super) fn listen(address: SocketAddr, why: &std::io::Error) -> Self {
        let reason = match why.kind() {
            std::io::ErrorKind::AddrInUse => {
                "another program is using that port; stop it, or choose another with --listen".to_owned()
            }
            std::io::ErrorKind::AddrNotAvailable if address.ip().is_unspecified() => why.to_string(),
            std::io::ErrorKind::AddrNotAvailable => "no interface of this host has that address".to_owned(),
            _ => why.to_string(),
        };
        Self::Listen { address, reason }
    }
}
