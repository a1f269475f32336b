//! What a gateway has found out about one replica by using it.

use std::collections::VecDeque;
use std::time::Duration;

use super::{WARM, WARM_STEP};

/// Seconds a token before anything was measured.
pub(super) const ASSUMED_PACE: f64 = 0.002;
/// Tokens of an answer before it is there.
pub(super) const USUAL_ANSWER: f64 = 100.0;
/// Runs whose pace is remembered. The best counts: the others shared the replica.
const REMEMBERED: usize = 16;
/// After this span, what a replica took counts half.
const HALF_LIFE: f64 = 60.0;

#[derive(Debug)]
pub(super) struct Replica {
    /// When it was first seen here.
    since: Duration,
    /// Runs that this gateway has there.
    runs: u32,
    /// Work that it took, as of `at`; fades.
    lately: f64,
    at: Duration,
    paces: VecDeque<f64>,
}

impl Replica {
    pub(super) fn new(now: Duration) -> Self {
        Self { since: now, runs: 0, lately: 0.0, at: now, paces: VecDeque::new() }
    }

    pub(super) fn took(&mut self, work: f64, now: Duration) {
        self.lately = self.lately(now) + work;
        self.at = now;
        self.runs += 1;
    }

    pub(super) fn gave_back(&mut self) {
        self.runs = self.runs.saturating_sub(1);
    }

    pub(super) fn measured(&mut self, seconds_a_token: f64) {
        self.paces.truncate(REMEMBERED - 1);
        self.paces.push_front(seconds_a_token.max(1e-7));
    }

    /// Seconds a token, undisturbed.
    pub(super) fn pace(&self) -> Option<f64> {
        self.paces.iter().copied().min_by(f64::total_cmp)
    }

    pub(super) fn lately(&self, now: Duration) -> f64 {
        self.lately * 0.5_f64.powf(now.saturating_sub(self.at).as_secs_f64() / HALF_LIFE)
    }

    pub(super) fn runs(&self) -> u32 {
        self.runs
    }

    pub(super) fn is_busy(&self) -> bool {
        self.runs > 0
    }

    /// Whether it has been here for long enough to be like any other.
    pub(super) fn is_warm(&self, now: Duration) -> bool {
        now.saturating_sub(self.since) >= WARM
    }

    /// Whether one more run may go there: a new replica starts slowly.
    pub(super) fn has_warm_room(&self, now: Duration) -> bool {
        let age = now.saturating_sub(self.since);
        self.is_warm(now) || u64::from(self.runs) <= age.as_secs() / WARM_STEP.as_secs()
    }
}
