//! Which nodes make the best chain: sets of nodes grow one node at a time, and only the best of each size grow on.

use std::collections::{BTreeMap, BTreeSet};

use mesh_types::LayerRange;

use super::cuts::{self, Pace};
use super::hosts::{is_joined, visit};
use super::{Candidate, Host, ModelShape, WORTH, candidate};

/// With this many other nodes or fewer, every set of them is looked at.
const EXHAUSTIVE: usize = 8;
/// Of sets with this many nodes beside the holder or fewer, every order is tried where the natural one does not fit.
const PERMUTED: usize = 4;
/// Sets of each size that grow on, with more.
const BEAM: usize = 8;
/// Stages at most.
const MAX_STAGES: usize = 16;
/// Longer chains that are looked at after the last one that was better.
const PATIENCE: usize = 2;

/// One chain that fits.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Way {
    pub(super) chain: Vec<usize>,
    ranges: Vec<LayerRange>,
    pub(super) pace: Pace,
}

/// Everything that was found.
pub(super) struct Found {
    /// The best of each length.
    by_length: BTreeMap<usize, Way>,
    /// The best that each host is a part of.
    by_host: BTreeMap<usize, Way>,
}

pub(super) fn search(shape: &ModelShape, hosts: &[Host]) -> Found {
    let mut found = Found { by_length: BTreeMap::new(), by_host: BTreeMap::new() };
    found.consider(shape, hosts, &[]);
    let least = shape.smallest_stage();
    let usable: Vec<usize> =
        (1..hosts.len()).filter(|at| hosts[*at].unfit.is_none() && hosts[*at].memory >= least).collect();
    let longest = MAX_STAGES.min(usable.len() + 1).min(shape.cuts().len() + 1);
    let mut sets: Vec<Vec<usize>> = vec![Vec::new()];
    let mut since_better = 0;
    for length in 2..=longest {
        let before = found.chosen().cloned();
        sets = grow(shape, hosts, &usable, &sets, &mut found);
        let is_better = found.chosen() != before.as_ref();
        since_better = if before.is_none() || is_better { 0 } else { since_better + 1 };
        if usable.len() > EXHAUSTIVE && since_better >= PATIENCE && length >= 2 {
            break;
        }
    }
    found
}

/// All sets of one more node, but only the best if they are many.
fn grow(
    shape: &ModelShape,
    hosts: &[Host],
    usable: &[usize],
    sets: &[Vec<usize>],
    found: &mut Found,
) -> Vec<Vec<usize>> {
    let mut seen = BTreeSet::new();
    let mut grown: Vec<(Option<f64>, u64, Vec<usize>)> = Vec::new();
    let larger = |set: &Vec<usize>, at: usize| {
        let mut set = set.clone();
        set.push(at);
        set.sort_unstable();
        set
    };
    let extended = sets.iter().flat_map(|set| usable.iter().filter(|at| !set.contains(at)).map(|at| larger(set, *at)));
    let roomiest = roomiest(hosts, usable, sets.first().map_or(1, |set| set.len() + 1));
    for set in extended.chain([roomiest]) {
        if seen.insert(set.clone()) {
            let decode = found.consider(shape, hosts, &set);
            let room = set.iter().map(|at| hosts[*at].memory.0).fold(0, u64::saturating_add);
            grown.push((decode, room, set));
        }
    }
    grown.sort_by(|a, b| b.0.partial_cmp(&a.0).unwrap_or(std::cmp::Ordering::Equal).then(b.1.cmp(&a.1)));
    if usable.len() > EXHAUSTIVE {
        grown.truncate(BEAM);
    }
    grown.into_iter().map(|(_, _, set)| set).collect()
}

/// The `count` nodes with the most memory: where a set of that size fits at all, this one should.
fn roomiest(hosts: &[Host], usable: &[usize], count: usize) -> Vec<usize> {
    let mut set = usable.to_vec();
    set.sort_by_key(|at| std::cmp::Reverse(hosts[*at].memory));
    set.truncate(count);
    set.sort_unstable();
    set
}

impl Found {
    /// Looks at the holder with the nodes of `set`. Returns the tokens a second, where they fit.
    fn consider(&mut self, shape: &ModelShape, hosts: &[Host], set: &[usize]) -> Option<f64> {
        let way = orders(hosts, set).filter(|chain| is_joined(hosts, chain)).find_map(|chain| {
            let ranges = cuts::cut(shape, hosts, &chain)?;
            let pace = Pace::of(shape, hosts, &chain, &ranges);
            Some(Way { chain, ranges, pace })
        })?;
        let decode = way.pace.decode();
        let better = |known: Option<&Way>| known.is_none_or(|known| decode > known.pace.decode());
        if better(self.by_length.get(&way.chain.len())) {
            self.by_length.insert(way.chain.len(), way.clone());
        }
        for at in &way.chain {
            if better(self.by_host.get(at)) {
                self.by_host.insert(*at, way.clone());
            }
        }
        Some(decode)
    }

    /// The one to carry out.
    pub(super) fn chosen(&self) -> Option<&Way> {
        let mut ways = self.by_length.values();
        let shortest = ways.next()?;
        // It fits the holder alone.
        if shortest.chain.len() == 1 {
            return Some(shortest);
        }
        Some(ways.fold(
            shortest,
            |chosen, way| {
                if way.pace.decode() > chosen.pace.decode() * WORTH { way } else { chosen }
            },
        ))
    }

    /// The best of each length, shortest first.
    pub(super) fn best_by_length(&self) -> impl Iterator<Item = &Way> {
        self.by_length.values()
    }

    /// The best that the host at `at` is a part of.
    pub(super) fn best_with(&self, at: usize) -> Option<&Way> {
        self.by_host.get(&at)
    }

    pub(super) fn candidate(&self, shape: &ModelShape, hosts: &[Host], way: &Way) -> Candidate {
        candidate(shape, hosts, &way.chain, &way.ranges)
    }
}

/// The ways to visit a set, the natural one first: always on to the nearest. The others are for where that does not fit,
/// because layers or the head differ in size: all of them for a small set, else each other node as the last.
fn orders<'a>(hosts: &'a [Host], set: &'a [usize]) -> Box<dyn Iterator<Item = Vec<usize>> + 'a> {
    let natural = std::iter::once(visit(hosts, set));
    if set.len() <= PERMUTED {
        return Box::new(natural.chain(permutations(set).into_iter().map(|order| [&[0], &order[..]].concat())));
    }
    let ending_with = set.iter().map(move |end| {
        let rest: Vec<usize> = set.iter().copied().filter(|at| at != end).collect();
        let mut chain = visit(hosts, &rest);
        chain.push(*end);
        chain
    });
    Box::new(natural.chain(ending_with))
}

fn permutations(set: &[usize]) -> Vec<Vec<usize>> {
    if set.is_empty() {
        return vec![Vec::new()];
    }
    let leading_with = |first: &usize| {
        let rest: Vec<usize> = set.iter().copied().filter(|at| at != first).collect();
        permutations(&rest).into_iter().map(|order| [&[*first], &order[..]].concat()).collect::<Vec<_>>()
    };
    set.iter().flat_map(leading_with).collect()
}
