//! What a micro-batch of decoding sequences takes, by the number of its tokens: a straight line. No clock of its own: it
//! is told.
//!
//! Its slope is that between one micro-batch and the next, where they differ in their tokens: what changes slowly, as
//! sequences grow or the machine does something else, is not taken for it.

use crate::scheduler::StepCost;

/// Weight of what was known, at each measurement.
const MEMORY: f64 = 0.97;
/// A measurement is not taken for longer than so many times the mean: the machine did something else.
const SPIKE: f64 = 4.0;

/// Weighted sums over the measurements.
#[derive(Debug, Default)]
pub(crate) struct Times {
    weight: f64,
    tokens: f64,
    seconds: f64,
    /// The last one: tokens and seconds.
    last: Option<(f64, f64)>,
    /// Of the differences between two that follow each other: tokens times seconds, and tokens squared.
    products: f64,
    squares: f64,
}

impl Times {
    /// A micro-batch of this many tokens took so long.
    pub(crate) fn add(&mut self, tokens: u32, seconds: f64) {
        let tokens = f64::from(tokens);
        let seconds = if self.weight > 4.0 { seconds.min(SPIKE * self.seconds / self.weight) } else { seconds };
        for (sum, new) in [(&mut self.weight, 1.0), (&mut self.tokens, tokens), (&mut self.seconds, seconds)] {
            *sum = *sum * MEMORY + new;
        }
        let (more_tokens, more_seconds) = self.last.map_or((0.0, 0.0), |last| (tokens - last.0, seconds - last.1));
        if more_tokens != 0.0 {
            self.products = self.products * MEMORY + more_tokens * more_seconds;
            self.squares = self.squares * MEMORY + more_tokens * more_tokens;
        }
        self.last = Some((tokens, seconds));
    }

    /// Seconds; `None` before the first measurement.
    pub(crate) fn cost(&self) -> Option<StepCost> {
        if self.weight == 0.0 {
            return None;
        }
        let (tokens, seconds) = (self.tokens / self.weight, self.seconds / self.weight);
        // All of it, were nothing the same for all; and never nothing.
        let (least, most) = (0.02 * seconds / tokens, seconds / tokens);
        let per_token = match self.squares > 0.0 {
            true => (self.products / self.squares).clamp(least, most),
            // Not seen yet: what is the same for all is taken to cost as much as one token.
            false => seconds / (1.0 + tokens),
        };
        Some(StepCost { fixed: seconds - per_token * tokens, per_token })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(cost: Option<StepCost>, fixed: f64, per_token: f64) {
        let cost = cost.expect("measured");
        assert!((cost.fixed - fixed).abs() < 0.05 * fixed.max(0.01), "{cost:?}");
        assert!((cost.per_token - per_token).abs() < 0.05 * per_token, "{cost:?}");
    }

    #[test]
    fn a_line_is_found_and_followed() {
        let mut times = Times::default();
        assert_eq!(times.cost(), None);
        times.add(1, 0.020);
        close(times.cost(), 0.010, 0.010);
        for tokens in [1, 5, 9, 1, 17, 3] {
            times.add(tokens, 0.020 + 0.004 * f64::from(tokens));
        }
        for tokens in (1..9).cycle().take(300) {
            times.add(tokens, 0.030 + 0.002 * f64::from(tokens));
        }
        close(times.cost(), 0.030, 0.002);
        // What a token takes is remembered while all micro-batches are alike.
        (0..300).for_each(|_| times.add(4, 0.058));
        close(times.cost(), 0.050, 0.002);
    }

    #[test]
    fn a_pause_of_the_machine_is_no_measurement() {
        let mut times = Times::default();
        (1..9).cycle().take(100).for_each(|tokens| times.add(tokens, 0.030 + 0.002 * f64::from(tokens)));
        times.add(1, 20.0);
        let cost = times.cost().expect("measured");
        assert!(cost.fixed < 0.06 && cost.per_token < 0.02, "{cost:?}");
    }
}
