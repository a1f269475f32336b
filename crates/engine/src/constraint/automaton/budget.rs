//! Bringing a grammar's text to its end before the tokens run out.
//!
//! What is known of a text is bytes that complete it. While it goes on along them, or where they still complete it (as
//! within a string), they stay known; else they are searched for anew. A token behind which they are more tokens than are
//! left is not taken: so what is left always suffices, if it did at the beginning.

use mesh_types::{After, TokenId};

use super::{Constrained, Phase, Taken, trim_blank};
use crate::constraint::EnforceError;
use crate::constraint::closing::shortest;

/// Tokens by which one token may lengthen the way to the end, on average: see [`Constrained::is_due`].
const GROWTH: u32 = 16;

impl Constrained {
    /// Takes a drawn token, if it is possible.
    ///
    /// # Errors
    /// [`EnforceError::Grammar`].
    pub fn take(&mut self, token: TokenId) -> Result<Taken, EnforceError> {
        if !self.closes || !self.is_due() {
            return self.advance(token);
        }
        let before = self.keep()?;
        let taken = self.advance(token)?;
        if taken != Taken::Yes {
            return Ok(taken);
        }
        self.look_for_way()?;
        let owed = self.owed();
        let left = self.left();
        match owed {
            Some(owed) if owed <= left => {
                let slack = (left - owed).saturating_sub(self.plan.margin);
                self.next_look = self.taken.len() + (slack / (GROWTH + 1)) as usize;
                Ok(Taken::Yes)
            }
            _ => {
                self.restore(before, token)?;
                Ok(Taken::TooLong)
            }
        }
    }

    /// Takes the next token of the way to the end: for when what was drawn is too long. `None` where there is nothing to
    /// take: where the text is complete and free text may follow, which is not too long; and where no way is known, and
    /// tokens are taken from now on without a look at the budget.
    ///
    /// # Errors
    /// [`EnforceError::Grammar`].
    pub fn take_way(&mut self) -> Result<Option<TokenId>, EnforceError> {
        self.look_for_way()?;
        let next = match self.way().and_then(|way| self.plan.compiler.tokenize(&way)) {
            Some(tokens) if !tokens.is_empty() => tokens.first().copied(),
            Some(_) if !self.must_end()? => return Ok(None),
            Some(_) => self.plan.lexicon.ends().first().copied(),
            None => None,
        };
        let token = next.map(|token| TokenId(token.cast_signed()));
        if let Some(token) = token
            && self.advance(token)? == Taken::Yes
        {
            return Ok(Some(token));
        }
        self.closes = false;
        Ok(None)
    }

    /// Whether the text is complete, and nothing but more of the grammar's may follow.
    fn must_end(&mut self) -> Result<bool, EnforceError> {
        let is_shut = match (&self.phase, self.plan.after) {
            (Phase::Grammar(_), After::Free) => false,
            (Phase::Grammar(_), After::Repeat) => self.plan.immediately,
            (Phase::Grammar(_), After::End) | (Phase::Gap { .. } | Phase::Over, _) => true,
            _ => false,
        };
        Ok(is_shut && self.may_end()?)
    }

    /// Whether the shortest text fits at all, and with it the token that ends the generation.
    pub(super) fn settle_budget(&mut self) {
        (self.closes, self.next_look) = (self.plan.close_in_time, 0);
        self.reserve = u32::from(self.plan.immediately && self.plan.after == After::End);
        if self.closes {
            let owed = self.owed();
            self.reserve = self.reserve.min(self.plan.budget.saturating_sub(owed.unwrap_or(0)));
            self.closes = owed.is_some_and(|owed| owed <= self.plan.budget);
        }
    }

    /// Whether the way to the end has to be looked at with the next token.
    ///
    /// Far from the end of the budget it is not: a token is assumed to lengthen the way by [`GROWTH`] tokens at most, and
    /// all of them together by what the grammar spells out.
    fn is_due(&self) -> bool {
        self.taken.len() >= self.next_look
    }

    /// Tokens left for the grammar's text.
    fn left(&self) -> u32 {
        let taken = u32::try_from(self.taken.len()).unwrap_or(u32::MAX);
        self.plan.budget.saturating_sub(taken).saturating_sub(self.reserve)
    }

    #[cfg(test)]
    pub(in crate::constraint) fn way_for_tests(&mut self) -> Option<Vec<u8>> {
        self.look_for_way().expect("a grammar that can be searched");
        self.way()
    }

    /// Tokens that are needed until the grammar's text is complete; `None` where that is not known.
    pub(in crate::constraint) fn owed(&self) -> Option<u32> {
        self.way().and_then(|way| self.plan.compiler.tokenize(&way)).and_then(|tokens| u32::try_from(tokens.len()).ok())
    }

    pub(super) fn fits(&self, way: Option<&[u8]>, more: u32) -> bool {
        let owed = way.and_then(|way| self.plan.compiler.tokenize(way));
        owed.is_some_and(|owed| owed.len() as u64 + u64::from(more) <= u64::from(self.left()))
    }

    /// Bytes until the grammar's text is complete.
    fn way(&self) -> Option<Vec<u8>> {
        let start = || self.primed.as_ref().and_then(|primed| primed.ways.first().cloned().flatten());
        match (&self.phase, &self.plan.thinking) {
            (Phase::Grammar(text), _) => text.way.clone(),
            (Phase::Gap { may_end: false, .. }, _) => start(),
            (Phase::Opening(seen), Some(thinking)) if self.plan.immediately => {
                let seen = trim_blank(seen);
                let opens = thinking.open.as_bytes().strip_prefix(seen).filter(|_| !seen.is_empty());
                Some(
                    [opens.map(|rest| [rest, thinking.close.as_bytes()].concat()).unwrap_or_default(), start()?]
                        .concat(),
                )
            }
            (Phase::Thinking(tail), Some(thinking)) if self.plan.immediately => {
                let close = thinking.close.as_bytes();
                let begun = (0..close.len()).rev().find(|len| tail.ends_with(&close[..*len])).unwrap_or(0);
                Some([&close[begun..], &start()?].concat())
            }
            _ => Some(Vec::new()),
        }
    }

    /// Makes the way known, where the text has gone another one.
    fn look_for_way(&mut self) -> Result<(), EnforceError> {
        match &mut self.phase {
            Phase::Grammar(text) if text.way.is_none() => {
                text.way = shortest(&mut text.grammar)?;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// What [`Self::restore`] needs. A text that is only going to grow is not copied.
    fn keep(&mut self) -> Result<Kept, EnforceError> {
        let may_leave = self.plan.after != After::End && self.may_end()?;
        match &self.phase {
            Phase::Grammar(text) if text.grammar.can_go_back() && !may_leave => Ok(Kept::Way(text.way.clone())),
            phase => Ok(Kept::Phase(phase.clone())),
        }
    }

    /// Undoes the last [`Self::advance`], which took `token`.
    fn restore(&mut self, kept: Kept, token: TokenId) -> Result<(), EnforceError> {
        self.taken.pop();
        let len = self.plan.text(token).map_or(0, <[u8]>::len);
        match (kept, &mut self.phase) {
            (Kept::Phase(phase), _) => self.phase = phase,
            (Kept::Way(way), Phase::Grammar(text)) => {
                text.grammar.pop(len)?;
                text.way = way;
            }
            // What is complete owes nothing, and is never taken back.
            (Kept::Way(_), _) => return Err(EnforceError::Grammar("its end cannot be taken back".to_owned())),
        }
        Ok(())
    }
}

/// A phase to go back to: a copy, or where it is a text that grows, the way that was known.
enum Kept {
    Phase(Phase),
    Way(Option<Vec<u8>>),
}
