//! Where the layers of a model go, now.

use mesh_engine::StageError;
use mesh_engine::llama::Limits;
use mesh_gguf::allowed_cuts;
use mesh_routing::{PlacedStage, PlacementError, Split, placement};
use mesh_types::{ByteSize, LayerRange};

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

/// The same nodes in the same order, with each cut moved to the nearest one that the model's family allows; a node for
/// which no cut is left is left out.
fn moved(stages: Vec<PlacedStage>, allowed: &[u32]) -> Vec<PlacedStage> {
    let Some(end) = stages.last().map(|stage| stage.layers.end()) else { return stages };
    let mut cuts: Vec<u32> = vec![0];
    for stage in stages.iter().skip(1) {
        let wanted = stage.layers.start();
        let behind = |cut: &&u32| cuts.last().is_none_or(|last| *cut > last);
        let nearest = allowed.iter().filter(behind).min_by_key(|cut| cut.abs_diff(wanted)).copied();
        cuts.extend(nearest.filter(|cut| *cut < end));
    }
    let ends = cuts.iter().skip(1).copied().chain([end]);
    let ranges = cuts.iter().zip(ends).filter_map(|(start, end)| LayerRange::new(*start, end));
    stages.into_iter().zip(ranges).map(|(stage, layers)| PlacedStage { layers, ..stage }).collect()
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
                Ok(stages) if split == Split::Auto => {
                    let cuts = if stages.len() > 1 { allowed_cuts(self.model.source.header())? } else { Vec::new() };
                    let stages = moved(stages, &cuts);
                    if stages.len() > 1 {
                        return Ok(stages);
                    }
                    self.waiting(&self.too_large());
                }
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
        self.memory_of_all() <= self.memory_left()
    }

    fn memory_of_all(&self) -> ByteSize {
        let all = LayerRange::new(0, self.model.info.n_layer);
        all.map_or_else(ByteSize::default, |all| self.plan(all).memory(&self.model.info))
    }

    /// What this node has for the model: what is free, and what its own stage of it takes already.
    fn memory_left(&self) -> ByteSize {
        let own = self.own_stage.as_ref().map_or(0, |stage| stage.child.weight_bytes());
        ByteSize(self.parts.board.memory_free().0.saturating_add(own))
    }

    fn too_large(&self) -> String {
        format!(
            "it takes about {} and this node has {} for it: more nodes have to join, or this one has to offer more \
             (--memory) or hold less (--ctx, --parallel)",
            self.memory_of_all(),
            self.memory_left()
        )
    }

    pub(super) fn plan(&self, layers: LayerRange) -> StagePlan {
        StagePlan {
            model: self.model.name.clone(),
            layers,
            limits: Limits::for_parallel(self.parts.settings.parallel, self.model.context, BATCH, &self.model.info),
        }
    }
}

#[cfg(test)]
mod tests {
    use mesh_types::PeerId;

    use super::*;

    fn ranges(even: &[(u32, u32)], allowed: &[u32]) -> Vec<String> {
        let stage = |(start, end): &(u32, u32)| PlacedStage {
            layers: LayerRange::new(*start, *end).unwrap(),
            peer: PeerId::from("p"),
            name: String::new(),
            local: *start == 0,
        };
        moved(even.iter().map(stage).collect(), allowed).iter().map(|stage| stage.layers.to_string()).collect()
    }

    #[test]
    fn automatic_cuts_are_moved_to_allowed_places() {
        let any: Vec<u32> = (1..30).collect();
        assert_eq!(ranges(&[(0, 10), (10, 20), (20, 30)], &any), ["0-9", "10-19", "20-29"]);
        assert_eq!(ranges(&[(0, 10), (10, 20), (20, 30)], &[4, 8, 12, 24]), ["0-7", "8-23", "24-29"]);
        assert_eq!(ranges(&[(0, 10), (10, 20), (20, 30)], &[16]), ["0-15", "16-29"]);
        assert_eq!(ranges(&[(0, 15), (15, 30)], &[]), ["0-29"]);
    }
}
