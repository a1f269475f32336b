//! The mesh itself: who this node is, who belongs to its mesh, which of them are here now, and the streams between
//! them.
//!
//! Owns the node's key and data directory, join tokens, admission of peers, the libp2p swarm, the peer table behind
//! [`mesh_types::MeshView`], gRPC over libp2p streams, and the transfer of weights. It does not know what the services
//! spoken over it mean, loads no model, and never sees a prompt other than as bytes of somebody's gRPC call.
//!
//! Start with [`Mesh`]; what it takes to start one are a [`DataDir`], its [`Identity`] and a [`Membership`], which
//! comes from an earlier run, from nothing (`up`), or from a [`JoinToken`].
#![forbid(unsafe_code)]

mod address;
pub mod admission;
pub mod data_dir;
pub mod identity;
pub mod membership;
pub mod mesh;
pub mod token;
pub mod weights;

pub use address::{interfaces, reachable as advertised};
pub use data_dir::{DataDir, DataDirError};
pub use identity::Identity;
pub use membership::{Membership, MembershipError};
pub use mesh::{AddressReach, Caller, Config, LocalStatus, Mesh, MeshError, PeerRecord};
pub use token::{JoinToken, MeshId, TokenError};
