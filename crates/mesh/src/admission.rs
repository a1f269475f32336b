//! Who may come in. The last step of the transport upgrade, between encryption and multiplexing: both sides prove that
//! they know the mesh's secret before the swarm, and with it any protocol, sees the connection.
//!
//! Works over whatever transport lies beneath. Owns the block list and the slowing down of addresses that failed. The
//! messages are in [`handshake`]; [`Door`] is what all connections share.

use std::collections::HashSet;
use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures::future::BoxFuture;
use futures::{AsyncRead, AsyncWrite, FutureExt as _};
use libp2p::core::UpgradeInfo;
use libp2p::core::upgrade::{InboundConnectionUpgrade, OutboundConnectionUpgrade};
use libp2p::{Multiaddr, PeerId, yamux};
use tokio::time::Instant;

use crate::mesh::stall::StallGuard;
use crate::token::{MeshId, Secret};

mod error;
mod foreign;
mod handshake;
mod limiter;
mod secrets;
#[cfg(test)]
mod tests;

pub use error::{AdmissionError, Refusal, Versions};
use foreign::Foreigners;
use limiter::Limiter;
use secrets::Secrets;

pub(crate) use foreign::{FORGET, Foreigner};
pub(crate) use secrets::{MAX_PAST, supersedes};

/// Frozen for ever, as [`handshake::Hello`] is: it is the handshake that tells versions apart.
const PROTOCOL: &str = "/mesh-node/admission";
/// The protocol versions that this program speaks.
pub(crate) const VERSIONS: RangeInclusive<u16> = 1..=1;
/// How long admission may take, however slowly the other side goes about it.
pub(crate) const DEADLINE: Duration = Duration::from_secs(10);

/// What all connections share: the secret, and who failed or is blocked.
pub(crate) struct Door {
    local: PeerId,
    mesh: MeshId,
    secrets: Mutex<Secrets>,
    versions: RangeInclusive<u16>,
    deadline: Duration,
    guests: Mutex<Guests>,
    foreigners: Mutex<Foreigners>,
}

#[derive(Default)]
struct Guests {
    blocked: HashSet<PeerId>,
    /// Peers that proved the secret before: the failures of others at their address do not hold them up.
    known: HashSet<PeerId>,
    limiter: Limiter,
    /// Of those that came with a token whose time is over, or had not come yet. They slow down others of their kind: a
    /// member that has learned the new secret, or comes with it to one that has not, is not held up by its first try.
    stale: Limiter,
}

/// What a [`Door`] opens for.
pub(crate) struct Credentials {
    pub(crate) mesh: MeshId,
    pub(crate) secret: Secret,
    pub(crate) epoch: u32,
    /// The secret is an invitation, good until then (Unix seconds).
    pub(crate) invited: Option<u64>,
    /// Earlier epochs and their secrets, the newest last.
    pub(crate) past: Vec<(u32, Secret)>,
}

/// Peers known by id whose past failures are remembered at most.
const MAX_KNOWN: usize = 4096;

impl Door {
    pub(crate) fn new(local: PeerId, credentials: Credentials) -> Self {
        let Credentials { mesh, secret, epoch, invited, past } = credentials;
        let secrets = Mutex::new(Secrets::new((epoch, secret), invited, past));
        let (guests, foreigners) = (Mutex::default(), Mutex::default());
        Self { local, mesh, secrets, versions: VERSIONS, deadline: DEADLINE, guests, foreigners }
    }

    /// For tests that play another version, or have no time.
    #[cfg(test)]
    pub(crate) fn with(self, versions: RangeInclusive<u16>, deadline: Duration) -> Self {
        Self { versions, deadline, ..self }
    }

    /// How long admission may take.
    pub(crate) fn deadline(&self) -> Duration {
        self.deadline
    }

    /// Refuses `peer`, whatever it proves.
    pub(crate) fn block(&self, peer: PeerId) {
        self.guests().blocked.insert(peer);
    }

    /// Lets `peer` in again, if it proves the secret.
    pub(crate) fn unblock(&self, peer: &PeerId) {
        self.guests().blocked.remove(peer);
    }

    /// From now on the mesh's secret is another one. Nothing where that is not newer.
    pub(crate) fn renew(&self, epoch: u32, secret: Secret) {
        self.secrets().renew(epoch, secret);
    }

    /// `peer` proved the secret in an earlier run.
    pub(crate) fn know(&self, peer: PeerId) {
        self.foreigners().admitted(&peer);
        let mut guests = self.guests();
        if guests.known.len() < MAX_KNOWN {
            guests.known.insert(peer);
        }
    }

    fn guests(&self) -> MutexGuard<'_, Guests> {
        self.guests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn secrets(&self) -> MutexGuard<'_, Secrets> {
        self.secrets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn epoch(&self) -> u32 {
        self.secrets().epoch()
    }

    /// What a peer that comes with `epoch`, and perhaps an invitation until some time, has to prove.
    fn secret_of(&self, epoch: u32, invited: Option<u64>, peer: &PeerId) -> Result<Secret, AdmissionError> {
        let is_member = self.guests().known.contains(peer);
        let secrets = self.secrets();
        let other = AdmissionError::OtherEpoch { theirs: epoch, ours: secrets.epoch() };
        let secret = secrets.of(epoch, is_member).ok_or(other)?;
        match invited {
            None => Ok(secret),
            Some(until) if unix_now() < until => Ok(secret.invitation(until)),
            Some(_) => Err(AdmissionError::Expired),
        }
    }

    /// Remembers how an outbound attempt went; says what came of it. A member that is behind is met with the secret that
    /// it has, the next time.
    fn note_outbound(&self, guest: &Guest, outcome: Result<(), AdmissionError>) -> Result<(), AdmissionError> {
        match &outcome {
            Ok(()) => self.know(guest.peer),
            Err(AdmissionError::Refused(Refusal::OtherEpoch(theirs))) if self.guests().known.contains(&guest.peer) => {
                if self.secrets().is_behind(guest.peer, *theirs) {
                    return Err(AdmissionError::Behind(*theirs));
                }
            }
            Err(error) => self.note_version(guest, error),
        }
        outcome
    }

    fn note_version(&self, guest: &Guest, error: &AdmissionError) {
        if let AdmissionError::OtherVersion { theirs, .. } = error {
            self.foreigners().seen(guest, *theirs, Instant::now());
        }
    }

    /// Peers of other protocol versions that were met lately.
    pub(crate) fn foreigners_at(&self, now: Instant) -> Vec<Foreigner> {
        self.foreigners().at(now)
    }

    fn foreigners(&self) -> MutexGuard<'_, Foreigners> {
        self.foreigners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn versions(&self) -> Versions {
        Versions { low: *self.versions.start(), high: *self.versions.end() }
    }

    fn check_blocked(&self, peer: &PeerId) -> Result<(), AdmissionError> {
        if self.guests().blocked.contains(peer) { Err(AdmissionError::Blocked) } else { Ok(()) }
    }

    /// Refuses a stranger, who comes with `epoch`, from an address that failed lately.
    fn check_pace(&self, guest: &Guest, epoch: u32) -> Result<(), AdmissionError> {
        let (is_stale, now) = (epoch != self.epoch(), Instant::now());
        let mut guests = self.guests();
        let Some(ip) = guest.ip().filter(|_| !guests.known.contains(&guest.peer)) else { return Ok(()) };
        guests.limiter.check(ip, now).map_err(AdmissionError::TooSoon)?;
        if is_stale { guests.stale.check(ip, now).map_err(AdmissionError::TooSoon) } else { Ok(()) }
    }

    /// Remembers how an inbound attempt went, and says so in the log.
    fn note(&self, guest: &Guest, outcome: &Result<(), AdmissionError>) {
        match outcome {
            Ok(()) => {
                self.know(guest.peer);
                if let Some(ip) = guest.ip() {
                    let mut guests = self.guests();
                    guests.limiter.succeeded(ip);
                    guests.stale.succeeded(ip);
                }
            }
            // No guess, and it may come thick and fast.
            Err(error @ (AdmissionError::TooSoon(_) | AdmissionError::Closed)) => {
                tracing::debug!(peer = %guest.peer, address = %guest.address, "not admitted: it {error}");
            }
            Err(error) => {
                self.note_version(guest, error);
                let mut guests = self.guests();
                let is_stale = matches!(error, AdmissionError::OtherEpoch { .. } | AdmissionError::Expired);
                let limiter = if is_stale { &mut guests.stale } else { &mut guests.limiter };
                let wait = guest.ip().map(|ip| limiter.failed(ip, Instant::now()));
                tracing::warn!(
                    peer = %guest.peer, address = %guest.address, retry_after = ?wait, "refused a peer: it {error}"
                );
            }
        }
    }
}

impl fmt::Debug for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Door").field("mesh", &self.mesh).field("epoch", &self.epoch()).finish_non_exhaustive()
    }
}

/// The other side of one connection.
#[derive(Clone, Debug)]
struct Guest {
    peer: PeerId,
    address: Multiaddr,
}

impl Guest {
    fn ip(&self) -> Option<IpAddr> {
        self.address.ip_addr()
    }
}

/// The upgrade of one connection: admission, then yamux.
#[derive(Clone)]
pub(crate) struct Admit {
    door: Arc<Door>,
    guest: Guest,
    muxer: yamux::Config,
}

impl Admit {
    /// The upgrade of a connection with `peer`, whom the encryption has identified, at `address`.
    pub(crate) fn new(door: Arc<Door>, peer: PeerId, address: Multiaddr) -> Self {
        Self { door, guest: Guest { peer, address }, muxer: yamux::Config::default() }
    }
}

impl UpgradeInfo for Admit {
    type Info = &'static str;
    type InfoIter = std::iter::Once<&'static str>;

    fn protocol_info(&self) -> Self::InfoIter {
        std::iter::once(PROTOCOL)
    }
}

impl<C> InboundConnectionUpgrade<C> for Admit
where
    C: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Output = yamux::Muxer<StallGuard<C>>;
    type Error = AdmissionError;
    type Future = BoxFuture<'static, Result<Self::Output, Self::Error>>;

    fn upgrade_inbound(self, mut io: C, _: Self::Info) -> Self::Future {
        async move {
            let Self { door, guest, muxer } = self;
            let outcome = within(door.deadline, handshake::respond(&door, &guest, &mut io)).await;
            door.note(&guest, &outcome);
            outcome?;
            let info = muxer.protocol_info().next().unwrap_or_default();
            muxer.upgrade_inbound(StallGuard::new(io), info).await.map_err(|_| AdmissionError::Closed)
        }
        .boxed()
    }
}

impl<C> OutboundConnectionUpgrade<C> for Admit
where
    C: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Output = yamux::Muxer<StallGuard<C>>;
    type Error = AdmissionError;
    type Future = BoxFuture<'static, Result<Self::Output, Self::Error>>;

    fn upgrade_outbound(self, mut io: C, _: Self::Info) -> Self::Future {
        async move {
            let Self { door, guest, muxer } = self;
            let outcome = within(door.deadline, handshake::initiate(&door, &guest, &mut io)).await;
            door.note_outbound(&guest, outcome)?;
            let info = muxer.protocol_info().next().unwrap_or_default();
            muxer.upgrade_outbound(StallGuard::new(io), info).await.map_err(|_| AdmissionError::Closed)
        }
        .boxed()
    }
}

/// Seconds since 1970.
fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

async fn within(
    deadline: Duration,
    handshake: impl Future<Output = Result<(), AdmissionError>>,
) -> Result<(), AdmissionError> {
    tokio::time::timeout(deadline, handshake).await.unwrap_or(Err(AdmissionError::Timeout(deadline)))
}
