//! A second, smaller model that guesses what a model will say (`--draft`): its file, and its life beside the model's.
//!
//! Owns the second model's process and pipeline. Does not decide when it is asked, nor what its guesses are worth
//! (`mesh-pipeline`). Start with [`DraftModel::open`], then [`RunningDraft::start`].

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kernels_ffi::Vocab;
use mesh_engine::llama::Limits;
use mesh_engine::{Generator, Stage, StageError};
use mesh_gguf::{ModelInfo, Source};
use mesh_pipeline::{Config, Pipeline};
use mesh_types::{LayerRange, ModelId, StageId};

use crate::settings::StageSettings;
use crate::stages::{HostedStage, StageHost, StagePlan};
use crate::supervisor::BATCH;

/// How long its runs may go on when it is not needed any more: nobody waits for them.
const DRAIN_LIMIT: Duration = Duration::from_secs(1);

/// A model that drafts for another: what its file says.
pub struct DraftModel {
    name: ModelId,
    source: Source,
    info: ModelInfo,
}

/// Why a model cannot draft for another.
#[derive(Debug, thiserror::Error)]
#[error("cannot draft with {path}: {reason}")]
pub struct DraftError {
    path: PathBuf,
    reason: String,
}

/// A model that drafts, loaded.
pub struct RunningDraft {
    stage: Arc<HostedStage>,
    pipeline: Arc<Pipeline>,
}

impl DraftModel {
    /// The model in `path`, to draft for one of this vocabulary. Blocks on files.
    ///
    /// # Errors
    /// [`DraftError`]: the file is not usable, or its tokens are other ones.
    pub fn open(path: &Path, vocab: &Vocab) -> Result<Self, DraftError> {
        let bad = |reason: String| DraftError { path: path.to_owned(), reason };
        let source = Source::open(path).map_err(|error| bad(error.to_string()))?;
        let info = ModelInfo::of(source.header()).map_err(|error| bad(error.to_string()))?;
        let own = Vocab::load(path).map_err(|error| bad(error.to_string()))?;
        // What one of them has beyond the other is padding, or is never drafted.
        let common = 0..own.n_tokens().min(vocab.n_tokens()).cast_signed();
        if let Some(token) = common.into_iter().find(|token| own.text(*token) != vocab.text(*token)) {
            let [this, other] = [&own, vocab].map(|vocab| vocab.text(token).unwrap_or_default());
            let reason = format!(
                "it has another vocabulary than the model (token {token} is {this:?} here and {other:?} there); a smaller \
                 model of the same family is what is needed"
            );
            return Err(bad(reason));
        }
        let name = ModelId::new(format!("{} (draft)", ModelId::from_file_name(path)));
        Ok(Self { name, source, info })
    }

    fn plan(&self, settings: &StageSettings, context: u32) -> Result<StagePlan, StageError> {
        let layers = LayerRange::new(0, self.info.n_layer);
        let layers = layers.ok_or_else(|| StageError::Load(format!("{} has no layers", self.name)))?;
        let context = context.min(self.info.context_length);
        let limits = Limits::for_parallel(settings.parallel, context, BATCH, &self.info);
        Ok(StagePlan { model: self.name.clone(), layers, limits })
    }
}

impl RunningDraft {
    /// Loads `model` on this machine, for runs of up to `context` tokens.
    ///
    /// # Errors
    /// [`StageError`]: there is no room for it, or it could not be loaded.
    ///
    /// # Cancel safety
    /// Dropping the future ends its process.
    pub async fn start(
        model: &DraftModel,
        host: &StageHost,
        settings: &StageSettings,
        context: u32,
    ) -> Result<Self, StageError> {
        let plan = model.plan(settings, context)?;
        let memory = plan.memory(&model.info, &settings.compute);
        host.check_room(memory).map_err(StageError::Load)?;
        let id = StageId::new(uuid::Uuid::now_v7().to_string());
        let config = plan.whole(&model.source, &model.info, settings.compute.clone());
        let stage = host.load(id, &config, memory, None).await?;
        let config = Config::for_stages(1);
        let config = Config { parallel: Some(settings.parallel), speculate: false, runs_ahead: false, ..config };
        match Pipeline::start(Arc::clone(&stage) as Arc<dyn Stage>, config).await {
            Ok(pipeline) => Ok(Self { stage, pipeline: Arc::new(pipeline) }),
            Err(error) => {
                host.unload(&stage.id).await;
                Err(error)
            }
        }
    }

    /// What is asked for drafts.
    pub fn generator(&self) -> Arc<dyn Generator> {
        Arc::clone(&self.pipeline) as Arc<dyn Generator>
    }

    /// Whether its process is there, as far as is known.
    pub fn is_alive(&self, host: &StageHost) -> bool {
        host.has(&self.stage.id)
    }

    /// Ends it.
    pub async fn stop(self, host: &StageHost) {
        self.pipeline.shutdown(DRAIN_LIMIT).await;
        host.unload(&self.stage.id).await;
    }
}
