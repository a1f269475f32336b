//! What a model, or a stage of it, takes in memory: a formula over the header alone, for planning on machines that do
//! not have the file. Tests compare it with what llama.cpp allocates.
//!
//! Weights, cache and running states are counted as llama.cpp lays them out (`llama-kv-cache*.cpp`,
//! `llama-memory-recurrent.cpp`, `llama_hparams::n_embd_r` and `n_embd_s`). What its graphs need is estimated from the
//! widest tensors that live at the same time. Start with [`ModelInfo::footprint`].

use mesh_types::LayerRange;

use crate::error::HeaderError;
use crate::family::{FAMILIES, Family, Kinds};
use crate::ggml::GgmlType;
use crate::header::Header;
use crate::info::{ModelInfo, layer_of, per_layer};

/// How much a stage is to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Positions of all sequences together.
    pub cells: u32,
    /// Sequences.
    pub sequences: u32,
    /// Tokens in a micro-batch.
    pub batch: u32,
    /// Rows of logits that the last stage gives at a time: one a sequence, for drawing tokens.
    pub logits: u32,
    /// Type of cached keys and values.
    pub cache_type: GgmlType,
    /// Whether attention is computed in one fused step.
    pub fused_attention: bool,
}

/// Bytes that a stage takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Its tensors.
    pub weights: u64,
    /// Cached keys and values.
    pub cache: u64,
    /// Running states of recurrent layers.
    pub state: u64,
    /// What the largest graph needs while it is computed.
    pub compute: u64,
    /// Logits on their way out.
    pub output: u64,
}

impl Footprint {
    /// All of it.
    pub fn total(&self) -> u64 {
        [self.weights, self.cache, self.state, self.compute, self.output].into_iter().fold(0, u64::saturating_add)
    }
}

/// What a layer keeps, in values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerCache {
    /// Keys, a token.
    pub keys: u64,
    /// Values, a token; none where they are part of the keys (MLA).
    pub values: u64,
    /// Keys by which tokens are selected, a token; and the values that llama.cpp keeps beside them.
    pub selection: u64,
    /// Running state (f32), a sequence.
    pub state: u64,
}

impl LayerCache {
    /// Bytes of cache for one token.
    pub fn bytes_per_token(&self, cache_type: GgmlType) -> u64 {
        let (block, bytes) = (u64::from(cache_type.block_size()), u64::from(cache_type.block_bytes()));
        let row = |values: u64| values.div_ceil(block).saturating_mul(bytes);
        row(self.keys).saturating_add(row(self.values)).saturating_add(row(self.selection))
    }

    /// Bytes of running state for one sequence.
    pub fn state_bytes(&self) -> u64 {
        self.state.saturating_mul(F32)
    }
}

/// The widest rows of a model's graph, in values a token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Widths {
    /// Rows as they come in: further features may lie beside a hidden row.
    input: u64,
    /// Queries, keys, values and what attention makes of them.
    attention: u64,
    /// Heads of queries.
    heads: u64,
    /// Queries by which tokens are selected.
    selection: u64,
    /// Whether keys and values are one latent row.
    latent: bool,
    /// Inside the feed-forward part; all experts that a token takes together.
    feed_forward: u64,
    /// Inside a recurrent layer.
    recurrent: u64,
    /// Which layers attend to a window.
    sliding: Vec<bool>,
}

const F32: u64 = 4;
/// Architectures for which llama.cpp turns fused attention off.
const NEVER_FUSED: [&str; 1] = ["grok"];
/// Beginnings of the names, behind `blk.N.`, of the convolutions whose last columns a recurrent layer keeps.
const CONVOLUTIONS: [&str; 2] = ["ssm_conv1d", "shortconv.conv"];

impl ModelInfo {
    /// Whether some of its layers attend to a sliding window only.
    pub fn has_windows(&self) -> bool {
        self.widths.sliding.contains(&true)
    }

    /// What a stage of these layers takes with this much room.
    pub fn footprint(&self, layers: LayerRange, room: &Room) -> Footprint {
        let range = layers.start() as usize..layers.end() as usize;
        let sum = |of: &dyn Fn(usize) -> u64| range.clone().map(of).fold(0, u64::saturating_add);
        let (first, last) = (layers.start() == 0, layers.end() == self.n_layer);
        let head = if last { self.head_bytes } else { 0 };
        let embedding = match (first, last) {
            // A tied head is the embedding.
            (_, true) if self.tied => 0,
            (true, true) => self.embedding_bytes,
            _ if self.has_lead => self.embedding_bytes,
            (true, false) => self.first_bytes(),
            (false, _) => 0,
        };
        let weights = sum(&|layer| self.layer_bytes.get(layer).copied().unwrap_or(0));
        let cache = |layer: usize| self.layer_cache.get(layer).copied().unwrap_or_default();
        let kept = |layer: usize| cache(layer).bytes_per_token(room.cache_type);
        // The layer before the stage's own has a cache, if no weights.
        let lead = if self.has_lead && !first { kept(layers.start() as usize - 1) } else { 0 };
        Footprint {
            weights: [weights, head, embedding, self.shared_bytes].into_iter().fold(0, u64::saturating_add),
            cache: sum(&kept).saturating_add(lead).saturating_mul(room.cells.into()),
            state: sum(&|layer| cache(layer).state_bytes()).saturating_mul(room.sequences.into()),
            compute: self.compute_bytes(layers, room),
            output: self.logits_bytes(layers, room),
        }
    }

    /// Bytes that the first stage of a split keeps on top: the embedding, unless it is looked up in the file.
    pub fn first_bytes(&self) -> u64 {
        if self.takes_tokens && !self.has_lead { self.embedding_bytes } else { 0 }
    }

    /// Bytes that every stage of a split takes whichever its layers are.
    pub fn every_stage_bytes(&self) -> u64 {
        self.shared_bytes.saturating_add(if self.has_lead { self.embedding_bytes } else { 0 })
    }

    /// Rows of logits that a stage computes, and how long they are: a stage in the middle has a vocabulary for form's
    /// sake, and marks every row as output where the last layer would drop it otherwise.
    fn logits(&self, layers: LayerRange, room: &Room) -> (u64, u64) {
        let wanted = room.logits.max(room.sequences).min(room.batch);
        let rows = if self.keeps_rows { wanted } else { room.batch };
        match (layers.start() == 0, layers.end() == self.n_layer) {
            (_, true) => (wanted.into(), self.n_vocab.into()),
            (true, false) if self.takes_tokens => (rows.into(), self.n_vocab.into()),
            (false, false) if self.has_lead => (rows.into(), self.n_vocab.into()),
            _ => (rows.into(), crate::slice::SMALL_VOCABULARY.into()),
        }
    }

    fn logits_bytes(&self, layers: LayerRange, room: &Room) -> u64 {
        let (rows, width) = self.logits(layers, room);
        rows.saturating_mul(width).saturating_mul(F32)
    }

    fn compute_bytes(&self, layers: LayerRange, room: &Room) -> u64 {
        let widths = &self.widths;
        let (tokens, cells) = (u64::from(room.batch.min(room.cells)), u64::from(room.cells));
        let fused = room.fused_attention && !NEVER_FUSED.contains(&self.architecture.as_str());
        // One mask for all layers that attend alike; fused attention takes it in f16.
        let range = layers.start() as usize..layers.end() as usize;
        let sliding = widths.sliding.get(range).unwrap_or_default();
        let attends = self.layer_cache.iter().any(|cache| cache.keys > 0);
        let kinds = if !attends {
            0
        } else if sliding.contains(&true) && sliding.contains(&false) {
            2
        } else {
            1
        };
        let masks = cells.saturating_mul(if fused { 2 } else { F32 }).saturating_mul(kinds);
        let heads = if fused { 0 } else { widths.heads };
        // Tokens are selected by one score for each cell, and their order; where whole blocks are, these are few.
        let selecting = if widths.selection > 0 && widths.latent { 2 } else { 0 };
        let scores = cells.saturating_mul(heads.saturating_add(selecting));
        let attention = scores.saturating_add(widths.attention);
        let inside = attention.saturating_add(widths.selection).max(widths.feed_forward).max(widths.recurrent);
        let hidden = u64::from(self.n_embd).saturating_mul(3).saturating_add(widths.input);
        let row = inside.saturating_add(hidden).saturating_mul(F32);
        let within = tokens.saturating_mul(masks.saturating_add(row));
        // A layer's state before it and behind it.
        let largest = self.layer_cache.iter().map(LayerCache::state_bytes).max().unwrap_or(0);
        let states = largest.saturating_mul(u64::from(room.sequences).saturating_mul(2));
        // The head comes when the layers are done, and finds the masks' room: it takes that, or what comes behind it.
        let (outputs, width) = self.logits(layers, room);
        let logits = outputs.saturating_mul(width.saturating_add(self.n_embd.into())).saturating_mul(F32);
        let behind = tokens.saturating_mul(masks);
        let room = if logits <= behind { behind } else { behind.saturating_add(logits) };
        let head = tokens.saturating_mul(F32 * u64::from(self.n_embd)).saturating_add(room);
        within.saturating_add(states).max(head)
    }
}

/// What each layer keeps, as the header says.
pub(crate) fn layer_cache(header: &Header, info: &ModelInfo) -> Result<Vec<LayerCache>, HeaderError> {
    let metadata = header.metadata();
    let (layers, all) = (info.n_layer, info.n_layer_all());
    let key = |name: &str| format!("{}.{name}", info.architecture);
    let number = |name: &str| Ok::<_, HeaderError>(metadata.u32(&key(name))?.map(u64::from));
    let family = FAMILIES.iter().find(|row| row.architecture == info.architecture);
    let heads = per_layer(metadata, &key("attention.head_count"), layers, all)?;
    let heads = heads.unwrap_or_else(|| vec![0; layers as usize]);
    let kv_heads = per_layer(metadata, &key("attention.head_count_kv"), layers, all)?.unwrap_or_else(|| heads.clone());
    // As llama.cpp: head sizes follow from the first layer's head count.
    let first_heads = heads.first().copied().unwrap_or(0);
    let head = u64::from(info.n_embd).checked_div(first_heads).unwrap_or(0);
    let (k, v) = (number("attention.key_length")?.unwrap_or(head), number("attention.value_length")?.unwrap_or(head));
    let k_swa = number("attention.key_length_swa")?.unwrap_or(k);
    let v_swa = number("attention.value_length_swa")?.unwrap_or(v);
    let latent = number("attention.key_length_mla")?.unwrap_or(0) > 0;
    let selecting = number("attention.indexer.key_length")?.unwrap_or(0);
    let own_kv = u64::from(layers).saturating_sub(number("attention.shared_kv_layers")?.unwrap_or(0));
    let delta = number("kda.head_dim")?.unwrap_or(0);
    let state = match delta {
        0 => number("ssm.state_size")?.unwrap_or(0).saturating_mul(number("ssm.inner_size")?.unwrap_or(0)),
        _ => delta.saturating_mul(delta).saturating_mul(first_heads),
    };
    let kinds = |of: fn(&Header, &Family, &ModelInfo) -> Result<Option<Kinds>, HeaderError>| {
        let kinds = family.map(|family| of(header, family, info)).transpose()?.flatten();
        Ok::<_, HeaderError>(kinds.map(|kinds| kinds.slice(0, layers).to_vec()))
    };
    let (sliding, recurrent) = (kinds(Kinds::sliding)?, kinds(Kinds::recurrent)?);
    let tensors = Tensors::of(header, layers);
    let is = |flags: &Option<Vec<bool>>, layer: usize| flags.as_ref().is_some_and(|flags| flags[layer]);
    let cache = |layer: usize| {
        let (k, v) = if is(&sliding, layer) { (k_swa, v_swa) } else { (k, v) };
        let running = tensors.convolutions[layer] > 0;
        let attends = !is(&recurrent, layer) && (layer as u64) < own_kv;
        let selects = attends && tensors.selections[layer];
        LayerCache {
            keys: if attends { kv_heads[layer].saturating_mul(k) } else { 0 },
            values: if attends && !latent { kv_heads[layer].saturating_mul(v) } else { 0 },
            selection: if selects { selecting.saturating_add(if latent { 0 } else { v }) } else { 0 },
            state: if running {
                tensors.convolutions[layer].saturating_add(if tensors.scans[layer] { state } else { 0 })
            } else {
                0
            },
        }
    };
    Ok((0..layers as usize).map(cache).collect())
}

/// What the names and shapes of tensors tell.
struct Tensors {
    /// Values of convolution columns that are kept, layer by layer.
    convolutions: Vec<u64>,
    /// Whether there is a state beside the convolution's.
    scans: Vec<bool>,
    /// Whether there are keys to select tokens by.
    selections: Vec<bool>,
    /// The widest feed-forward part: its gate, if it has one, what goes up, and their product.
    dense: u64,
    /// The same of one expert.
    expert: u64,
}

impl Tensors {
    fn of(header: &Header, layers: u32) -> Self {
        let n = layers as usize;
        let (convolutions, scans, selections) = (vec![0; n], vec![false; n], vec![false; n]);
        let mut found = Self { convolutions, scans, selections, dense: 0, expert: 0 };
        for tensor in header.tensors() {
            let Some((layer, rest)) = layer_of(tensor.name()).filter(|(layer, _)| *layer < layers) else { continue };
            let layer = layer as usize;
            let dim = |index: usize| tensor.dims().get(index).copied().unwrap_or(1);
            let gated = |name: &str| header.tensor(&format!("blk.{layer}.{name}")).is_some();
            if CONVOLUTIONS.iter().any(|name| rest.starts_with(name)) && rest.ends_with(".weight") {
                let channels = dim(1).saturating_mul(dim(2)).saturating_mul(dim(3));
                let kept = dim(0).saturating_sub(1).saturating_mul(channels);
                found.convolutions[layer] = found.convolutions[layer].saturating_add(kept);
                found.scans[layer] |= rest.starts_with("ssm_");
            }
            found.selections[layer] |= rest.starts_with("indexer");
            let times = |parts: u64| dim(1).saturating_mul(parts);
            match rest {
                "ffn_up.weight" if gated("ffn_gate.weight") => found.dense = found.dense.max(times(3)),
                "ffn_up.weight" => found.dense = found.dense.max(times(2)),
                "ffn_up_exps.weight" => found.expert = found.expert.max(times(3)),
                "ffn_gate_up_exps.weight" => found.expert = found.expert.max(times(2)),
                _ => {}
            }
        }
        found
    }
}

/// The widest rows, as the header says.
pub(crate) fn widths(header: &Header, info: &ModelInfo) -> Result<Widths, HeaderError> {
    let metadata = header.metadata();
    let (layers, all) = (info.n_layer, info.n_layer_all());
    let key = |name: &str| format!("{}.{name}", info.architecture);
    let number = |name: &str| Ok::<_, HeaderError>(metadata.u32(&key(name))?.map_or(0, u64::from));
    let most = |name: &str| {
        let values = per_layer(metadata, &key(name), layers, all)?;
        Ok::<_, HeaderError>(values.into_iter().flatten().max().unwrap_or(0))
    };
    let heads = most("attention.head_count")?;
    let head = u64::from(info.n_embd).checked_div(heads).unwrap_or(0);
    let or = |value: u64, other: u64| if value == 0 { other } else { value };
    let (k, v) = (or(number("attention.key_length")?, head), or(number("attention.value_length")?, head));
    let cache = info.layer_cache.iter().map(|cache| cache.keys.saturating_add(cache.values)).max().unwrap_or(0);
    let tensors = Tensors::of(header, layers);
    let experts = most("expert_used_count")?.saturating_mul(tensors.expert.saturating_add(info.n_embd.into()));
    let family = FAMILIES.iter().find(|row| row.architecture == info.architecture);
    let sliding = family.map(|family| Kinds::sliding(header, family, info)).transpose()?.flatten();
    Ok(Widths {
        input: number("n_deepstack_layers")?.saturating_add(1).saturating_mul(info.n_embd.into()),
        latent: number("attention.key_length_mla")? > 0,
        selection: number("attention.indexer.head_count")?
            .saturating_mul(number("attention.indexer.key_length")?)
            .saturating_mul(2),
        // Queries before and after they are turned, keys and values, and the result.
        attention: heads.saturating_mul(k.saturating_mul(2).saturating_add(v)).saturating_add(cache),
        heads,
        feed_forward: tensors.dense.max(experts),
        recurrent: number("ssm.inner_size")?.saturating_mul(6),
        sliding: sliding.map_or_else(Vec::new, |kinds| kinds.slice(0, layers).to_vec()),
    })
}

#[cfg(test)]
mod tests;
