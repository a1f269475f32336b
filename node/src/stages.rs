//! The stages that run on this machine, each in a child process: started for this node's own models or for a peer,
//! watched, shown on the board, and found by the stage endpoint.
//!
//! Does not decide which stages there are: that is [`crate::supervisor`], here or on another node.

mod config;
mod control;
mod host;
mod meter;
mod process;
mod progress;

pub use config::{StagePlan, shape};
pub use control::StageControlService;
pub use host::{HostedStage, StageHost};
pub use process::run as run_stage_process;
pub use progress::reported;

/// The hidden command that a stage's child process is started with.
pub const STAGE_COMMAND: &str = "stage-process";

/// The hidden command that the child process of a model that pools is started with.
pub const POOLER_COMMAND: &str = "pooler-process";
