//! Pauses between attempts at the same thing.

use std::time::Duration;

use tokio::time::Instant;

/// The first pause, and the longest one.
const PAUSES: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));

/// Doubles its pause with each attempt that fails soon; what held for a while starts afresh.
pub(crate) struct Backoff {
    next: Duration,
    began: Instant,
}

impl Backoff {
    pub(crate) fn new() -> Self {
        Self { next: PAUSES.0, began: Instant::now() }
    }

    /// An attempt begins.
    pub(crate) fn begin(&mut self) {
        self.began = Instant::now();
    }

    /// The attempt has failed: waits before the next one.
    ///
    /// # Cancel safety
    /// May be dropped: the wait counts as done.
    pub(crate) async fn pause(&mut self) {
        if self.began.elapsed() > PAUSES.1 {
            self.next = PAUSES.0;
        }
        let pause = self.next;
        self.next = (pause * 2).min(PAUSES.1);
        tokio::time::sleep(pause).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn paused(backoff: &mut Backoff) -> Duration {
        let before = Instant::now();
        backoff.pause().await;
        before.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_double_until_something_holds() {
        let mut backoff = Backoff::new();
        for ms in [200, 400, 800, 1600, 3200, 5000, 5000] {
            backoff.begin();
            assert_eq!(paused(&mut backoff).await, Duration::from_millis(ms));
        }
        backoff.begin();
        tokio::time::sleep(PAUSES.1 * 2).await;
        assert_eq!(paused(&mut backoff).await, PAUSES.0);
    }
}
