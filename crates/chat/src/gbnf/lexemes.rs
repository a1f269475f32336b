//! Which parts of a grammar are lexemes: as large as they can be without losing a text.

use std::collections::{BTreeMap, BTreeSet};

use super::GbnfError;
use super::chars::Chars;
use super::parse::{Grammar, Node, NodeId};
use super::positions::{Positions, TOO_MUCH};

/// Most places of one lexeme, and rules within rules that it takes in.
const MAX_PLACES: u64 = 2048;
const MAX_DEPTH: u32 = 200;
/// Most pairs of places that are compared, and parts that are looked at, in all: a fraction of a second.
const MAX_WORK: usize = 2 << 20;

/// The same grammar, with neighbours that can be a lexeme together in a part of their own.
pub(super) fn grouped(mut grammar: Grammar) -> Grammar {
    let sizes = Sizes::of(&grammar);
    for node in 0..grammar.nodes.len() {
        let Node::Sequence(parts) = &grammar.nodes[node] else { continue };
        if sizes.0[node].is_some() {
            continue;
        }
        let mut runs: Vec<(Vec<NodeId>, u64)> = Vec::new();
        for part in parts {
            match (runs.last_mut(), sizes.0[*part]) {
                // A run that cannot be gone on with has the largest size.
                (Some((run, places)), Some(more)) if places.saturating_add(more) <= MAX_PLACES => {
                    run.push(*part);
                    *places += more;
                }
                (_, size) => runs.push((vec![*part], size.unwrap_or(u64::MAX))),
            }
        }
        let mut parts = Vec::with_capacity(runs.len());
        for (run, _) in runs {
            parts.push(match run.as_slice() {
                [only] => *only,
                _ => {
                    grammar.nodes.push(Node::Sequence(run));
                    grammar.nodes.len() - 1
                }
            });
        }
        grammar.nodes[node] = Node::Sequence(parts);
    }
    grammar
}

/// The lexemes of a grammar.
#[derive(Debug)]
pub(super) struct Lexemes {
    pub(super) nodes: BTreeMap<NodeId, Positions>,
}

impl Lexemes {
    /// Cuts `grammar`: begins with the largest parts, and opens those that lose a text.
    pub(super) fn of(grammar: &Grammar) -> Result<Self, GbnfError> {
        let sizes = Sizes::of(grammar);
        let (mut opened, mut work) = (BTreeSet::new(), MAX_WORK);
        loop {
            let lexemes = Self::outermost(grammar, &sizes, &opened, &mut work)?;
            let clashing = lexemes.clashing(grammar, &mut work)?;
            // A single character cannot be opened, and need not be: it never goes on.
            let before = opened.len();
            opened.extend(clashing.into_iter().filter(|node| !matches!(grammar.nodes[*node], Node::Chars(_))));
            if opened.len() == before {
                return Ok(lexemes);
            }
        }
    }

    /// The regular parts that are in no other one, `opened` ones apart.
    fn outermost(
        grammar: &Grammar,
        sizes: &Sizes,
        opened: &BTreeSet<NodeId>,
        work: &mut usize,
    ) -> Result<Self, GbnfError> {
        let mut nodes = BTreeMap::new();
        let (mut waiting, mut seen) = (vec![grammar.rules[0]], BTreeSet::new());
        while let Some(node) = waiting.pop() {
            if !seen.insert(node) {
                continue;
            }
            if !opened.contains(&node) && sizes.is_lexeme(grammar, node) {
                nodes.insert(node, Positions::of(grammar, node, work)?);
                continue;
            }
            match &grammar.nodes[node] {
                // Always a lexeme, and never opened.
                Node::Chars(_) => {}
                Node::Sequence(parts) | Node::Choice(parts) => waiting.extend(parts),
                Node::Repeat(inner, ..) => waiting.push(*inner),
                Node::Rule(rule) => waiting.push(grammar.rules[*rule]),
            }
        }
        Ok(Self { nodes })
    }

    /// Lexemes of which the longest is not always right.
    fn clashing(&self, grammar: &Grammar, work: &mut usize) -> Result<BTreeSet<NodeId>, GbnfError> {
        let after = follows(grammar, self, work)?;
        let mut clashing = BTreeSet::new();
        for (one, short) in &self.nodes {
            for (other, long) in &self.nodes {
                let is_known = clashing.contains(one) && clashing.contains(other);
                if long.has_more() && !is_known && loses(short, &after[one], long, work)? {
                    clashing.extend([*one, *other]);
                }
            }
        }
        Ok(clashing)
    }
}

/// Whether a complete text of `short` may be gone on with in `long` by a character whose first byte may also come `after`
/// it: lexemes are found byte by byte.
fn loses(short: &Positions, after: &Chars, long: &Positions, work: &mut usize) -> Result<bool, GbnfError> {
    let width = long.chars.len();
    let mut seen = vec![false; short.chars.len() * width];
    let mut waiting: Vec<(u32, u32)> = Vec::new();
    let mut reach = |from: &[u32], to: &[u32], waiting: &mut Vec<(u32, u32)>| {
        for one in from {
            for other in to {
                *work = work.checked_sub(1).ok_or(TOO_MUCH)?;
                let place = *one as usize * width + *other as usize;
                if !seen[place] && short.chars[*one as usize].meets(&long.chars[*other as usize]) {
                    seen[place] = true;
                    waiting.push((*one, *other));
                }
            }
        }
        Ok::<(), GbnfError>(())
    };
    reach(&short.first, &long.first, &mut waiting)?;
    while let Some((one, other)) = waiting.pop() {
        if short.last[one as usize] && long.goes_on(other).begins_like(after) {
            return Ok(true);
        }
        reach(&short.follow[one as usize], &long.follow[other as usize], &mut waiting)?;
    }
    Ok(false)
}

/// The characters that may come behind each lexeme.
fn follows(grammar: &Grammar, lexemes: &Lexemes, work: &mut usize) -> Result<BTreeMap<NodeId, Chars>, GbnfError> {
    let (first, nullable) = firsts(grammar, lexemes, work)?;
    let mut follow = vec![Chars::default(); grammar.nodes.len()];
    let mut changed = true;
    while changed {
        changed = false;
        *work = work.checked_sub(grammar.nodes.len()).ok_or(TOO_MUCH)?;
        for node in (0..grammar.nodes.len()).rev() {
            if lexemes.nodes.contains_key(&node) {
                continue;
            }
            let behind = follow[node].clone();
            match &grammar.nodes[node] {
                Node::Chars(_) => {}
                Node::Sequence(parts) => {
                    let mut behind = behind;
                    for part in parts.iter().rev() {
                        changed |= follow[*part].add(&behind);
                        if !nullable[*part] {
                            behind = Chars::default();
                        }
                        behind.add(&first[*part]);
                    }
                }
                Node::Choice(parts) => parts.iter().for_each(|part| changed |= follow[*part].add(&behind)),
                Node::Repeat(inner, _, max) => {
                    changed |= follow[*inner].add(&behind);
                    if *max != Some(1) {
                        changed |= follow[*inner].add(&first[*inner]);
                    }
                }
                Node::Rule(rule) => changed |= follow[grammar.rules[*rule]].add(&behind),
            }
        }
    }
    Ok(lexemes.nodes.keys().map(|node| (*node, follow[*node].clone())).collect())
}

/// With which characters each part may begin, and whether it may be nothing.
fn firsts(grammar: &Grammar, lexemes: &Lexemes, work: &mut usize) -> Result<(Vec<Chars>, Vec<bool>), GbnfError> {
    let count = grammar.nodes.len();
    let (mut first, mut nullable) = (vec![Chars::default(); count], vec![false; count]);
    for (node, positions) in &lexemes.nodes {
        (first[*node], nullable[*node]) = (positions.begins(), positions.nullable);
    }
    let mut changed = true;
    while changed {
        changed = false;
        *work = work.checked_sub(count).ok_or(TOO_MUCH)?;
        for node in 0..count {
            if lexemes.nodes.contains_key(&node) {
                continue;
            }
            let (parts, all, empty): (&[NodeId], bool, bool) = match &grammar.nodes[node] {
                Node::Chars(_) => continue,
                Node::Sequence(parts) => (parts, true, false),
                Node::Choice(parts) => (parts, false, false),
                Node::Repeat(inner, min, _) => (std::slice::from_ref(inner), true, *min == 0),
                Node::Rule(rule) => (std::slice::from_ref(&grammar.rules[*rule]), true, false),
            };
            let mut sum = first[node].clone();
            for part in parts {
                changed |= sum.add(&first[*part]);
                if all && !nullable[*part] {
                    break;
                }
            }
            first[node] = sum;
            let is_nullable =
                empty || if all { parts.iter().all(|p| nullable[*p]) } else { parts.iter().any(|p| nullable[*p]) };
            changed |= is_nullable && !nullable[node];
            nullable[node] |= is_nullable;
        }
    }
    Ok((first, nullable))
}

/// How many places each part has with all rules taken in; beyond the limits, and for what contains itself, none.
struct Sizes(Vec<Option<u64>>);

impl Sizes {
    fn of(grammar: &Grammar) -> Self {
        let mut sizes: Vec<Option<(u64, u32)>> = vec![None; grammar.nodes.len()];
        // What contains itself never gets a size. Every round settles one more level of rules.
        for _ in 0..MAX_DEPTH {
            let mut changed = false;
            for node in 0..grammar.nodes.len() {
                if sizes[node].is_none() {
                    sizes[node] = size(grammar, &sizes, node).filter(|(places, _)| *places <= MAX_PLACES);
                    changed |= sizes[node].is_some();
                }
            }
            if !changed {
                break;
            }
        }
        Self(sizes.into_iter().map(|size| size.map(|(places, _)| places)).collect())
    }

    fn is_lexeme(&self, grammar: &Grammar, node: NodeId) -> bool {
        // Nothing is no lexeme, and what rules share is one lexeme: the rule's body.
        self.0[node].is_some_and(|places| places > 0) && !matches!(grammar.nodes[node], Node::Rule(_))
    }
}

/// Places and levels of a node, where those of its parts are known.
fn size(grammar: &Grammar, sizes: &[Option<(u64, u32)>], node: NodeId) -> Option<(u64, u32)> {
    match &grammar.nodes[node] {
        Node::Chars(_) => Some((1, 0)),
        Node::Sequence(parts) | Node::Choice(parts) => parts.iter().try_fold((0u64, 0), |(places, depth), part| {
            let (more, deep) = sizes[*part]?;
            Some((places.saturating_add(more), depth.max(deep + 1)))
        }),
        Node::Repeat(inner, min, max) => {
            let (places, depth) = sizes[*inner]?;
            Some((places.saturating_mul(u64::from(max.unwrap_or((*min).max(1)))), depth + 1))
        }
        Node::Rule(rule) => sizes[grammar.rules[*rule]].map(|(places, depth)| (places, depth + 1)),
    }
    .filter(|(_, depth)| *depth < 4 * MAX_DEPTH)
}
