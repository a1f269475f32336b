//! A stage in a child process of this node.
//!
//! An assertion in llama.cpp, a driver fault or an out-of-memory kill is then the loss of one stage, and leaving gives
//! all device memory back. Both ends speak [`crate::codec`] over a UNIX socket pair, the child's end being its standard
//! input:
//!
//! ```text
//! parent                                   child
//!   configuration (JSON) ────────────────▶   loads the stage
//!   ◀──────────── Ready(spec, weights) or Failed(error)
//!   Connect, session n ──────────────────▶   drops session n-1, opens a link
//!   ◀──────────────────────────── Connected
//!   frames, End, or Cancel ──────────────▶   never waits for the stage: at most `WINDOW` frames are on their way
//!   ◀─────────────────── frames, End; Credit for frames taken
//! ```
//!
//! Every message carries its session's number; what belongs to an earlier session is thrown away on both sides.
//!
//! Owns: the process, its socket and its end. Does not own: restarts (whoever supervises sees [`ChildStage::lost`]).
//! Start with [`ChildStage::spawn`] on one side and [`serve`] on the other.

mod parent;
mod pipes;
mod serve;

use serde::{Deserialize, Serialize};

pub use parent::{ChildCommand, ChildStage, Observer};
pub(crate) use parent::{describe, reap, start};
pub use serve::{Loaded, serve};

use crate::error::StageError;
use crate::stage::StageSpec;

/// Frames that may be on their way to a child before it has taken one. The child's reader has room for them, so that it
/// always reads: a cancel, or the parent's end, is seen at once however busy the stage is.
const WINDOW: usize = 8;

/// Bytes of a configuration.
const CONFIG_MAX: u32 = 1 << 20;

#[derive(Debug, Serialize, Deserialize)]
enum ToChild {
    /// First of all: the stage's configuration as JSON.
    Config(String),
    /// Opens the session in the prefix; every earlier one is over.
    Connect,
    /// Throws the session away.
    Cancel,
}

#[derive(Debug, Serialize, Deserialize)]
enum FromChild {
    /// The stage is loaded.
    Ready { spec: StageSpec, weight_bytes: u64 },
    /// It could not be loaded.
    Failed(StageError),
    /// The session is open.
    Connected,
    /// So many frames of the session were taken by the stage.
    Credit(u32),
}
