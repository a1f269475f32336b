//! How a model would be placed now, beside how it is.

use std::sync::Arc;

use mesh_routing::plan::{self, Candidate, Host, ModelShape, Plan, PlanError};
use mesh_routing::{PlacedStage, Split};
use mesh_types::{ByteSize, Fault, MeshView, ModelId, ModelView, PeerView, StageView};

use super::Fleet;
use crate::serve::ServedModel;
use crate::supervisor::shape_of;

/// How a model would be placed now.
pub struct Planned {
    /// Its name.
    pub name: ModelId,
    /// Its layers.
    pub layers: u32,
    /// How it was asked to be split. Only `auto` leaves it to the plan.
    pub split: Split,
    /// The plan, or why there is none.
    pub plan: Result<Plan, PlanError>,
    /// The placement that `split` asks for, where it does, or why it cannot be.
    pub asked: Option<Result<Candidate, String>>,
    /// The placement that it runs on.
    pub present: Option<Candidate>,
}

impl Fleet {
    /// How a model of this node, or one in a file, would be placed if it were placed now.
    ///
    /// # Errors
    /// Where there is no such thing on this node.
    ///
    /// # Cancel safety
    /// May be dropped.
    pub async fn plan(&self, reference: &str) -> Result<Planned, Fault> {
        let settings = self.settings(reference)?;
        let model: Arc<ServedModel> = match self.served.get(&settings.name) {
            Ok(model) if model.source.path() == settings.path => model,
            _ => self.open(settings.clone()).await?,
        };
        let shape = shape_of(&model, &self.parts.settings);
        let view = self.parts.mesh.view().borrow().clone();
        let row = view.local().and_then(|local| local.models.iter().find(|row| row.name == model.name));
        let hosts = self.hosts(&view, row);
        Ok(Planned {
            name: model.name.clone(),
            layers: model.info.n_layer,
            plan: plan::plan(&shape, &hosts),
            asked: asked(&shape, &hosts, &settings.split, &view),
            present: row.and_then(|row| plan::predict(&shape, &hosts, &present(&view, row)?)),
            split: settings.split,
        })
    }

    /// The nodes, with what each has for the model: what it takes there now would be free.
    fn hosts(&self, view: &MeshView, row: Option<&ModelView>) -> Vec<Host> {
        let taken = |peer: &PeerView| row.map_or(0, |row| taken(row, peer));
        let own = view.local().map_or(0, taken);
        let mut hosts = plan::hosts(view, ByteSize(self.parts.board.memory_free().0.saturating_add(own)));
        for host in hosts.iter_mut().filter(|host| !host.local) {
            let used = view.peer(&host.peer).map_or(0, taken);
            host.memory = ByteSize(host.memory.0.saturating_add(used));
        }
        hosts
    }
}

/// What the stages of the model in `row` take on `peer`.
fn taken(row: &ModelView, peer: &PeerView) -> u64 {
    let its = |stage: &&StageView| {
        stage.model == row.name
            && row.nodes.iter().zip(&row.ranges).any(|(node, layers)| *node == peer.name && *layers == stage.layers)
    };
    peer.stages.iter().filter(its).map(|stage| stage.memory.0).fold(0, u64::saturating_add)
}

/// The placement that `split` asks for, where it asks for one.
fn asked(shape: &ModelShape, hosts: &[Host], split: &Split, view: &MeshView) -> Option<Result<Candidate, String>> {
    if *split == Split::Auto {
        return None;
    }
    let stages = match mesh_routing::place(shape.n_layer(), split, view) {
        Ok(stages) => stages,
        Err(error) => return Some(Err(error.to_string())),
    };
    plan::predict(shape, hosts, &stages).map(Ok)
}

/// Where the model in `row` runs. `None`: nowhere, or on nodes whose names do not say which they are.
fn present(view: &MeshView, row: &ModelView) -> Option<Vec<PlacedStage>> {
    let stage = |(name, layers): (&String, &mesh_types::LayerRange)| {
        let mut called = view.peers.iter().filter(|peer| peer.name == *name);
        let peer = called.next().filter(|_| called.next().is_none())?;
        Some(PlacedStage { layers: *layers, peer: peer.id.clone(), name: name.clone(), local: peer.local })
    };
    let stages: Vec<PlacedStage> = row.nodes.iter().zip(&row.ranges).map(stage).collect::<Option<_>>()?;
    (!stages.is_empty()).then_some(stages)
}
