//! A running node: everything put together, and taken apart again in order.
//!
//! Shutdown is three moments: *draining* (nothing new is taken, runs finish), *quiet* (stages and links end), *closed*
//! (the mesh hears that this node leaves). See [`Node::shutdown`].

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use mesh_gateway::Gateway;
use mesh_gateway::announce::{Announcement, Announcer};
use mesh_mesh::weights::{SliceCache, SliceFetcher};
use mesh_mesh::{DataDir, Identity, JoinToken, Membership, Mesh};
use mesh_proto::v1::admin_server::AdminServer;
use mesh_proto::v1::inference_server::InferenceServer;
use mesh_proto::v1::stage_control_server::StageControlServer;
use mesh_transport::{Endpoint, Gate};
use mesh_types::{ByteSize, MeshView, PeerId, PeerState};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::admin::server::{AdminService, AdminSocket};
use crate::board::Board;
use crate::fleet::Fleet;
use crate::holdings::Holdings;
use crate::pooling::{Keeper, PoolingModel, PoolingModels};
use crate::serve::{InferenceService, ServedModel};
use crate::settings::{GatewaySetting, ModelSettings, Settings};
use crate::stages::{StageControlService, StageHost};
use crate::supervisor::{Parts, check_split};

/// How long a joining node looks for its mesh.
const JOIN_LIMIT: Duration = Duration::from_secs(15);
/// Share of the free memory that is offered unless told otherwise.
const OFFERED: (u64, u64) = (80, 100);

/// Bytes of one request from a gateway, whose own limit on a client's body is half of it.
const MAX_REQUEST: usize = 64 << 20;

/// How a node comes to its mesh.
pub enum Entry {
    /// `up`: the mesh of the data directory, or a new one.
    Up,
    /// `join`: the token's.
    Join(JoinToken),
}

/// Models that generate, and how they are to be split; and models that pool.
type Opened = (Vec<(Arc<ServedModel>, ModelSettings)>, Vec<Arc<PoolingModel>>);

/// A running node.
pub struct Node {
    mesh: Mesh,
    host: StageHost,
    endpoint: Endpoint,
    board: Arc<Board>,
    /// Gateway, admin service and supervisors.
    tasks: JoinSet<Result<()>>,
    loads: TaskTracker,
    slices: SliceCache,
    stop: CancellationToken,
    _data_dir: DataDir,
}

/// Lets admitted peers, and nobody else, reach stages.
struct AdmittedPeers(Mesh);

impl Gate for AdmittedPeers {
    fn admits(&self, peer: &PeerId) -> bool {
        self.0.is_admitted(peer)
    }
}

impl Node {
    /// Starts everything that `settings` asks for, and says on stdout what became usable.
    ///
    /// # Errors
    /// What cannot be used, in one sentence.
    pub async fn start(settings: Settings, entry: Entry) -> Result<Self> {
        let (models, pooling) = open_models(&settings)?;
        let announcer = Arc::new(Announcer::stdout(settings.log_format));
        let data_dir = DataDir::open(&settings.data_dir)?;
        let identity = Identity::open(&data_dir)?;
        let is_up = matches!(entry, Entry::Up);
        let membership = match entry {
            Entry::Up => Membership::create_or_resume(&data_dir)?,
            Entry::Join(token) => Membership::join(&data_dir, &token)?,
        };
        let admin = AdminSocket::bind(data_dir.path()).context("cannot open the admin socket in the data directory")?;

        let mesh = Mesh::start(mesh_mesh::Config {
            identity: identity.clone(),
            membership,
            listen: settings.listen,
            name: settings.name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            mdns: settings.mdns,
        })
        .await?;
        let gateway = bind_gateway(&settings, &mesh).await?;
        let gateway_url = gateway.as_ref().map(Gateway::url);
        let stage_addr = mesh.listen_addr();
        let endpoint = Endpoint::bind(stage_addr, identity.keypair(), Arc::new(AdmittedPeers(mesh.clone())))?;
        let stage_addresses =
            mesh.advertised_ips().into_iter().map(|ip| SocketAddr::new(ip, stage_addr.port()).to_string()).collect();
        let offer = settings.memory.unwrap_or_else(free_memory);
        let board = Arc::new(Board::new(mesh.clone(), offer, stage_addresses));
        let host = StageHost::new(Arc::clone(&board));
        endpoint.serve(Arc::new(host.clone()));

        let cache = data_dir.path().join("cache");
        let holdings = Arc::new(Holdings::new(&cache));
        let slices = SliceCache::open(cache.join("slices"), settings.cache)?;
        mesh.serve_weights(holdings.offered());
        let loads = TaskTracker::new();
        let parts = Parts {
            mesh: mesh.clone(),
            host: host.clone(),
            endpoint: endpoint.clone(),
            board: Arc::clone(&board),
            holdings: Arc::clone(&holdings),
            settings: settings.stage.clone(),
            slices: slices.clone(),
        };
        let (fleet, commands) = Fleet::new(parts, settings.model_defaults.clone());
        let admin_service =
            AdminService::new(mesh.clone(), fleet.clone(), (endpoint.clone(), settings.clone()), gateway_url.clone());
        let control = StageControlService::new(
            mesh.clone(),
            host.clone(),
            SliceFetcher::new(mesh.clone(), slices.clone(), holdings.manifests()),
            settings.stage.compute.clone(),
            loads.clone(),
        );
        let service = InferenceService::new(fleet.served()).with_pooling(PoolingModels::new(pooling.iter().cloned()));
        mesh.serve_grpc(
            tonic::service::Routes::new(InferenceServer::new(service).max_decoding_message_size(MAX_REQUEST))
                .add_service(StageControlServer::new(control))
                .add_service(AdminServer::new(admin_service.clone())),
        );

        let mut node = Self {
            mesh,
            host,
            endpoint,
            board,
            tasks: JoinSet::new(),
            loads,
            slices,
            stop: CancellationToken::new(),
            _data_dir: data_dir,
        };
        node.run(|stop| async move { Ok(admin_service.serve(admin, stop).await?) });
        if let Err(error) = node.enter(is_up, &announcer).await {
            node.shutdown().await;
            return Err(error);
        }
        if let (Some(gateway), Some(url)) = (gateway, gateway_url) {
            node.run(|stop| async move {
                gateway.run(stop).await;
                Ok(())
            });
            announcer.say(&Announcement::Gateway { url });
        }
        let (view, endpoint) = (node.mesh.view(), node.endpoint.clone());
        node.run(|stop| async move {
            stop.run_until_cancelled(close_links_of_lost_peers(view, endpoint)).await;
            Ok(())
        });
        let (view, announcing) = (node.mesh.view(), Arc::clone(&announcer));
        node.run(|stop| async move {
            stop.run_until_cancelled(mesh_gateway::announce_models(view, &announcing)).await;
            Ok(())
        });
        for model in pooling {
            let keeper = Keeper::new(model, Arc::clone(&node.board), settings.name.clone());
            node.run(|stop| async move {
                keeper.run(stop).await;
                Ok(())
            });
        }
        let running = fleet.clone();
        node.run(|stop| running.run(commands, stop));
        for (model, settings) in models {
            fleet.start(model, settings).await.map_err(|fault| anyhow!("{fault}"))?;
        }
        Ok(node)
    }

    /// Serves until `stop` resolves; an error where a part of the node ended by itself.
    ///
    /// # Errors
    /// That part's error.
    pub async fn run_until(&mut self, stop: impl Future<Output = ()>) -> Result<()> {
        tokio::pin!(stop);
        tokio::select! {
            () = &mut stop => Ok(()),
            Some(ended) = self.tasks.join_next() => match ended {
                Ok(Ok(())) => Err(anyhow!("a part of the node ended by itself")),
                Ok(Err(error)) => Err(error),
                Err(panic) => Err(anyhow!("a part of the node failed: {panic}")),
            },
        }
    }

    /// Draining, quiet, closed.
    pub async fn shutdown(mut self) {
        self.board.leave();
        self.stop.cancel();
        while self.tasks.join_next().await.is_some() {}
        self.loads.close();
        self.host.shutdown().await;
        self.loads.wait().await;
        self.slices.close().await;
        self.endpoint.shutdown().await;
        self.mesh.shutdown().await;
    }

    /// Says that the mesh is there, once it is.
    async fn enter(&self, is_up: bool, announcer: &Announcer) -> Result<()> {
        if !is_up {
            self.mesh.joined(JOIN_LIMIT).await?;
        }
        announcer.say(&Announcement::Mesh {
            id: self.mesh.id().to_string(),
            node: self.mesh.local_id().to_string(),
            token: is_up.then(|| self.mesh.token().encode()),
        });
        Ok(())
    }

    fn run<F>(&mut self, part: impl FnOnce(CancellationToken) -> F)
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        self.tasks.spawn(part(self.stop.clone()));
    }
}

/// The models to serve, and how they are to be split, and those that pool; mistakes that no peer could mend are told
/// before anything starts.
fn open_models(settings: &Settings) -> Result<Opened> {
    let (mut generating, mut pooling) = (Vec::new(), Vec::new());
    for model in &settings.models {
        if let Some(model) = PoolingModel::open(model, &settings.stage)? {
            pooling.push(Arc::new(model));
            continue;
        }
        let served = ServedModel::open(model, settings.stage.ctx)?;
        check_split(&served, &model.split).with_context(|| format!("cannot split `{}`", served.name))?;
        generating.push((Arc::new(served), model.clone()));
    }
    Ok((generating, pooling))
}

async fn bind_gateway(settings: &Settings, mesh: &Mesh) -> Result<Option<Gateway>> {
    let config =
        |addr| mesh_gateway::Config::new(addr).with_api_key(settings.api_key.clone()).with_limits(settings.limits);
    let peers = Arc::new(mesh.clone());
    Ok(match settings.gateway {
        GatewaySetting::Off => None,
        GatewaySetting::At(addr) => Some(Gateway::bind(config(addr), peers).await?),
        GatewaySetting::Near(addr) => Some(Gateway::bind_or_any_port(config(addr), peers).await?),
    })
}

/// A peer whose mesh connection is gone is gone for its stage links too, long before QUIC's idle timeout says so.
async fn close_links_of_lost_peers(mut view: watch::Receiver<Arc<MeshView>>, endpoint: Endpoint) {
    let mut present = BTreeSet::new();
    loop {
        let now = view.borrow_and_update().clone();
        let is_away = |state| matches!(state, PeerState::Gone | PeerState::OtherVersion);
        let here = now.peers.iter().filter(|peer| !peer.local && !is_away(peer.state));
        let here: BTreeSet<PeerId> = here.map(|peer| peer.id.clone()).collect();
        present.difference(&here).for_each(|peer| endpoint.disconnect(peer));
        present = here;
        if view.changed().await.is_err() {
            return;
        }
    }
}

pub(crate) fn free_memory() -> ByteSize {
    let mut system = sysinfo::System::new();
    system.refresh_memory();
    ByteSize(system.available_memory() / OFFERED.1 * OFFERED.0)
}

/// A joining node's token.
///
/// # Errors
/// Where it cannot be read, or is no token.
pub fn read_token(token: Option<&str>, file: Option<&PathBuf>) -> Result<JoinToken> {
    Ok(token_text(token, file)?.trim().parse()?)
}

/// The text of a token: itself, `-` for standard input, or that of a file.
///
/// # Errors
/// Where it cannot be read.
pub fn token_text(token: Option<&str>, file: Option<&PathBuf>) -> Result<String> {
    let text = match (token, file) {
        (Some("-"), _) => {
            std::io::read_to_string(std::io::stdin()).context("cannot read the token from standard input")?
        }
        (Some(token), _) => token.to_owned(),
        (None, Some(file)) => {
            std::fs::read_to_string(file).with_context(|| format!("cannot read the token from {}", file.display()))?
        }
        (None, None) => return Err(anyhow!("no token was given")),
    };
    Ok(text)
}
