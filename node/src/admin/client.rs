//! Asks the node that runs in a data directory.

use std::io::ErrorKind;
use std::path::Path;

use hyper_util::rt::TokioIo;
use mesh_proto::v1::admin_client::AdminClient;
use mesh_proto::v1::{PeersRequest, TokenRequest};
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};

use super::{show, socket_path};
use crate::cli::Command;

/// Why a node could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// Nobody listens: exit code 3.
    #[error("no node is running with the data directory {0}: start one with `mesh-node up` or `mesh-node join`")]
    NotRunning(String),
    /// It is there and did not answer.
    #[error("the node did not answer: {0}")]
    Failed(String),
}

/// Runs an administering command against the node in `data_dir`; gives what to print.
///
/// # Errors
/// [`AskError`].
pub async fn run(command: &Command, data_dir: &Path, json: bool) -> Result<String, AskError> {
    let mut admin = connect(data_dir).await?;
    let failed = |status: tonic::Status| AskError::Failed(status.message().to_owned());
    if matches!(command, Command::Token(_)) {
        let response = admin.token(TokenRequest {}).await.map_err(failed)?;
        return Ok(show::token(&response.into_inner().token, json));
    }
    let mesh = admin.peers(PeersRequest {}).await.map_err(failed)?.into_inner();
    Ok(match command {
        Command::Peers(_) => show::peers(&mesh, json),
        Command::Models(_) => show::models(&mesh, json),
        Command::Stages(_) => show::stages(&mesh, json),
        _ => show::status(&mesh, json),
    })
}

async fn connect(data_dir: &Path) -> Result<AdminClient<Channel>, AskError> {
    let path = socket_path(data_dir);
    let connector = tower::service_fn(move |_| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    });
    // The URI only fills the `:authority` header; the connector knows the way.
    let channel = Endpoint::from_static("http://node.local").connect_with_connector(connector).await;
    channel.map(AdminClient::new).map_err(|error| match io_kind(&error) {
        Some(ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
            AskError::NotRunning(data_dir.display().to_string())
        }
        kind => AskError::Failed(kind.map_or_else(|| error.to_string(), |kind| kind.to_string())),
    })
}

/// What the system said, where that is among an error's causes.
fn io_kind(error: &(dyn std::error::Error + 'static)) -> Option<ErrorKind> {
    let mut causes = std::iter::successors(Some(error), |error| error.source());
    causes.find_map(|cause| cause.downcast_ref::<std::io::Error>()).map(std::io::Error::kind)
}
