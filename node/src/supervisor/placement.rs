//! Where the layers of a model go, now.

use std::sync::Arc;

use mesh_engine::llama::Limits;
use mesh_engine::{Stage as _, StageError};
use mesh_gguf::{allowed_cuts, avoided_sizes};
use mesh_mesh::weights::FetchError;
use mesh_routing::plan::{self, Host, ModelShape, PlanError};
use mesh_routing::{PlacedStage, PlacementError, Split, placement};
use mesh_types::{ByteSize, LayerRange, MeshView};

use super::load::{LoadedStages, Tell};
use super::{BATCH, Placement, Supervisor};
use crate::serve::ServedModel;
use crate::settings::StageSettings;
use crate::stages::{StagePlan, shape};

/// What helps where a model does not fit.
pub(crate) const ADVICE: &str =
    "more nodes have to join, or offer more (--memory), or the model has to hold less (--ctx, --parallel)";

/// Why a model is not served now.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// It cannot be placed.
    #[error("{0}")]
    Placement(#[from] PlacementError),
    /// Its file cannot be split.
    #[error("{0}")]
    Slice(#[from] mesh_gguf::Error),
    /// Its slice cannot be had.
    #[error("{0}")]
    Weights(Box<FetchError>),
    /// A stage here or elsewhere.
    #[error("{0}")]
    Stage(#[from] StageError),
    /// A peer did not load its stage.
    #[error("{name} did not load layers {layers}: {reason}")]
    Peer {
        /// The node.
        name: String,
        /// The layers.
        layers: LayerRange,
        /// Its reason.
        reason: String,
    },
}

impl From<FetchError> for PlaceError {
    fn from(error: FetchError) -> Self {
        Self::Weights(Box::new(error))
    }
}

/// Checks a split that was asked for against the model, so that a mistake is told at the start and not while serving.
///
/// # Errors
/// The mistake: ranges that do not cover the layers, a family that cannot be split, or not there.
pub fn check_split(model: &ServedModel, split: &Split) -> Result<(), PlaceError> {
    let Split::Ranges(ranges) = split else { return Ok(()) };
    placement::check(model.info.n_layer, ranges)?;
    if ranges.len() > 1 {
        for range in ranges {
            mesh_gguf::check_range(model.source.header(), *range)?;
        }
    }
    Ok(())
}

/// What `model` weighs under these settings. A family that cannot be split has no cuts.
pub fn shape_of(model: &ServedModel, settings: &StageSettings) -> ModelShape {
    let header = model.source.header();
    let (cuts, avoided) = (allowed_cuts(header).unwrap_or_default(), avoided_sizes(header).unwrap_or_default());
    shape(&model.info, limits(model, settings), &settings.compute, cuts).without_stages_of(avoided)
}

fn limits(model: &ServedModel, settings: &StageSettings) -> Limits {
    Limits::for_parallel(settings.parallel, model.context, BATCH, &model.info).with_host_memory(
        settings.kv_host.0,
        &model.info,
        settings.compute.kv_type,
    )
}

impl Supervisor {
    /// Waits until the model can be placed, and loads its stages.
    pub(super) async fn place_and_load(&mut self) -> Result<Placement, PlaceError> {
        if let Some(script) = &self.model.script {
            return self.scripted(script);
        }
        // First, so that what it takes counts for the plan.
        self.load_draft().await;
        let stages = self.placed().await?;
        if stages.len() > 1 {
            self.waiting("reading the file once to know its weights");
            let digest = self.parts.holdings.digest(&self.model.source).await?;
            self.digest = Some(digest);
        }
        self.waiting(&format!("loading {}", placement::explain(&stages)));
        let own_layers = stages.iter().find(|stage| stage.local).map(|stage| stage.layers);
        if own_layers != self.own_stage.as_ref().map(|stage| stage.spec().layers) {
            self.forget_own_stage().await;
        }
        self.forget_left(&stages).await;
        let kept = LoadedStages { own: self.own_stage.clone(), remote: self.left.clone() };
        let loaded = self.load(stages, kept, Tell::Waiting).await;
        // They are of this placement now, or were taken down with it.
        self.left.clear();
        self.own_stage = loaded.own;
        loaded.outcome
    }

    /// The placement, once there are enough peers for it.
    async fn placed(&mut self) -> Result<Vec<PlacedStage>, PlaceError> {
        let mut view = self.parts.mesh.view();
        loop {
            let now = view.borrow_and_update().clone();
            match self.place_on(&now) {
                Ok(stages) => return Ok(stages),
                Err(Unplaced::Wait(why)) => {
                    self.waiting(&why);
                    // Others may want the memory meanwhile.
                    self.forget_left(&[]).await;
                }
                Err(Unplaced::Never(error)) => return Err(error),
            }
            if view.changed().await.is_err() {
                return Err(StageError::Closed.into());
            }
        }
    }

    fn place_on(&self, view: &MeshView) -> Result<Vec<PlacedStage>, Unplaced> {
        if self.split != Split::Auto {
            return mesh_routing::place(self.model.info.n_layer, &self.split, view).map_err(|error| match error {
                PlacementError::NotEnoughPeers { .. } | PlacementError::NoLocal => Unplaced::Wait(error.to_string()),
                error => Unplaced::Never(error.into()),
            });
        }
        match plan::plan(&self.shape, &self.hosts(view)) {
            Ok(plan) => {
                for host in plan.hosts.iter().filter(|_| plan.chosen().stages.len() > 1) {
                    let reason = host.left_out.as_deref().unwrap_or("takes a stage");
                    tracing::info!(model = %self.model.name, node = %host.name, has = %host.has, "{reason}");
                }
                Ok(plan.chosen().placement())
            }
            Err(error @ PlanError::DoesNotFit { .. }) => Err(Unplaced::Wait(format!("{error}: {ADVICE}"))),
            Err(PlanError::Nothing) => Err(Unplaced::Wait(PlacementError::NoLocal.to_string())),
        }
    }

    /// The nodes with what each has for this model: stages of it that are kept for the next placement count as free.
    pub(super) fn hosts(&self, view: &MeshView) -> Vec<Host> {
        let own = self.own_stage.as_ref().map_or(0, |stage| stage.memory.0);
        let mut hosts = plan::hosts(view, ByteSize(self.parts.board.memory_free().0.saturating_add(own)));
        for left in self.left.iter().filter(|left| left.may_be_there()) {
            if let Some(host) = hosts.iter_mut().find(|host| host.peer == left.peer) {
                host.memory = ByteSize(host.memory.0.saturating_add(self.shape.memory(left.layers).0));
            }
        }
        hosts
    }

    pub(super) fn plan(&self, layers: LayerRange) -> StagePlan {
        StagePlan { model: self.model.name.clone(), layers, limits: limits(&self.model, &self.parts.settings) }
    }

    /// Whether drafts that do not come true can be taken back.
    pub(super) fn can_take_back(&self) -> bool {
        let all = LayerRange::new(0, self.model.info.n_layer);
        all.is_some_and(|all| self.plan(all).spec(&self.model.info).rolls_back)
    }

    pub(super) fn view(&self) -> Arc<MeshView> {
        self.parts.mesh.view().borrow().clone()
    }
}

/// Why there is no placement.
enum Unplaced {
    /// Others may join, or give memory free.
    Wait(String),
    /// It was asked for what cannot be.
    Never(PlaceError),
}
