//! How long micro-batches take: how many prompt tokens may ride in one while others wait for their next token, and what
//! a step of decoding costs.
//!
//! A stream waits at most for one chunk of somebody's prompt. How long that takes depends on the machines, so it is
//! measured, and the chunk is made as long as fits into [`TARGET`]. No clock of its own: it is told the time.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::cost::Times;
use crate::scheduler::{Progress, StepCost};

/// What a running stream may wait for a chunk.
const TARGET: Duration = Duration::from_millis(150);
/// Chunks shorter than this use the machines badly, whatever they take.
const SHORTEST: u32 = 32;
/// Of a new measurement; the rest is what was known before.
const WEIGHT: f64 = 0.25;

/// The pace of prefill.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// When the micro-batches under way were sent, oldest first.
    sent: VecDeque<Instant>,
    /// When the last one came home.
    home: Option<Instant>,
    /// Seconds a prompt token takes.
    per_token: Option<f64>,
    /// What steps of decoding take.
    times: Times,
}

impl Pace {
    /// A micro-batch is sent.
    pub(crate) fn sent(&mut self, now: Instant) {
        self.sent.push_back(now);
    }

    /// The oldest one came home.
    pub(crate) fn home(&mut self, progress: Progress, now: Instant) {
        let Some(sent) = self.sent.pop_front() else { return };
        // Behind others it waited for its turn until the one before was home.
        let begun = self.home.replace(now).map_or(sent, |home| home.max(sent));
        let took = now.saturating_duration_since(begun).as_secs_f64();
        let Progress { prompt_tokens, decode_tokens, .. } = progress;
        if prompt_tokens == 0 && decode_tokens > 0 {
            self.times.add(decode_tokens, took);
        }
        if prompt_tokens < SHORTEST {
            return; // mostly the decoding of others
        }
        let measured = took / f64::from(prompt_tokens);
        self.per_token = Some(self.per_token.map_or(measured, |known| known + WEIGHT * (measured - known)));
    }

    /// What a step of decoding takes, in seconds; `None`: not known yet.
    pub(crate) fn cost(&self) -> Option<StepCost> {
        self.times.cost()
    }

    /// The chunk to be used while streams are running; `None`: not known yet.
    pub(crate) fn chunk(&self) -> Option<u32> {
        let per_token = self.per_token?.max(1e-9);
        Some(((TARGET.as_secs_f64() / per_token) as u32).max(SHORTEST))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(prompt_tokens: u32) -> Progress {
        Progress { prompt_tokens, ..Progress::default() }
    }

    #[test]
    fn the_chunk_is_what_fits_into_the_target() {
        let (mut pace, mut now) = (Pace::default(), Instant::now());
        assert_eq!(pace.chunk(), None);
        for _ in 0..20 {
            pace.sent(now);
            now += Duration::from_millis(100); // a thousand tokens a second
            pace.home(prompt(100), now);
        }
        assert!((149..=151).contains(&pace.chunk().unwrap_or(0)), "{pace:?}");
        // Ten times slower: it follows.
        for _ in 0..20 {
            pace.sent(now);
            now += Duration::from_secs(1);
            pace.home(prompt(100), now);
        }
        assert_eq!(pace.chunk(), Some(SHORTEST));
    }

    #[test]
    fn time_in_a_queue_and_steps_of_decoding_do_not_count() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        let at = |millis| start + Duration::from_millis(millis);
        (0..3).for_each(|_| pace.sent(at(0)));
        for step in 1..=3 {
            pace.home(prompt(100), at(step * 100));
        }
        assert!((149..=151).contains(&pace.chunk().unwrap_or(0)), "{pace:?}");
        let before = pace.chunk();
        pace.sent(at(1000));
        pace.home(prompt(4), at(5000));
        assert_eq!(pace.chunk(), before);
    }
}
