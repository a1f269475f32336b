//! The [`Stage`] trait and the link through which frames flow.

use std::sync::Arc;

use async_trait::async_trait;
use mesh_types::{LayerRange, ModelId};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::error::StageError;
use crate::frame::Frame;

/// Places on the host for each slot.
const PLACES_PER_SLOT: u32 = 4;

/// What a stage is: known to both ends from the local manifest, never taken from a peer's word.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageSpec {
    /// The model it is a part of.
    pub model: ModelId,
    /// The layers that it holds.
    pub layers: LayerRange,
    /// Layers of the whole model.
    pub n_layer: u32,
    /// Values in a hidden row that crosses a boundary.
    pub n_embd: u32,
    /// Size of the whole model's vocabulary.
    pub n_vocab: u32,
    /// Positions that one sequence can hold.
    pub n_ctx: u32,
    /// KV slots; sequences held at the same time, running or kept.
    pub n_seq: u32,
    /// Most tokens in one micro-batch.
    pub n_batch: u32,
    /// Positions that all slots can hold together; those that slots share by a copy count once.
    pub n_cells: u32,
    /// Whether a sequence can be cut back to fewer positions. Where not (recurrent layers), it can only go on at its
    /// end, be copied as a whole, be set back to a checkpoint, or be forgotten.
    pub cuts_back: bool,
    /// Whether the positions computed last can be taken back at any time. Where not (recurrent layers; sliding windows,
    /// which may have moved on over what an earlier position needs), nothing is computed that may have to be.
    pub rolls_back: bool,
    /// Positions that idle slots may leave on the host, all places there together; 0: there are none.
    pub n_parked: u32,
    /// Running states of recurrent layers that may be on the host: checkpoints (those that slots share by a copy count
    /// once), and one for what is at each place. 0 where there are no such layers.
    pub n_states: u32,
}

impl StageSpec {
    /// Places on the host, each for what one slot held.
    pub fn places(&self) -> u32 {
        if self.n_parked > 0 { PLACES_PER_SLOT.saturating_mul(self.n_seq) } else { 0 }
    }

    /// Whether it makes the rows from tokens itself.
    pub fn is_first(&self) -> bool {
        self.layers.start() == 0
    }

    /// Whether it has the head: it samples, and its output is results.
    pub fn is_last(&self) -> bool {
        self.layers.end() == self.n_layer
    }
}

/// A contiguous range of a model's layers, here or elsewhere, as a transformer of frames.
///
/// Contract (held by [`crate::conformance`]):
/// - frames are applied in the order sent, and results leave in that order;
/// - a batch makes exactly one frame: a batch with new rows, or a result if the stage is the last; or a failure;
/// - a command is applied, and handed on unless the stage is the last;
/// - an invalid frame ends the link with [`StageError::InvalidFrame`];
/// - a lost stage ends the link with [`StageError::Lost`]; a link never just falls silent.
#[async_trait]
pub trait Stage: Send + Sync + 'static {
    /// What it is.
    fn spec(&self) -> &StageSpec;

    /// Opens a link with all slots empty. A stage has one link: a new one ends the one before.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the stage without a link.
    async fn connect(&self) -> Result<StageLink, StageError>;
}

#[async_trait]
impl<S: Stage + ?Sized> Stage for Arc<S> {
    fn spec(&self) -> &StageSpec {
        (**self).spec()
    }

    async fn connect(&self) -> Result<StageLink, StageError> {
        (**self).connect().await
    }
}

/// Both ends of the stream through a stage. Bounded: a full `input` is the stage asking for patience.
///
/// Dropping `input` alone closes gracefully: what was sent is still computed, then `output` ends. Dropping the link
/// cancels: queued frames are thrown away, and a running `llama_decode` is aborted.
#[derive(Debug)]
pub struct StageLink {
    /// Frames in.
    pub input: mpsc::Sender<Frame>,
    /// Frames out. After an `Err`, or `None`, the link is over.
    pub output: mpsc::Receiver<Result<Frame, StageError>>,
    /// The tasks that move this link's frames; they end with it.
    pub tasks: JoinSet<()>,
}

/// Frames that may wait in either direction of a link: enough to keep a stage busy, few enough that a cancel is seen
/// within a step.
pub const LINK_DEPTH: usize = 8;
