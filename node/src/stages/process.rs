//! What the hidden command does: one stage, for the node that started this process.

use std::sync::Arc;

use mesh_engine::child::{self, Loaded};
use mesh_engine::llama::{LlamaStage, LlamaStageConfig};

/// Serves the stage that the parent describes over standard input. Ends with the parent.
pub fn run() -> ! {
    child::serve(|config: LlamaStageConfig| {
        let stage = LlamaStage::load(config)?;
        let weight_bytes = stage.weight_bytes();
        Ok(Loaded { stage: Arc::new(stage), weight_bytes })
    })
}
