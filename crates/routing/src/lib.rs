//! Where a request goes and where a model's layers go: replica choice and stage placement, each with its explanation.
//!
//! Pure functions of a [`mesh_types::MeshView`], and one state machine, [`router::Router`], that is told the time: no
//! I/O, no clock. They decide; others dial and load. Start with [`replica::choose`] and [`router`] for requests,
//! [`placement::place`] for models whose split was asked for and [`plan::plan`] for all others.
#![forbid(unsafe_code)]

pub mod placement;
pub mod plan;
pub mod replica;
pub mod router;

pub use placement::{PlacedStage, PlacementError, Split, place};
pub use replica::{Candidate, Choice, RouteError, Served, choose, served};
pub use router::{Prefixes, Router, RunId};
