//! The administering commands: a service on a unix socket in the data directory, its client, and what they print.
//!
//! Only processes of the same user reach the socket (the data directory is private), so it asks for no key.

pub mod client;
pub mod server;
pub mod show;
pub mod table;

use std::path::{Path, PathBuf};

/// The socket's place in a data directory.
pub fn socket_path(data_dir: &Path) -> PathBuf {
    data_dir.join("admin.sock")
}
