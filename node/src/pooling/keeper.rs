//! Keeps one model that pools loaded, and shown.

use std::sync::Arc;
use std::time::Duration;

use mesh_engine::StageError;
use mesh_engine::child::ChildCommand;
use mesh_engine::pooler::{Pooler, PoolerSpec};
use mesh_types::{ByteSize, LayerRange, ModelView, StageId, StageView};
use tokio_util::sync::CancellationToken;

use super::{Availability, PoolingModel};
use crate::backoff::Backoff;
use crate::board::Board;
use crate::{logs, stages};

/// How often a model's row is renewed, and an idle one computes a token, so that its health is known.
const TICK: Duration = Duration::from_secs(10);
/// Bytes that llama.cpp takes for a token of a text, in the vocabulary's and the rows' widths.
const BYTES_PER_VALUE: u64 = 4;

const LEAVING: &str = "this node is leaving the mesh";

/// See the module's documentation.
pub struct Keeper {
    model: Arc<PoolingModel>,
    board: Arc<Board>,
    /// The name of this node.
    node: String,
    id: StageId,
}

impl Keeper {
    /// A keeper of `model` on the node with this name.
    pub fn new(model: Arc<PoolingModel>, board: Arc<Board>, node: String) -> Self {
        let id = StageId::new(uuid::Uuid::now_v7().to_string());
        Self { model, board, node, id }
    }

    /// Keeps the model loaded until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        let mut backoff = Backoff::new();
        loop {
            backoff.begin();
            let reason = tokio::select! {
                () = stop.cancelled() => break,
                reason = self.serve() => reason,
            };
            tracing::warn!(model = %self.model.name, "not served: {reason}");
            self.waiting(&reason);
            tokio::select! {
                () = stop.cancelled() => break,
                () = backoff.pause() => {}
            }
        }
        self.waiting(LEAVING);
    }

    /// Loads the model and shows it for as long as it lives; why it does not any more.
    async fn serve(&self) -> String {
        let pooler = match self.load().await {
            Ok(pooler) => Arc::new(pooler),
            Err(error) => return error.to_string(),
        };
        let reason = tokio::select! {
            reason = pooler.lost() => reason,
            reason = self.show(&pooler) => reason,
        };
        self.board.remove_stage(&self.id);
        reason
    }

    async fn load(&self) -> Result<Pooler, StageError> {
        let memory = self.memory();
        let free = self.board.memory_free();
        if memory > free {
            return Err(StageError::Load(format!("it takes about {memory} and {free} are free")));
        }
        self.waiting("loading");
        let program = std::env::current_exe()
            .map_err(|error| StageError::Load(format!("this program's own file is not to be found: {error}")))?;
        let args = vec![stages::POOLER_COMMAND.into()];
        let command = ChildCommand { program, args, env: logs::for_stage_process() };
        let pooler = Pooler::spawn(command, &self.model.config).await?;
        let PoolerSpec { weight_bytes, dimensions, .. } = *pooler.spec();
        tracing::info!(model = %self.model.name, pid = pooler.process_id(), dimensions, "a model that pools is loaded");
        if let Some(layers) = LayerRange::new(0, self.model.info.n_layer) {
            self.board.set_stage(
                &self.id,
                StageView {
                    model: self.model.name.clone(),
                    layers,
                    state: "ready".to_owned(),
                    weights: ByteSize(weight_bytes),
                    memory,
                    detail: String::new(),
                },
            );
        }
        Ok(pooler)
    }

    /// About the memory that the model takes: its weights, and what one text's rows need.
    fn memory(&self) -> ByteSize {
        let PoolingModel { info, config, .. } = &*self.model;
        let row = u64::from(info.n_vocab) + 16 * u64::from(info.n_embd);
        ByteSize(info.total_bytes.saturating_add(u64::from(config.n_ctx).saturating_mul(row * BYTES_PER_VALUE)))
    }

    /// Ends with the reason why the model does not answer.
    async fn show(&self, pooler: &Arc<Pooler>) -> String {
        let first = self.model.vocab.bos().unwrap_or(0);
        loop {
            if let Err(error) = pooler.embed(vec![first]).await {
                return error.to_string();
            }
            self.ready(pooler);
            tokio::time::sleep(TICK).await;
        }
    }

    fn ready(&self, pooler: &Arc<Pooler>) {
        let draining = self.board.is_draining();
        let detail = if draining { "this node is being drained" } else { "" };
        self.model.availability.send_replace(match draining {
            true => Availability::Waiting(detail.to_owned()),
            false => Availability::Ready(Arc::clone(pooler)),
        });
        self.board.set_model(ModelView {
            ready: !draining,
            nodes: vec![self.node.clone()],
            ranges: LayerRange::new(0, self.model.info.n_layer).into_iter().collect(),
            last_forward_ms: Some(0),
            ..self.row(detail)
        });
    }

    fn waiting(&self, detail: &str) {
        self.model.availability.send_replace(Availability::Waiting(detail.to_owned()));
        self.board.set_model(self.row(detail));
    }

    fn row(&self, detail: &str) -> ModelView {
        ModelView {
            name: self.model.name.clone(),
            digest: None,
            ready: false,
            detail: detail.to_owned(),
            context: self.model.config.n_ctx,
            layers: self.model.info.n_layer,
            nodes: Vec::new(),
            ranges: Vec::new(),
            active: 0,
            queued: 0,
            last_forward_ms: None,
            scripted: false,
            tools: format!("none: it makes vectors of texts ({} pooling)", self.model.pooling.name()),
        }
    }
}
