//! How a stage is loaded: from a model's facts and this machine's settings.

use std::path::PathBuf;

use mesh_engine::StageSpec;
use mesh_engine::llama::{Compute, Limits, LlamaStageConfig, SliceOf};
use mesh_gguf::{EmbeddingSource, Error, Footprint, Header, ModelInfo, SlicePlan, Source};
use mesh_routing::plan::{LayerCost, ModelShape, Parts};
use mesh_types::{ByteSize, LayerRange, ModelId};

/// What a stage's process takes beside what is reckoned from the model: code, vocabulary, threads, rows on their way.
const RUNTIME: u64 = 64 << 20;

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
            keeps_rows: false,
            inject: None,
            query_factor: None,
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

    /// About the memory that the stage takes where it computes so.
    pub fn memory(&self, info: &ModelInfo, compute: &Compute) -> ByteSize {
        let parked = self.limits.host_bytes(info, self.layers, compute.kv_type);
        let footprint = info.footprint(self.layers, &self.limits.room(compute));
        ByteSize(footprint.total().saturating_add(parked).saturating_add(RUNTIME))
    }
}

/// What the model weighs, layer by layer, for stages that hold as much as `limits` says and compute so.
pub fn shape(info: &ModelInfo, limits: Limits, compute: &Compute, cuts: Vec<u32>) -> ModelShape {
    let room = limits.room(compute);
    let footprint = |start, end| LayerRange::new(start, end).map(|layers| info.footprint(layers, &room));
    let layer = |layer| {
        let alone = footprint(layer, layer + 1).unwrap_or_default();
        let range = LayerRange::new(layer, layer + 1);
        let parked = range.map_or(0, |range| limits.host_bytes(info, range, compute.kv_type));
        let weights = info.layer_bytes.get(layer as usize).copied().unwrap_or(0);
        LayerCost { weights, cache: alone.cache.saturating_add(alone.state).saturating_add(parked) }
    };
    let layers: Vec<LayerCost> = (0..info.n_layer).map(layer).collect();
    let whole = footprint(0, info.n_layer).unwrap_or_default();
    // A stage without the head; all layers but one, so that it has layers of every kind.
    let middle = footprint(1, info.n_layer - 1).unwrap_or(whole);
    let buffers =
        middle.compute.saturating_add(middle.output).saturating_add(info.every_stage_bytes()).saturating_add(RUNTIME);
    let of_graph = |footprint: Footprint| footprint.compute.saturating_add(footprint.output);
    let first = info.first_bytes();
    let parts = Parts {
        first,
        whole: if info.tied { 0 } else { info.embedding_bytes.saturating_sub(first) },
        head: info.head_bytes,
        logits: of_graph(whole).saturating_sub(of_graph(middle)),
        buffers,
    };
    ModelShape::new(&layers, parts, cuts)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the planner adds up is what a stage is reckoned to take.
    #[test]
    fn the_planner_reckons_as_the_stages_do() {
        for name in [mesh_engine::testkit::SMOLLM2, mesh_engine::testkit::GEMMA3] {
            let source = Source::open(&mesh_engine::testkit::model_path(name)).unwrap();
            let info = ModelInfo::of(source.header()).unwrap();
            let compute = Compute::with_threads(1);
            let limits = Limits::for_parallel(4, 4096, 512, &info).with_host_memory(256 << 20, &info, compute.kv_type);
            let shape = shape(&info, limits, &compute, Vec::new());
            for (start, end) in [(0, info.n_layer), (0, 7), (7, 14), (10, info.n_layer)] {
                let layers = LayerRange::new(start, end).unwrap();
                let plan = StagePlan { model: ModelId::from("m"), layers, limits };
                let (stage, planned) = (plan.memory(&info, &compute).0 as f64, shape.memory(layers).0 as f64);
                assert!((0.95..1.15).contains(&(planned / stage)), "{name} {layers}: {planned} for {stage}");
            }
        }
    }
}
