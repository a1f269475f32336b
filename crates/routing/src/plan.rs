//! Where the layers of a model go when nobody says it: from what the model weighs, what the nodes have and how far they
//! are apart, to stages with a predicted speed, and a sentence for every node that is left out.
//!
//! The rules, in order: on the holder alone if it fits; else on the fewest nodes; more nodes only where that is faster
//! by [`WORTH`] than the fewest (two more may gain together what one alone does not), so a slow one is left out where it
//! would hold the others up. The search over sets of nodes is in
//! [`search`], the cuts within one set in [`cuts`], what a model weighs in [`ModelShape`]. Start with [`plan`].

use mesh_types::{ByteSize, LayerRange, PeerId, Speed};

use crate::PlacedStage;

mod cuts;
mod explain;
mod hosts;
mod search;
mod shape;
#[cfg(test)]
mod tests;

pub use explain::HostReport;
pub use hosts::{Host, hosts};
pub use shape::{LayerCost, ModelShape, Parts};

/// A longer chain, or another placement than the one that runs, has to be faster by this factor.
pub const WORTH: f64 = 1.1;

/// A node that nobody has measured: a desktop's memory.
pub const ASSUMED: Speed = Speed { decode: 8_000_000_000, prefill: 100_000_000_000 };

/// What each boundary between two nodes costs a token beside the way itself: coding, copying, waking up; seconds.
const HOP: f64 = 0.000_4;

/// One way to place the model, with what it would give.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// One stage a node, in order; the first is the holder's.
    pub stages: Vec<CandidateStage>,
    /// Tokens a second of one run alone.
    pub decode: f64,
    /// Tokens a second of all runs together, once every stage is busy all the time; batching within a stage comes on
    /// top.
    pub full: f64,
    /// Tokens a second while a long prompt is read.
    pub prefill: f64,
}

/// One stage of a candidate.
#[derive(Clone, Debug, PartialEq)]
pub struct CandidateStage {
    /// Its layers and its node.
    pub stage: PlacedStage,
    /// What it takes there.
    pub needs: ByteSize,
    /// What that node has for it.
    pub has: ByteSize,
}

/// A choice with its reasons.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Every candidate that fits, the chosen one first, the others by their number of stages; the best one of each.
    pub candidates: Vec<Candidate>,
    /// Every node: what it has, what it is to take, or why nothing. In the order of the hosts given.
    pub hosts: Vec<HostReport>,
}

/// Why a model cannot be placed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// No set of the nodes has room for it.
    #[error("it takes {needs} on one node and {has} are offered: {detail}")]
    DoesNotFit {
        /// What the whole model takes on one node.
        needs: ByteSize,
        /// What all nodes that could take a part of it have together.
        has: ByteSize,
        /// Node by node.
        detail: String,
        /// The same as data.
        hosts: Vec<HostReport>,
    },
    /// The model has no layers, or nobody holds it.
    #[error("there is nothing to place")]
    Nothing,
}

/// Places a model of `shape` on `hosts`, the first of which is the holder.
///
/// # Errors
/// [`PlanError`] says what each node lacks.
pub fn plan(shape: &ModelShape, hosts: &[Host]) -> Result<Plan, PlanError> {
    if hosts.is_empty() || shape.n_layer() == 0 {
        return Err(PlanError::Nothing);
    }
    let found = search::search(shape, hosts);
    let Some(chosen) = found.chosen() else {
        return Err(explain::does_not_fit(shape, hosts));
    };
    let reports = explain::reports(shape, hosts, &found, chosen);
    let mut candidates = vec![found.candidate(shape, hosts, chosen)];
    let others = found.best_by_length().filter(|way| *way != chosen);
    candidates.extend(others.map(|way| found.candidate(shape, hosts, way)));
    Ok(Plan { candidates, hosts: reports })
}

/// What `stages`, which may run already, give on `hosts`. `None` where one of their nodes is not among these.
pub fn predict(shape: &ModelShape, hosts: &[Host], stages: &[PlacedStage]) -> Option<Candidate> {
    let at = |peer: &PeerId| hosts.iter().position(|host| host.peer == *peer);
    let chain: Vec<usize> = stages.iter().map(|stage| at(&stage.peer)).collect::<Option<_>>()?;
    let ranges: Vec<LayerRange> = stages.iter().map(|stage| stage.layers).collect();
    Some(candidate(shape, hosts, &chain, &ranges))
}

impl Plan {
    /// The one to carry out.
    pub fn chosen(&self) -> &Candidate {
        &self.candidates[0]
    }
}

impl Candidate {
    /// Its stages without their figures.
    pub fn placement(&self) -> Vec<PlacedStage> {
        self.stages.iter().map(|stage| stage.stage.clone()).collect()
    }
}

fn candidate(shape: &ModelShape, hosts: &[Host], chain: &[usize], ranges: &[LayerRange]) -> Candidate {
    let stages = chain.iter().zip(ranges).map(|(at, layers)| {
        let host = &hosts[*at];
        let (peer, name) = (host.peer.clone(), host.name.clone());
        CandidateStage {
            stage: PlacedStage { layers: *layers, peer, name, local: host.local },
            needs: shape.memory(*layers),
            has: host.memory,
        }
    });
    let pace = cuts::Pace::of(shape, hosts, chain, ranges);
    Candidate { stages: stages.collect(), decode: pace.decode(), full: pace.full(), prefill: pace.prefill }
}
