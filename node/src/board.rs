//! What this node says of itself, gathered from its parts and handed to the mesh on every change.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use mesh_mesh::{LocalStatus, Mesh};
use mesh_types::{ByteSize, ModelId, ModelView, Speed, StageId, StageView};

/// A speed that moved by less than a part in so many is not told anew.
const NOISE: u64 = 5;

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
    speed: Option<Speed>,
    draining: bool,
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

    /// Takes a model's row away.
    pub fn remove_model(&self, model: &ModelId) {
        self.change(|rows| {
            rows.models.remove(model);
        });
    }

    /// A stage of this node was that fast. Small changes are kept to itself.
    pub fn set_speed(&self, speed: Speed) {
        let known = self.rows.lock().unwrap_or_else(PoisonError::into_inner).speed;
        let moved = |before: u64, now: u64| before.abs_diff(now) > before / NOISE;
        if known.is_none_or(|known| moved(known.decode, speed.decode) || moved(known.prefill, speed.prefill)) {
            self.change(|rows| rows.speed = Some(speed));
        }
    }

    /// Whether this node takes new stages and requests.
    pub fn set_draining(&self, draining: bool) {
        self.change(|rows| rows.draining = draining);
    }

    /// Whether it takes none.
    pub fn is_draining(&self) -> bool {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner).draining
    }

    /// From now on this node says that it is leaving.
    pub fn leave(&self) {
        self.change(|rows| rows.leaving = true);
    }

    /// Bytes on offer that are not set aside for a stage.
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
            speed: rows.speed,
            draining: rows.draining,
            leaving: rows.leaving,
        });
    }
}

impl Rows {
    fn memory_free(&self) -> ByteSize {
        let used = self.stages.values().map(|stage| stage.memory.0).fold(0, u64::saturating_add);
        ByteSize(self.memory.0.saturating_sub(used))
    }
}
