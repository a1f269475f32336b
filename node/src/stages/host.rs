//! Starts, watches and ends the stages of this machine.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use mesh_engine::child::{ChildCommand, ChildStage};
use mesh_engine::llama::LlamaStageConfig;
use mesh_engine::{Stage, StageError, StageSpec};
use mesh_mesh::weights::Lease;
use mesh_transport::StageDirectory;
use mesh_types::{ByteSize, LayerRange, ModelId, PeerId, StageId, StageView};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::STAGE_COMMAND;
use super::meter::Meter;
use crate::board::Board;
use crate::logs;

/// The stages of this machine.
#[derive(Clone)]
pub struct StageHost {
    shared: Arc<Shared>,
}

struct Shared {
    board: Arc<Board>,
    stages: Mutex<HashMap<StageId, Arc<HostedStage>>>,
    watchers: TaskTracker,
    stop: CancellationToken,
}

/// A stage of this machine.
pub struct HostedStage {
    /// Its id, under which links are opened to it.
    pub id: StageId,
    /// Its process.
    pub child: ChildStage,
    /// What was set aside for it.
    pub memory: ByteSize,
    meter: Meter,
    /// Its slice, if it is one: not to be removed from the cache.
    _slice: Option<Lease>,
    /// Ends its watcher.
    released: CancellationToken,
}

/// A stage whose weights are on their way, as others see it. Gone when this is dropped, unless it was loaded meanwhile.
pub struct ExpectedStage {
    host: StageHost,
    id: StageId,
    row: StageView,
}

/// Removes a stage's row where loading it is given up.
struct Row<'a> {
    board: &'a Board,
    id: &'a StageId,
    keep: bool,
}

impl StageHost {
    /// A host without stages.
    pub fn new(board: Arc<Board>) -> Self {
        let shared =
            Shared { board, stages: Mutex::default(), watchers: TaskTracker::new(), stop: CancellationToken::new() };
        Self { shared: Arc::new(shared) }
    }

    /// Shows a stage whose weights are not here yet.
    pub fn expect(&self, id: &StageId, model: &ModelId, layers: LayerRange, memory: ByteSize) -> ExpectedStage {
        let state = "loading".to_owned();
        let (model, weights) = (model.clone(), ByteSize(0));
        let row = StageView { model, layers, state, weights, memory, detail: String::new() };
        self.shared.board.set_stage(id, row.clone());
        ExpectedStage { host: self.clone(), id: id.clone(), row }
    }

    /// Sets `memory` aside, starts a child process that loads the stage, and waits until it is ready. `slice` holds its
    /// file in the cache.
    ///
    /// # Errors
    /// [`StageError::Load`]: the process ended, or could not load.
    ///
    /// # Cancel safety
    /// Dropping the future ends the process.
    pub async fn load(
        &self,
        id: StageId,
        config: &LlamaStageConfig,
        memory: ByteSize,
        slice: Option<Lease>,
    ) -> Result<Arc<HostedStage>, StageError> {
        let board = &self.shared.board;
        let row = |state, weights| view(config, state, Room { weights, memory }, String::new());
        board.set_stage(&id, row("loading", ByteSize(0)));
        let mut kept = Row { board, id: &id, keep: false };
        let program = std::env::current_exe()
            .map_err(|e| StageError::Load(format!("this program's own file is not to be found: {e}")))?;
        let command = ChildCommand { program, args: vec![STAGE_COMMAND.into()], env: logs::for_stage_process() };
        let child = ChildStage::spawn(command, config).await?;
        let weights = ByteSize(child.weight_bytes());
        tracing::info!(stage = %id, model = %config.spec.model, layers = %config.spec.layers,
            pid = child.process_id(), "stage loaded, {weights}");
        board.set_stage(&id, row("ready", weights));
        kept.keep = true;
        let meter = Meter::new(weights, Arc::clone(board));
        let released = CancellationToken::new();
        let stage = Arc::new(HostedStage { id: id.clone(), child, memory, meter, _slice: slice, released });
        self.stages().insert(id.clone(), Arc::clone(&stage));
        self.watch(Arc::clone(&stage), config.clone());
        Ok(stage)
    }

    /// Whether a stage that takes `memory` may come.
    ///
    /// # Errors
    /// Why not, in a sentence.
    pub fn check_room(&self, memory: ByteSize) -> Result<(), String> {
        let free = self.shared.board.memory_free();
        if self.shared.board.is_draining() {
            return Err("this node is being drained".to_owned());
        }
        if memory > free { Err(format!("the stage takes about {memory} and {free} are free")) } else { Ok(()) }
    }

    /// Whether the stage is loaded, and its process alive as far as is known.
    pub fn has(&self, id: &StageId) -> bool {
        self.stages().contains_key(id)
    }

    /// The stage of this id, where it is loaded and of this `spec`.
    pub fn loaded(&self, id: &StageId, spec: &StageSpec) -> Option<Arc<HostedStage>> {
        self.stages().get(id).filter(|stage| stage.child.spec() == spec).cloned()
    }

    /// Ends a stage and its process. Nothing where it is not there (any more).
    pub async fn unload(&self, id: &StageId) {
        let stage = self.stages().remove(id);
        if let Some(stage) = stage {
            stage.released.cancel();
            stage.child.shutdown().await;
            tracing::info!(stage = %id, "stage unloaded");
        }
        self.shared.board.remove_stage(id);
    }

    /// Ends a stage when `owner`, the peer that asked for it, is lost.
    pub fn tie(&self, stage: &Arc<HostedStage>, owner: PeerId, lost: CancellationToken) {
        let (host, id, released) = (self.clone(), stage.id.clone(), stage.released.clone());
        self.shared.watchers.spawn(async move {
            tokio::select! {
                () = released.cancelled() => {}
                () = lost.cancelled() => {
                    tracing::info!(stage = %id, "its owner {} is gone: unloading", owner.short());
                    host.unload(&id).await;
                }
            }
        });
    }

    /// Ends all stages and waits for their processes.
    pub async fn shutdown(&self) {
        self.shared.stop.cancel();
        let ids: Vec<StageId> = self.stages().keys().cloned().collect();
        for id in ids {
            self.unload(&id).await;
        }
        self.shared.watchers.close();
        self.shared.watchers.wait().await;
    }

    /// Marks a stage as failed when its process ends by itself.
    fn watch(&self, stage: Arc<HostedStage>, config: LlamaStageConfig) {
        let shared = Arc::clone(&self.shared);
        self.shared.watchers.spawn(async move {
            let error = tokio::select! {
                () = stage.released.cancelled() => return,
                () = shared.stop.cancelled() => return,
                error = stage.child.lost() => error,
            };
            tracing::error!(stage = %stage.id, "{error}");
            stage.released.cancel();
            shared.stages.lock().unwrap_or_else(PoisonError::into_inner).remove(&stage.id);
            shared.board.set_stage(&stage.id, view(&config, "failed", Room::default(), error.to_string()));
            stage.child.shutdown().await;
        });
    }

    fn stages(&self) -> std::sync::MutexGuard<'_, HashMap<StageId, Arc<HostedStage>>> {
        self.shared.stages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ExpectedStage {
    /// Says how far its weights are.
    pub fn says(&self, detail: String) {
        self.host.shared.board.set_stage(&self.id, StageView { detail, ..self.row.clone() });
    }
}

impl Drop for ExpectedStage {
    fn drop(&mut self) {
        if !self.host.has(&self.id) {
            self.host.shared.board.remove_stage(&self.id);
        }
    }
}

impl StageDirectory for StageHost {
    fn stage(&self, id: &StageId, _peer: &PeerId) -> Option<Arc<dyn Stage>> {
        self.stages().get(id).map(|stage| Arc::clone(stage) as Arc<dyn Stage>)
    }
}

#[async_trait::async_trait]
impl Stage for HostedStage {
    fn spec(&self) -> &StageSpec {
        self.child.spec()
    }

    async fn connect(&self) -> Result<mesh_engine::StageLink, StageError> {
        self.child.connect_observed(self.meter.of_link()).await
    }
}

impl Drop for Row<'_> {
    fn drop(&mut self) {
        if !self.keep {
            self.board.remove_stage(self.id);
        }
    }
}

#[derive(Default)]
struct Room {
    weights: ByteSize,
    memory: ByteSize,
}

fn view(config: &LlamaStageConfig, state: &str, room: Room, detail: String) -> StageView {
    StageView {
        model: config.spec.model.clone(),
        layers: config.spec.layers,
        state: state.to_owned(),
        weights: room.weights,
        memory: room.memory,
        detail,
    }
}
