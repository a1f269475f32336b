//! Why an address could not be reached, in words for the person who ran `join`.

use std::error::Error;
use std::fmt;
use std::io;
use std::time::Duration;

use libp2p::Multiaddr;
use libp2p::core::transport::TransportError;
use libp2p::swarm::DialError;

use crate::admission::{AdmissionError, Refusal};

/// Why one address could not be reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reason {
    /// Somebody answered, and admission failed.
    NotAdmitted(AdmissionError),
    /// Nobody answered, or the wrong one.
    Unreachable {
        /// What happened.
        what: String,
        /// Asking again cannot help.
        last: bool,
        /// Something at the address answered, if only to refuse.
        answered: bool,
    },
}

impl Reason {
    /// Whether asking again cannot help.
    pub(super) fn is_final(&self) -> bool {
        match self {
            Self::NotAdmitted(error) => error.is_final(),
            Self::Unreachable { last, .. } => *last,
        }
    }

    /// Whether nothing at the address answers: there may be no way to it from here.
    pub(super) fn is_silence(&self) -> bool {
        matches!(self, Self::Unreachable { answered: false, .. })
    }

    /// Whether a mesh-node answered, and will not have this one.
    pub(super) fn is_refusal(&self) -> bool {
        matches!(self, Self::NotAdmitted(error) if error.is_final())
    }

    /// How long the other side asks this node to wait.
    pub(super) fn wait(&self) -> Option<Duration> {
        match self {
            Self::NotAdmitted(AdmissionError::Refused(Refusal::TooSoon(wait))) => Some(*wait),
            _ => None,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAdmitted(error) => write!(f, "the node there {error}"),
            Self::Unreachable { what, .. } => f.write_str(what),
        }
    }
}

/// The addresses that were tried, and what went wrong at each.
pub(super) fn of_dial(error: &DialError) -> Vec<(Multiaddr, Reason)> {
    let last = |what: String| Reason::Unreachable { what, last: true, answered: true };
    match error {
        DialError::Transport(attempts) => {
            attempts.iter().map(|(address, error)| (address.clone(), of_transport(error))).collect()
        }
        DialError::WrongPeerId { obtained, address } => {
            vec![(address.clone(), last(format!("another node answers there ({obtained})")))]
        }
        DialError::LocalPeerId { address } => vec![(address.clone(), last("that is this node itself".to_owned()))],
        _ => Vec::new(),
    }
}

fn of_transport(error: &TransportError<io::Error>) -> Reason {
    let TransportError::Other(error) = error else {
        let what = "not an address that this node can dial".to_owned();
        return Reason::Unreachable { what, last: true, answered: false };
    };
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    let mut innermost = error.to_string();
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<AdmissionError>() {
            return Reason::NotAdmitted(error.clone());
        }
        // An io::Error's source is its payload's source: look at the payload itself.
        let payload = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        let payload = payload.map(|payload| payload as &(dyn Error + 'static));
        if let Some(error) = error.downcast_ref::<io::Error>().filter(|_| payload.is_none()) {
            let answered = error.kind() == io::ErrorKind::ConnectionRefused;
            return Reason::Unreachable { what: of_io(error), last: false, answered };
        }
        innermost = error.to_string();
        cause = payload.or_else(|| error.source());
    }
    let what = if innermost.contains("Timeout") { "no answer in time".to_owned() } else { innermost };
    Reason::Unreachable { what, last: false, answered: false }
}

fn of_io(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused (nothing listens there)".to_owned(),
        io::ErrorKind::TimedOut => "no answer in time".to_owned(),
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => "no route to that host".to_owned(),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
            "the connection was closed (is that a mesh-node?)".to_owned()
        }
        _ => error.to_string(),
    }
}
