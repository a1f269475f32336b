//! Which replica answers a request, with a memory: where conversations went, what is under way, how fast each replica
//! turned out to be.
//!
//! [`crate::choose`] says who may answer; [`Router`] puts them in order by what each would cost:
//!
//! ```text
//! seconds = (work under way there + prompt tokens that it has not computed yet + the answer) * its seconds a token + way
//! ```
//!
//! A conversation so returns to the replica that holds its beginning until waiting there costs more than computing it
//! anew elsewhere. A new conversation goes to the replica that holds its system prompt, but not past [`BOUND`] times
//! the mean of what all have had lately. Requests count from the moment they are sent, so that a replica which looks
//! idle in an old status is not overrun; replicas that cost the same are told apart by a hash that differs from
//! conversation to conversation and not from gateway to gateway.
//!
//! A state machine without a clock: it is told the time, as a span since any fixed moment.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::time::Duration;

use mesh_types::{MeshView, ModelId, PeerId};

use crate::replica::{Candidate, Choice, RouteError, choose};

mod prefix;
mod replicas;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

pub use prefix::Prefixes;

use prefix::Known;
use replicas::Replica;

/// A replica takes new conversations up to this multiple of the mean of what all took lately.
const BOUND: f64 = 1.25;
/// On top of it, in average requests: with little to do there is nothing to balance.
const SLACK: f64 = 2.0;
/// How much the hash may outweigh cost.
const JITTER: f64 = 0.1;
/// A replica that is new here gets one request at a time, and one more each such span.
const WARM_STEP: Duration = Duration::from_secs(4);
/// After so long it is like any other.
const WARM: Duration = Duration::from_secs(30);

/// The memory of one gateway.
#[derive(Debug, Default)]
pub struct Router {
    known: Known,
    replicas: BTreeMap<(ModelId, PeerId), Replica>,
    runs: HashMap<u64, Run>,
    next: u64,
    /// Work of an average request.
    typical: f64,
}

/// A run that was sent somewhere and has not ended. Give it back to [`Router::ended`].
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct RunId(u64);

#[derive(Debug)]
struct Run {
    at: (ModelId, PeerId),
    sent: Duration,
    work: f64,
}

/// A candidate with what it would cost.
struct Costed {
    candidate: Candidate,
    /// Prompt tokens that it has computed already.
    covered: u32,
    seconds: f64,
    /// Refused new conversations, or not warm: comes after all others.
    full: bool,
    rank: f64,
}

impl Router {
    /// The replicas of `model` that may answer a prompt with these `prefixes`, best first.
    ///
    /// # Errors
    /// As [`crate::choose`].
    pub fn choose(
        &mut self,
        view: &MeshView,
        model: &ModelId,
        prefixes: &Prefixes,
        now: Duration,
    ) -> Result<Choice, RouteError> {
        let Choice { candidates } = choose(view, model)?;
        self.see(model, &candidates, now);
        let mean = self.mean(model, &candidates, now);
        let mut costed: Vec<Costed> =
            candidates.into_iter().map(|candidate| self.cost(view, model, candidate, prefixes, mean, now)).collect();
        costed.sort_by(|a, b| a.full.cmp(&b.full).then(a.rank.total_cmp(&b.rank)));
        let explained = costed.into_iter().map(|costed| Candidate {
            cached: costed.covered,
            wait_ms: Some((costed.seconds * 1000.0) as u32),
            ..costed.candidate
        });
        Ok(Choice { candidates: explained.collect() })
    }

    /// The request goes to `peer`.
    pub fn sent(&mut self, model: &ModelId, peer: &PeerId, prefixes: &Prefixes, now: Duration) -> RunId {
        let at = (model.clone(), peer.clone());
        let covered = self.known.covered(prefixes, peer, now);
        let work = self.work(prefixes, covered);
        self.known.remember(prefixes, peer, now);
        let replica = self.replicas.entry(at.clone()).or_insert_with(|| Replica::new(now));
        replica.took(work, now);
        self.typical = if self.typical == 0.0 { work } else { self.typical + (work - self.typical) / 16.0 };
        self.next += 1;
        self.runs.insert(self.next, Run { at, sent: now, work });
        RunId(self.next)
    }

    /// The run is over; `computed` tokens were computed for it, prompt and answer, if that is known: it went well.
    pub fn ended(&mut self, run: &RunId, computed: Option<u32>, now: Duration) {
        let Some(run) = self.runs.remove(&run.0) else { return };
        let Some(replica) = self.replicas.get_mut(&run.at) else { return };
        replica.gave_back();
        if let Some(computed) = computed.filter(|computed| *computed > 0) {
            replica.measured(now.saturating_sub(run.sent).as_secs_f64() / f64::from(computed));
        }
    }

    /// Notes new replicas, and forgets those that are gone.
    fn see(&mut self, model: &ModelId, candidates: &[Candidate], now: Duration) {
        let present = |peer: &PeerId| candidates.iter().any(|candidate| candidate.peer == *peer);
        self.replicas.retain(|(of, peer), replica| of != model || present(peer) || replica.is_busy());
        for candidate in candidates {
            let at = (model.clone(), candidate.peer.clone());
            self.replicas.entry(at).or_insert_with(|| Replica::new(now));
        }
    }

    fn cost(
        &self,
        view: &MeshView,
        model: &ModelId,
        candidate: Candidate,
        prefixes: &Prefixes,
        mean: f64,
        now: Duration,
    ) -> Costed {
        let at = (model.clone(), candidate.peer.clone());
        let Some(replica) = self.replicas.get(&at) else {
            return Costed { candidate, covered: 0, seconds: 0.0, full: true, rank: 0.0 };
        };
        let covered = self.known.covered(prefixes, &candidate.peer, now);
        let pace = replica.pace().or_else(|| self.usual_pace(model)).unwrap_or(replicas::ASSUMED_PACE);
        let own: f64 = self.runs.values().filter(|run| run.at == at).map(|run| left(run, pace, now)).sum();
        // What others sent there, as far as its last status tells it from what this gateway sent.
        let reported = f64::from(candidate.active) + f64::from(candidate.queued);
        let others = (reported - f64::from(replica.runs())).max(0.0) * self.typical;
        let seconds = (own + others + self.work(prefixes, covered)) * pace + way(view, &candidate.peer);
        let is_new = covered <= prefixes.opening();
        let over = replica.lately(now) > mean * BOUND + SLACK * self.typical;
        let full = (is_new && over) || !replica.has_warm_room(now);
        let rank = seconds * (1.0 + JITTER * unit(prefixes.key(), &candidate.peer));
        Costed { candidate, covered, seconds, full, rank }
    }

    /// What replicas took lately, on average: those that are warm, or all where none is.
    fn mean(&self, model: &ModelId, candidates: &[Candidate], now: Duration) -> f64 {
        let of = |candidate: &Candidate| self.replicas.get(&(model.clone(), candidate.peer.clone()));
        let all: Vec<&Replica> = candidates.iter().filter_map(of).collect();
        let warm: Vec<&Replica> = all.iter().copied().filter(|replica| replica.is_warm(now)).collect();
        let counted = if warm.is_empty() { all } else { warm };
        counted.iter().map(|replica| replica.lately(now)).sum::<f64>() / counted.len().max(1) as f64
    }

    /// For a replica that has not shown yet how fast it is: the mean of those that have.
    fn usual_pace(&self, model: &ModelId) -> Option<f64> {
        let paces: Vec<f64> =
            self.replicas.iter().filter(|((of, _), _)| of == model).filter_map(|(_, replica)| replica.pace()).collect();
        (!paces.is_empty()).then(|| paces.iter().sum::<f64>() / paces.len() as f64)
    }

    /// Tokens to compute: the prompt's that are not there yet, and an answer.
    fn work(&self, prefixes: &Prefixes, covered: u32) -> f64 {
        f64::from(prefixes.tokens().saturating_sub(covered)) + replicas::USUAL_ANSWER
    }
}

/// What of a run is still to be computed.
fn left(run: &Run, pace: f64, now: Duration) -> f64 {
    (run.work - now.saturating_sub(run.sent).as_secs_f64() / pace).max(1.0)
}

/// Seconds to `peer` and back, where the local node has measured them.
fn way(view: &MeshView, peer: &PeerId) -> f64 {
    let local = view.local().into_iter().flat_map(|local| &local.links);
    let link = local.into_iter().find(|link| link.peer == *peer);
    link.map_or(0.0, |link| f64::from(link.rtt_us) / 1e6)
}

/// From 0 to 1: the same for the same conversation and peer at every gateway.
fn unit(key: u64, peer: &PeerId) -> f64 {
    let mut hasher = DefaultHasher::new();
    (key, peer.as_str()).hash(&mut hasher);
    (hasher.finish() >> 11) as f64 / (1_u64 << 53) as f64
}
