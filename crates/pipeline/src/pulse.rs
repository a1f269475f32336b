//! Signs of life: what `/health` and `status` show of a pipeline.

use std::time::{Duration, Instant};

/// How far back the decode rate looks.
const WINDOW: Duration = Duration::from_secs(10);

/// A pipeline at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pulse {
    /// When a micro-batch last came back from the last stage.
    pub last_forward: Option<Instant>,
    /// Runs that have a KV slot.
    pub active: u32,
    /// Runs that wait for one.
    pub queued: u32,
    /// Prompt tokens computed since the start.
    pub prompt_tokens: u64,
    /// Tokens drawn since the start.
    pub generated_tokens: u64,
    /// Tokens drawn per second, all runs together, over the last ten seconds in which there was work; 0 before the
    /// first.
    pub decode_rate: f64,
}

/// An exponentially weighted rate over the time in which there is work.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rate {
    tokens: f64,
    seconds: f64,
    since: Option<Instant>,
}

impl Rate {
    /// There is work from now on; without effect where there was already.
    pub(crate) fn resume(&mut self, now: Instant) {
        self.since.get_or_insert(now);
    }

    /// There is no work any more.
    pub(crate) fn pause(&mut self) {
        self.since = None;
    }

    /// `tokens` came home.
    pub(crate) fn count(&mut self, tokens: u32, now: Instant) {
        let passed = self.since.replace(now).map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        let weight = (-passed.as_secs_f64() / WINDOW.as_secs_f64()).exp();
        self.tokens = self.tokens * weight + f64::from(tokens);
        self.seconds = self.seconds * weight + passed.as_secs_f64();
    }

    /// Tokens per second.
    pub(crate) fn per_second(&self) -> f64 {
        if self.seconds > 0.0 { self.tokens / self.seconds } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_follows_the_work_and_not_the_pauses() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut rate = Rate::default();
        assert_eq!(rate.per_second(), 0.0);
        rate.resume(at(0));
        for second in 1..=5 {
            rate.count(20, at(second));
        }
        assert!((rate.per_second() - 20.0).abs() < 1e-9, "{}", rate.per_second());
        rate.pause();
        rate.resume(at(1000));
        for second in 1001..=1060 {
            rate.count(5, at(second));
        }
        assert!((rate.per_second() - 5.0).abs() < 0.2, "{}", rate.per_second());
    }
}
