//! How many drafts ride with a token.
//!
//! A draft is worth its computation where it is likelier to come true than the time it takes is to bring tokens
//! otherwise. With *n* tokens in a micro-batch that takes `fixed + n * per_token`, of which *e* are expected to become
//! text, one more is worth it if its probability is above `per_token * e / (fixed + n * per_token)`. Over a long way
//! between stages `fixed` is large, and long drafts pay; where many sequences fill the machines, none may.

use mesh_engine::MAX_EXTRA_ROWS;
use mesh_types::TokenId;

use super::Scheduler;
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
const LONGEST: u32 = 16;
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

    /// The drafts that ride with `run`'s next token.
    pub(super) fn drafts(&self, run: &Run, room: &mut Room) -> Vec<TokenId> {
        let Some(lookup) = &run.lookup else { return Vec::new() };
        // Each draft may come true, and is followed by one token that is drawn.
        let left = run.spec.max_tokens.saturating_sub(run.generated + 1);
        let places = self.limits.n_ctx.saturating_sub(run.last_position() + 2);
        let most = LONGEST.min(room.drafts).min(left).min(places);
        let mut likely = 1.0;
        let mut count = 0;
        while count < most {
            likely *= lookup.trust(count as usize);
            let StepCost { fixed, per_token } = self.cost;
            let pace = room.expected / (fixed + per_token * f64::from(room.tokens));
            if likely < MARGIN * per_token * pace {
                break;
            }
            (room.tokens, room.expected, count) = (room.tokens + 1, room.expected + likely, count + 1);
        }
        let drafts = lookup.drafts(count as usize);
        room.drafts -= drafts.len() as u32; // at most `count`
        drafts
    }
}
