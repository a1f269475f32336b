//! Models that pool: a text in, one vector out. Each runs whole in a child process of this node, and is never split.
//!
//! Owns such models, their processes and the answer to `Embed`. Start with [`PoolingModel::open`], which says whether a
//! file holds one, then [`Keeper::run`], which keeps it loaded.

mod answer;
mod keeper;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use kernels_ffi::{Pooling, Vocab};
use mesh_engine::pooler::{Pooler, PoolerConfig};
use mesh_gguf::{ModelInfo, Source};
use mesh_routing::Split;
use mesh_types::{Fault, ModelId};
use tokio::sync::watch;

use crate::settings::{ModelSettings, StageSettings};

pub use keeper::Keeper;

/// Tokens that a text may have where the model could take more and nobody said otherwise. All of a text is computed at
/// once, which takes memory for each of its tokens.
const DEFAULT_CONTEXT: u32 = 2048;

/// A model that pools, as this node serves it: fixed for the life of the node, but for `availability`.
pub struct PoolingModel {
    /// The name it is served under.
    pub name: ModelId,
    /// Its vocabulary.
    vocab: Vocab,
    info: ModelInfo,
    pooling: Pooling,
    config: PoolerConfig,
    /// Its process now; the keeper writes it.
    availability: watch::Sender<Availability>,
}

/// Whether a model answers now.
#[derive(Clone)]
enum Availability {
    /// By this process.
    Ready(Arc<Pooler>),
    /// Not now: what is missing or going on, for people.
    Waiting(String),
}

/// Why a model that pools cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum PoolingError {
    /// Its file is not usable.
    #[error("cannot serve {path}: {reason}")]
    File {
        /// The file.
        path: PathBuf,
        /// One sentence.
        reason: String,
    },
    /// A setting means nothing to it.
    #[error("`{model}` makes vectors of texts, and {what}")]
    Setting {
        /// The model.
        model: ModelId,
        /// What is wrong.
        what: &'static str,
    },
}

/// The models of this node that pool, by name.
#[derive(Clone, Default)]
pub struct PoolingModels(Arc<BTreeMap<ModelId, Arc<PoolingModel>>>);

impl PoolingModels {
    /// These models.
    pub fn new(models: impl IntoIterator<Item = Arc<PoolingModel>>) -> Self {
        Self(Arc::new(models.into_iter().map(|model| (model.name.clone(), model)).collect()))
    }

    /// The model of this name.
    pub fn get(&self, name: &ModelId) -> Option<&Arc<PoolingModel>> {
        self.0.get(name)
    }
}

impl PoolingModel {
    /// The model that `settings` name, where its file says that it pools; `None`: it generates. Blocks on files.
    ///
    /// # Errors
    /// [`PoolingError`] names the file or the setting.
    pub fn open(settings: &ModelSettings, stage: &StageSettings) -> Result<Option<Self>, PoolingError> {
        let bad = |reason: String| PoolingError::File { path: settings.path.clone(), reason };
        let source = Source::open(&settings.path).map_err(|error| bad(error.to_string()))?;
        let metadata = source.header().metadata();
        let architecture = metadata.require_str("general.architecture").map_err(|error| bad(error.to_string()))?;
        let kind = metadata.u32(&format!("{architecture}.pooling_type")).map_err(|error| bad(error.to_string()))?;
        let Some(pooling) = kind.and_then(Pooling::of) else { return Ok(None) };
        let refused = |what| PoolingError::Setting { model: settings.name.clone(), what };
        if matches!(settings.split, Split::Ranges(_)) {
            return Err(refused("is not split: leave --split out"));
        }
        if settings.scripted.is_some() {
            return Err(refused("no script can answer for it"));
        }
        let info = ModelInfo::of(source.header()).map_err(|error| bad(error.to_string()))?;
        let vocab = Vocab::load(&settings.path).map_err(|error| bad(error.to_string()))?;
        let own = info.context_length;
        if let Some(asked) = stage.ctx.filter(|asked| *asked > own) {
            tracing::warn!(model = %settings.name, asked, "the context is {own} tokens: the model was made for no more");
        }
        let n_ctx = stage.ctx.unwrap_or(DEFAULT_CONTEXT).min(own);
        let config = PoolerConfig { model_path: settings.path.clone(), n_ctx, compute: stage.compute.clone() };
        let (availability, _) = watch::channel(Availability::Waiting("starting".to_owned()));
        Ok(Some(Self { name: settings.name.clone(), vocab, info, pooling, config, availability }))
    }

    /// What answers a request for text.
    pub fn generates_nothing(&self) -> Fault {
        let message = format!("The model `{}` makes vectors of texts and no text: use /v1/embeddings.", self.name);
        Fault::invalid(message).with_param("model").with_code("unsupported_parameter")
    }
}
