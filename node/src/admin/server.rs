//! The admin service of a running node.

use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mesh_mesh::{Caller, Mesh, PeerRecord};
use mesh_proto::convert::fault_to_status;
use mesh_proto::v1;
use mesh_proto::v1::admin_server::{Admin, AdminServer};
use mesh_transport::Endpoint;
use mesh_types::{ErrorClass, ModelId, PeerId, PeerState};
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use super::remote::{self, Remote};
use super::{planned, socket_path};
use crate::doctor::{self, Doctor};
use crate::fleet::Fleet;
use crate::settings::Settings;

/// Answers the administering commands, those of the local command line and those that other nodes pass on.
#[derive(Clone)]
pub struct AdminService {
    mesh: Mesh,
    fleet: Fleet,
    endpoint: Endpoint,
    doctor: Doctor,
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
    /// A service over `mesh`, the models and stages of this node.
    pub fn new(
        mesh: Mesh,
        fleet: Fleet,
        (endpoint, settings): (Endpoint, Settings),
        gateway_url: Option<String>,
    ) -> Self {
        let about = (Arc::new(settings), gateway_url.clone());
        let doctor = Doctor::new(mesh.clone(), endpoint.clone(), fleet.clone(), about);
        Self { mesh, fleet, endpoint, doctor, gateway_url, started: Instant::now() }
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

    fn own_name(&self) -> String {
        self.mesh.view().borrow().local().map(|local| local.name.clone()).unwrap_or_default()
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
    async fn peers(&self, request: Request<v1::PeersRequest>) -> Result<Response<v1::PeersResponse>, Status> {
        if let Some(there) = remote::named(&self.mesh, &request)? {
            return there.answer(request.into_inner(), async |mut admin, call| admin.peers(call).await).await;
        }
        Ok(Response::new(v1::PeersResponse {
            mesh_id: self.mesh.id().to_string(),
            peers: self.mesh.peers().into_iter().map(peer).collect(),
            gateway_url: self.gateway_url.clone().unwrap_or_default(),
            uptime_seconds: self.started.elapsed().as_secs(),
            blocked: self.mesh.blocked().iter().map(ToString::to_string).collect(),
        }))
    }

    async fn token(&self, request: Request<v1::TokenRequest>) -> Result<Response<v1::TokenResponse>, Status> {
        if let Some(there) = remote::named(&self.mesh, &request)? {
            return there.answer(request.into_inner(), async |mut admin, call| admin.token(call).await).await;
        }
        let v1::TokenRequest { valid_seconds, rotate } = request.into_inner();
        if rotate {
            self.mesh.rotate_token().await.map_err(|error| Status::internal(error.to_string()))?;
        }
        let token = match valid_seconds {
            0 => self.mesh.token(),
            seconds => self.mesh.token_for(Duration::from_secs(seconds)),
        };
        Ok(Response::new(v1::TokenResponse { token: token.encode() }))
    }

    async fn block(&self, request: Request<v1::BlockRequest>) -> Result<Response<v1::BlockResponse>, Status> {
        if let Some(there) = remote::named(&self.mesh, &request)? {
            return there.answer(request.into_inner(), async |mut admin, call| admin.block(call).await).await;
        }
        let v1::BlockRequest { peer, off } = request.into_inner();
        let (id, name) = remote::member(&self.mesh, &peer)?;
        if id == *self.mesh.local_id() {
            return Err(Status::failed_precondition("a node cannot keep itself out: ask another one of the mesh"));
        }
        let is_news = if off { self.mesh.unblock(&id) } else { self.mesh.block(&id) };
        Ok(Response::new(v1::BlockResponse { peer_id: id.to_string(), name, is_news }))
    }

    async fn plan(&self, request: Request<v1::PlanRequest>) -> Result<Response<v1::PlanResponse>, Status> {
        if let Some(there) = remote::named(&self.mesh, &request)? {
            return there.answer(request.into_inner(), async |mut admin, call| admin.plan(call).await).await;
        }
        let model = request.get_ref().model.clone();
        match self.fleet.plan(&model).await {
            Ok(planned) => Ok(Response::new(planned::response(planned, self.own_name()))),
            // Who serves it knows what it weighs.
            Err(fault) if fault.class == ErrorClass::NotFound && !remote::is_passed_on(&request) => {
                let holders = remote::holders(&self.mesh, &ModelId::from(model.as_str()));
                match holders.iter().find(|peer| !peer.local) {
                    Some(holder) => {
                        let there = Remote::new(&self.mesh, holder);
                        there.answer(request.into_inner(), async |mut admin, call| admin.plan(call).await).await
                    }
                    None => Err(fault_to_status(&fault)),
                }
            }
            Err(fault) => Err(fault_to_status(&fault)),
        }
    }

    async fn load(&self, request: Request<v1::LoadRequest>) -> Result<Response<v1::LoadResponse>, Status> {
        if let Some(there) = remote::named(&self.mesh, &request)? {
            return there.answer(request.into_inner(), async |mut admin, call| admin.load(call).await).await;
        }
        let v1::LoadRequest { model, split } = request.into_inner();
        let split = Some(split).filter(|split| !split.is_empty());
        let loaded = self.fleet.load(&model, split.as_deref()).await;
        let name = loaded.map_err(|fault| fault_to_status(&fault))?;
        Ok(Response::new(v1::LoadResponse { model: name.to_string(), node: self.own_name() }))
    }

    async fn unload(&self, request: Request<v1::UnloadRequest>) -> Result<Response<v1::UnloadResponse>, Status> {
        if let Some(there) = remote::named(&self.mesh, &request)? {
            return there.answer(request.into_inner(), async |mut admin, call| admin.unload(call).await).await;
        }
        let name = ModelId::from(request.get_ref().model.as_str());
        let named = remote::is_passed_on(&request) || request.metadata().get_bin(super::TARGET).is_some();
        let holders = if named { Vec::new() } else { remote::holders(&self.mesh, &name) };
        match holders.as_slice() {
            [only] if !only.local => {
                let there = Remote::new(&self.mesh, only);
                there.answer(request.into_inner(), async |mut admin, call| admin.unload(call).await).await
            }
            [_, _, ..] => {
                let names: Vec<_> = holders.iter().map(|peer| peer.name.as_str()).collect();
                let why =
                    format!("`{name}` is served by {}: say on which to unload it, with --node", names.join(" and "));
                Err(Status::failed_precondition(why))
            }
            _ => {
                self.fleet.unload(&name).await.map_err(|fault| fault_to_status(&fault))?;
                Ok(Response::new(v1::UnloadResponse { node: self.own_name() }))
            }
        }
    }

    async fn drain(&self, request: Request<v1::DrainRequest>) -> Result<Response<v1::DrainResponse>, Status> {
        if let Some(there) = remote::named(&self.mesh, &request)? {
            return there.answer(request.into_inner(), async |mut admin, call| admin.drain(call).await).await;
        }
        self.fleet.set_draining(!request.into_inner().off);
        let view = self.mesh.view().borrow().clone();
        let (active, stages) = view.local().map_or((0, 0), |local| {
            let of_others = |stage: &&mesh_types::StageView| local.models.iter().all(|own| own.name != stage.model);
            (local.models.iter().map(|model| model.active).sum(), local.stages.iter().filter(of_others).count())
        });
        let stages = u32::try_from(stages).unwrap_or(u32::MAX);
        Ok(Response::new(v1::DrainResponse { node: self.own_name(), active, stages }))
    }

    async fn doctor(&self, request: Request<v1::DoctorRequest>) -> Result<Response<v1::DoctorResponse>, Status> {
        if let Some(there) = remote::named(&self.mesh, &request)? {
            return there.answer(request.into_inner(), async |mut admin, call| admin.doctor(call).await).await;
        }
        let findings = self.doctor.examine().await.into_iter().map(Into::into).collect();
        Ok(Response::new(v1::DoctorResponse { findings }))
    }

    async fn probe(&self, request: Request<v1::ProbeRequest>) -> Result<Response<v1::ProbeResponse>, Status> {
        let view = self.mesh.view().borrow().clone();
        let caller = request.extensions().get::<Caller>().filter(|_| request.get_ref().dial_back);
        let caller = caller.and_then(|Caller(peer)| view.peer(peer));
        Ok(Response::new(doctor::probe(caller, &self.endpoint).await))
    }
}

fn peer(record: PeerRecord) -> v1::Peer {
    let state = match record.state {
        PeerState::Joining => "joining",
        PeerState::Ready => "ready",
        PeerState::Leaving => "leaving",
        PeerState::Gone => "gone",
        PeerState::OtherVersion => "other version",
    };
    v1::Peer {
        status: Some(record.status),
        state: state.to_owned(),
        age_ms: u64::try_from(record.age.as_millis()).unwrap_or(u64::MAX),
        local: record.local,
        copied_at: record.copied_at,
        relayed_by: record.relay.map(|relay| relay.to_string()).unwrap_or_default(),
        reach: record.reach.into_iter().map(reach).collect(),
    }
}

fn reach(found: mesh_mesh::AddressReach) -> v1::AddressReach {
    let ids = |members: Vec<PeerId>| members.iter().map(ToString::to_string).collect();
    v1::AddressReach {
        address: found.address.to_string(),
        reached_by: ids(found.reached_by),
        missed_by: ids(found.missed_by),
    }
}
