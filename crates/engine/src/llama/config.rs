//! What a llama stage is made from. Travels to the child process as JSON.

use std::ops::Range;
use std::path::{Path, PathBuf};

use kernels_ffi::{FlashAttention, KvType, TableLayout};
use mesh_gguf::{EmbeddingSource, GgmlType, Inject, ModelInfo, Room, SlicePlan, Source};
use mesh_types::{LayerRange, ModelId};
use serde::{Deserialize, Serialize};

use crate::error::StageError;
use crate::frame::MAX_EXTRA_ROWS;
use crate::stage::StageSpec;

/// How a llama stage is loaded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LlamaStageConfig {
    /// What it is. Checked against the file.
    pub spec: StageSpec,
    /// The GGUF file: a whole model (the first shard of a sharded one) or the slice with these layers.
    pub model_path: PathBuf,
    /// Tensor that holds the rows which leave; `None` if and only if the stage is the last.
    pub tap: Option<String>,
    /// Whether rows leave that way even if no logits are wanted of them.
    pub keeps_rows: bool,
    /// Where the rows which come in are written into the graph; `None` where the batch's embeddings are the rows.
    pub inject: Option<Injection>,
    /// What every layer multiplies its queries with, where llama.cpp derives it from the whole model.
    pub query_factor: Option<f32>,
    /// Where a first stage that is fed with rows finds them; `None` where it is fed with tokens.
    pub embedding: Option<EmbeddingPlace>,
    /// How it computes.
    pub compute: Compute,
}

/// A tensor to overwrite with the rows which come in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Injection {
    /// Its name.
    pub tensor: String,
    /// What the graph is fed with meanwhile.
    pub fed: Fed,
}

/// What a graph is fed with while rows are written into it further behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fed {
    /// The rows.
    Rows,
    /// Some token for each.
    Placeholders,
    /// The tokens that they belong to. The file has a layer more than the stage, before the others: its result is what
    /// the rows replace.
    Tokens,
}

impl Injection {
    fn of(inject: Inject, spec: &StageSpec) -> Option<Self> {
        match inject {
            Inject::Behind(_) if spec.is_first() => None,
            Inject::Behind(tensor) => Some(Self { tensor: tensor.to_owned(), fed: Fed::Rows }),
            Inject::Over(tensor) => Some(Self { tensor: tensor.to_owned(), fed: Fed::Placeholders }),
            Inject::Lead(_) if spec.is_first() => None,
            Inject::Lead(tensor) => Some(Self { tensor: tensor.to_owned(), fed: Fed::Tokens }),
        }
    }
}

/// How a stage computes. Changes speed and memory, and the last bits of the result: compare like with like.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compute {
    /// Threads; at least 1.
    pub threads: u32,
    /// Type of the cached keys and values.
    pub kv_type: KvType,
    /// Fused attention.
    pub flash_attention: FlashAttention,
    /// Layers on the GPU; `None` means all.
    pub gpu_layers: Option<u32>,
    /// The device to use; `None` means all GPUs that there are.
    pub device: Option<String>,
    /// Most rows of raw logits in one micro-batch, besides one row a sequence. Memory: twice the vocabulary's size in
    /// floats a row, so 0 but for tests and tools.
    pub max_logits_rows: u32,
}

impl Compute {
    /// The defaults, on this many threads.
    pub fn with_threads(threads: u32) -> Self {
        Self {
            threads,
            kv_type: KvType::default(),
            flash_attention: FlashAttention::default(),
            gpu_layers: None,
            device: None,
            max_logits_rows: 0,
        }
    }
}

/// How much a stage can hold at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Positions of one sequence.
    pub n_ctx: u32,
    /// Sequences.
    pub n_seq: u32,
    /// Tokens in a micro-batch.
    pub n_batch: u32,
    /// Positions of all sequences together.
    pub n_cells: u32,
    /// Positions that idle sequences may leave on the host.
    pub n_parked: u32,
    /// Running states of recurrent layers that may be on the host.
    pub n_states: u32,
}

/// Slots beside each that runs, and at least so many: they keep what was computed, for prompts that begin with it. Not
/// more of them, since every token that is computed looks at all cells in use, if only to pass over them.
const KEPT_PER_RUN: u32 = 1;
const MIN_KEPT: u32 = 4;
/// Most running states on the host for each slot: several checkpoints of what it holds, and as much again of what is
/// parked.
const STATES_PER_SLOT: u32 = 16;
/// Most sequences that a llama.cpp context holds.
const MAX_SLOTS: u32 = 256;

impl Limits {
    /// Room to run `parallel` sequences of `n_ctx` positions at the same time. Where it costs nothing, there are more
    /// slots than that; they share the same cells.
    pub fn for_parallel(parallel: u32, n_ctx: u32, n_batch: u32, info: &ModelInfo) -> Self {
        // A running state takes memory for every slot.
        let kept = if keeps_running_state(&info.architecture) { 0 } else { (KEPT_PER_RUN * parallel).max(MIN_KEPT) };
        let n_seq = parallel.saturating_add(kept).min(MAX_SLOTS).max(parallel);
        Self { n_ctx, n_seq, n_batch, n_cells: n_ctx.saturating_mul(parallel), n_parked: 0, n_states: 0 }
    }

    /// With as much on the host as `memory` bytes hold, all stages of the model together: positions of idle sequences,
    /// and where layers keep a running state, up to three quarters of it states.
    #[must_use]
    pub fn with_host_memory(self, memory: u64, info: &ModelInfo, kv_type: KvType) -> Self {
        let count = |memory: u64, of: u64| memory.checked_div(of).map_or(0, |n| u32::try_from(n).unwrap_or(u32::MAX));
        let (position, state) = (kept_bytes(info, 0..info.n_layer, kv_type), state_bytes(info, 0..info.n_layer));
        let n_states = count(memory / 4 * 3, state).min(STATES_PER_SLOT.saturating_mul(self.n_seq));
        let left = memory.saturating_sub(state.saturating_mul(n_states.into()));
        Self { n_parked: count(left, position), n_states, ..self }
    }

    /// What a stage with `layers` may come to keep on the host.
    pub fn host_bytes(self, info: &ModelInfo, layers: LayerRange, kv_type: KvType) -> u64 {
        let layers = layers.start()..layers.end();
        let parked = kept_bytes(info, layers.clone(), kv_type).saturating_mul(self.n_parked.into());
        parked.saturating_add(state_bytes(info, layers).saturating_mul(self.n_states.into()))
    }

    /// What memory is to be reckoned for, where a stage within these limits computes so.
    pub fn room(self, compute: &Compute) -> Room {
        Room {
            cells: self.n_cells,
            sequences: self.n_seq,
            batch: self.n_batch,
            logits: self.n_seq.saturating_add(compute.max_logits_rows).saturating_add(MAX_EXTRA_ROWS),
            cache_type: cache_type(compute.kv_type),
            fused_attention: compute.flash_attention != FlashAttention::Off,
        }
    }

    /// The stage with `layers` of a model, held by llama.cpp within these limits.
    pub fn spec(self, model: ModelId, info: &ModelInfo, layers: LayerRange) -> StageSpec {
        StageSpec {
            model,
            layers,
            n_layer: info.n_layer,
            n_embd: info.n_embd,
            n_vocab: info.n_vocab,
            n_ctx: self.n_ctx,
            n_seq: self.n_seq,
            n_batch: self.n_batch,
            n_cells: self.n_cells,
            n_parked: self.n_parked,
            n_states: self.n_states,
            cuts_back: !keeps_running_state(&info.architecture),
            rolls_back: !keeps_running_state(&info.architecture) && !info.has_windows(),
        }
    }
}

/// Bytes that some layers keep of a position.
fn kept_bytes(info: &ModelInfo, layers: Range<u32>, kv_type: KvType) -> u64 {
    let layers = info.layer_cache.get(layers.start as usize..layers.end as usize).unwrap_or_default();
    layers.iter().map(|layer| layer.bytes_per_token(cache_type(kv_type))).fold(0, u64::saturating_add)
}

/// Bytes of running state that some layers keep of a sequence.
fn state_bytes(info: &ModelInfo, layers: Range<u32>) -> u64 {
    let layers = info.layer_cache.get(layers.start as usize..layers.end as usize).unwrap_or_default();
    layers.iter().map(|layer| layer.state_bytes()).fold(0, u64::saturating_add)
}

/// Every type of the cache is one of files.
fn cache_type(kv_type: KvType) -> GgmlType {
    GgmlType::all().iter().find(|kind| kind.name() == kv_type.name()).copied().unwrap_or(GgmlType::F32)
}

/// Whether llama.cpp keeps a running state for some layers of this architecture, which cannot be cut back
/// (`llm_arch_is_recurrent` and `llm_arch_is_hybrid`). Were one missing here, its stages would fail the first batch
/// behind a cut, and the prompt be computed whole then.
fn keeps_running_state(architecture: &str) -> bool {
    const RECURRENT: [&str; 6] = ["mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"];
    const HYBRID: [&str; 18] = [
        "jamba",
        "falcon-h1",
        "plamo2",
        "granitehybrid",
        "lfm2",
        "lfm2moe",
        "nemotron_h",
        "nemotron_h_moe",
        "qwen3next",
        "kimi-linear",
        "bailingmoe3",
        "kimi-k3",
        "glm5-next",
        "qwen35",
        "qwen35moe",
        "qwen4exp",
        "deepseek4",
        "minimax-01",
    ];
    RECURRENT.contains(&architecture) || HYBRID.contains(&architecture)
}

/// The token embeddings in a file of this machine, and how hidden rows are made of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EmbeddingPlace {
    /// The file.
    pub path: PathBuf,
    /// Byte at which row 0 begins.
    pub offset: u64,
    /// ggml's number of the values' type.
    pub type_id: u32,
    /// Values in a row.
    pub n_embd: u32,
    /// Rows.
    pub n_vocab: u32,
    /// What the values are multiplied by.
    pub factor: f32,
}

impl EmbeddingPlace {
    pub(super) fn layout(&self) -> TableLayout {
        TableLayout {
            offset: self.offset,
            type_id: self.type_id,
            n_embd: self.n_embd,
            n_vocab: self.n_vocab,
            factor: self.factor,
        }
    }
}

impl From<&EmbeddingSource> for EmbeddingPlace {
    fn from(source: &EmbeddingSource) -> Self {
        Self {
            path: source.path.clone(),
            offset: source.offset,
            type_id: source.ggml_type.id(),
            n_embd: source.n_embd,
            n_vocab: source.n_vocab,
            factor: source.factor,
        }
    }
}

/// Which slice of which model a stage is.
#[derive(Clone, Debug)]
pub struct SliceOf<'a> {
    /// The whole model's name.
    pub model: ModelId,
    /// The whole model.
    pub info: &'a ModelInfo,
    /// How the slice was made.
    pub plan: &'a SlicePlan,
    /// The whole model's token embeddings, where this machine has them; used by a first stage that takes rows.
    pub embedding: Option<&'a EmbeddingSource>,
}

impl LlamaStageConfig {
    /// The whole model in the file at `path`, as one stage: tokens in, logits out.
    ///
    /// # Errors
    /// [`StageError::Load`] where the file's header is unusable.
    pub fn unsplit(model: ModelId, path: &Path, limits: Limits, compute: Compute) -> Result<Self, StageError> {
        let load = |why: String| StageError::Load(why);
        let source = Source::open(path).map_err(|error| load(error.to_string()))?;
        let info = ModelInfo::of(source.header()).map_err(|error| load(error.to_string()))?;
        let layers = LayerRange::new(0, info.n_layer).ok_or_else(|| load("a model without layers".to_owned()))?;
        let spec = limits.spec(model, &info, layers);
        let model_path = path.to_owned();
        Ok(Self {
            spec,
            model_path,
            tap: None,
            keeps_rows: false,
            inject: None,
            query_factor: None,
            embedding: None,
            compute,
        })
    }

    /// One slice of a split model, which lies at `path`.
    pub fn slice(of: SliceOf<'_>, path: &Path, limits: Limits, compute: Compute) -> Self {
        let (kind, boundary) = (of.plan.kind(), of.plan.boundary());
        let spec = limits.spec(of.model, of.info, of.plan.range());
        Self {
            embedding: of.embedding.filter(|_| kind.takes_rows() && spec.is_first()).map(EmbeddingPlace::from),
            inject: boundary.inject.filter(|_| kind.takes_rows()).and_then(|inject| Injection::of(inject, &spec)),
            spec,
            model_path: path.to_owned(),
            tap: (!kind.has_head()).then(|| boundary.tap.clone()),
            keeps_rows: boundary.keeps_rows,
            query_factor: of.plan.query_factor(),
            compute,
        }
    }
}
