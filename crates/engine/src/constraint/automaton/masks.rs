//! Which tokens may come next, over the whole vocabulary.

use std::sync::Arc;

use llguidance::toktrie::SimpleVob;
use mesh_types::TokenId;

use super::{Constrained, MAX_GAP, Phase, trim_blank};
use crate::constraint::EnforceError;
use crate::constraint::lexicon::Piece;

impl Constrained {
    /// Sets the logits of tokens that cannot come next to minus infinity, as far as it is cheap to know: what is left is
    /// to be given to [`Self::take`].
    ///
    /// # Errors
    /// [`EnforceError::Grammar`].
    pub fn restrict(&mut self, logits: &mut [f32]) -> Result<(), EnforceError> {
        match &self.phase {
            Phase::Prose(_) | Phase::Free(_) => Ok(()),
            Phase::Thinking(_) | Phase::Opening(_) if !self.plan.immediately => Ok(()),
            Phase::Thinking(_) => {
                self.plan.lexicon.ends().iter().for_each(|end| exclude(logits, *end));
                Ok(())
            }
            _ => self.restrict_all(logits),
        }
    }

    /// Sets the logits of all tokens that cannot come next to minus infinity.
    ///
    /// # Errors
    /// [`EnforceError::Grammar`].
    pub fn restrict_all(&mut self, logits: &mut [f32]) -> Result<(), EnforceError> {
        let plan = Arc::clone(&self.plan);
        let mut allowed = vec![false; logits.len()];
        let mut may_end = self.may_end()?;
        if let Phase::Grammar(text) = &mut self.phase {
            let (mask, complete) = text.grammar.mask()?;
            allow_mask(&mut allowed, &mask);
            may_end = complete;
        }
        match self.phase.neighbour(may_end, || self.behind_text()) {
            Phase::Over | Phase::Grammar(_) => {}
            Phase::Gap { room, .. } => {
                self.allow_start(&[], &mut allowed)?;
                let blanks = plan
                    .lexicon
                    .blanks()
                    .iter()
                    .filter(|blank| plan.text(TokenId(blank.cast_signed())).is_some_and(|text| text.len() <= room));
                blanks.for_each(|blank| allow(&mut allowed, *blank));
            }
            Phase::Opening(seen) if plan.immediately => {
                self.allow_start(&seen, &mut allowed)?;
                self.allow_opening(&seen, &mut allowed);
            }
            phase => self.allow_each(&phase, &mut allowed)?,
        }
        plan.lexicon.ends().iter().for_each(|end| {
            if let Some(allowed) = allowed.get_mut(*end as usize) {
                *allowed = may_end;
            }
        });
        for (logit, allowed) in logits.iter_mut().zip(allowed) {
            if !allowed {
                *logit = f32::NEG_INFINITY;
            }
        }
        Ok(())
    }

    /// Allows what the grammar can begin with behind `seen`.
    fn allow_start(&mut self, seen: &[u8], allowed: &mut [bool]) -> Result<(), EnforceError> {
        let Some(primed) = &self.primed else { return Ok(()) };
        for seen in [seen, trim_blank(seen)] {
            let mut start = primed.starts[0].clone();
            if start.push(seen)? {
                allow_mask(allowed, &start.mask()?.0);
                break;
            }
        }
        Ok(())
    }

    /// Allows what goes on to open thinking behind `seen`.
    fn allow_opening(&self, seen: &[u8], allowed: &mut [bool]) {
        let Some(thinking) = &self.plan.thinking else { return };
        let open = trim_blank(thinking.open.as_bytes());
        for (token, allowed) in (0u32..).zip(allowed) {
            let Some(text) = self.plan.compiler.text(&self.plan.lexicon, token) else { continue };
            let all = [seen, text].concat();
            let begun = trim_blank(&all);
            let is_blank = begun.is_empty() && all.len() <= MAX_GAP;
            let opens = !begun.is_empty() && (open.starts_with(begun) || begun.starts_with(open));
            *allowed |= is_blank || opens;
        }
    }

    /// Allows every token that is possible in `phase`, which is free text; without a look at the budget, but for what
    /// begins a grammar.
    fn allow_each(&mut self, phase: &Phase, allowed: &mut [bool]) -> Result<(), EnforceError> {
        let plan = Arc::clone(&self.plan);
        for (token, allowed) in (0u32..).zip(allowed) {
            *allowed |= match plan.compiler.text(&plan.lexicon, token) {
                Some(text) => match self.step(phase.clone(), text)? {
                    Some(Phase::Grammar(text)) => !self.closes || self.fits(text.way.as_deref(), 1),
                    next => next.is_some(),
                },
                None => !matches!(plan.lexicon.piece(token), Piece::End),
            };
        }
        Ok(())
    }
}

impl Phase {
    /// The phase whose tokens are possible beside those of a grammar's text: this one, or what is behind the text where
    /// that may be left.
    fn neighbour(&self, may_leave: bool, behind: impl FnOnce() -> Self) -> Self {
        match self {
            Self::Grammar(_) if may_leave => behind(),
            Self::Grammar(_) => Self::Over,
            phase => phase.clone(),
        }
    }
}

fn allow(allowed: &mut [bool], token: u32) {
    if let Some(allowed) = allowed.get_mut(token as usize) {
        *allowed = true;
    }
}

fn allow_mask(allowed: &mut [bool], mask: &SimpleVob) {
    let tokens = allowed.len();
    mask.iter_set_entries(|token| {
        if token < tokens {
            allowed[token] = true;
        }
    });
}

fn exclude(logits: &mut [f32], token: u32) {
    if let Some(logit) = logits.get_mut(token as usize) {
        *logit = f32::NEG_INFINITY;
    }
}
