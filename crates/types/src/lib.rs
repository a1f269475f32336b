//! The vocabulary that every room shares: ids, units, layer ranges, sampling parameters, error classes and the
//! immutable view of the mesh.
//!
//! Pure data: no I/O, no clock, no async runtime, no wire format (those live in `mesh-proto`, `mesh-openai` and
//! `mesh_engine::codec`). Start with [`ids`] for names, [`view::MeshView`] for what a router sees, and
//! [`error::ErrorClass`] for how errors are classified everywhere.
#![forbid(unsafe_code)]

pub mod chat;
pub mod constraint;
pub mod error;
pub mod generate;
pub mod ids;
pub mod layers;
pub mod net;
pub mod size;
pub mod view;

pub use chat::{ChatRequest, Message, ResponseFormat, ResponseSchema, Tool, ToolCall, ToolChoice};
pub use constraint::{After, Constraint, ConstraintError, Start, Thinking};
pub use error::{ErrorClass, Fault};
pub use generate::{FinishReason, GenerateSpec, Logprobs, Sampling, Usage};
pub use ids::{Digest, ModelId, PeerId, RequestId, StageId, TokenId};
pub use layers::LayerRange;
pub use size::ByteSize;
pub use view::{LinkView, MeshView, ModelView, PeerState, PeerView, Speed, StageView};
