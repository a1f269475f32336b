//! Where to cut a model for a given chain of nodes: within their memory, so that no node holds the others up, and as
//! much on the fast ones as that allows.

use std::collections::BTreeSet;

use mesh_types::LayerRange;

use super::hosts::way;
use super::{HOP, Host, ModelShape};

/// Halvings of the interval in which the slowest stage's time lies.
const BISECTIONS: usize = 48;
/// Rounds in which cuts are moved; each makes the placement better or is the last.
const ROUNDS: usize = 32;

/// How fast a placement is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Pace {
    /// Seconds that the stages take for a token, all together.
    sum: f64,
    /// Seconds of the slowest stage.
    slowest: f64,
    /// Seconds on the way: over every boundary, and straight home.
    way: f64,
    /// Prompt tokens a second, in a full pipeline.
    pub(super) prefill: f64,
}

impl Pace {
    pub(super) fn of(shape: &ModelShape, hosts: &[Host], chain: &[usize], ranges: &[LayerRange]) -> Self {
        let times = || chain.iter().zip(ranges).map(|(at, layers)| seconds(shape, &hosts[*at], *layers));
        let prefill = |(at, layers): (&usize, &LayerRange)| {
            hosts[*at].speed.prefill.max(1) as f64 / shape.work(*layers).max(1) as f64
        };
        Self {
            sum: times().sum(),
            slowest: times().fold(0.0, f64::max),
            way: on_the_way(hosts, chain),
            prefill: chain.iter().zip(ranges).map(prefill).fold(f64::INFINITY, f64::min),
        }
    }

    /// Tokens a second of one run.
    pub(super) fn decode(&self) -> f64 {
        1.0 / (self.sum + self.way).max(f64::MIN_POSITIVE)
    }

    /// Tokens a second of all runs, every stage busy.
    pub(super) fn full(&self) -> f64 {
        1.0 / self.slowest.max(f64::MIN_POSITIVE)
    }

    /// What cuts are chosen by: one run alone and many at once count alike.
    fn score(&self) -> f64 {
        self.sum + self.slowest
    }
}

/// The layers of each node of `chain`, at least one each; `None` where they do not fit.
pub(super) fn cut(shape: &ModelShape, hosts: &[Host], chain: &[usize]) -> Option<Vec<LayerRange>> {
    let fill = Fill { shape, hosts, chain };
    let mut best = fill.within(f64::INFINITY)?;
    let (mut low, mut high) = (0.0, fill.slowest(&best));
    for _ in 0..BISECTIONS {
        let middle = (low + high) / 2.0;
        match fill.within(middle) {
            Some(ranges) => (best, high) = (ranges, middle),
            None => low = middle,
        }
    }
    fill.settle(&mut best);
    Some(best)
}

struct Fill<'a> {
    shape: &'a ModelShape,
    hosts: &'a [Host],
    chain: &'a [usize],
}

impl Fill<'_> {
    /// Each node takes as many layers as it can hold and compute within `limit` seconds. `None` where some are left.
    ///
    /// Taking more never hurts the nodes behind, so this finds a way where there is one; but where stages of some sizes
    /// are not allowed, a node may have to take fewer for the sake of the next.
    fn within(&self, limit: f64) -> Option<Vec<LayerRange>> {
        let mut ranges = Vec::with_capacity(self.chain.len());
        self.extend(&mut ranges, limit, &mut BTreeSet::new()).then_some(ranges)
    }

    /// Adds the ranges of the nodes that have none yet. `dead` are the ends of stages, by place, from which there is no
    /// way on.
    fn extend(&self, ranges: &mut Vec<LayerRange>, limit: f64, dead: &mut BTreeSet<(usize, u32)>) -> bool {
        let (place, start) = (ranges.len(), ranges.last().map_or(0, |last| last.end()));
        let (cuts, n_layer) = (self.shape.cuts(), self.shape.n_layer());
        if place + 1 == self.chain.len() {
            let last = LayerRange::new(start, n_layer).filter(|layers| self.shape.may_be_stage(*layers));
            ranges.extend(last.filter(|_| self.takes(place, start, n_layer, limit)));
            return ranges.len() == self.chain.len();
        }
        // One cut has to be left for each boundary behind.
        let from = cuts.partition_point(|cut| *cut <= start);
        let until = cuts.len().checked_sub(self.chain.len() - 2 - place);
        let open = until.and_then(|until| cuts.get(from..until)).unwrap_or_default();
        let taken = open.partition_point(|cut| self.takes(place, start, *cut, limit));
        let ends = open[..taken].iter().rev().filter_map(|end| LayerRange::new(start, *end));
        // Each size that is not allowed can bar one of the ends; one more is free of them.
        let ends = ends.filter(|layers| self.shape.may_be_stage(*layers)).take(1 + 2 * self.shape.n_avoided());
        for layers in ends {
            if dead.contains(&(place, layers.end())) {
                continue;
            }
            ranges.push(layers);
            if self.extend(ranges, limit, dead) {
                return true;
            }
            ranges.truncate(place);
            dead.insert((place, layers.end()));
        }
        false
    }

    fn takes(&self, place: usize, start: u32, end: u32, limit: f64) -> bool {
        let host = &self.hosts[self.chain[place]];
        LayerRange::new(start, end).is_some_and(|layers| {
            self.shape.memory(layers) <= host.memory && seconds(self.shape, host, layers) <= limit
        })
    }

    fn may_take(&self, place: usize, start: u32, end: u32) -> bool {
        let allowed = LayerRange::new(start, end).is_some_and(|layers| self.shape.may_be_stage(layers));
        allowed && self.takes(place, start, end, f64::INFINITY)
    }

    fn slowest(&self, ranges: &[LayerRange]) -> f64 {
        Pace::of(self.shape, self.hosts, self.chain, ranges).slowest
    }

    /// Moves one cut at a time to where it is best, until none wants to move.
    fn settle(&self, ranges: &mut [LayerRange]) {
        for _ in 0..ROUNDS {
            let moved = (1..ranges.len()).filter(|boundary| self.settle_one(ranges, *boundary)).count();
            if moved == 0 {
                return;
            }
        }
    }

    fn settle_one(&self, ranges: &mut [LayerRange], boundary: usize) -> bool {
        let (start, end) = (ranges[boundary - 1].start(), ranges[boundary].end());
        let present = ranges[boundary].start();
        let (mut best, mut score) = (present, self.score(ranges));
        for cut in self.shape.cuts().iter().copied().filter(|cut| (start + 1..end).contains(cut)) {
            let fits = self.may_take(boundary - 1, start, cut) && self.may_take(boundary, cut, end);
            if !fits || !set(ranges, boundary, cut) {
                continue;
            }
            let here = self.score(ranges);
            // A hair better is a matter of rounding.
            if here < score * (1.0 - 1e-9) {
                (best, score) = (cut, here);
            }
        }
        set(ranges, boundary, best);
        best != present
    }

    /// Lower is better. Of equal ones, the more even.
    fn score(&self, ranges: &[LayerRange]) -> f64 {
        let evenness: f64 = self
            .chain
            .iter()
            .zip(ranges)
            .map(|(at, layers)| seconds(self.shape, &self.hosts[*at], *layers).powi(2))
            .sum();
        Pace::of(self.shape, self.hosts, self.chain, ranges).score() + 1e-3 * evenness.sqrt()
    }
}

fn set(ranges: &mut [LayerRange], boundary: usize, cut: u32) -> bool {
    let left = LayerRange::new(ranges[boundary - 1].start(), cut);
    let right = LayerRange::new(cut, ranges[boundary].end());
    let (Some(left), Some(right)) = (left, right) else { return false };
    (ranges[boundary - 1], ranges[boundary]) = (left, right);
    true
}

/// Seconds that `host` takes for one token through `layers`.
fn seconds(shape: &ModelShape, host: &Host, layers: LayerRange) -> f64 {
    shape.work(layers) as f64 / host.speed.decode.max(1) as f64
}

/// Half a round trip over each boundary, and half of one from the last node straight home.
fn on_the_way(hosts: &[Host], chain: &[usize]) -> f64 {
    let boundaries = chain.windows(2).map(|pair| (pair[0], pair[1]));
    let home =
        chain.first().zip(chain.last()).filter(|(first, last)| first != last).map(|(first, last)| (*last, *first));
    let hop = |(from, to): (usize, usize)| f64::from(way(&hosts[from], to)) / 2e6 + HOP;
    boundaries.chain(home).map(hop).sum()
}
