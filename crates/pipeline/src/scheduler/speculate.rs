//! How many drafts ride with a token.
//!
//! A draft is worth its computation where it is likelier to come true than the time it takes is to bring tokens
//! otherwise. With *n* tokens in a micro-batch that takes `fixed + n * per_token`, of which *e* are expected to become
//! text, one more is worth it if its probability is above `per_token * e / (fixed + n * per_token)`. Over a long way
//! between stages `fixed` is large, and long drafts pay; where many sequences fill the machines, none may.

use mesh_engine::MAX_EXTRA_ROWS;
use mesh_types::TokenId;

use super::Scheduler;
use super::drafting::DraftCost;
use super::run::Run;

/// What a micro-batch of decoding sequences takes, in one unit or another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepCost {
    /// However many tokens it has.
    pub fixed: f64,
    /// For each token.
    pub per_token: f64,
}

impl Default for StepCost {
    /// Before anything was measured.
    fn default() -> Self {
        Self { fixed: 1.0, per_token: 1.0 }
    }
}

/// Most drafts of one run in a micro-batch.
pub(super) const LONGEST: u32 = 16;
/// Most tokens that a run is told of at a time.
pub(crate) const MAX_TOKENS: u32 = LONGEST + 1;
/// How much likelier than just worth it: what is known of likelihoods and costs is not exact.
const MARGIN: f64 = 1.15;

/// A micro-batch that is being formed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    /// Its tokens, and those that are sure to be added.
    tokens: u32,
    /// How many of them are expected to become text.
    expected: f64,
    /// More drafts that it may have.
    drafts: u32,
}

impl Scheduler {
    /// For a micro-batch of `share` sequences, which has room for `n_batch` tokens.
    pub(super) fn room_for_drafts(&self, share: usize) -> Room {
        let share = u32::try_from(share).unwrap_or(u32::MAX);
        let drafts = if self.limits.rolls_back { MAX_EXTRA_ROWS } else { 0 };
        Room {
            tokens: share,
            expected: f64::from(share),
            drafts: drafts.min(self.limits.n_batch.saturating_sub(share)),
        }
    }

    /// The drafts that ride with `run`'s next token: those of the second model, else what its text says.
    pub(super) fn drafts(&self, run: &Run, room: &mut Room) -> Vec<TokenId> {
        let Some(lookup) = &run.lookup else { return Vec::new() };
        let most = room.drafts.min(self.most_drafts(run));
        let trust = |index: u32| match run.guesses.is_empty() {
            true => Some(lookup.trust(index as usize)),
            false => run.guesses.trust(index as usize),
        };
        let mut likely = 1.0;
        let mut count = 0;
        while count < most
            && let Some(trust) = trust(count)
        {
            likely *= trust;
            if !run.guesses.on_trial() && !self.is_worth_computing(likely, room) {
                break;
            }
            (room.tokens, room.expected, count) = (room.tokens + 1, room.expected + likely, count + 1);
        }
        let drafts = match run.guesses.is_empty() {
            true => lookup.drafts(count as usize),
            false => run.guesses.drafts(count as usize),
        };
        room.drafts -= drafts.len() as u32; // at most `count`
        drafts
    }

    fn is_worth_computing(&self, likely: f64, room: &Room) -> bool {
        let StepCost { fixed, per_token } = self.cost;
        let pace = room.expected / (fixed + per_token * f64::from(room.tokens));
        likely >= MARGIN * per_token * pace
    }

    /// Whether asking the second model what follows `run`'s next token is likely to bring more than it takes. Not beside a
    /// chunk of somebody's prompt, nor while there is an answer that was not used, nor where the text itself says more.
    pub(super) fn is_worth_asking(&self, run: &Run) -> bool {
        let promise = run.guesses.promise();
        let says_more = run.lookup.as_ref().is_some_and(|lookup| lookup.expects() && lookup.trust(0) >= promise);
        let most = self.most_drafts(run);
        if most == 0 || says_more || !run.guesses.is_empty() || !self.prefill.is_empty() {
            return false;
        }
        let Some(DraftCost { first, next }) = self.draft_cost else { return true };
        let StepCost { fixed, per_token } = self.cost;
        let share = self.decoding().div_ceil(self.limits.depth).max(1) as f64;
        let (mut seconds, mut tokens, mut likely) = (fixed + per_token * share, share, 1.0);
        let without = tokens / seconds;
        (0..most).any(|index| {
            likely *= promise;
            seconds += per_token + if index == 0 { first } else { next };
            tokens += likely;
            tokens / seconds > MARGIN * without
        })
    }

    /// Whether one more token of the second model, behind those that it gave for `run`, is.
    pub(super) fn is_worth_going_on(&self, run: &Run) -> bool {
        let StepCost { fixed, per_token } = self.cost;
        let Some(DraftCost { first, next }) = self.draft_cost.filter(|_| !run.guesses.on_trial()) else { return true };
        let share = self.decoding().div_ceil(self.limits.depth).max(1) as f64;
        let (mut seconds, mut tokens, mut likely) = (fixed + per_token * share + first - next, share, 1.0);
        for trust in (0..).map_while(|index| run.guesses.trust(index)) {
            likely *= trust;
            (seconds, tokens) = (seconds + per_token + next, tokens + likely);
        }
        likely * run.guesses.promise() >= MARGIN * (per_token + next) * tokens / seconds
    }
}
