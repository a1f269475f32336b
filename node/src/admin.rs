//! The administering commands: a service on a unix socket in the data directory and towards the other nodes of the mesh,
//! its client, and what they print.
//!
//! Only processes of the same user reach the socket (the data directory is private), and only admitted peers the service
//! on the mesh, so it asks for no key. Start with [`client::run`] for the commands, [`server`] for what answers them.

pub mod client;
pub mod json;
mod planned;
mod remote;
pub mod screen;
pub mod server;
pub mod show;
pub mod table;

use std::path::{Path, PathBuf};

/// Metadata of a call: the name or id of the node that it is for.
const TARGET: &str = "mesh-node-target-bin";

/// The socket's place in a data directory.
pub fn socket_path(data_dir: &Path) -> PathBuf {
    data_dir.join("admin.sock")
}
