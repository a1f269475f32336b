//! Where a request goes and where a model's layers go: replica choice and stage placement, each with its explanation.
//!
//! Pure functions of a [`mesh_types::MeshView`]: no I/O, no clock, no state. They decide; others dial and load. Start
//! with [`replica::choose`] for requests and [`placement::place`] for models.
#![forbid(unsafe_code)]

pub mod placement;
pub mod replica;

pub use placement::{PlacedStage, PlacementError, Split, place};
pub use replica::{Candidate, Choice, RouteError, Served, choose, served};
