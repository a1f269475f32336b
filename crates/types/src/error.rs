//! How every error in the product is classified, whatever its type.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What kind of thing went wrong: the only thing that policy (status codes, retries, exit codes) looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ErrorClass {
    /// The caller asked for something that can never work as asked.
    InvalidRequest,
    /// The caller named something that does not exist here.
    NotFound,
    /// There is no room now; the same request may work later.
    Overloaded,
    /// Something that is needed is missing or was lost; the same request may work later.
    Unavailable,
    /// A wait ran past its deadline.
    Deadline,
    /// The caller went away, or asked to stop.
    Cancelled,
    /// A peer said something that the protocol does not allow.
    PeerProtocol,
    /// A bug, or a failure that has no better class.
    Internal,
}

/// An error at the edge of a room: its class, and the one sentence that the caller may see.
///
/// What only the log needs is logged where the fault is made; no internals travel in `message`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Fault {
    /// The class.
    pub class: ErrorClass,
    /// One sentence in the caller's own terms.
    pub message: String,
    /// The request's field at fault, as in `messages[2].content`; for [`ErrorClass::InvalidRequest`].
    pub param: Option<String>,
    /// A stable machine-readable code, as in `context_length_exceeded`.
    pub code: Option<String>,
}

impl Fault {
    /// A fault of `class` that says `message`.
    pub fn new(class: ErrorClass, message: impl Into<String>) -> Self {
        Self { class, message: message.into(), param: None, code: None }
    }

    /// An invalid request.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorClass::InvalidRequest, message)
    }

    /// Something needed is missing.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(ErrorClass::Unavailable, message)
    }

    /// Names the request's field at fault.
    #[must_use]
    pub fn with_param(mut self, param: impl Into<String>) -> Self {
        self.param = Some(param.into());
        self
    }

    /// Adds the machine-readable code.
    #[must_use]
    pub fn with_code(mut self, code: impl Into<String>) -> Self {
        self.code = Some(code.into());
        self
    }
}

impl fmt::Display for ErrorClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InvalidRequest => "invalid request",
            Self::NotFound => "not found",
            Self::Overloaded => "overloaded",
            Self::Unavailable => "unavailable",
            Self::Deadline => "deadline exceeded",
            Self::Cancelled => "cancelled",
            Self::PeerProtocol => "peer protocol violation",
            Self::Internal => "internal error",
        })
    }
}
