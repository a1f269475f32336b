//! How a stage is loaded: from a model's facts and this machine's settings.

use std::path::PathBuf;

use mesh_engine::StageSpec;
use mesh_engine::llama::{Compute, Limits, LlamaStageConfig, SliceOf};
use mesh_gguf::{EmbeddingSource, Error, Header, ModelInfo, SlicePlan, Source};
use mesh_types::{ByteSize, LayerRange, ModelId};

/// What llama.cpp takes beside weights and KV: compute buffers and the runtime.
const COMPUTE_BUFFERS: u64 = 300 << 20;

/// Which stage, and how much room it gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StagePlan {
    /// The model's name.
    pub model: ModelId,
    /// Its layers.
    pub layers: LayerRange,
    /// How much it holds.
    pub limits: Limits,
}

impl StagePlan {
    /// The stage as both ends of a link know it.
    pub fn spec(&self, info: &ModelInfo) -> StageSpec {
        self.limits.spec(self.model.clone(), info, self.layers)
    }

    /// The only stage of a model whose file lies here.
    pub fn whole(&self, source: &Source, info: &ModelInfo, compute: Compute) -> LlamaStageConfig {
        LlamaStageConfig {
            spec: self.spec(info),
            model_path: source.path().to_owned(),
            tap: None,
            inject: None,
            embedding: None,
            compute,
        }
    }

    /// The stage in the slice at `path`, cut from the model with this header. `source` is that model where its file lies
    /// here; a first stage needs it to look embeddings up.
    ///
    /// # Errors
    /// Where the model cannot be cut so.
    pub fn sliced(
        &self,
        header: &Header,
        path: PathBuf,
        source: Option<&Source>,
        compute: Compute,
    ) -> Result<LlamaStageConfig, Error> {
        let info = ModelInfo::of(header)?;
        let plan = SlicePlan::new(header, self.layers)?;
        let embedding = source.map(EmbeddingSource::of).transpose()?.flatten();
        let of = SliceOf { model: self.model.clone(), info: &info, plan: &plan, embedding: embedding.as_ref() };
        Ok(LlamaStageConfig::slice(of, &path, self.limits, compute))
    }

    /// About the memory that the stage takes: weights, KV at two bytes a value, compute buffers.
    pub fn memory(&self, info: &ModelInfo) -> ByteSize {
        let layers = self.layers.start() as usize..self.layers.end() as usize;
        let sum = |of: &[u64]| of.get(layers.clone()).map_or(0, |layers| layers.iter().sum::<u64>());
        let head = if self.layers.end() == info.n_layer { info.head_bytes } else { 0 };
        let cells = u64::from(self.limits.n_cells);
        let kv = sum(&info.layer_kv).saturating_mul(cells).saturating_mul(2);
        ByteSize(sum(&info.layer_bytes).saturating_add(head).saturating_add(kv).saturating_add(COMPUTE_BUFFERS))
    }
}
