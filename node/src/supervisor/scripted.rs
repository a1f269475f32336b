//! A model whose answers a script gives: one stage here, without weights.

use std::sync::Arc;

use mesh_engine::scripted::ScriptedStage;
use mesh_engine::{StageError, StageSpec};
use mesh_routing::PlacedStage;
use mesh_types::LayerRange;

use super::load::LoadedStages;
use super::{BATCH, PlaceError, Placement, Supervisor};
use crate::script::{ModelScript, Voice};

impl Supervisor {
    /// The placement of a model that `script` answers for: whole, here.
    pub(super) fn scripted(&self, script: &ModelScript) -> Result<Placement, PlaceError> {
        let none = || StageError::Load("the model has no layers".to_owned());
        let (layers, one) = (LayerRange::new(0, self.model.info.n_layer), LayerRange::new(0, 1));
        let (layers, one) = (layers.ok_or_else(none)?, one.ok_or_else(none)?);
        let parallel = self.parts.settings.parallel;
        let context = self.model.context;
        // Rows of one value through one layer: what they hold matters to nobody.
        let spec = StageSpec {
            model: self.model.name.clone(),
            layers: one,
            n_layer: 1,
            n_embd: 1,
            n_vocab: self.model.vocab.n_tokens(),
            n_ctx: context,
            n_seq: parallel,
            n_batch: BATCH,
            n_cells: context.saturating_mul(parallel),
            cuts_back: true,
            rolls_back: true,
            n_parked: 0,
            n_states: 0,
        };
        let voice = Voice::new(script.clone(), self.model.vocab.clone());
        let stage = ScriptedStage::new(spec, voice).with_service_time(script.token_time());
        let peer = self.parts.mesh.local_id().clone();
        let view = self.parts.mesh.view();
        let name = view.borrow().local().map(|local| local.name.clone()).unwrap_or_default();
        let stages = vec![PlacedStage { layers, peer, name, local: true }];
        let loaded = LoadedStages::default();
        Ok(Placement { stages, chain: Arc::new(stage), loaded })
    }
}
