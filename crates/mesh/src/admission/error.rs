//! Why a connection was not admitted, in words that read on from "the node at …".

use std::fmt;
use std::time::Duration;

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
    /// It is a member and has not heard yet that the secret was replaced.
    #[error("is at epoch {0} still: this node comes again with the secret of that time")]
    Behind(u32),
    /// It has an invitation that is over.
    #[error("has a token that expired")]
    Expired,
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
    /// See [`AdmissionError::Expired`].
    #[error("does not accept the token any more: it expired, ask for a new one")]
    Expired,
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
            Self::WrongMesh | Self::WrongSecret | Self::OtherEpoch { .. } | Self::Expired | Self::Blocked => true,
            Self::Refused(refusal) => !matches!(refusal, Refusal::TooSoon(_)),
            Self::Behind(_) | Self::TooSoon(_) | Self::Timeout(_) | Self::Malformed(_) | Self::Closed => false,
        }
    }

    /// What to tell the peer that is refused; `None`: nothing, it sees for itself.
    pub(super) fn refusal(&self) -> Option<Refusal> {
        match self {
            Self::WrongMesh => Some(Refusal::WrongMesh),
            Self::WrongSecret => Some(Refusal::WrongSecret),
            Self::OtherEpoch { ours, .. } => Some(Refusal::OtherEpoch(*ours)),
            Self::Expired => Some(Refusal::Expired),
            Self::Blocked => Some(Refusal::Blocked),
            Self::TooSoon(wait) => Some(Refusal::TooSoon(*wait)),
            _ => None,
        }
    }
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
