//! The phases of a constrained run: thinking, free text, grammar, and what follows.
//!
//! ```text
//!            ┌▶ Thinking ─┬────────────────▶ Prose ─▶ Grammar ─▶ Prose | Free | Over     (Start::AtMarker)
//! Opening ───┤            └▶ Gap ─▶ Grammar ─▶ Gap | Free | Over                         (Start::Immediately)
//!            └▶ Prose, or the grammar, at once
//! ```
//!
//! Where nearly all tokens are possible (free text), a token is checked when it is drawn, and only if it is not possible
//! all others are ([`Constrained::restrict_all`]); in a grammar the mask comes first ([`Constrained::restrict`]).

mod budget;
mod masks;
mod plan;

use std::sync::Arc;

use mesh_types::{After, TokenId};

use super::EnforceError;
use super::grammar::Grammar;
pub(super) use plan::{Plan, Primed};

/// White space that may stand before an answer, in bytes.
const MAX_GAP: usize = 16;

/// Where a run is.
#[derive(Clone)]
enum Phase {
    /// Whether the run thinks is open: what it generated is white space and a beginning of what opens thinking.
    Opening(Vec<u8>),
    /// The last bytes, of which what closes it may be made.
    Thinking(Vec<u8>),
    /// Up to `room` bytes of white space, and the grammar; or the end, if `may_end`.
    Gap { room: usize, may_end: bool },
    /// The last bytes, of which a marker may be made.
    Prose(Vec<u8>),
    /// The grammar's text.
    Grammar(Box<Text>),
    /// As `Prose`, but markers have no meaning any more.
    Free(Vec<u8>),
    /// Nothing but the end.
    Over,
}

/// A grammar's text under way.
#[derive(Clone)]
struct Text {
    grammar: Grammar,
    /// Bytes that complete it; `None` where they are not known.
    way: Option<Vec<u8>>,
}

/// What came of a drawn token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It was taken.
    Yes,
    /// It is not possible; nothing was changed.
    Impossible,
    /// Behind it the grammar's text could not be completed any more with the tokens that are left; nothing was changed.
    TooLong,
}

/// The state of one run under its constraint. See the module's documentation.
pub struct Constrained {
    plan: Arc<Plan>,
    primed: Option<Primed>,
    phase: Phase,
    taken: Vec<TokenId>,
    /// Tokens kept for the end of the generation itself.
    reserve: u32,
    /// Whether the grammar's text can still be completed within the budget.
    closes: bool,
    /// The way to the end is looked at again when so many tokens are taken.
    next_look: usize,
}

impl std::fmt::Debug for Constrained {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Constrained").field("phase", &self.phase.name()).field("taken", &self.taken.len()).finish()
    }
}

impl Phase {
    fn name(&self) -> &'static str {
        match self {
            Self::Opening(_) => "opening",
            Self::Thinking(_) => "thinking",
            Self::Gap { .. } => "gap",
            Self::Prose(_) => "prose",
            Self::Grammar(_) => "grammar",
            Self::Free(_) => "free",
            Self::Over => "over",
        }
    }
}

impl Constrained {
    pub(super) fn new(plan: Arc<Plan>, primed: Option<Primed>) -> Self {
        let phase = plan.start();
        let mut new = Self { plan, primed, phase, taken: Vec::new(), reserve: 0, closes: false, next_look: 0 };
        new.settle_budget();
        new
    }

    /// Forgets all tokens.
    fn restart(&mut self) {
        self.phase = self.plan.start();
        self.taken.clear();
        self.settle_budget();
    }

    /// Brings the state to where exactly `generated` has been generated.
    ///
    /// # Errors
    /// [`EnforceError`]: that is not possible.
    pub fn follow(&mut self, generated: &[TokenId]) -> Result<(), EnforceError> {
        let same = self.taken.iter().zip(generated).take_while(|(a, b)| a == b).count();
        if same < self.taken.len() {
            self.restart();
        }
        for token in &generated[self.taken.len()..] {
            // What was drawn elsewhere was drawn by the same rules, or under no budget at all.
            if self.advance(*token)? != Taken::Yes {
                return Err(EnforceError::History);
            }
        }
        Ok(())
    }

    /// Whether nothing but the end may follow.
    pub fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Over)
    }

    /// Takes a token without a look at the budget.
    fn advance(&mut self, token: TokenId) -> Result<Taken, EnforceError> {
        let plan = Arc::clone(&self.plan);
        let next = match plan.text(token) {
            Some(text) => self.step_here(text)?,
            None if plan.is_end(token) => self.may_end()?.then_some(Phase::Over),
            // What steers the model stands for no text, and breaks every text that had begun.
            None => match &self.phase {
                Phase::Prose(_) => Some(Phase::Prose(Vec::new())),
                Phase::Free(_) => Some(Phase::Free(Vec::new())),
                Phase::Thinking(_) => Some(Phase::Thinking(Vec::new())),
                Phase::Opening(_) if !plan.immediately => Some(Phase::Prose(Vec::new())),
                _ => None,
            },
        };
        let Some(next) = next else { return Ok(Taken::Impossible) };
        self.phase = next;
        self.taken.push(token);
        Ok(Taken::Yes)
    }

    fn may_end(&mut self) -> Result<bool, EnforceError> {
        match &mut self.phase {
            Phase::Grammar(text) => text.grammar.may_end(),
            Phase::Gap { may_end, .. } => Ok(*may_end),
            Phase::Over => Ok(true),
            _ => Ok(!self.plan.immediately || matches!(self.phase, Phase::Free(_))),
        }
    }

    /// The phase behind `bytes`; in a grammar's text, changes it.
    fn step_here(&mut self, bytes: &[u8]) -> Result<Option<Phase>, EnforceError> {
        let phase = std::mem::replace(&mut self.phase, Phase::Over);
        let Phase::Grammar(mut text) = phase else {
            let next = self.step(phase.clone(), bytes);
            self.phase = phase;
            return next;
        };
        if text.push(bytes)? {
            if text.grammar.is_over()? {
                return Ok(Some(self.behind_text()));
            }
            return Ok(Some(Phase::Grammar(text)));
        }
        let may_leave = self.plan.after != After::End && text.grammar.may_end()?;
        let next = if may_leave { self.step(self.behind_text(), bytes)? } else { None };
        if next.is_none() {
            self.phase = Phase::Grammar(text);
        }
        Ok(next)
    }

    fn behind_text(&self) -> Phase {
        match self.plan.after {
            After::End => Phase::Over,
            After::Free => Phase::Free(Vec::new()),
            After::Repeat if self.plan.immediately => Phase::Gap { room: MAX_GAP, may_end: true },
            After::Repeat => Phase::Prose(Vec::new()),
        }
    }

    /// The phase behind `bytes` of free text; `None` where they are not possible.
    fn step(&mut self, phase: Phase, bytes: &[u8]) -> Result<Option<Phase>, EnforceError> {
        let plan = Arc::clone(&self.plan);
        match phase {
            Phase::Opening(seen) => self.step_opening(&seen, bytes),
            Phase::Thinking(tail) => {
                let Some(thinking) = &plan.thinking else { return Ok(None) };
                let (all, close) = ([&tail, bytes].concat(), thinking.close.as_bytes());
                match all.windows(close.len()).position(|window| window == close) {
                    Some(at) => self.step(plan.behind_thinking(), &all[at + close.len()..]),
                    None => {
                        let keep = all.len().saturating_sub(close.len() - 1);
                        Ok(Some(Phase::Thinking(all[keep..].to_vec())))
                    }
                }
            }
            Phase::Gap { room, may_end } => {
                let text = trim_blank(bytes);
                let left = room.checked_sub(bytes.len() - text.len());
                if text.is_empty() {
                    return Ok(left.map(|room| Phase::Gap { room, may_end }));
                }
                // The grammar may begin with blanks itself.
                match self.begin(0, bytes)? {
                    Some(next) => Ok(Some(next)),
                    None if left.is_some() && text.len() < bytes.len() => self.begin(0, text),
                    None => Ok(None),
                }
            }
            Phase::Prose(tail) => match Plan::find(plan.prose.as_ref(), &tail, bytes) {
                None => Ok(Some(Phase::Prose(plan.tail(&tail, bytes)))),
                Some((which, _)) if which >= plan.n_markers => Ok(None),
                Some((which, rest)) => self.begin(which, &bytes[bytes.len() - rest..]),
            },
            Phase::Free(tail) => match Plan::find(plan.forbidden.as_ref(), &tail, bytes) {
                None => Ok(Some(Phase::Free(plan.tail(&tail, bytes)))),
                Some(_) => Ok(None),
            },
            Phase::Grammar(_) | Phase::Over => Ok(None),
        }
    }

    fn step_opening(&mut self, seen: &[u8], bytes: &[u8]) -> Result<Option<Phase>, EnforceError> {
        let plan = Arc::clone(&self.plan);
        let Some(thinking) = &plan.thinking else { return Ok(None) };
        let all = [seen, bytes].concat();
        let (begun, open) = (trim_blank(&all), trim_blank(thinking.open.as_bytes()));
        if let Some(thought) = begun.strip_prefix(open) {
            return self.step(Phase::Thinking(Vec::new()), thought);
        }
        if open.starts_with(begun) && all.len() - begun.len() <= MAX_GAP {
            return Ok(Some(Phase::Opening(all)));
        }
        self.step(plan.behind_thinking(), &all)
    }

    /// Begins the grammar's text behind start `which`, with these bytes of it.
    fn begin(&mut self, which: usize, bytes: &[u8]) -> Result<Option<Phase>, EnforceError> {
        let Some(primed) = &mut self.primed else { return Ok(None) };
        if !primed.starts[which].accepts(bytes)? {
            return Ok(None);
        }
        let mut text = primed.text(which);
        text.push(bytes)?;
        match text.grammar.is_over()? {
            true => Ok(Some(self.behind_text())),
            false => Ok(Some(Phase::Grammar(text))),
        }
    }
}

impl Text {
    /// Goes on with `bytes`, if that is possible; else nothing is changed. The way to the end stays known where it can.
    fn push(&mut self, bytes: &[u8]) -> Result<bool, EnforceError> {
        if !self.grammar.push(bytes)? {
            return Ok(false);
        }
        if let Some(way) = self.way.take() {
            self.way = match way.strip_prefix(bytes) {
                Some(rest) => Some(rest.to_vec()),
                // Within a string, say, the same bytes complete the text as before.
                None => self.grammar.ends_behind(&way)?.then_some(way),
            };
        }
        Ok(true)
    }
}

/// Without the white space at its beginning.
fn trim_blank(text: &[u8]) -> &[u8] {
    let blank = text.iter().take_while(|byte| is_blank(**byte)).count();
    &text[blank..]
}

/// White space, as JSON has it.
pub(super) fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}
