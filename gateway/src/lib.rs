//! The gateway: an OpenAI-compatible `/v1` in front of a mesh.
//!
//! Owns HTTP: connections, authentication, limits, the dialect's endpoints, and turning a peer's events into JSON or
//! SSE. It knows nothing of templates, tokens or stages, and links no llama.cpp: a request goes to a stage-0 node over
//! gRPC (`upstream`) and its events come back as the return value of that call. Dropping a response's body, as hyper
//! does when the client goes away, cancels the run.
//!
//! Start with [`Gateway`]; a request's way is `routes` → `answer` → `runs` → `upstream`.
#![forbid(unsafe_code)]

pub mod announce;
mod answer;
mod balance;
mod body;
mod config;
mod cors;
mod descriptors;
mod health;
mod metrics;
mod models;
mod peers;
mod request_body;
mod routes;
mod runs;
mod seal;
mod server;
mod ticket;
mod tokens;
mod unpack;
mod upstream;

pub use config::{ApiKey, Config, Limits};
pub use descriptors::raise_open_files;
pub use models::announce_models;
pub use peers::Peers;
pub use server::{Gateway, GatewayError};
