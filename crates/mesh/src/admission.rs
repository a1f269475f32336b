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
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{AsyncRead, AsyncWrite, FutureExt as _};
use libp2p::core::UpgradeInfo;
use libp2p::core::upgrade::{InboundConnectionUpgrade, OutboundConnectionUpgrade};
use libp2p::{Multiaddr, PeerId, yamux};
use tokio::time::Instant;

use crate::mesh::stall::StallGuard;
use crate::token::{MeshId, Secret};

mod handshake;
mod limiter;
#[cfg(test)]
mod tests;

use limiter::Limiter;

/// Frozen for ever, as [`handshake::Hello`] is: it is the handshake that tells versions apart.
const PROTOCOL: &str = "/mesh-node/admission";
/// The protocol versions that this program speaks.
pub(crate) const VERSIONS: RangeInclusive<u16> = 1..=1;
/// How long admission may take, however slowly the other side goes about it.
pub(crate) const DEADLINE: Duration = Duration::from_secs(10);
/// A connection on which nothing can be written for so long is given up.
const STALL: Duration = Duration::from_secs(15);

/// Why a connection was not admitted. Reads on from a subject, as in "the node at 192.0.2.1 …".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AdmissionError {
    /// It does not say what a mesh-node says first.
    #[error("is not a mesh-node")]
    NotAMeshNode,
    /// No common protocol version.
    #[error("speaks protocol {theirs}, this node speaks {ours}")]
    OtherVersion {
        /// What it speaks.
        theirs: Versions,
        /// What this node speaks.
        ours: Versions,
    },
    /// It is of another mesh.
    #[error("wants to join another mesh")]
    WrongMesh,
    /// Its secret is of another rotation.
    #[error("has a token of epoch {theirs}, this mesh is at epoch {ours}")]
    OtherEpoch {
        /// The epoch of its secret.
        theirs: u32,
        /// The epoch of ours.
        ours: u32,
    },
    /// It does not know the secret.
    #[error("does not know this mesh's secret")]
    WrongSecret,
    /// It is on the block list.
    #[error("is blocked here")]
    Blocked,
    /// Its address failed lately.
    #[error("has to wait {} after failed attempts", Seconds(*.0))]
    TooSoon(Duration),
    /// It did not finish in time.
    #[error("did not answer within {}", Seconds(*.0))]
    Timeout(Duration),
    /// It said something that the protocol does not allow.
    #[error("broke the admission protocol: {0}")]
    Malformed(&'static str),
    /// It refused this node, and said why.
    #[error("{0}")]
    Refused(Refusal),
    /// The connection broke, or it closed it.
    #[error("closed the connection during admission")]
    Closed,
}

/// Why the other side does not admit this node. Reads on from a subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// See [`AdmissionError::WrongMesh`].
    #[error("belongs to another mesh than the token's")]
    WrongMesh,
    /// See [`AdmissionError::OtherEpoch`].
    #[error("does not accept the token's secret any more: it was replaced (epoch {0}), ask for a new token")]
    OtherEpoch(u32),
    /// See [`AdmissionError::WrongSecret`].
    #[error("does not accept the token's secret")]
    WrongSecret,
    /// See [`AdmissionError::Blocked`].
    #[error("has blocked this node")]
    Blocked,
    /// See [`AdmissionError::TooSoon`].
    #[error("asks to wait {} after failed attempts from this address", Seconds(*.0))]
    TooSoon(Duration),
    /// A reason that a newer version gave.
    #[error("refuses this node for a reason that this version does not know ({0})")]
    Other(u8),
}

/// A range of protocol versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Versions {
    /// The lowest.
    pub low: u16,
    /// The highest.
    pub high: u16,
}

impl AdmissionError {
    /// Whether asking again cannot help: nothing changes until a person changes something.
    pub fn is_final(&self) -> bool {
        match self {
            Self::OtherVersion { .. } | Self::NotAMeshNode => true,
            Self::WrongMesh | Self::WrongSecret | Self::OtherEpoch { .. } | Self::Blocked => true,
            Self::Refused(refusal) => !matches!(refusal, Refusal::TooSoon(_)),
            Self::TooSoon(_) | Self::Timeout(_) | Self::Malformed(_) | Self::Closed => false,
        }
    }

    /// What to tell the peer that is refused; `None`: nothing, it sees for itself.
    fn refusal(&self) -> Option<Refusal> {
        match self {
            Self::WrongMesh => Some(Refusal::WrongMesh),
            Self::WrongSecret => Some(Refusal::WrongSecret),
            Self::OtherEpoch { ours, .. } => Some(Refusal::OtherEpoch(*ours)),
            Self::Blocked => Some(Refusal::Blocked),
            Self::TooSoon(wait) => Some(Refusal::TooSoon(*wait)),
            _ => None,
        }
    }
}

/// What all connections share: the secret, and who failed or is blocked.
pub(crate) struct Door {
    local: PeerId,
    mesh: MeshId,
    secret: Secret,
    epoch: u32,
    versions: RangeInclusive<u16>,
    deadline: Duration,
    guests: Mutex<Guests>,
}

#[derive(Default)]
struct Guests {
    blocked: HashSet<PeerId>,
    /// Peers that proved the secret before: the failures of others at their address do not hold them up.
    known: HashSet<PeerId>,
    limiter: Limiter,
}

/// What a [`Door`] opens for.
pub(crate) struct Credentials {
    pub(crate) mesh: MeshId,
    pub(crate) secret: Secret,
    pub(crate) epoch: u32,
}

/// Peers known by id whose past failures are remembered at most.
const MAX_KNOWN: usize = 4096;

impl Door {
    pub(crate) fn new(local: PeerId, credentials: Credentials) -> Self {
        let Credentials { mesh, secret, epoch } = credentials;
        Self { local, mesh, secret, epoch, versions: VERSIONS, deadline: DEADLINE, guests: Mutex::default() }
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

    /// `peer` proved the secret in an earlier run.
    pub(crate) fn know(&self, peer: PeerId) {
        let mut guests = self.guests();
        if guests.known.len() < MAX_KNOWN {
            guests.known.insert(peer);
        }
    }

    fn guests(&self) -> MutexGuard<'_, Guests> {
        self.guests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn versions(&self) -> Versions {
        Versions { low: *self.versions.start(), high: *self.versions.end() }
    }

    fn check_blocked(&self, peer: &PeerId) -> Result<(), AdmissionError> {
        if self.guests().blocked.contains(peer) { Err(AdmissionError::Blocked) } else { Ok(()) }
    }

    /// Refuses a stranger from an address that failed lately.
    fn check_pace(&self, peer: &PeerId, ip: Option<IpAddr>) -> Result<(), AdmissionError> {
        let mut guests = self.guests();
        let Some(ip) = ip.filter(|_| !guests.known.contains(peer)) else { return Ok(()) };
        guests.limiter.check(ip, Instant::now()).map_err(AdmissionError::TooSoon)
    }

    /// Remembers how an inbound attempt went, and says so in the log.
    fn note(&self, guest: &Guest, outcome: &Result<(), AdmissionError>) {
        match outcome {
            Ok(()) => {
                self.know(guest.peer);
                if let Some(ip) = guest.ip() {
                    self.guests().limiter.succeeded(ip);
                }
            }
            // No guess, and it may come thick and fast.
            Err(error @ (AdmissionError::TooSoon(_) | AdmissionError::Closed)) => {
                tracing::debug!(peer = %guest.peer, address = %guest.address, "not admitted: it {error}");
            }
            Err(error) => {
                let wait = guest.ip().map(|ip| self.guests().limiter.failed(ip, Instant::now()));
                tracing::warn!(
                    peer = %guest.peer, address = %guest.address, retry_after = ?wait, "refused a peer: it {error}"
                );
            }
        }
    }
}

impl fmt::Debug for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Door").field("mesh", &self.mesh).field("epoch", &self.epoch).finish_non_exhaustive()
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
            muxer.upgrade_inbound(StallGuard::new(io, STALL), info).await.map_err(|_| AdmissionError::Closed)
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
            within(door.deadline, handshake::initiate(&door, &guest, &mut io)).await?;
            door.know(guest.peer);
            let info = muxer.protocol_info().next().unwrap_or_default();
            muxer.upgrade_outbound(StallGuard::new(io, STALL), info).await.map_err(|_| AdmissionError::Closed)
        }
        .boxed()
    }
}

async fn within(
    deadline: Duration,
    handshake: impl Future<Output = Result<(), AdmissionError>>,
) -> Result<(), AdmissionError> {
    tokio::time::timeout(deadline, handshake).await.unwrap_or(Err(AdmissionError::Timeout(deadline)))
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.low == self.high { write!(f, "{}", self.low) } else { write!(f, "{} to {}", self.low, self.high) }
    }
}

/// A wait, for people: rounded up to whole seconds.
struct Seconds(Duration);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} s", self.0.as_millis().div_ceil(1000))
    }
}
