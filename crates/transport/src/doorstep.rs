//! Slows down addresses from which strangers come: a handshake costs this node more than them.
//!
//! An address may have a few connections refused at once, as that of a member whose admission is still on its way, and
//! one more each second. What comes beyond that is turned away before its handshake.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use mesh_types::net::network_of;
use tokio::time::Instant;

const BURST: u32 = 8;
const EVERY: Duration = Duration::from_secs(1);
const MAX_ADDRESSES: usize = 4096;

/// When each address will have made up for its refusals.
#[derive(Default)]
pub(crate) struct Doorstep(Mutex<HashMap<IpAddr, Instant>>);

impl Doorstep {
    /// Whether another connection from `ip` is let as far as its handshake.
    pub(crate) fn may_come(&self, ip: IpAddr, now: Instant) -> bool {
        let settled = self.settled();
        settled.get(&network_of(ip)).is_none_or(|at| *at <= now + EVERY * (BURST - 1))
    }

    /// A connection from `ip` turned out to be a stranger's.
    pub(crate) fn refused(&self, ip: IpAddr, now: Instant) {
        let mut settled = self.settled();
        if settled.len() >= MAX_ADDRESSES {
            settled.retain(|_, at| *at > now);
        }
        if settled.len() < MAX_ADDRESSES || settled.contains_key(&network_of(ip)) {
            let at = settled.entry(network_of(ip)).or_insert(now);
            *at = (*at).max(now) + EVERY;
        }
    }

    fn settled(&self) -> std::sync::MutexGuard<'_, HashMap<IpAddr, Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_come_at_once_and_then_one_a_second() {
        let (doorstep, now) = (Doorstep::default(), Instant::now());
        let (ip, other) = (IpAddr::from([192, 0, 2, 1]), IpAddr::from([192, 0, 2, 2]));
        for _ in 0..BURST {
            assert!(doorstep.may_come(ip, now));
            doorstep.refused(ip, now);
        }
        assert!(!doorstep.may_come(ip, now) && doorstep.may_come(other, now));
        assert!(!doorstep.may_come(ip, now + EVERY / 2) && doorstep.may_come(ip, now + EVERY));
        doorstep.refused(ip, now + EVERY);
        assert!(!doorstep.may_come(ip, now + EVERY));
        assert!(doorstep.may_come(ip, now + EVERY * 60));
    }

    #[test]
    fn memory_is_bounded() {
        let (doorstep, now) = (Doorstep::default(), Instant::now());
        for n in 0..MAX_ADDRESSES as u32 + 100 {
            doorstep.refused(IpAddr::V4(n.into()), now);
        }
        assert_eq!(doorstep.settled().len(), MAX_ADDRESSES);
        doorstep.refused(IpAddr::V4(u32::MAX.into()), now + EVERY);
        assert_eq!(doorstep.settled().len(), 1, "what is settled made room");
    }
}
