//! Keeps one model served: places its layers, loads them here and on peers, runs the pipeline, and starts over when a
//! stage is lost.
//!
//! Owns the life of a placement. Decides nothing about placement itself (`mesh-routing`) and knows no requests
//! (`crate::serve`). Start with [`Supervisor::run`].

mod load;
mod moves;
mod placement;
mod scripted;

use std::sync::Arc;
use std::time::Duration;

use mesh_engine::chain::Chain;
use mesh_engine::{Generator, Stage, StageError, TokenEvent};
use mesh_mesh::Mesh;
use mesh_mesh::weights::SliceCache;
use mesh_pipeline::{Pipeline, Pulse};
use mesh_routing::plan::ModelShape;
use mesh_routing::{PlacedStage, Split};
use mesh_transport::Endpoint;
use mesh_types::{Digest, GenerateSpec, ModelView, RequestId, Sampling, TokenId};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::backoff::Backoff;
use crate::board::Board;
use crate::draft::RunningDraft;
use crate::holdings::Holdings;
use crate::serve::{Availability, ServedModel};
use crate::settings::StageSettings;
use crate::stages::{HostedStage, StageHost};

use load::RemoteStage;
use moves::{Moved, Moves};

pub(crate) use placement::ADVICE;
pub use placement::{PlaceError, check_split, shape_of};

/// Most tokens in a micro-batch: a prefill chunk.
pub(crate) const BATCH: u32 = 512;
/// How often a model's row on the board is renewed while nothing happens.
const TICK: Duration = Duration::from_secs(5);
/// An idle model computes one token after this long, so that its health is known.
const PROBE_AFTER: Duration = Duration::from_secs(10);
/// How long that may take.
const PROBE_LIMIT: Duration = Duration::from_secs(20);
/// How long runs may go on when the node leaves.
const DRAIN_LIMIT: Duration = Duration::from_secs(10);
/// How long a run's failure waits for the link's own error, which says more.
const LINK_ERROR_WAIT: Duration = Duration::from_millis(200);

const LEAVING: &str = "this node stops serving it";
const DRAINING: &str = "this node is being drained";

/// What of the node a supervisor uses.
#[derive(Clone)]
pub struct Parts {
    /// Peers, and the way to them.
    pub mesh: Mesh,
    /// Stages here.
    pub host: StageHost,
    /// Links to stages elsewhere.
    pub endpoint: Endpoint,
    /// Where the model's state is shown.
    pub board: Arc<Board>,
    /// Files whose weights peers may fetch.
    pub holdings: Arc<Holdings>,
    /// How stages run here.
    pub settings: StageSettings,
    /// Slices of this machine.
    pub slices: SliceCache,
}

/// Keeps one model served.
pub struct Supervisor {
    model: Arc<ServedModel>,
    split: Split,
    shape: ModelShape,
    parts: Parts,
    digest: Option<Digest>,
    /// This node's own stage of an earlier placement, loaded still.
    own_stage: Option<Arc<HostedStage>>,
    /// Stages on peers of an earlier placement, loaded still.
    left: Vec<RemoteStage>,
    /// Placements whose last runs go on, after others took over.
    retiring: JoinSet<()>,
    moves: Moves,
    /// What drafts for the model.
    draft: Option<RunningDraft>,
}

/// A placement that is loaded.
struct Placement {
    stages: Vec<PlacedStage>,
    chain: Arc<dyn Stage>,
    loaded: load::LoadedStages,
}

/// A placement that answers.
struct Serving {
    placement: Placement,
    pipeline: Arc<Pipeline>,
}

/// Why a placement is no longer watched.
enum Ended {
    /// A stage, or the way to one, was lost.
    Lost(StageError),
    /// The supervisor is to stop.
    Stopped,
    /// It is to be replaced, and there is no room for the next one beside it.
    InTheWay(Vec<PlacedStage>),
    /// It answers still, and these stages would be better.
    Better(Vec<PlacedStage>),
}

impl Supervisor {
    /// A supervisor of `model`, spread as `split` says.
    pub fn new(model: Arc<ServedModel>, split: Split, parts: Parts) -> Self {
        let shape = placement::shape_of(&model, &parts.settings);
        let (retiring, moves) = (JoinSet::new(), Moves::default());
        let left = Vec::new();
        Self { model, split, shape, parts, digest: None, own_stage: None, left, retiring, moves, draft: None }
    }

    /// Serves the model until `stop`; then runs get some seconds to finish.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut backoff = Backoff::new();
        // Peers then know that the file is here, and may fetch from it.
        self.digest = self.parts.holdings.remembered(&self.model.source).await;
        while !stop.is_cancelled() {
            backoff.begin();
            let outcome = tokio::select! {
                () = stop.cancelled() => break,
                outcome = self.place_and_load() => outcome,
            };
            let reason = match outcome {
                Ok(placement) => match self.serve(placement, &stop).await {
                    Some(reason) => reason,
                    None => break,
                },
                Err(error) => error.to_string(),
            };
            tracing::warn!(model = %self.model.name, "not served: {reason}");
            self.waiting(&reason);
            tokio::select! {
                () = stop.cancelled() => break,
                () = backoff.pause() => {}
            }
        }
        self.forget_own_stage().await;
        self.forget_left(&[]).await;
        self.forget_draft().await;
        self.waiting(LEAVING);
        while self.retiring.join_next().await.is_some() {}
    }

    /// Serves a loaded placement, and those that take its place, until one ends by itself (its reason) or `stop` (none).
    async fn serve(&mut self, placement: Placement, stop: &CancellationToken) -> Option<String> {
        let mut serving = match self.start(placement).await {
            Ok(serving) => serving,
            Err((placement, error)) => {
                let reason = error.to_string();
                self.waiting(&reason);
                self.discard(placement).await;
                return Some(reason);
            }
        };
        loop {
            let ended = tokio::select! {
                ended = self.watch(&serving) => ended,
                () = stop.cancelled() => Ended::Stopped,
            };
            let ended = match ended {
                Ended::Better(stages) => match self.move_to(stages, &serving, stop).await {
                    Moved::To(next) => {
                        let before = std::mem::replace(&mut serving, next);
                        self.retire(before, stop.clone());
                        continue;
                    }
                    Moved::Not => continue,
                    Moved::Ended(ended) => ended,
                },
                ended => ended,
            };
            let reason = match ended {
                Ended::Lost(error) => Some(error.to_string()),
                Ended::InTheWay(next) | Ended::Better(next) => {
                    Some(format!("moving to {}", mesh_routing::placement::explain(&next)))
                }
                Ended::Stopped => None,
            };
            self.waiting(reason.as_deref().unwrap_or(LEAVING));
            serving.pipeline.shutdown(DRAIN_LIMIT).await;
            self.release(serving.placement);
            return reason;
        }
    }

    /// Starts the pipeline over `placement`, and sends a token through it.
    async fn start(&self, placement: Placement) -> Result<Serving, (Placement, StageError)> {
        let parallel = Some(self.parts.settings.parallel);
        let speculate = self.parts.settings.speculate;
        let config = mesh_pipeline::Config::for_stages(placement.stages.len());
        let config = mesh_pipeline::Config { parallel, speculate, ..config };
        let drafts = self.draft.as_ref().map(RunningDraft::generator);
        let pipeline = match Pipeline::start_with(Arc::clone(&placement.chain), config, drafts).await {
            Ok(pipeline) => Arc::new(pipeline),
            Err(error) => return Err((placement, error)),
        };
        match self.probe(&pipeline).await {
            Ok(()) => Ok(Serving { placement, pipeline }),
            Err(error) => {
                pipeline.shutdown(DRAIN_LIMIT).await;
                Err((placement, error))
            }
        }
    }

    /// Shows how `serving` does, until it ends or something better is possible.
    async fn watch(&mut self, serving: &Serving) -> Ended {
        let Serving { placement, pipeline } = serving;
        let mut pulse = pipeline.pulse();
        self.ready(serving);
        let mut view = self.parts.mesh.view();
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut shown = *pulse.borrow_and_update();
        let mut draining = self.parts.board.is_draining();
        loop {
            tokio::select! {
                error = pipeline.ended() => return Ended::Lost(error),
                Ok(()) = pulse.changed() => {
                    let now = *pulse.borrow_and_update();
                    if (now.active, now.queued) != (shown.active, shown.queued) {
                        self.show(placement, &now);
                        shown = now;
                    }
                }
                Ok(()) = view.changed() => {
                    let now = self.parts.board.is_draining();
                    if std::mem::replace(&mut draining, now) != now {
                        self.ready(serving);
                    }
                }
                _ = tick.tick() => {
                    let now = *pulse.borrow_and_update();
                    let idle = now.active == 0 && now.queued == 0;
                    let stale = now.last_forward.is_none_or(|at| at.elapsed() > PROBE_AFTER);
                    if idle && stale && let Err(error) = self.probe(pipeline).await {
                        return Ended::Lost(error);
                    }
                    self.show(placement, &now);
                    shown = now;
                    if let Some(stages) = self.better(placement, idle) {
                        return Ended::Better(stages);
                    }
                }
            }
        }
    }

    /// One token through all stages.
    async fn probe(&self, pipeline: &Arc<Pipeline>) -> Result<(), StageError> {
        let failed = |reason: String| StageError::Load(format!("a test token did not come through: {reason}"));
        let first = TokenId(self.model.vocab.bos().unwrap_or(0));
        let probe = GenerateSpec::new(RequestId::new("probe"), vec![first]);
        let spec = GenerateSpec { max_tokens: 1, sampling: Sampling::greedy(), ..probe };
        let run = async {
            let mut run = pipeline.generate(spec).await.map_err(|e| failed(e.to_string()))?;
            loop {
                match run.events.recv().await {
                    Some(Ok(TokenEvent::Finished { .. })) => return Ok(()),
                    Some(Ok(TokenEvent::Token { .. } | TokenEvent::Prompt(_))) => {}
                    Some(Err(error)) => return Err(failed(error.to_string())),
                    None => return Err(failed("the run ended without a word".to_owned())),
                }
            }
        };
        tokio::select! {
            // The link's own error says more than the run's.
            biased;
            error = pipeline.ended() => Err(error),
            outcome = tokio::time::timeout(PROBE_LIMIT, run) => match outcome {
                Ok(Ok(())) => Ok(()),
                Ok(Err(error)) => {
                    let ended = tokio::time::timeout(LINK_ERROR_WAIT, pipeline.ended()).await;
                    Err(ended.unwrap_or(error))
                }
                Err(_) => Err(failed(format!("no answer within {} s", PROBE_LIMIT.as_secs()))),
            },
        }
    }

    /// Loads the model that drafts, if there is one that is of use and it is not there. The model does not wait for it
    /// where it cannot be loaded.
    async fn load_draft(&mut self) {
        let model = Arc::clone(&self.model);
        let Some(draft) = model.draft.as_ref().filter(|_| self.parts.settings.speculate) else { return };
        if self.draft.as_ref().is_some_and(|draft| draft.is_alive(&self.parts.host)) {
            return;
        }
        self.forget_draft().await;
        if !self.can_take_back() {
            tracing::warn!(model = %self.model.name, "nothing drafts for it: what it computed cannot be taken back");
            return;
        }
        self.waiting("loading the model that drafts");
        let Parts { host, settings, .. } = &self.parts;
        match RunningDraft::start(draft, host, settings, self.model.context).await {
            Ok(draft) => self.draft = Some(draft),
            Err(error) => tracing::warn!(model = %self.model.name, %error, "nothing drafts for it"),
        }
    }

    async fn forget_draft(&mut self) {
        if let Some(draft) = self.draft.take() {
            draft.stop(&self.parts.host).await;
        }
    }

    fn ready(&self, serving: &Serving) {
        let availability = if self.parts.board.is_draining() {
            Availability::Waiting(DRAINING.to_owned())
        } else {
            Availability::Ready(Arc::clone(&serving.pipeline) as Arc<dyn Generator>)
        };
        self.model.availability.send_replace(availability);
        let pulse = *serving.pipeline.pulse().borrow();
        self.show(&serving.placement, &pulse);
    }

    fn show(&self, placement: &Placement, pulse: &Pulse) {
        let forward = pulse.last_forward.map(|at| u64::try_from(at.elapsed().as_millis()).unwrap_or(u64::MAX));
        let draining = self.parts.board.is_draining();
        self.parts.board.set_model(ModelView {
            ready: !draining,
            nodes: placement.stages.iter().map(|stage| stage.name.clone()).collect(),
            ranges: placement.stages.iter().map(|stage| stage.layers).collect(),
            active: pulse.active,
            queued: pulse.queued,
            last_forward_ms: forward,
            ..self.row(if draining { DRAINING.to_owned() } else { String::new() })
        });
    }

    /// Says why the model does not answer now.
    fn waiting(&self, detail: &str) {
        self.model.availability.send_replace(Availability::Waiting(detail.to_owned()));
        self.parts.board.set_model(self.row(detail.to_owned()));
    }

    fn row(&self, detail: String) -> ModelView {
        ModelView {
            name: self.model.name.clone(),
            digest: self.digest,
            ready: false,
            detail,
            context: self.model.context,
            layers: self.model.info.n_layer,
            nodes: Vec::new(),
            ranges: Vec::new(),
            active: 0,
            queued: 0,
            last_forward_ms: None,
            scripted: self.model.script.is_some(),
            tools: self.model.capability.strategy.to_string(),
        }
    }
}

/// Stages in order as one stage.
fn chain(mut stages: Vec<Arc<dyn Stage>>) -> Result<Arc<dyn Stage>, StageError> {
    match (stages.pop(), stages.is_empty()) {
        (Some(only), true) => Ok(only),
        (Some(last), false) => {
            stages.push(last);
            Ok(Arc::new(Chain::new(stages)?))
        }
        (None, _) => Err(StageError::Load("a placement without stages".to_owned())),
    }
}
