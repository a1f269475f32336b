//! The facts about a model that the rest of the product asks for, drawn from its header and checked once.

use mesh_types::LayerRange;
use mesh_types::chat::SamplingOverrides;

use crate::error::{Error, HeaderError, KeyFault, TensorFault};
use crate::family::{Family, Input};
use crate::header::Header;
use crate::memory::{self, LayerCache, Widths};
use crate::metadata::Metadata;

/// Most layers that llama.cpp can load (`LLAMA_MAX_LAYERS`); more is an assertion there.
pub const MAX_LAYERS: u32 = 512;

/// Tensors that belong to no layer, and have a share for each.
const SHARED_OUT: [&str; 2] = ["per_layer_token_embd.weight", "per_layer_model_proj.weight"];

/// What a header says about its model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelInfo {
    /// `general.architecture`: the family.
    pub architecture: String,
    /// `general.name`.
    pub name: Option<String>,
    /// Layers, those that predict further tokens (MTP) not counted; at least one, at most 512 with those.
    pub n_layer: u32,
    /// Layers that predict further tokens; they follow the others and stay with the last stage.
    pub n_nextn: u32,
    /// Values in a hidden row.
    pub n_embd: u32,
    /// Size of the vocabulary.
    pub n_vocab: u32,
    /// Tokens that the model was trained to attend to.
    pub context_length: u32,
    /// `tokenizer.chat_template`.
    pub chat_template: Option<String>,
    /// `general.sampling.*`: the model's own defaults.
    pub sampling: SamplingOverrides,
    /// Bytes of all tensors.
    pub total_bytes: u64,
    /// Bytes of each of the `n_layer` layers' tensors.
    pub layer_bytes: Vec<u64>,
    /// Bytes of the tensors that only the last stage needs: the head (the embedding where it is tied to it), and MTP
    /// layers.
    pub head_bytes: u64,
    /// Bytes of the token embedding's table.
    pub embedding_bytes: u64,
    /// Bytes of what every stage keeps: tensors that belong to no layer, head and embedding apart.
    pub shared_bytes: u64,
    /// Whether the head is the embedding.
    pub tied: bool,
    /// What each of the `n_layer` layers keeps of sequences.
    pub layer_cache: Vec<LayerCache>,
    /// Whether the first stage of a split is fed with tokens.
    pub(crate) takes_tokens: bool,
    /// Whether later stages are as well, and begin with a layer more.
    pub(crate) has_lead: bool,
    /// Whether stages give all rows without marking them as outputs.
    pub(crate) keeps_rows: bool,
    pub(crate) widths: Widths,
}

impl ModelInfo {
    /// Draws the facts out of `header`.
    ///
    /// # Errors
    /// Where a key that every model has is missing or holds something impossible.
    pub fn of(header: &Header) -> Result<Self, HeaderError> {
        let metadata = header.metadata();
        let architecture = metadata.require_str("general.architecture")?.to_owned();
        let key = |name: &str| format!("{architecture}.{name}");
        let (n_layer, n_nextn) = layer_counts(metadata, &architecture)?;
        // A family that is unknown, or cannot be split, has no stages.
        let family = Family::of(header).ok();
        let n_embd = positive(metadata, &key("embedding_length"))?;
        let mut info = Self {
            name: metadata.get("general.name").and_then(|name| name.as_str()).map(str::to_owned),
            n_layer,
            n_nextn,
            n_embd,
            n_vocab: n_vocab(header, &architecture)?,
            context_length: positive(metadata, &key("context_length"))?,
            chat_template: metadata.str("tokenizer.chat_template")?.map(str::to_owned),
            sampling: sampling(metadata)?,
            total_bytes: 0,
            layer_bytes: vec![0; n_layer as usize],
            head_bytes: 0,
            embedding_bytes: 0,
            shared_bytes: 0,
            tied: header.tensor("output.weight").is_none(),
            layer_cache: Vec::new(),
            takes_tokens: family.is_some_and(|family| family.input == Input::Tokens),
            has_lead: family.is_some_and(Family::has_lead),
            keeps_rows: family.is_some_and(|family| family.keeps_rows),
            widths: Widths::default(),
            architecture,
        };
        info.add_bytes(header)?;
        info.layer_cache = memory::layer_cache(header, &info)?;
        info.widths = memory::widths(header, &info)?;
        Ok(info)
    }

    /// Layers in the file: those that predict further tokens included.
    pub fn n_layer_all(&self) -> u32 {
        self.n_layer + self.n_nextn
    }

    fn add_bytes(&mut self, header: &Header) -> Result<(), HeaderError> {
        for tensor in header.tensors() {
            let (name, bytes) = (tensor.name(), tensor.n_bytes());
            self.total_bytes = self.total_bytes.saturating_add(bytes);
            let add = |sum: &mut u64| *sum = sum.saturating_add(bytes);
            match layer_of(name) {
                Some((layer, _)) if layer >= self.n_layer_all() => {
                    return Err(HeaderError::tensor(name, TensorFault::Layer(self.n_layer_all())));
                }
                None if SHARED_OUT.contains(&name) => {
                    let share = bytes.div_ceil(u64::from(self.n_layer));
                    self.layer_bytes.iter_mut().for_each(|layer| *layer = layer.saturating_add(share));
                }
                Some((layer, _)) => add(self.layer_bytes.get_mut(layer as usize).unwrap_or(&mut self.head_bytes)),
                None if name == "token_embd.weight" => add(&mut self.embedding_bytes),
                None if name.starts_with("output") => add(&mut self.head_bytes),
                None => add(&mut self.shared_bytes),
            }
        }
        if self.tied {
            self.head_bytes = self.head_bytes.saturating_add(self.embedding_bytes);
        }
        Ok(())
    }
}

/// The layers at which this model may be cut: each is the first layer of a stage. Empty: it has too few layers.
///
/// # Errors
/// Where the header is unusable, or the family is unknown or cannot be split.
pub fn allowed_cuts(header: &Header) -> Result<Vec<u32>, Error> {
    let info = ModelInfo::of(header)?;
    Family::of(header)?.cuts(header, &info)
}

/// Numbers of layers that no stage of this model may have, unless it has all: llama.cpp would take the stage for another
/// model. What [`allowed_cuts`] says comes without this.
///
/// # Errors
/// Where the family is unknown or cannot be split.
pub fn avoided_sizes(header: &Header) -> Result<&'static [u32], Error> {
    Ok(Family::of(header)?.no_stage_of)
}

/// Checks that `range` can be a stage of the model with this header; the whole model always can, whatever its family.
///
/// # Errors
/// [`Error::Range`] or another, with the reason.
pub fn check_range(header: &Header, range: LayerRange) -> Result<(), Error> {
    let info = ModelInfo::of(header)?;
    match range.start() == 0 && range.end() == info.n_layer {
        true => Ok(()),
        false => Family::of(header)?.check_range(header, &info, range),
    }
}

/// The layer of a tensor named `blk.N.REST`, and the rest.
pub(crate) fn layer_of(name: &str) -> Option<(u32, &str)> {
    let (digits, rest) = name.strip_prefix("blk.")?.split_once('.')?;
    let layer: u32 = digits.parse().ok()?;
    // Only llama.cpp's own spelling: `blk.01.x` or `blk.+1.x` would collide with another tensor.
    (layer.to_string() == digits).then_some((layer, rest))
}

fn positive(metadata: &Metadata, key: &str) -> Result<u32, HeaderError> {
    match metadata.require_u32(key)? {
        0 => Err(HeaderError::key(key, KeyFault::Range { value: 0 })),
        value => Ok(value),
    }
}

/// Layers without and with prediction of further tokens.
fn layer_counts(metadata: &Metadata, architecture: &str) -> Result<(u32, u32), HeaderError> {
    let key = format!("{architecture}.block_count");
    let all = positive(metadata, &key)?;
    if all > MAX_LAYERS {
        return Err(HeaderError::key(&key, KeyFault::Range { value: all.into() }));
    }
    let key = format!("{architecture}.nextn_predict_layers");
    let nextn = metadata.u32(&key)?.unwrap_or(0);
    if nextn >= all {
        return Err(HeaderError::key(&key, KeyFault::Range { value: nextn.into() }));
    }
    Ok((all - nextn, nextn))
}

/// As llama.cpp counts: the tokenizer's list, else the key; else the embedding's rows.
fn n_vocab(header: &Header, architecture: &str) -> Result<u32, HeaderError> {
    let metadata = header.metadata();
    let key = format!("{architecture}.vocab_size");
    let count = match metadata.array("tokenizer.ggml.tokens")? {
        Some(tokens) => tokens.len() as u64,
        None => match metadata.u32(&key)? {
            Some(size) => size.into(),
            None => header.tensor("token_embd.weight").and_then(|(_, t)| t.dims().get(1).copied()).unwrap_or(0),
        },
    };
    match u32::try_from(count) {
        Ok(count) if count > 0 => Ok(count),
        _ => Err(HeaderError::key(&key, KeyFault::Range { value: count.into() })),
    }
}

/// Values of a key that is one number for all layers or an array with one entry a layer; `None` where it is absent.
pub(crate) fn per_layer(
    metadata: &Metadata,
    key: &str,
    layers: u32,
    all: u32,
) -> Result<Option<Vec<u64>>, HeaderError> {
    let range = |value: i128| HeaderError::key(key, KeyFault::Range { value });
    match metadata.get(key) {
        Some(crate::Value::Array(array)) => {
            if array.len() != all as usize {
                return Err(HeaderError::key(key, KeyFault::PerLayer { found: array.len(), layers: all }));
            }
            let wrong = || KeyFault::WrongType { expected: "integers", found: array.element().name() };
            let ints = array.ints().ok_or_else(|| HeaderError::key(key, wrong()))?;
            let values =
                ints.take(layers as usize).map(|int| u32::try_from(int).map(u64::from).map_err(|_| range(int)));
            values.collect::<Result<_, _>>().map(Some)
        }
        _ => Ok(metadata.u32(key)?.map(|value| vec![value.into(); layers as usize])),
    }
}

fn sampling(metadata: &Metadata) -> Result<SamplingOverrides, HeaderError> {
    let top_k = metadata.get("general.sampling.top_k").and_then(|value| value.as_int());
    Ok(SamplingOverrides {
        temperature: metadata.f32("general.sampling.temp")?,
        // Negative means all tokens, as 0 does.
        top_k: top_k.map(|k| u32::try_from(k.max(0)).unwrap_or(u32::MAX)),
        top_p: metadata.f32("general.sampling.top_p")?,
        min_p: metadata.f32("general.sampling.min_p")?,
        ..SamplingOverrides::default()
    })
}

#[cfg(test)]
mod tests;
