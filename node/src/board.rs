//! What this node says of itself, gathered from its parts and handed to the mesh on every change.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use mesh_mesh::{LocalStatus, Mesh};
use mesh_types::{ByteSize, ModelId, ModelView, StageId, StageView};

/// The node's own status. Its parts write their rows; the mesh tells the peers.
pub struct Board {
    mesh: Mesh,
    rows: Mutex<Rows>,
}

#[derive(Default)]
struct Rows {
    models: BTreeMap<ModelId, ModelView>,
    stages: BTreeMap<StageId, StageView>,
    memory: ByteSize,
    stage_addresses: Vec<String>,
    leaving: bool,
}

impl Board {
    /// A board without rows. `memory` is what the node offers, `stage_addresses` where its stage endpoint is reached.
    pub fn new(mesh: Mesh, memory: ByteSize, stage_addresses: Vec<String>) -> Self {
        let board = Self { mesh, rows: Mutex::new(Rows { memory, stage_addresses, ..Rows::default() }) };
        board.change(|_| ());
        board
    }

    /// Sets a model's row.
    pub fn set_model(&self, model: ModelView) {
        self.change(|rows| {
            rows.models.insert(model.name.clone(), model);
        });
    }

    /// Sets a stage's row.
    pub fn set_stage(&self, id: &StageId, stage: StageView) {
        self.change(|rows| {
            rows.stages.insert(id.clone(), stage);
        });
    }

    /// Takes a stage's row away.
    pub fn remove_stage(&self, id: &StageId) {
        self.change(|rows| {
            rows.stages.remove(id);
        });
    }

    /// From now on this node says that it is leaving.
    pub fn leave(&self) {
        self.change(|rows| rows.leaving = true);
    }

    /// Bytes on offer that no stage uses.
    pub fn memory_free(&self) -> ByteSize {
        let rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        rows.memory_free()
    }

    fn change(&self, change: impl FnOnce(&mut Rows)) {
        let mut rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut rows);
        self.mesh.publish(LocalStatus {
            models: rows.models.values().cloned().collect(),
            stages: rows.stages.values().cloned().collect(),
            memory: rows.memory,
            memory_free: rows.memory_free(),
            stage_addresses: rows.stage_addresses.clone(),
            leaving: rows.leaving,
        });
    }
}

impl Rows {
    fn memory_free(&self) -> ByteSize {
        let used: u64 = self.stages.values().map(|stage| stage.weights.0).sum();
        ByteSize(self.memory.0.saturating_sub(used))
    }
}
