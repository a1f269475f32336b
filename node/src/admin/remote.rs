//! Which node of the mesh an administering call is for, and passing it on.

use std::time::Duration;

use mesh_mesh::Mesh;
use mesh_proto::v1::admin_client::AdminClient;
use mesh_types::{ModelId, PeerId, PeerState, PeerView};
use tonic::metadata::MetadataValue;
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};

use super::TARGET;

/// Metadata of a call that was passed on already: who gets it answers it.
const PASSED_ON: &str = "mesh-node-passed-on";
/// How long another node may take. Unloading waits for runs, and a file may lie on a slow disk.
const LIMIT: Duration = Duration::from_secs(30);

/// Another node that is to answer.
pub(super) struct Remote {
    name: String,
    admin: AdminClient<Channel>,
}

impl Remote {
    pub(super) fn new(mesh: &Mesh, peer: &PeerView) -> Self {
        Self { name: peer.name.clone(), admin: AdminClient::new(mesh.channel(&peer.id)) }
    }

    /// Has the node answer `request`, by one of the methods of [`AdminClient`].
    pub(super) async fn answer<Q, A, F>(
        self,
        request: Q,
        method: impl FnOnce(AdminClient<Channel>, Request<Q>) -> F,
    ) -> Result<Response<A>, Status>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let mut request = Request::new(request);
        request.metadata_mut().insert(PASSED_ON, MetadataValue::from_static("yes"));
        let name = self.name;
        match tokio::time::timeout(LIMIT, method(self.admin, request)).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(status)) if status.code() == Code::Unimplemented => Err(Status::unimplemented(format!(
                "{name} does not take administering commands: it only routes, or its version is older"
            ))),
            Ok(Err(status)) => Err(Status::new(status.code(), format!("{name}: {}", status.message()))),
            Err(_) => Err(Status::deadline_exceeded(format!("{name} did not answer within {} s", LIMIT.as_secs()))),
        }
    }
}

/// Whether another node passed the call on to this one.
pub(super) fn is_passed_on<T>(request: &Request<T>) -> bool {
    request.metadata().contains_key(PASSED_ON)
}

/// The node that the caller asks for, where that is another one; `None`: it is this one, or the caller does not say.
pub(super) fn named<T>(mesh: &Mesh, request: &Request<T>) -> Result<Option<Remote>, Status> {
    let Some(target) = request.metadata().get_bin(TARGET) else { return Ok(None) };
    let target = target.to_bytes().ok().and_then(|bytes| String::from_utf8(bytes.to_vec()).ok());
    let target = target.ok_or_else(|| Status::invalid_argument("the name of a node is text"))?;
    let peer = find(mesh, &target)?;
    Ok((!peer.local).then(|| Remote::new(mesh, &peer)))
}

/// The node with this name or id.
///
/// # Errors
/// Where there is none, or more than one.
pub(super) fn find(mesh: &Mesh, target: &str) -> Result<PeerView, Status> {
    let view = mesh.view().borrow().clone();
    let here = |peer: &&PeerView| !matches!(peer.state, PeerState::Gone | PeerState::OtherVersion);
    let is_it = |peer: &&PeerView| peer.name == target || peer.id.as_str() == target;
    let found: Vec<&PeerView> = view.peers.iter().filter(here).filter(is_it).collect();
    match found.as_slice() {
        [only] => Ok((*only).clone()),
        [] => {
            let names: Vec<_> = view.peers.iter().filter(here).map(|peer| peer.name.as_str()).collect();
            Err(Status::not_found(format!("no node is called `{target}` here; there are: {}", names.join(", "))))
        }
        several => {
            let ids: Vec<_> = several.iter().map(|peer| peer.id.as_str()).collect();
            Err(Status::failed_precondition(format!(
                "several nodes are called `{target}`: give the id of one, {}",
                ids.join(" or ")
            )))
        }
    }
}

/// The id and name of the peer that `target` names: an id need not be known here, and has no name then.
///
/// # Errors
/// Where it is no id, and there is no peer of that name, or more than one.
pub(super) fn member(mesh: &Mesh, target: &str) -> Result<(PeerId, String), Status> {
    let view = mesh.view().borrow().clone();
    if let Some(id) = mesh_mesh::identity::check(target) {
        let name = view.peer(&id).map(|peer| peer.name.clone()).unwrap_or_default();
        return Ok((id, name));
    }
    // One that went a moment ago may be the one to be kept out.
    let gone = view.peers.iter().filter(|peer| peer.state == PeerState::Gone && peer.name == target);
    match (find(mesh, target), gone.collect::<Vec<_>>().as_slice()) {
        (Err(status), [only]) if status.code() == Code::NotFound => Ok((only.id.clone(), only.name.clone())),
        (found, _) => found.map(|peer| (peer.id, peer.name)),
    }
}

/// The nodes that serve a model.
pub(super) fn holders(mesh: &Mesh, model: &ModelId) -> Vec<PeerView> {
    let view = mesh.view().borrow().clone();
    let serves =
        |peer: &&PeerView| peer.state != PeerState::Gone && peer.models.iter().any(|listed| listed.name == *model);
    view.peers.iter().filter(serves).cloned().collect()
}
