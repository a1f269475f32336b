//! Moving a model while it answers: when another placement pays, and how it takes over.
//!
//! The placement that answers is kept until the other has computed a token; runs that it has begun end on it.

use std::time::Duration;

use mesh_routing::plan::{self, Candidate, Host};
use mesh_routing::{PlacedStage, Split, placement};
use mesh_types::{ByteSize, PeerId};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::load::{Loaded, LoadedStages, Tell};
use super::{DRAIN_LIMIT, Ended, Placement, Serving, Supervisor};

/// How much faster a placement has to be to take the place of one that runs.
const WORTH_MOVING: f64 = 1.25;
/// How often in a row it has to be found better: nodes that come and go within seconds move nothing.
const STEADY: u32 = 2;
/// Pause after a move, and after one that failed.
const BETWEEN_MOVES: Duration = Duration::from_secs(60);
/// How long runs may go on at a placement that another has taken the place of.
const RETIRE_LIMIT: Duration = Duration::from_secs(3600);

/// What is remembered between looks at the mesh.
#[derive(Default)]
pub(super) struct Moves {
    /// The placement that was better at the last looks, and how many.
    wanted: Option<(Vec<PlacedStage>, u32)>,
    not_before: Option<Instant>,
    /// A drained node was told to stay, for lack of another place.
    stuck: bool,
}

impl Moves {
    /// The stages of `found`, once it was so much better than `here`, what runs now, that moving pays, and that often in
    /// a row.
    fn weigh(&mut self, found: &Candidate, here: &Candidate) -> Option<Vec<PlacedStage>> {
        let stages = found.placement();
        if stages == here.placement() || found.decode < here.decode * WORTH_MOVING {
            self.wanted = None;
            return None;
        }
        let seen = match self.wanted.take() {
            Some((wanted, seen)) if wanted == stages => seen + 1,
            _ => 1,
        };
        if seen < STEADY {
            self.wanted = Some((stages, seen));
            return None;
        }
        Some(stages)
    }
}

/// What came of a move.
pub(super) enum Moved {
    /// The new placement answers.
    To(Serving),
    /// The old one goes on.
    Not,
    /// The old one ended meanwhile.
    Ended(Ended),
}

impl Supervisor {
    /// Stages that would serve the model better than `current` does, if that is sure and pays.
    pub(super) fn better(&mut self, current: &Placement, idle: bool) -> Option<Vec<PlacedStage>> {
        let now = Instant::now();
        if self.split != Split::Auto || self.moves.not_before.is_some_and(|until| now < until) {
            return None;
        }
        let view = self.view();
        let drained = |stage: &&PlacedStage| view.peer(&stage.peer).is_some_and(|peer| peer.draining && !peer.local);
        if let Some(stage) = current.stages.iter().find(drained) {
            return self.away_from(&stage.name, current, idle);
        }
        if current.stages.len() == 1 {
            return None;
        }
        // Beside what runs: its memory is not free.
        let hosts = plan::hosts(&view, self.parts.board.memory_free());
        let found = plan::plan(&self.shape, &hosts).ok()?;
        let here = plan::predict(&self.shape, &hosts, &current.stages)?;
        let stages = self.moves.weigh(found.chosen(), &here)?;
        tracing::info!(
            model = %self.model.name, "moving to {}: {:.1} tok/s instead of {:.1}",
            placement::explain(&stages), found.chosen().decode, here.decode
        );
        Some(stages)
    }

    /// A place for the model without the drained node `name`: beside the present one if there is room; else, while
    /// nobody waits for an answer, in its place.
    fn away_from(&mut self, name: &str, current: &Placement, idle: bool) -> Option<Vec<PlacedStage>> {
        let hosts = plan::hosts(&self.view(), self.parts.board.memory_free());
        if let Ok(found) = plan::plan(&self.shape, &hosts) {
            return Some(found.chosen().placement());
        }
        let freed = self.without(current, hosts);
        match plan::plan(&self.shape, &freed) {
            Ok(found) if idle => Some(found.chosen().placement()),
            Ok(_) => None,
            Err(error) => {
                if !std::mem::replace(&mut self.moves.stuck, true) {
                    tracing::warn!(model = %self.model.name, "{name} is drained and the model stays there: {error}");
                }
                None
            }
        }
    }

    /// The hosts as they would be without `current`.
    fn without(&self, current: &Placement, mut hosts: Vec<Host>) -> Vec<Host> {
        for stage in &current.stages {
            if let Some(host) = hosts.iter_mut().find(|host| host.peer == stage.peer) {
                host.memory = ByteSize(host.memory.0.saturating_add(self.shape.memory(stage.layers).0));
            }
        }
        hosts
    }

    /// Loads `stages` while `serving` goes on, and starts them. Where there is no room for both, the old one ends first.
    pub(super) async fn move_to(
        &mut self,
        stages: Vec<PlacedStage>,
        serving: &Serving,
        stop: &CancellationToken,
    ) -> Moved {
        self.moves = Moves { not_before: Some(Instant::now() + BETWEEN_MOVES), ..Moves::default() };
        if !self.has_room(&stages) {
            return Moved::Ended(Ended::InTheWay(stages));
        }
        if let (None, true) = (self.digest, stages.len() > 1) {
            match self.parts.holdings.digest(&self.model.source).await {
                Ok(digest) => self.digest = Some(digest),
                Err(error) => return self.not_moved(&error.to_string()),
            }
        }
        let loaded = tokio::select! {
            loaded = self.load(stages, LoadedStages::default(), Tell::Log) => loaded,
            error = serving.pipeline.ended() => return Moved::Ended(Ended::Lost(error)),
            () = stop.cancelled() => return Moved::Ended(Ended::Stopped),
        };
        let started = match loaded {
            Loaded { outcome: Ok(placement), .. } => self.start(placement).await,
            Loaded { own, outcome: Err(error) } => {
                self.drop_stages(LoadedStages { own, remote: Vec::new() }).await;
                return self.not_moved(&error.to_string());
            }
        };
        match started {
            Ok(next) => {
                self.own_stage.clone_from(&next.placement.loaded.own);
                Moved::To(next)
            }
            Err((placement, error)) => {
                drop(placement.chain);
                self.drop_stages(placement.loaded).await;
                self.not_moved(&error.to_string())
            }
        }
    }

    fn has_room(&self, stages: &[PlacedStage]) -> bool {
        let hosts = plan::hosts(&self.view(), self.parts.board.memory_free());
        let has = |peer: &PeerId| hosts.iter().find(|host| host.peer == *peer).map_or(ByteSize(0), |host| host.memory);
        stages.iter().all(|stage| self.shape.memory(stage.layers) <= has(&stage.peer))
    }

    fn not_moved(&self, why: &str) -> Moved {
        tracing::warn!(model = %self.model.name, "not moved: {why}");
        Moved::Not
    }

    /// Lets the runs of `serving` end, then takes it down.
    pub(super) fn retire(&mut self, serving: Serving, stop: CancellationToken) {
        let Serving { placement, pipeline } = serving;
        let (parts, chain) = (self.parts.clone(), placement.chain);
        let LoadedStages { own, remote } = placement.loaded;
        self.retiring.spawn(async move {
            let closing = async {
                stop.cancelled().await;
                tokio::time::sleep(DRAIN_LIMIT).await;
            };
            tokio::select! {
                () = pipeline.shutdown(RETIRE_LIMIT) => {}
                () = closing => {}
            }
            drop((pipeline, chain));
            super::load::unload(&parts, remote).await;
            if let Some(stage) = own {
                parts.host.unload(&stage.id).await;
            }
        });
    }

    async fn drop_stages(&self, stages: LoadedStages) {
        super::load::unload(&self.parts, stages.remote).await;
        if let Some(stage) = stages.own {
            self.parts.host.unload(&stage.id).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use mesh_routing::plan::CandidateStage;
    use mesh_types::LayerRange;

    use super::*;

    /// All layers on `node`, at so many tokens per second.
    fn on(node: &str, decode: f64) -> Candidate {
        let layers = LayerRange::new(0, 4).unwrap();
        let stage = PlacedStage { layers, peer: PeerId::new(node), name: node.to_owned(), local: false };
        let stages = vec![CandidateStage { stage, needs: ByteSize(1), has: ByteSize(2) }];
        Candidate { stages, decode, full: decode, prefill: decode }
    }

    #[test]
    fn a_model_moves_only_for_what_stays_much_better() {
        let here = on("a", 10.0);
        let mut moves = Moves::default();
        // A little better is not worth it, however often it is seen.
        assert!((0..5).all(|_| moves.weigh(&on("b", 12.0), &here).is_none()));
        // Much better has to be so twice in a row, by the same nodes.
        assert!(moves.weigh(&on("b", 13.0), &here).is_none());
        assert!(moves.weigh(&on("c", 13.0), &here).is_none());
        assert!(moves.weigh(&on("c", 12.0), &here).is_none(), "it was better for a moment");
        assert!(moves.weigh(&on("c", 13.0), &here).is_none());
        assert_eq!(moves.weigh(&on("c", 13.0), &here), Some(on("c", 13.0).placement()));
        // What runs already is nothing to move to, whatever its prediction.
        assert!((0..5).all(|_| moves.weigh(&on("a", 99.0), &here).is_none()));
    }
}
