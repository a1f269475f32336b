//! A regular part of a grammar as an automaton whose states are the places of its characters (Glushkov's construction).

use super::GbnfError;
use super::chars::Chars;
use super::parse::{Grammar, Node, NodeId};

/// The automaton. State `i` is reached by reading one of `chars[i]`.
#[derive(Clone, Debug, Default)]
pub(super) struct Positions {
    pub(super) chars: Vec<Chars>,
    /// Where a text may go on behind each.
    pub(super) follow: Vec<Vec<u32>>,
    pub(super) first: Vec<u32>,
    /// Where a text may end.
    pub(super) last: Vec<bool>,
    pub(super) nullable: bool,
    /// What is left of the work that may be done.
    budget: usize,
}

/// The refusal of what costs more than it may.
pub(super) const TOO_MUCH: GbnfError = GbnfError::TooLarge("its parts are too many, or too alike, to be told apart");

/// How a part joins the places around it.
struct Part {
    first: Vec<u32>,
    last: Vec<u32>,
    nullable: bool,
}

impl Positions {
    /// That of `node`, which is regular. Takes what it costs off `work`.
    ///
    /// # Errors
    /// It costs more.
    pub(super) fn of(grammar: &Grammar, node: NodeId, work: &mut usize) -> Result<Self, GbnfError> {
        let mut positions = Self { budget: *work, ..Self::default() };
        let part = positions.add(grammar, node)?;
        *work = positions.budget;
        positions.last = vec![false; positions.chars.len()];
        part.last.iter().for_each(|place| positions.last[*place as usize] = true);
        for follow in &mut positions.follow {
            follow.sort_unstable();
            follow.dedup();
        }
        Ok(Self { first: part.first, nullable: part.nullable, ..positions })
    }

    /// Text may go on from each of `from` to each of `to`.
    fn link(&mut self, from: &[u32], to: &[u32]) -> Result<(), GbnfError> {
        let links = from.len().saturating_mul(to.len()).saturating_add(1);
        self.budget = self.budget.checked_sub(links).ok_or(TOO_MUCH)?;
        from.iter().for_each(|place| self.follow[*place as usize].extend(to));
        Ok(())
    }

    /// Whether some text of it is longer than a character.
    pub(super) fn has_more(&self) -> bool {
        self.follow.iter().any(|follow| !follow.is_empty())
    }

    /// The characters that a text may begin with.
    pub(super) fn begins(&self) -> Chars {
        self.of_places(&self.first)
    }

    /// The characters with which a text may go on behind `place`.
    pub(super) fn goes_on(&self, place: u32) -> Chars {
        self.of_places(&self.follow[place as usize])
    }

    fn of_places(&self, places: &[u32]) -> Chars {
        let ranges: Vec<_> = places.iter().flat_map(|place| self.chars[*place as usize].ranges()).copied().collect();
        Chars::of(&ranges)
    }

    fn add(&mut self, grammar: &Grammar, node: NodeId) -> Result<Part, GbnfError> {
        Ok(match &grammar.nodes[node] {
            Node::Chars(chars) => {
                let place = self.chars.len() as u32;
                self.chars.push(chars.clone());
                self.follow.push(Vec::new());
                Part { first: vec![place], last: vec![place], nullable: false }
            }
            Node::Sequence(parts) => {
                let nothing = Part { first: Vec::new(), last: Vec::new(), nullable: true };
                parts.iter().try_fold(nothing, |before, part| {
                    let part = self.add(grammar, *part)?;
                    self.join(before, part)
                })?
            }
            Node::Choice(parts) => {
                let mut sum = Part { first: Vec::new(), last: Vec::new(), nullable: false };
                for part in parts {
                    let part = self.add(grammar, *part)?;
                    sum.first.extend(part.first);
                    sum.last.extend(part.last);
                    sum.nullable |= part.nullable;
                }
                sum
            }
            Node::Repeat(inner, min, max) => self.repeat(grammar, *inner, *min, *max)?,
            Node::Rule(rule) => self.add(grammar, grammar.rules[*rule])?,
        })
    }

    fn join(&mut self, before: Part, after: Part) -> Result<Part, GbnfError> {
        self.link(&before.last, &after.first)?;
        let mut first = before.first;
        if before.nullable {
            first.extend(&after.first);
        }
        let mut last = after.last;
        if after.nullable {
            last.extend(&before.last);
        }
        Ok(Part { first, last, nullable: before.nullable && after.nullable })
    }

    fn repeat(&mut self, grammar: &Grammar, inner: NodeId, min: u32, max: Option<u32>) -> Result<Part, GbnfError> {
        let mut sum = Part { first: Vec::new(), last: Vec::new(), nullable: true };
        let copies = max.unwrap_or(min.max(1));
        for copy in 0..copies {
            let mut part = self.add(grammar, inner)?;
            if max.is_none() && copy + 1 == copies {
                self.link(&part.last, &part.first)?;
            }
            part.nullable |= copy >= min;
            sum = self.join(sum, part)?;
        }
        Ok(sum)
    }
}
