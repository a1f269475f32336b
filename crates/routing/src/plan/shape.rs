//! What a model weighs, layer by layer, in memory and in work.

use mesh_types::{ByteSize, LayerRange};

/// What one layer costs the node that runs it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerCost {
    /// Bytes of its weights: kept, and read once a token.
    pub weights: u64,
    /// Bytes of its KV cache or state, for all sequences.
    pub cache: u64,
}

/// A model as the planner sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelShape {
    /// Sums of `weights` over the layers before each one; one longer than there are layers.
    weights: Vec<u64>,
    /// The same of `cache`.
    cache: Vec<u64>,
    parts: Parts,
    /// Layers at which it may be cut, ascending; none: it cannot be split.
    cuts: Vec<u32>,
    /// Numbers of layers that no stage of a split may have.
    avoided: Vec<u32>,
}

/// What a stage costs beside its layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    /// Bytes that the first stage keeps on top: the embedding, where it is not looked up in the file.
    pub first: u64,
    /// Bytes that a stage of all layers keeps on top of first and last: the embedding, which it does not look up.
    pub whole: u64,
    /// Bytes of the head, which the last stage keeps and reads for every token.
    pub head: u64,
    /// Bytes that the last stage takes on top for logits.
    pub logits: u64,
    /// Bytes of compute buffers and runtime on every stage.
    pub buffers: u64,
}

impl ModelShape {
    /// A model of these layers, which may be cut before each layer of `cuts`.
    pub fn new(layers: &[LayerCost], parts: Parts, mut cuts: Vec<u32>) -> Self {
        let sums = |of: fn(&LayerCost) -> u64| {
            let mut sums = vec![0_u64];
            layers.iter().for_each(|layer| sums.push(sums.last().map_or(0, |sum| sum.saturating_add(of(layer)))));
            sums
        };
        let n_layer = u32::try_from(layers.len()).unwrap_or(u32::MAX);
        cuts.retain(|cut| (1..n_layer).contains(cut));
        cuts.sort_unstable();
        cuts.dedup();
        Self {
            weights: sums(|layer| layer.weights),
            cache: sums(|layer| layer.cache),
            parts,
            cuts,
            avoided: Vec::new(),
        }
    }

    /// Without stages of these numbers of layers, the whole model excepted.
    pub fn without_stages_of(self, avoided: &[u32]) -> Self {
        Self { avoided: avoided.to_vec(), ..self }
    }

    /// Whether a stage may have as many layers as these.
    pub fn may_be_stage(&self, layers: LayerRange) -> bool {
        layers.len() == self.n_layer() || !self.avoided.contains(&layers.len())
    }

    /// How many numbers of layers no stage may have.
    pub(super) fn n_avoided(&self) -> usize {
        self.avoided.len()
    }

    /// Layers in all.
    pub fn n_layer(&self) -> u32 {
        u32::try_from(self.weights.len() - 1).unwrap_or(u32::MAX)
    }

    /// All layers; `None` for a model without any.
    pub fn all(&self) -> Option<LayerRange> {
        LayerRange::new(0, self.n_layer())
    }

    /// Where it may be cut.
    pub fn cuts(&self) -> &[u32] {
        &self.cuts
    }

    /// What the stage of `layers` takes: weights, cache, buffers.
    pub fn memory(&self, layers: LayerRange) -> ByteSize {
        let first = if layers.start() == 0 { self.parts.first } else { 0 };
        let whole = if layers.len() == self.n_layer() { self.parts.whole } else { 0 };
        let logits = if layers.end() == self.n_layer() { self.parts.logits } else { 0 };
        let beside = [sum(&self.cache, layers), first, whole, logits, self.parts.buffers];
        ByteSize(beside.into_iter().fold(self.work(layers), u64::saturating_add))
    }

    /// Bytes that the stage of `layers` reads for a token: the head weighs what it is.
    pub fn work(&self, layers: LayerRange) -> u64 {
        let head = if layers.end() == self.n_layer() { self.parts.head } else { 0 };
        sum(&self.weights, layers).saturating_add(head)
    }

    /// The least that any stage of a split takes.
    pub(super) fn smallest_stage(&self) -> ByteSize {
        let ends = || self.cuts.iter().copied().chain([self.n_layer()]);
        let starts = [0].into_iter().chain(self.cuts.iter().copied());
        let stages = starts.zip(ends()).filter_map(|(start, end)| LayerRange::new(start, end));
        stages.map(|layers| self.memory(layers)).min().unwrap_or_default()
    }
}

fn sum(sums: &[u64], layers: LayerRange) -> u64 {
    let at = |layer: u32| sums.get(layer as usize).or(sums.last()).copied().unwrap_or(0);
    at(layers.end()).saturating_sub(at(layers.start()))
}
