//! What whole-system tests share: real processes of the real binaries, real models, and a plain HTTP client.
//!
//! Every wait is on a condition with a deadline; a process that a test starts is killed when its handle is dropped.
#![forbid(unsafe_code)]

pub mod http;
pub mod models;
pub mod netns;
pub mod process;

use std::time::{Duration, Instant};

/// Long enough for anything that is not a measurement, on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Calls `probe` until it gives something, for at most `limit`.
///
/// # Panics
/// When the time is up; says what was waited for.
pub fn until<T>(what: &str, limit: Duration, mut probe: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(value) = probe() {
            return value;
        }
        assert!(Instant::now() < deadline, "waited {limit:?} in vain for {what}");
        // Processes outside this one have no event to wait on.
        std::thread::sleep(Duration::from_millis(20));
    }
}
