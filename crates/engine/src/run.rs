//! One run, as the stage that samples keeps it: from raw logits to its next token.
//!
//! ```text
//! raw logits ─▶ log probabilities
//!            └▶ biases ─▶ penalties ─▶ constraint ─▶ filters, draw (crate::sampling) ─▶ constraint takes it
//! ```
//!
//! All of it is a function of what the run was opened with and of its tokens, which come with the batches: nothing here
//! is lost when a run is cut back or goes on elsewhere. Start with [`Run::draw`].

mod logprobs;
mod penalties;

use kernels_ffi::SampleError;
use mesh_types::{Logprobs, Sampling, TokenId};

use crate::constraint::{Constrained, EnforceError, Enforcer, Taken};
use crate::frame::{DrawFailure, Open, SeqId};
use crate::sampling::{Draw, Drawer};
use crate::stage::StageSpec;

pub use logprobs::log_probabilities;

/// Draws at one place that may be found impossible, before the run fails.
const MAX_ATTEMPTS: u32 = 256;
/// Of these, draws that are found too long, before the way to the end is taken.
const MAX_TOO_LONG: u32 = 3;

/// A run on a slot of the last stage.
#[derive(Debug)]
pub struct Run {
    open: Open,
    /// Tokens at `prompt_len..`, as they were computed.
    generated: Vec<TokenId>,
    constraint: Result<Option<Constrained>, DrawFailure>,
    /// What was drawn last, with its position.
    drawn: Option<(u32, TokenId)>,
    /// The logits after biases, penalties and constraint; kept between draws.
    adjusted: Vec<f32>,
}

/// A drawn token.
#[derive(Clone, Debug, PartialEq)]
pub struct Drawn {
    /// Which.
    pub token: TokenId,
    /// How likely it was, where the run asks for that.
    pub logprobs: Option<Logprobs>,
}

impl Run {
    /// A checked `open` on a stage of `spec`. Without an enforcer (on stages that do not sample) nothing is constrained.
    ///
    /// A constraint that cannot be enforced fails the first draw, not the link: a command has no answer.
    pub fn new(open: Open, spec: &StageSpec, enforcer: Option<&mut Enforcer>) -> Self {
        let budget = open.max_tokens.min(spec.n_ctx.saturating_sub(open.prompt_len));
        let constraint = match (&open.constraint, enforcer) {
            (Some(constraint), Some(enforcer)) => enforcer.open(constraint, budget).map(Some),
            _ => Ok(None),
        };
        let constraint = constraint.map_err(|error| DrawFailure::Invalid(error.to_string()));
        Self { generated: open.generated.clone(), open, constraint, drawn: None, adjusted: Vec::new() }
    }

    /// What it was opened with.
    pub fn open(&self) -> &Open {
        &self.open
    }

    /// Tokens of the run from position `start` on were computed.
    pub fn computed(&mut self, start: u32, tokens: impl Iterator<Item = TokenId>) {
        for (position, token) in (start..).zip(tokens) {
            let Some(index) = position.checked_sub(self.open.prompt_len).map(|index| index as usize) else { continue };
            let len = self.generated.len();
            match self.generated.get_mut(index) {
                Some(known) => *known = token,
                None if index == len => self.generated.push(token),
                // A gap, which the draw will name.
                None => {}
            }
        }
    }

    /// Positions `len..` are forgotten.
    pub fn truncate(&mut self, len: u32) {
        self.generated.truncate(len.saturating_sub(self.open.prompt_len) as usize);
        self.drawn = self.drawn.filter(|(position, _)| *position <= len);
    }

    /// The token that was drawn for `position`, if that was the last draw and the run goes on behind it.
    pub fn drawn(&self, position: u32) -> Option<TokenId> {
        let (_, token) = self.drawn.filter(|drawn| drawn.0 == position)?;
        (!self.open.stop_tokens.contains(&token)).then_some(token)
    }

    /// Draws the token that goes to `position` from the raw `logits`, one per token of the vocabulary.
    ///
    /// # Errors
    /// [`DrawFailure`]; the run cannot go on.
    pub fn draw(&mut self, drawer: &mut Drawer, logits: &[f32], position: u32) -> Result<Drawn, DrawFailure> {
        self.drawn = None;
        let index = position.saturating_sub(self.open.prompt_len);
        let Some(history) = self.generated.get(..index as usize) else {
            return Err(DrawFailure::Internal(format!("the tokens before position {position} are not known")));
        };
        check(logits)?;
        let constraint = self.constraint.as_mut().map_err(|failure| failure.clone())?;
        let token = match (constraint, is_plain(&self.open)) {
            (None, true) => drawer.draw(logits, &self.open.sampling, Draw::from(index)).map_err(failure)?,
            (constraint, _) => {
                self.adjusted.clear();
                self.adjusted.extend_from_slice(logits);
                penalties::apply(&mut self.adjusted, &self.open, history);
                match constraint {
                    None => drawer.draw(&self.adjusted, &self.open.sampling, Draw::from(index)).map_err(failure)?,
                    Some(constraint) => {
                        constraint.follow(history).map_err(unenforceable)?;
                        let sampling = &self.open.sampling;
                        Attempts { drawer, constraint, logits: &mut self.adjusted, sampling, index }.draw()?
                    }
                }
            }
        };
        let logprobs = self.open.logprobs.map(|top| log_probabilities(logits, token, usize::from(top)));
        self.drawn = Some((position, token));
        Ok(Drawn { token, logprobs })
    }

    /// How likely `token`, which stands in the prompt, was by the raw `logits` before it.
    ///
    /// # Errors
    /// [`DrawFailure`]; the run cannot go on.
    pub fn score(&self, logits: &[f32], token: TokenId) -> Result<Logprobs, DrawFailure> {
        check(logits)?;
        Ok(log_probabilities(logits, token, usize::from(self.open.logprobs.unwrap_or(0))))
    }

    /// The slot that it was opened on.
    pub fn seq(&self) -> SeqId {
        self.open.seq
    }
}

/// That these are usable.
fn check(logits: &[f32]) -> Result<(), DrawFailure> {
    match logits.iter().any(|logit| logit.is_nan() || *logit == f32::INFINITY) {
        true => Err(DrawFailure::Internal(SampleError::NotFinite.to_string())),
        false => Ok(()),
    }
}

/// Whether the raw logits are what is drawn from.
fn is_plain(open: &Open) -> bool {
    open.logit_bias.is_empty() && !penalties::has_any(&open.sampling)
}

fn failure(error: SampleError) -> DrawFailure {
    DrawFailure::Internal(error.to_string())
}

fn unenforceable(error: EnforceError) -> DrawFailure {
    match error {
        EnforceError::History => DrawFailure::Internal(error.to_string()),
        EnforceError::Grammar(_) => DrawFailure::Invalid(error.to_string()),
    }
}

/// The draws at one place of a constrained run, until one is taken.
struct Attempts<'a> {
    drawer: &'a mut Drawer,
    constraint: &'a mut Constrained,
    logits: &'a mut [f32],
    sampling: &'a Sampling,
    index: u32,
}

impl Attempts<'_> {
    fn draw(self) -> Result<TokenId, DrawFailure> {
        let Self { drawer, constraint, logits, sampling, index } = self;
        constraint.restrict(logits).map_err(unenforceable)?;
        // Where nothing but the end is possible, that is what the run was asked for.
        let sampling = &Sampling { ignore_eos: sampling.ignore_eos && !constraint.is_over(), ..*sampling };
        let mut too_long = 0;
        for attempt in 0..MAX_ATTEMPTS {
            let drawn = match drawer.draw(logits, sampling, Draw { index, attempt }) {
                Ok(token) => Some(token),
                Err(SampleError::Empty) => None,
                Err(error) => return Err(failure(error)),
            };
            let taken = match drawn {
                Some(token) => constraint.take(token).map_err(unenforceable)?,
                None => Taken::TooLong,
            };
            match (drawn, taken) {
                (Some(token), Taken::Yes) => return Ok(token),
                (_, Taken::TooLong) => too_long += 1,
                _ => {}
            }
            if drawn.is_none() || too_long >= MAX_TOO_LONG {
                match constraint.take_way().map_err(unenforceable)? {
                    Some(token) => return Ok(token),
                    None if drawn.is_none() => break,
                    None => {}
                }
            }
            if attempt == 0 {
                constraint.restrict_all(logits).map_err(unenforceable)?;
            }
            if let Some(logit) = drawn.and_then(|token| logits.get_mut(token.0.cast_unsigned() as usize)) {
                *logit = f32::NEG_INFINITY;
            }
        }
        Err(DrawFailure::Invalid("the constraint leaves no token that the model can generate".to_owned()))
    }
}

#[cfg(test)]
mod tests;
