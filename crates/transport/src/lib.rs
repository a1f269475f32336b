//! Stage links between machines, over QUIC.
//!
//! One [`Endpoint`] a node: a UDP socket on which it dials and is dialled, with the node's libp2p identity in its TLS
//! certificates. One connection a pair of peers carries all their links, whoever dialled. [`RemoteChain`] is a
//! [`mesh_engine::Stage`] that stands for consecutive stages on other nodes:
//!
//! ```text
//! node of stage 0 ──link──▶ hop 1 ──link──▶ hop 2 ──link──▶ last hop
//!        ▲                                                     │
//!        └──────────────────── return stream ──────────────────┘
//! ```
//!
//! Every arrow is a stream of a QUIC connection. Rows never come back to stage 0; results come straight from the last
//! hop, or back along the chain where the return stream cannot be opened.
//!
//! Owns: sockets, TLS, who may connect, opening and ending links. Does not own: the bytes of frames
//! ([`mesh_engine::codec`]), who is admitted ([`Gate`]), which stages there are ([`StageDirectory`]).
//! Start with [`Endpoint`], then [`RemoteChain`].
#![forbid(unsafe_code)]

mod doorstep;
mod ending;
mod endpoint;
mod error;
mod hop;
mod peers;
mod remote;
mod returns;
mod stream;
mod tls;
mod wire;

pub use endpoint::{Endpoint, Gate, StageDirectory};
pub use error::TransportError;
pub use remote::{Hop, RemoteChain};
pub use tls::ALPN;
