//! The admin service of a running node.

use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use mesh_mesh::{Mesh, PeerRecord};
use mesh_proto::v1;
use mesh_proto::v1::admin_server::{Admin, AdminServer};
use mesh_types::PeerState;
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use super::socket_path;

/// Answers the administering commands.
pub struct AdminService {
    mesh: Mesh,
    gateway_url: Option<String>,
    started: Instant,
}

/// The socket of a running admin service; removed when dropped.
pub struct AdminSocket {
    listener: UnixListener,
    _file: SocketFile,
}

struct SocketFile(PathBuf);

impl AdminService {
    /// A service over `mesh`.
    pub fn new(mesh: Mesh, gateway_url: Option<String>) -> Self {
        Self { mesh, gateway_url, started: Instant::now() }
    }

    /// Serves until `stop`, then lets running calls finish.
    ///
    /// # Errors
    /// Where the socket breaks.
    pub async fn serve(self, socket: AdminSocket, stop: CancellationToken) -> Result<(), tonic::transport::Error> {
        let AdminSocket { listener, _file } = socket;
        tonic::transport::Server::builder()
            .add_service(AdminServer::new(self))
            .serve_with_incoming_shutdown(UnixListenerStream::new(listener), stop.cancelled_owned())
            .await
    }
}

impl AdminSocket {
    /// Binds the socket in `data_dir`, which this process has locked: a file that lies there is a left-over.
    ///
    /// # Errors
    /// Where it cannot be bound; a path longer than the system allows among them.
    pub fn bind(data_dir: &Path) -> io::Result<Self> {
        let path = socket_path(data_dir);
        match std::fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let listener = UnixListener::bind(&path)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
        Ok(Self { listener, _file: SocketFile(path) })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Nothing is lost where this fails: the next start removes it.
        let _ = std::fs::remove_file(&self.0);
    }
}

#[tonic::async_trait]
impl Admin for AdminService {
    async fn peers(&self, _: Request<v1::PeersRequest>) -> Result<Response<v1::PeersResponse>, Status> {
        Ok(Response::new(v1::PeersResponse {
            mesh_id: self.mesh.id().to_string(),
            peers: self.mesh.peers().into_iter().map(peer).collect(),
            gateway_url: self.gateway_url.clone().unwrap_or_default(),
            uptime_seconds: self.started.elapsed().as_secs(),
        }))
    }

    async fn token(&self, _: Request<v1::TokenRequest>) -> Result<Response<v1::TokenResponse>, Status> {
        Ok(Response::new(v1::TokenResponse { token: self.mesh.token().encode() }))
    }
}

fn peer(record: PeerRecord) -> v1::Peer {
    let state = match record.state {
        PeerState::Joining => "joining",
        PeerState::Ready => "ready",
        PeerState::Leaving => "leaving",
        PeerState::Gone => "gone",
    };
    v1::Peer {
        status: Some(record.status),
        state: state.to_owned(),
        age_ms: u64::try_from(record.age.as_millis()).unwrap_or(u64::MAX),
        local: record.local,
    }
}
