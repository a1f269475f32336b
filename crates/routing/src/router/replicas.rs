//! What a gateway has found out about one replica by using it.

use std::collections::VecDeque;
use std::time::Duration;

use mesh_types::Usage;

use crate::replica::Candidate;

/// A replica that is new here gets one new conversation at a time, and one more each such span.
const WARM_STEP: Duration = Duration::from_secs(4);
/// After so long it is like any other.
const WARM: Duration = Duration::from_secs(30);
/// After this span, what a replica took counts half, in seconds.
const HALF_LIFE: f64 = 60.0;
/// A pace that was not seen for so long is no longer believed.
const STALE_PACE: Duration = Duration::from_secs(600);
/// What a replica says of its load may be so old.
const STALE_LOAD: Duration = Duration::from_secs(1);
/// Runs that ended within [`STALE_LOAD`], at most.
const MAX_ENDED: usize = 64;
/// Fewer tokens say nothing of a pace: the way and the bookkeeping take as long.
const MEASURABLE_PROMPT: u32 = 128;
/// See [`MEASURABLE_PROMPT`].
const MEASURABLE_ANSWER: u32 = 16;
/// What one run more costs the others while it answers: a replica computes a batch's tokens together.
const BATCHED: f64 = 0.25;

/// Tokens to compute.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    pub(super) prompt: f64,
    pub(super) answer: f64,
}

/// Seconds a token.
#[derive(Clone, Copy, Debug)]
pub(super) struct Paces {
    pub(super) prefill: f64,
    pub(super) decode: f64,
}

/// One replica.
#[derive(Debug)]
pub(super) struct Replica {
    /// When it was first seen here.
    since: Duration,
    /// It was there before this gateway was.
    found: bool,
    /// Runs that this gateway has there.
    runs: u32,
    /// When those ended that a status may still count.
    ended: VecDeque<Duration>,
    /// Seconds of work that it took, as of `at`; fades.
    lately: f64,
    at: Duration,
    /// When it last had read a prompt.
    answered: Duration,
    prefill: Pace,
    decode: Pace,
    /// Of what it was taken to hold, the share that it did hold.
    keeps: f64,
}

/// A measured figure, and when it was last measured.
#[derive(Debug, Default)]
struct Pace(Option<(f64, Duration)>);

impl Default for Work {
    fn default() -> Self {
        Self { prompt: 0.0, answer: 100.0 }
    }
}

impl Work {
    pub(super) fn note_prompt(&mut self, prompt: f64) {
        self.prompt += if self.prompt == 0.0 { prompt } else { (prompt - self.prompt) / 16.0 };
    }

    pub(super) fn note_answer(&mut self, answer: f64) {
        self.answer += (answer - self.answer) / 16.0;
    }

    /// What it costs others.
    pub(super) fn seconds(&self, paces: Paces) -> f64 {
        self.prompt * paces.prefill + self.answering(paces)
    }

    /// The same, once the prompt is read.
    pub(super) fn answering(&self, paces: Paces) -> f64 {
        self.answer * paces.decode * BATCHED
    }
}

impl Paces {
    /// Before anything was measured anywhere.
    pub(super) const ASSUMED: Self = Self { prefill: 0.002, decode: 0.02 };
}

impl Pace {
    /// `undisturbed`: nothing else was under way. Otherwise it is at least as fast as that.
    fn measured(&mut self, seconds: f64, undisturbed: bool, now: Duration) {
        let seconds = seconds.max(1e-7);
        let known = self.at(now);
        let value = match known {
            Some(known) if undisturbed => known + (seconds - known) / 4.0,
            Some(known) => known.min(seconds),
            None => seconds,
        };
        self.0 = Some((value, now));
    }

    fn at(&self, now: Duration) -> Option<f64> {
        self.0.filter(|(_, when)| now.saturating_sub(*when) < STALE_PACE).map(|(value, _)| value)
    }
}

impl Replica {
    /// One that came after this gateway.
    pub(super) fn new(now: Duration) -> Self {
        Self {
            since: now,
            found: false,
            runs: 0,
            ended: VecDeque::new(),
            lately: 0.0,
            at: now,
            answered: Duration::ZERO,
            prefill: Pace::default(),
            decode: Pace::default(),
            keeps: 1.0,
        }
    }

    /// One that was there before this gateway.
    pub(super) fn found(now: Duration) -> Self {
        Self { found: true, ..Self::new(now) }
    }

    pub(super) fn since(&self) -> Duration {
        self.since
    }

    /// A run that takes so many `seconds` was sent there.
    pub(super) fn took(&mut self, seconds: f64, now: Duration) {
        self.lately = self.lately(now) + seconds;
        self.at = now;
        self.runs += 1;
    }

    /// A run's first token came.
    pub(super) fn answered(&mut self, now: Duration) {
        self.answered = now;
    }

    pub(super) fn last_answered(&self) -> Duration {
        self.answered
    }

    /// A run ended.
    pub(super) fn gave_back(&mut self, now: Duration) {
        self.runs = self.runs.saturating_sub(1);
        self.ended.truncate(MAX_ENDED - 1);
        self.ended.push_front(now);
    }

    /// A run took so long to its first token, and then to its end.
    pub(super) fn measured(&mut self, usage: &Usage, reading: Duration, answering: Duration, how: (bool, Duration)) {
        let (undisturbed, now) = how;
        let computed = usage.prompt_tokens.saturating_sub(usage.cached_tokens);
        if computed >= MEASURABLE_PROMPT {
            self.prefill.measured(reading.as_secs_f64() / f64::from(computed), undisturbed, now);
        }
        if usage.completion_tokens >= MEASURABLE_ANSWER {
            self.decode.measured(answering.as_secs_f64() / f64::from(usage.completion_tokens), undisturbed, now);
        }
    }

    /// A run found so much of its prompt there, of which a `share` was thought to be.
    pub(super) fn kept(&mut self, share: f64, usage: &Usage) {
        if share > 0.25 && usage.prompt_tokens >= MEASURABLE_PROMPT {
            let found = f64::from(usage.cached_tokens) / f64::from(usage.prompt_tokens);
            self.keeps += ((found / share).min(1.0) - self.keeps) / 8.0;
        }
    }

    /// Of what it is taken to hold, the share that it does: one with few slots forgets.
    pub(super) fn keeps(&self) -> f64 {
        self.keeps
    }

    pub(super) fn prefill(&self, now: Duration) -> Option<f64> {
        self.prefill.at(now)
    }

    pub(super) fn decode(&self, now: Duration) -> Option<f64> {
        self.decode.at(now)
    }

    /// Seconds of work that it was given lately.
    pub(super) fn lately(&self, now: Duration) -> f64 {
        self.lately * 0.5_f64.powf(now.saturating_sub(self.at).as_secs_f64() / HALF_LIFE)
    }

    /// Runs that others have there, as far as its last status tells them from what this gateway has there or had when
    /// the status was made.
    pub(super) fn others(&self, candidate: &Candidate, now: Duration) -> f64 {
        let reported = f64::from(candidate.active) + f64::from(candidate.queued);
        let ended = self.ended.iter().take_while(|ended| now.saturating_sub(**ended) < STALE_LOAD).count();
        (reported - f64::from(self.runs) - ended as f64).max(0.0)
    }

    pub(super) fn is_busy(&self) -> bool {
        self.runs > 0
    }

    /// Whether it has been here for long enough to be like any other.
    pub(super) fn is_warm(&self, now: Duration) -> bool {
        self.found || now.saturating_sub(self.since) >= WARM
    }

    /// Whether one more conversation may begin there: a new replica starts slowly.
    pub(super) fn has_warm_room(&self, now: Duration) -> bool {
        let age = now.saturating_sub(self.since);
        self.is_warm(now) || u64::from(self.runs) <= age.as_secs() / WARM_STEP.as_secs()
    }
}
