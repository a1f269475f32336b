//! The gateway over real sockets, in front of scripted stage-0 nodes.

mod answers;
mod client;
mod disconnects;
mod failures;
mod fake;
mod http_rules;
mod lifecycle;
mod mesh_state;
