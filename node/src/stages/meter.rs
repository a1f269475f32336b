//! Measures how fast a stage computes while it serves: the time from a micro-batch's turn to its answer.
//!
//! A stage computes one micro-batch after the other, so the turn of one begins when it came or when the one before it
//! was answered, whichever is later. The best of the last few counts: others were disturbed, or read weights from disk.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use mesh_engine::child::Observer;
use mesh_engine::frame::{Frame, StepId};
use mesh_types::{ByteSize, Speed};
use tokio::time::Instant;

use crate::board::Board;

/// Measurements of each kind that are remembered.
const REMEMBERED: usize = 16;
/// From so many tokens on a micro-batch measures prefill.
const LARGE: usize = 64;
/// Before prefill was measured it is taken for so many times the decode.
const PREFILL_GUESS: u64 = 8;

/// What one stage's micro-batches tell about this machine.
#[derive(Clone)]
pub(super) struct Meter {
    weights: ByteSize,
    board: Arc<Board>,
    seen: Arc<Mutex<Seen>>,
}

/// Micro-batches on their way, and the last measurements.
#[derive(Default)]
struct Seen {
    under_way: VecDeque<(StepId, Instant, usize)>,
    last_answer: Option<Instant>,
    /// Bytes of weights times tokens per second.
    decode: VecDeque<u64>,
    prefill: VecDeque<u64>,
}

impl Meter {
    /// Of a stage with so many bytes of weights; what it finds is put on `board`.
    pub(super) fn new(weights: ByteSize, board: Arc<Board>) -> Self {
        Self { weights, board, seen: Arc::default() }
    }

    /// For a link that is about to be opened: nothing is under way.
    pub(super) fn of_link(&self) -> Arc<dyn Observer> {
        self.seen().under_way.clear();
        Arc::new(self.clone())
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observer for Meter {
    fn sent(&self, frame: &Frame) {
        if let Frame::Batch(batch) = frame {
            self.seen().under_way.push_back((batch.step, Instant::now(), batch.tokens.len()));
        }
    }

    fn came(&self, frame: &Frame) {
        let step = match frame {
            Frame::Batch(batch) => batch.step,
            Frame::Result(result) => result.step,
            Frame::Failure(failure) => failure.step,
            Frame::Command(_) => return,
        };
        let speed = self.seen().answered(step, Instant::now(), self.weights.0);
        if let Some(speed) = speed {
            self.board.set_speed(speed);
        }
    }
}

impl Seen {
    fn answered(&mut self, step: StepId, now: Instant, weights: u64) -> Option<Speed> {
        let (asked, sent, tokens) = self.under_way.pop_front()?;
        let begun = self.last_answer.map_or(sent, |last| last.max(sent));
        self.last_answer = Some(now);
        if asked != step {
            self.under_way.clear();
            return None;
        }
        let seconds = now.saturating_duration_since(begun).as_secs_f64().max(1e-6);
        let rate = (weights as f64 * tokens as f64 / seconds) as u64;
        match tokens {
            1 => push(&mut self.decode, rate),
            LARGE.. => push(&mut self.prefill, rate),
            _ => return None,
        }
        let decode = self.decode.iter().max().copied()?;
        let prefill = self.prefill.iter().max().copied().unwrap_or(decode.saturating_mul(PREFILL_GUESS));
        Some(Speed { decode, prefill })
    }
}

fn push(measured: &mut VecDeque<u64>, rate: u64) {
    measured.truncate(REMEMBERED - 1);
    measured.push_front(rate);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_best_turn_counts_and_waiting_for_it_does_not() {
        let (mut seen, start) = (Seen::default(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        let send = |seen: &mut Seen, step, ms, tokens| seen.under_way.push_back((StepId(step), at(ms), tokens));
        send(&mut seen, 0, 0, 1);
        send(&mut seen, 1, 0, 1);
        send(&mut seen, 2, 0, 128);
        assert_eq!(seen.answered(StepId(0), at(100), 1000), Some(Speed { decode: 10_000, prefill: 80_000 }));
        assert_eq!(
            seen.answered(StepId(1), at(110), 1000).map(|speed| speed.decode),
            Some(100_000),
            "10 ms of its own"
        );
        assert_eq!(seen.answered(StepId(2), at(210), 1000).map(|speed| speed.prefill), Some(1_280_000));
        assert_eq!(seen.answered(StepId(3), at(220), 1000), None, "nobody asked");
        send(&mut seen, 4, 300, 4);
        assert_eq!(seen.answered(StepId(4), at(301), 1000), None, "neither one token nor a large batch");
    }

    #[test]
    fn old_measurements_are_forgotten() {
        let mut measured = VecDeque::new();
        (0..40).for_each(|rate| push(&mut measured, rate));
        assert_eq!((measured.len(), measured.front(), measured.back()), (REMEMBERED, Some(&39), Some(&24)));
    }
}
