//! The gateway: an OpenAI-compatible `/v1` in front of a mesh.
//!
//! Owns HTTP: connections, authentication, limits, the dialect's endpoints, and turning a peer's events into JSON or
//! SSE. It knows nothing of templates, tokens or stages, and links no llama.cpp: a request goes to a stage-0 node over
//! gRPC (`upstream`) and its events come back as the return value of that call. Dropping a response's body, as hyper
//! does when the client goes away, cancels the run.
//!
//! Start with [`Gateway`]; a request's way is `routes` → `chat` → `upstream`.
#![forbid(unsafe_code)]

pub mod announce;
mod body;
mod chat;
mod config;
mod cors;
mod health;
mod models;
mod peers;
mod routes;
mod server;
mod ticket;
mod upstream;

pub use config::{ApiKey, Config, Limits};
pub use models::announce_models;
pub use peers::Peers;
pub use server::{Gateway, GatewayError};
