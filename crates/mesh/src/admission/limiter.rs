//! Slows down addresses from which admission failed: each failure doubles the wait, from one second to one minute.
//! Nobody is banned, and a success clears the address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use mesh_types::net::network_of;
use tokio::time::Instant;

const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// After so long without a failure an address starts afresh.
const FORGET: Duration = Duration::from_secs(600);
const MAX_ADDRESSES: usize = 4096;

/// Failures by address.
#[derive(Default)]
pub(super) struct Limiter {
    failures: HashMap<IpAddr, Failures>,
}

struct Failures {
    count: u32,
    last: Instant,
}

impl Failures {
    fn wait(&self) -> Duration {
        FIRST_WAIT.saturating_mul(1 << self.count.saturating_sub(1).min(6)).min(LONGEST_WAIT)
    }
}

impl Limiter {
    /// Whether an attempt from `ip` is due.
    ///
    /// # Errors
    /// How long it has to wait.
    pub(super) fn check(&mut self, ip: IpAddr, now: Instant) -> Result<(), Duration> {
        let Some(failures) = self.failures.get(&network_of(ip)) else { return Ok(()) };
        let wait = (failures.last + failures.wait()).saturating_duration_since(now);
        if wait.is_zero() { Ok(()) } else { Err(wait) }
    }

    /// An attempt from `ip` failed. Returns how long the next has to wait.
    pub(super) fn failed(&mut self, ip: IpAddr, now: Instant) -> Duration {
        let host = network_of(ip);
        if self.failures.len() >= MAX_ADDRESSES && !self.failures.contains_key(&host) {
            self.make_room(now);
        }
        let failures = self.failures.entry(host).or_insert(Failures { count: 0, last: now });
        if now.saturating_duration_since(failures.last) > FORGET {
            failures.count = 0;
        }
        failures.count = failures.count.saturating_add(1);
        failures.last = now;
        failures.wait()
    }

    /// An attempt from `ip` succeeded.
    pub(super) fn succeeded(&mut self, ip: IpAddr) {
        self.failures.remove(&network_of(ip));
    }

    fn make_room(&mut self, now: Instant) {
        self.failures.retain(|_, failures| now.saturating_duration_since(failures.last) <= FORGET);
        if self.failures.len() >= MAX_ADDRESSES
            && let Some(oldest) = self.failures.iter().min_by_key(|(_, failures)| failures.last).map(|(ip, _)| *ip)
        {
            self.failures.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IP: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

    #[test]
    fn waits_grow_to_a_minute_and_end() {
        let mut limiter = Limiter::default();
        let mut now = Instant::now();
        assert_eq!(limiter.check(IP, now), Ok(()));
        for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
            assert_eq!(limiter.failed(IP, now), Duration::from_secs(seconds));
            assert_eq!(limiter.check(IP, now), Err(Duration::from_secs(seconds)));
            now += Duration::from_secs(seconds);
            assert_eq!(limiter.check(IP, now), Ok(()), "slowed down, not banned");
        }
        assert_eq!(limiter.failed(IP, now + FORGET + FORGET), FIRST_WAIT);
        limiter.succeeded(IP);
        assert_eq!(limiter.check(IP, now), Ok(()));
    }

    #[test]
    fn memory_is_bounded() {
        let mut limiter = Limiter::default();
        let now = Instant::now();
        for n in 0..MAX_ADDRESSES as u32 + 100 {
            limiter.failed(IpAddr::V4(n.into()), now + Duration::from_millis(n.into()));
        }
        assert_eq!(limiter.failures.len(), MAX_ADDRESSES);
    }
}
