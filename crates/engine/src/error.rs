//! How a stage fails.

use mesh_types::{ErrorClass, LayerRange, ModelId};
use serde::{Deserialize, Serialize};

/// The end of a stage link, or the reason that there is none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum StageError {
    /// The process or machine that ran the stage is gone.
    #[error("the stage with layers {layers} of {model} on {host} was lost: {reason}")]
    Lost {
        /// The model.
        model: ModelId,
        /// Its layers.
        layers: LayerRange,
        /// Node name, or `this node`.
        host: String,
        /// For people.
        reason: String,
    },
    /// A frame broke the protocol.
    #[error("invalid frame: {0}")]
    InvalidFrame(String),
    /// The stage could not be loaded.
    #[error("cannot load the stage: {0}")]
    Load(String),
    /// The link was replaced by a newer one, or closed on this side.
    #[error("the stage link was closed")]
    Closed,
}

impl StageError {
    /// The class of this error.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Lost { .. } | Self::Closed => ErrorClass::Unavailable,
            Self::InvalidFrame(_) => ErrorClass::PeerProtocol,
            Self::Load(_) => ErrorClass::Internal,
        }
    }
}
