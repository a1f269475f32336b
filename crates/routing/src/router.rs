//! Which replica answers a request, with a memory: where conversations went, what is under way, how fast each replica
//! turned out to be.
//!
//! [`crate::choose`] says who may answer; [`Router`] puts them in order by what each would cost, in seconds:
//!
//! ```text
//! what is under way there + prompt tokens that it has not computed yet * its prefill pace
//!     + a usual answer * its decode pace + the way
//! ```
//!
//! A conversation so returns to the replica that holds its beginning until waiting there costs clearly more than
//! computing it anew elsewhere. A new conversation goes to the replica that holds its system prompt, but not past
//! [`BOUND`] times the mean of what all have had lately. Requests count from the moment they are sent, so that a replica
//! which looks idle in an old status is not overrun; replicas that cost the same are told apart by a hash that differs
//! from conversation to conversation and not from gateway to gateway.
//!
//! A state machine without a clock: it is told the time, as a span since any fixed moment. Start with
//! [`Router::choose`]; what is known of one replica is in `replicas`, of conversations in `prefix`.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::time::Duration;

use mesh_types::{MeshView, ModelId, PeerId, Usage};

use crate::replica::{Candidate, Choice, RouteError, choose};

mod prefix;
mod replicas;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

pub use prefix::Prefixes;

use prefix::Known;
use replicas::{Paces, Replica, Work};

/// A replica takes new conversations up to this multiple of the mean of what all took lately.
const BOUND: f64 = 1.25;
/// On top of it, in typical requests: with little to do there is nothing to balance.
const SLACK: f64 = 1.0;
/// How much the hash may outweigh cost.
const JITTER: f64 = 0.1;
/// What a conversation costs where its beginning is, against what it costs elsewhere: paces are measured roughly, and a
/// conversation that moves about is computed again and kept twice.
const LOYALTY: f64 = 0.8;
/// Replicas that a gateway sees within so long after a model's first one were there before it.
const SETTLING: Duration = Duration::from_secs(10);

/// The memory of one gateway.
#[derive(Debug, Default)]
pub struct Router {
    known: Known,
    replicas: BTreeMap<At, Replica>,
    runs: HashMap<u64, Run>,
    next: u64,
    /// Of one request, averaged over the last ones.
    typical: Work,
}

/// A replica's key: one node may serve several models.
type At = (ModelId, PeerId);

/// A run that was sent somewhere and has not ended. Give it back to [`Router::ended`].
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct RunId(u64);

#[derive(Debug)]
struct Run {
    at: At,
    sent: Duration,
    /// Prompt tokens that were to be computed, and the share of the prompt that was taken to be there.
    prompt: f64,
    share: f64,
    /// When the first token came.
    first: Option<Duration>,
    /// Nothing else was under way there.
    alone: bool,
}

/// A candidate with what it would cost.
struct Costed {
    candidate: Candidate,
    /// Prompt tokens that it has computed already.
    covered: u32,
    seconds: f64,
    /// Takes no new conversations now: comes after all others.
    full: bool,
    rank: f64,
}

/// What one choice is made for.
struct Asked<'a> {
    view: &'a MeshView,
    prefixes: &'a Prefixes,
    /// What the model's replicas took lately, on average, in seconds.
    mean: f64,
    now: Duration,
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
        let asked = Asked { view, prefixes, mean: self.mean(model, &candidates, now), now };
        let mut costed: Vec<Costed> =
            candidates.into_iter().filter_map(|candidate| self.cost(model, candidate, &asked)).collect();
        costed.sort_by(|a, b| a.full.cmp(&b.full).then(a.rank.total_cmp(&b.rank)));
        let explained = costed.into_iter().map(|costed| Candidate {
            cached: costed.covered,
            wait_ms: Some((costed.seconds * 1000.0) as u32),
            ..costed.candidate
        });
        Ok(Choice { candidates: explained.collect() })
    }

    /// The request goes to `candidate`, one of those that [`Self::choose`] gave.
    pub fn sent(&mut self, model: &ModelId, candidate: &Candidate, prefixes: &Prefixes, now: Duration) -> RunId {
        let at = (model.clone(), candidate.peer.clone());
        let replica = self.replicas.entry(at.clone()).or_insert_with(|| Replica::new(now));
        let covered = f64::from(self.known.covered(prefixes, &candidate.peer, replica.since(), now));
        let all = f64::from(prefixes.tokens());
        let work = Work { prompt: (all - covered * replica.keeps()).max(0.0), answer: self.typical.answer };
        let alone = !replica.is_busy() && replica.others(candidate, now) == 0.0;
        self.known.remember(prefixes, &candidate.peer, now);
        let seconds = work.seconds(self.paces(&at, now));
        if let Some(replica) = self.replicas.get_mut(&at) {
            replica.took(seconds, now);
        }
        self.typical.note_prompt(work.prompt);
        self.next += 1;
        let share = covered / all.max(1.0);
        self.runs.insert(self.next, Run { at, sent: now, prompt: work.prompt, share, first: None, alone });
        RunId(self.next)
    }

    /// The first token of the answer is there.
    pub fn answering(&mut self, run: &RunId, now: Duration) {
        let Some(run) = self.runs.get_mut(&run.0).filter(|run| run.first.is_none()) else { return };
        run.first = Some(now);
        if let Some(replica) = self.replicas.get_mut(&run.at) {
            replica.answered(now);
        }
    }

    /// The run is over; it went well where there is a `usage`.
    pub fn ended(&mut self, run: &RunId, usage: Option<&Usage>, now: Duration) {
        let Some(run) = self.runs.remove(&run.0) else { return };
        if let Some(usage) = usage {
            self.typical.note_answer(f64::from(usage.completion_tokens));
        }
        let Some(replica) = self.replicas.get_mut(&run.at) else { return };
        replica.gave_back(now);
        let (Some(usage), Some(first)) = (usage, run.first) else { return };
        replica.kept(run.share, usage);
        replica.measured(usage, first.saturating_sub(run.sent), now.saturating_sub(first), (run.alone, now));
    }

    /// Notes new replicas, and forgets those that are gone.
    fn see(&mut self, model: &ModelId, candidates: &[Candidate], now: Duration) {
        let present = |peer: &PeerId| candidates.iter().any(|candidate| candidate.peer == *peer);
        self.replicas.retain(|(of, peer), replica| of != model || present(peer) || replica.is_busy());
        let first = self.replicas.iter().filter(|((of, _), _)| of == model).map(|(_, replica)| replica.since()).min();
        let settling = first.is_none_or(|first| now.saturating_sub(first) < SETTLING);
        for candidate in candidates {
            let new = || if settling { Replica::found(now) } else { Replica::new(now) };
            self.replicas.entry((model.clone(), candidate.peer.clone())).or_insert_with(new);
        }
    }

    fn cost(&self, model: &ModelId, candidate: Candidate, asked: &Asked<'_>) -> Option<Costed> {
        let Asked { view, prefixes, mean, now } = *asked;
        let at = (model.clone(), candidate.peer.clone());
        let replica = self.replicas.get(&at)?;
        let paces = self.paces(&at, now);
        let covered = self.known.covered(prefixes, &candidate.peer, replica.since(), now);
        let missing = f64::from(prefixes.tokens()) - f64::from(covered) * replica.keeps();
        let own = missing.max(0.0) * paces.prefill + self.typical.answer * paces.decode;
        let others = replica.others(&candidate, now) * self.typical.seconds(paces);
        let seconds = self.backlog(&at, paces, now) + others + own + way(view, &candidate.peer);
        let is_new = covered <= prefixes.opening();
        let over = replica.lately(now) > mean * BOUND + SLACK * self.typical.seconds(paces);
        let full = is_new && (over || !replica.has_warm_room(now));
        let loyalty = if is_new { 1.0 } else { LOYALTY };
        let rank = seconds * loyalty * (1.0 + JITTER * unit(prefixes.key(), &candidate.peer));
        Some(Costed { candidate, covered, seconds, full, rank })
    }

    /// Seconds of what this gateway has under way at a replica, which reads one prompt after the other.
    fn backlog(&self, at: &At, paces: Paces, now: Duration) -> f64 {
        let Some(replica) = self.replicas.get(at) else { return 0.0 };
        let runs: Vec<&Run> = self.runs.values().filter(|run| run.at == *at).collect();
        let reading = runs.iter().filter(|run| run.first.is_none());
        let Some(oldest) = reading.clone().min_by_key(|run| run.sent) else {
            return runs.len() as f64 * self.typical.answering(paces);
        };
        let begun = oldest.sent.max(replica.last_answered());
        let done = now.saturating_sub(begun).as_secs_f64().min(oldest.prompt * paces.prefill);
        let prompts: f64 = reading.map(|run| run.prompt).sum();
        prompts * paces.prefill - done + runs.len() as f64 * self.typical.answering(paces)
    }

    /// What replicas took lately, on average: those that are warm, or all where none is.
    fn mean(&self, model: &ModelId, candidates: &[Candidate], now: Duration) -> f64 {
        let of = |candidate: &Candidate| self.replicas.get(&(model.clone(), candidate.peer.clone()));
        let all: Vec<&Replica> = candidates.iter().filter_map(of).collect();
        let warm: Vec<&Replica> = all.iter().copied().filter(|replica| replica.is_warm(now)).collect();
        let counted = if warm.is_empty() { all } else { warm };
        counted.iter().map(|replica| replica.lately(now)).sum::<f64>() / counted.len().max(1) as f64
    }

    /// How fast a replica is; one that has not shown it, as fast as the others are on average.
    fn paces(&self, at: &At, now: Duration) -> Paces {
        let own = self.replicas.get(at);
        let all = || self.replicas.iter().filter(|((model, _), _)| *model == at.0).map(|(_, replica)| replica);
        let usual = |pace: fn(&Replica, Duration) -> Option<f64>, assumed: f64| {
            own.and_then(|replica| pace(replica, now)).unwrap_or_else(|| {
                let (count, sum) =
                    all().filter_map(|replica| pace(replica, now)).fold((0, 0.0), |(n, s), p| (n + 1, s + p));
                if count == 0 { assumed } else { sum / f64::from(count) }
            })
        };
        Paces {
            prefill: usual(Replica::prefill, Paces::ASSUMED.prefill),
            decode: usual(Replica::decode, Paces::ASSUMED.decode),
        }
    }
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
