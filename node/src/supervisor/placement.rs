//! Where the layers of a model go, now.

use mesh_engine::StageError;
use mesh_engine::llama::Limits;
use mesh_routing::{PlacedStage, PlacementError, Split, placement};
use mesh_types::LayerRange;

use super::{BATCH, Placement, Supervisor};
use crate::serve::ServedModel;
use crate::stages::StagePlan;

/// Why a model is not served now.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// It cannot be placed.
    #[error("{0}")]
    Placement(#[from] PlacementError),
    /// Its file cannot be split.
    #[error("{0}")]
    Slice(#[from] mesh_gguf::Error),
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

impl Supervisor {
    /// Waits until the model can be placed, and loads its stages.
    pub(super) async fn place_and_load(&mut self) -> Result<Placement, PlaceError> {
        let stages = self.placed().await?;
        if stages.len() > 1 {
            self.waiting("reading the file once to know its weights");
            let digest = self.parts.holdings.digest(&self.model.source).await?;
            self.digest = Some(digest);
        }
        self.waiting(&format!("loading {}", placement::explain(&stages)));
        self.load(stages).await
    }

    /// The placement, once there are enough peers for it.
    async fn placed(&self) -> Result<Vec<PlacedStage>, PlaceError> {
        let mut view = self.parts.mesh.view();
        loop {
            let now = view.borrow_and_update().clone();
            let split = self.effective_split();
            match mesh_routing::place(self.model.info.n_layer, &split, &now) {
                Ok(stages) => return Ok(stages),
                Err(error @ (PlacementError::NotEnoughPeers { .. } | PlacementError::NoLocal)) => {
                    self.waiting(&error.to_string());
                }
                Err(error) => return Err(error.into()),
            }
            if view.changed().await.is_err() {
                return Err(StageError::Closed.into());
            }
        }
    }

    /// `auto` means whole on this node if it fits.
    fn effective_split(&self) -> Split {
        match &self.split {
            Split::Auto if self.fits_here() => Split::Never,
            other => other.clone(),
        }
    }

    fn fits_here(&self) -> bool {
        LayerRange::new(0, self.model.info.n_layer)
            .is_some_and(|all| self.plan(all).memory(&self.model.info) <= self.parts.board.memory_free())
    }

    pub(super) fn plan(&self, layers: LayerRange) -> StagePlan {
        StagePlan {
            model: self.model.name.clone(),
            layers,
            limits: Limits { n_ctx: self.model.context, n_seq: self.parts.settings.parallel, n_batch: BATCH },
        }
    }
}
