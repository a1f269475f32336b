//! How a stage is loaded: from a model's facts and this machine's settings.

use std::path::PathBuf;

use mesh_engine::StageSpec;
use mesh_engine::llama::{Compute, Limits, LlamaStageConfig, SliceOf};
use mesh_gguf::{EmbeddingSource, Error, Header, ModelInfo, SlicePlan, Source};
use mesh_routing::plan::{LayerCost, ModelShape, Parts};
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

    /// About the memory that the stage takes: weights, KV cache, compute buffers.
    pub fn memory(&self, info: &ModelInfo) -> ByteSize {
        shape(info, self.limits, Vec::new()).memory(self.layers)
    }
}

/// What the model weighs, layer by layer, for stages that hold as much as `limits` says. KV at two bytes a value.
pub fn shape(info: &ModelInfo, limits: Limits, cuts: Vec<u32>) -> ModelShape {
    let cells = u64::from(limits.n_cells);
    let layers: Vec<LayerCost> = info
        .layer_bytes
        .iter()
        .zip(&info.layer_kv)
        .map(|(weights, kv)| LayerCost { weights: *weights, cache: kv.saturating_mul(cells).saturating_mul(2) })
        .collect();
    ModelShape::new(&layers, Parts { first: 0, head: info.head_bytes, buffers: COMPUTE_BUFFERS }, cuts)
}
