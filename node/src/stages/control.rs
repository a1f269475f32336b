//! The stage-control service: a peer's stage-0 node asks this one to run a stage of its model.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::Stream;
use kernels_ffi::KvType;
use mesh_engine::llama::{Compute, Limits};
use mesh_gguf::{Manifest, ModelInfo};
use mesh_mesh::weights::{Lease, Progress, SliceFetcher, SliceRequest};
use mesh_mesh::{Caller, Mesh};
use mesh_proto::convert::Malformed;
use mesh_proto::v1;
use mesh_proto::v1::load_stage_event::Event;
use mesh_proto::v1::stage_control_server::StageControl;
use mesh_types::{ByteSize, Digest, LayerRange, ModelId, PeerId, StageId};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use super::config::StagePlan;
use super::host::{ExpectedStage, StageHost};
use super::progress::reported;

/// Events that may wait for a slow caller.
const EVENTS: usize = 16;

/// How often the log says how far a fetch is.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// Runs stages for admitted peers.
pub struct StageControlService {
    mesh: Mesh,
    host: StageHost,
    fetcher: SliceFetcher,
    compute: Compute,
    tasks: tokio_util::task::TaskTracker,
}

/// What a peer asked for, checked.
struct Wanted {
    id: StageId,
    model: ModelId,
    slice: SliceRequest,
    limits: Limits,
    kv_type: KvType,
    owner: PeerId,
}

impl StageControlService {
    /// Stages run in `host`, with weights from `fetcher` and this machine's `compute` settings. Loads in progress are tasks of
    /// `tasks`.
    pub fn new(
        mesh: Mesh,
        host: StageHost,
        fetcher: SliceFetcher,
        compute: Compute,
        tasks: tokio_util::task::TaskTracker,
    ) -> Self {
        Self { mesh, host, fetcher, compute, tasks }
    }
}

type Events = mpsc::Sender<Result<v1::LoadStageEvent, Status>>;

#[tonic::async_trait]
impl StageControl for StageControlService {
    type LoadStream = Pin<Box<dyn Stream<Item = Result<v1::LoadStageEvent, Status>> + Send>>;

    async fn load(&self, request: Request<v1::LoadStageRequest>) -> Result<Response<Self::LoadStream>, Status> {
        let caller = request.extensions().get::<Caller>().cloned();
        let Some(Caller(owner)) = caller else {
            return Err(Status::permission_denied("only peers of the mesh load stages"));
        };
        let wanted = Wanted::check(request.into_inner(), owner).map_err(|e| Status::invalid_argument(e.to_string()))?;
        let loading = Loading {
            lost: self.mesh.presence(&wanted.owner),
            host: self.host.clone(),
            fetcher: self.fetcher.clone(),
            compute: self.compute.clone(),
        };
        let (events, receiver) = mpsc::channel(EVENTS);
        self.tasks.spawn(async move {
            // The caller hanging up, or being lost, gives the load up.
            let lost = loading.lost.clone();
            let outcome = tokio::select! {
                outcome = loading.run(wanted, &events) => outcome,
                () = events.closed() => return,
                () = lost.cancelled() => return,
            };
            let event = match outcome {
                Ok(weights) => Event::Ready(v1::StageReady { weight_bytes: weights.0 }),
                Err(reason) => {
                    tracing::warn!("a stage was not loaded: {reason}");
                    Event::Failed(v1::StageFailed { reason })
                }
            };
            send(&events, event).await;
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    async fn unload(
        &self,
        request: Request<v1::UnloadStageRequest>,
    ) -> Result<Response<v1::UnloadStageResponse>, Status> {
        self.host.unload(&StageId::new(request.into_inner().stage_id)).await;
        Ok(Response::new(v1::UnloadStageResponse {}))
    }
}

/// One load in progress.
struct Loading {
    lost: tokio_util::sync::CancellationToken,
    host: StageHost,
    fetcher: SliceFetcher,
    compute: Compute,
}

impl Loading {
    async fn run(&self, wanted: Wanted, events: &Events) -> Result<ByteSize, String> {
        let manifest = self.fetcher.manifest(&wanted.slice).await.map_err(|e| e.to_string())?;
        let info = ModelInfo::of(manifest.header()).map_err(|e| e.to_string())?;
        let plan = StagePlan { model: wanted.model, layers: wanted.slice.layers, limits: wanted.limits };
        // Left from an earlier placement of its owner, which means to go on with it.
        if let Some(stage) = self.host.loaded(&wanted.id, &plan.spec(&info)) {
            return Ok(ByteSize(stage.child.weight_bytes()));
        }
        let compute = Compute { kv_type: wanted.kv_type, ..self.compute.clone() };
        let memory = plan.memory(&info, &compute);
        self.host.check_room(memory)?;
        let expected = self.host.expect(&wanted.id, &plan.model, plan.layers, memory);
        let slice = self.fetch(wanted.slice, Arc::clone(&manifest), (events, &expected)).await?;
        send(events, Event::Loading(v1::Loading {})).await;
        let path = slice.path().to_owned();
        let config = plan.sliced(manifest.header(), path, None, compute).map_err(|e| e.to_string())?;
        let loaded = self.host.load(wanted.id, &config, memory, Some(slice)).await;
        let stage = loaded.map_err(|e| e.to_string())?;
        self.host.tie(&stage, wanted.owner, self.lost.clone());
        Ok(ByteSize(stage.child.weight_bytes()))
    }

    /// Fetches the slice, telling the caller, and whoever looks at the stage, now and then how far it is.
    async fn fetch(
        &self,
        slice: SliceRequest,
        manifest: Arc<Manifest>,
        (events, expected): (&Events, &ExpectedStage),
    ) -> Result<Lease, String> {
        let (progress, seen) = watch::channel(Progress { done: 0, total: 0 });
        let fetching = self.fetcher.fetch(slice, manifest, move |now| {
            progress.send_replace(now);
        });
        let mut logged = Instant::now();
        let fetched = reported(fetching, seen, |Progress { done, total }| {
            let detail = format!("fetching: {} of {}", ByteSize(done), ByteSize(total));
            if logged.elapsed() > LOG_EVERY {
                logged = Instant::now();
                tracing::info!("{detail}");
            }
            expected.says(detail);
            let event = Event::Fetching(v1::Fetching { done_bytes: done, total_bytes: total });
            // A caller that is slow to listen hears the next one.
            let _ = events.try_send(Ok(v1::LoadStageEvent { event: Some(event) }));
        });
        fetched.await.map_err(|e| e.to_string())
    }
}

impl Wanted {
    fn check(request: v1::LoadStageRequest, owner: PeerId) -> Result<Self, Malformed> {
        let digest = Digest::try_from(request.digest.as_slice()).map_err(|_| Malformed("a digest of 32 bytes"))?;
        let layers: LayerRange = request.layers.ok_or(Malformed("no layers"))?.try_into()?;
        let holders = if request.holders.is_empty() {
            vec![owner.clone()]
        } else {
            request.holders.into_iter().map(PeerId::new).collect()
        };
        if request.context == 0 || request.sequences == 0 || request.batch == 0 || request.cells == 0 {
            return Err(Malformed("a stage without room"));
        }
        Ok(Self {
            id: StageId::new(request.stage_id),
            model: ModelId::new(request.model),
            slice: SliceRequest { digest, layers, holders },
            limits: Limits {
                n_ctx: request.context,
                n_seq: request.sequences,
                n_batch: request.batch,
                n_cells: request.cells,
                n_parked: request.parked,
                n_states: request.states,
            },
            kv_type: request.kv_type.parse().map_err(|_| Malformed("an unknown KV type"))?,
            owner,
        })
    }
}

async fn send(events: &Events, event: Event) {
    // A caller that has hung up is noticed by the task that loads.
    let _ = events.send(Ok(v1::LoadStageEvent { event: Some(event) })).await;
}
