//! Loads the stages of a placement, here and on peers, and takes them down again.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::future::try_join_all;
use mesh_engine::{Stage, StageError, StageSpec};
use mesh_gguf::Progress;
use mesh_mesh::weights::Lease;
use mesh_proto::v1;
use mesh_proto::v1::load_stage_event::Event;
use mesh_proto::v1::stage_control_client::StageControlClient;
use mesh_routing::PlacedStage;
use mesh_transport::{Hop, RemoteChain};
use mesh_types::{ByteSize, LayerRange, ModelView, PeerId, PeerState, PeerView, StageId};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{Parts, PlaceError, Placement, Supervisor, chain};
use crate::stages::{HostedStage, reported};

/// How long a peer may say nothing while it loads a stage.
const SILENCE_LIMIT: Duration = Duration::from_secs(120);
/// Holders that a peer is told of.
const MAX_HOLDERS: usize = 16;
/// How long a peer may take to unload.
const UNLOAD_LIMIT: Duration = Duration::from_secs(3);

/// The stages of a placement.
#[derive(Default)]
pub(super) struct LoadedStages {
    pub(super) own: Option<Arc<HostedStage>>,
    pub(super) remote: Vec<RemoteStage>,
}

/// A stage on a peer.
#[derive(Clone)]
pub(super) struct RemoteStage {
    pub(super) peer: PeerId,
    pub(super) layers: LayerRange,
    id: StageId,
    /// The connection to the peer, with which the stage goes.
    lost: CancellationToken,
}

impl RemoteStage {
    /// Whether it may be there still.
    pub(super) fn may_be_there(&self) -> bool {
        !self.lost.is_cancelled()
    }

    /// Whether it is what a placement has at `stage`.
    fn is(&self, stage: &PlacedStage) -> bool {
        self.peer == stage.peer && self.layers == stage.layers && self.may_be_there()
    }
}

/// What became of loading a placement.
pub(super) struct Loaded {
    /// This node's own stage, where it could be loaded.
    pub(super) own: Option<Arc<HostedStage>>,
    pub(super) outcome: Result<Placement, PlaceError>,
}

/// Who hears how loading goes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Tell {
    /// Everybody: the model does not answer until it is done.
    Waiting,
    /// The log: another placement answers meanwhile.
    Log,
}

impl Supervisor {
    /// Loads all stages at the same time, but for those in `kept` that are as they have to be. If one fails, those on
    /// peers are taken down again; this node's own is given back for the next try.
    pub(super) async fn load(&self, stages: Vec<PlacedStage>, kept: LoadedStages, tell: Tell) -> Loaded {
        let LoadedStages { own: kept, remote: left } = kept;
        // A peer that has the stage of this id answers at once.
        let id = |stage: &PlacedStage| match left.iter().find(|left| left.is(stage)) {
            Some(left) => left.id.clone(),
            None => StageId::new(uuid::Uuid::now_v7().to_string()),
        };
        let ids: Vec<StageId> = stages.iter().map(id).collect();
        let (here, there): (Vec<_>, Vec<_>) = stages.iter().zip(&ids).partition(|(stage, _)| stage.local);
        let whole = stages.len() == 1;
        let load_here = |stage: &PlacedStage, id| self.load_here(stage.layers, whole, id, (kept.clone(), tell));
        let here = try_join_all(here.iter().map(|(stage, id)| load_here(stage, id)));
        let far = try_join_all(there.iter().map(|(stage, id)| self.load_there(stage, id, tell)));
        let (own, far) = tokio::join!(here, far);
        let own = own.map(|mut own| own.pop());
        let own_stage = own.as_ref().ok().cloned().flatten();
        let remote = |(stage, id): &(&PlacedStage, &StageId)| RemoteStage {
            peer: stage.peer.clone(),
            layers: stage.layers,
            id: (*id).clone(),
            lost: self.parts.mesh.presence(&stage.peer),
        };
        let remote = there.iter().map(remote).collect();
        let loaded = LoadedStages { own: own_stage.clone(), remote };
        let chain = match (own, far) {
            (Ok(_), Ok(_)) => self.link(&there, &loaded),
            (Err(error), _) | (_, Err(error)) => Err(error),
        };
        let outcome = match chain {
            Ok(chain) => Ok(Placement { stages, chain, loaded }),
            Err(error) => {
                unload(&self.parts, loaded.remote).await;
                Err(error)
            }
        };
        Loaded { own: own_stage, outcome }
    }

    /// Ends a placement. Its stages stay loaded, for the next one.
    pub(super) fn release(&mut self, placement: Placement) {
        drop(placement.chain);
        self.left.extend(placement.loaded.remote);
    }

    /// Takes a placement down, but for this node's own stage.
    pub(super) async fn discard(&self, placement: Placement) {
        drop(placement.chain);
        unload(&self.parts, placement.loaded.remote).await;
    }

    /// Unloads stages on peers that an earlier placement has left, but for those that `stages` has too.
    pub(super) async fn forget_left(&mut self, stages: &[PlacedStage]) {
        let (kept, over) =
            std::mem::take(&mut self.left).into_iter().partition(|left| stages.iter().any(|stage| left.is(stage)));
        self.left = kept;
        unload(&self.parts, over).await;
    }

    /// Unloads this node's own stage.
    pub(super) async fn forget_own_stage(&mut self) {
        if let Some(stage) = self.own_stage.take() {
            self.parts.host.unload(&stage.id).await;
        }
    }

    async fn load_here(
        &self,
        layers: LayerRange,
        whole: bool,
        id: &StageId,
        (kept, tell): (Option<Arc<HostedStage>>, Tell),
    ) -> Result<Arc<HostedStage>, PlaceError> {
        if let Some(stage) = kept.filter(|stage| self.parts.host.has(&stage.id)) {
            return Ok(stage);
        }
        let plan = self.plan(layers);
        let (source, compute) = (&self.model.source, self.parts.settings.compute.clone());
        let memory = plan.memory(&self.model.info, &compute);
        let mut lease = None;
        let config = if whole {
            plan.whole(source, &self.model.info, compute)
        } else {
            let slice = self.slice(layers, tell).await?;
            let config = plan.sliced(source.header(), slice.path().to_owned(), Some(source), compute)?;
            lease = Some(slice);
            config
        };
        Ok(self.parts.host.load(id.clone(), &config, memory, lease).await?)
    }

    /// This node's own slice, cut from its file unless it lies in the cache.
    async fn slice(&self, layers: LayerRange, tell: Tell) -> Result<Lease, PlaceError> {
        let source = Arc::clone(&self.model.source);
        let manifest = self.parts.holdings.manifest(&source).await?;
        let (progress, seen) = watch::channel(Progress { done: 0, total: 0 });
        let cutting = self.parts.slices.cut(source, manifest, layers, move |now| {
            progress.send_replace(now);
        });
        Ok(reported(cutting, seen, |Progress { done, total }| {
            self.tell(tell, &format!("cutting layers {layers}: {} of {}", ByteSize(done), ByteSize(total)));
        })
        .await?)
    }

    /// Has a peer load its stage, and follows its progress.
    async fn load_there(&self, stage: &PlacedStage, id: &StageId, tell: Tell) -> Result<(), PlaceError> {
        let refused = |reason: String| PlaceError::Peer { name: stage.name.clone(), layers: stage.layers, reason };
        let plan = self.plan(stage.layers);
        let request = v1::LoadStageRequest {
            stage_id: id.to_string(),
            model: plan.model.to_string(),
            digest: self.digest.map(|digest| digest.0.to_vec()).unwrap_or_default(),
            layers: Some(stage.layers.into()),
            holders: self.holders(),
            context: plan.limits.n_ctx,
            sequences: plan.limits.n_seq,
            batch: plan.limits.n_batch,
            cells: plan.limits.n_cells,
            parked: plan.limits.n_parked,
            states: plan.limits.n_states,
            kv_type: self.parts.settings.compute.kv_type.name().to_owned(),
        };
        let mut control = StageControlClient::new(self.parts.mesh.channel(&stage.peer));
        let mut events = control.load(request).await.map_err(|e| refused(e.message().to_owned()))?.into_inner();
        loop {
            let event = tokio::time::timeout(SILENCE_LIMIT, events.message())
                .await
                .map_err(|_| refused(format!("it said nothing for {} s", SILENCE_LIMIT.as_secs())))?
                .map_err(|e| refused(e.message().to_owned()))?;
            match event.and_then(|event| event.event) {
                Some(Event::Fetching(v1::Fetching { done_bytes, total_bytes })) => self.tell(
                    tell,
                    &format!(
                        "{} fetches layers {}: {} of {}",
                        stage.name,
                        stage.layers,
                        ByteSize(done_bytes),
                        ByteSize(total_bytes)
                    ),
                ),
                Some(Event::Loading(_)) => self.tell(tell, &format!("{} loads layers {}", stage.name, stage.layers)),
                Some(Event::Ready(_)) => return Ok(()),
                Some(Event::Failed(failed)) => return Err(refused(failed.reason)),
                None => return Err(refused("it hung up".to_owned())),
            }
        }
    }

    /// Peers that have the model's file: this node, and those that serve it too.
    fn holders(&self) -> Vec<String> {
        let view = self.parts.mesh.view();
        let view = view.borrow();
        let has_it = |peer: &&PeerView| {
            let same = |model: &ModelView| model.digest.is_some() && model.digest == self.digest;
            peer.local || (peer.state == PeerState::Ready && peer.models.iter().any(same))
        };
        view.peers.iter().filter(has_it).map(|peer| peer.id.to_string()).take(MAX_HOLDERS).collect()
    }

    /// Links the stages to one: this node's own, then those elsewhere in one chain whose last answers directly.
    fn link(&self, there: &[(&PlacedStage, &StageId)], loaded: &LoadedStages) -> Result<Arc<dyn Stage>, PlaceError> {
        let mut links: Vec<Arc<dyn Stage>> = Vec::new();
        links.extend(loaded.own.iter().map(|stage| Arc::clone(stage) as Arc<dyn Stage>));
        let hops = there.iter().map(|(stage, id)| self.hop(stage, id)).collect::<Result<Vec<_>, _>>()?;
        if !hops.is_empty() {
            links.push(Arc::new(RemoteChain::new(self.parts.endpoint.clone(), hops)?));
        }
        Ok(chain(links)?)
    }

    fn hop(&self, stage: &PlacedStage, id: &StageId) -> Result<Hop, StageError> {
        let view = self.parts.mesh.view().borrow().clone();
        let addresses: Vec<SocketAddr> = view
            .peer(&stage.peer)
            .map(|peer| peer.stage_addresses.iter().filter_map(|address| address.parse().ok()).collect())
            .unwrap_or_default();
        if addresses.is_empty() {
            return Err(StageError::Lost {
                model: self.model.name.clone(),
                layers: stage.layers,
                host: stage.name.clone(),
                reason: "it left before its stage was linked".to_owned(),
            });
        }
        Ok(Hop {
            peer: stage.peer.clone(),
            name: stage.name.clone(),
            addresses,
            stage: id.clone(),
            spec: self.spec(stage.layers),
            lost: self.parts.mesh.presence(&stage.peer),
        })
    }

    fn tell(&self, tell: Tell, progress: &str) {
        match tell {
            Tell::Waiting => self.waiting(progress),
            Tell::Log => tracing::info!(model = %self.model.name, "moving: {progress}"),
        }
    }

    fn spec(&self, layers: LayerRange) -> StageSpec {
        self.plan(layers).spec(&self.model.info)
    }
}

/// Takes stages on peers down.
pub(super) async fn unload(parts: &Parts, remote: Vec<RemoteStage>) {
    for RemoteStage { peer, id, .. } in remote {
        // A peer that is gone unloads by itself.
        if parts.mesh.presence(&peer).is_cancelled() {
            continue;
        }
        let mut control = StageControlClient::new(parts.mesh.channel(&peer));
        let request = v1::UnloadStageRequest { stage_id: id.to_string() };
        let unloading = tokio::time::timeout(UNLOAD_LIMIT, control.unload(request)).await;
        if !matches!(unloading, Ok(Ok(_))) {
            tracing::warn!(stage = %id, "{} did not confirm that it unloaded the stage", peer.short());
        }
    }
}
