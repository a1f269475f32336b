//! The rules that turn a model's metadata into a slice's.

use super::{Cut, SMALL_VOCABULARY, SliceKind};
use crate::error::{HeaderError, KeyFault};
use crate::family::{
    EmbeddingScale, Family, Kinds, RECURRENT_LAYERS, Recurrent, SHARED_KV, SpelledOut, WINDOW, WINDOW_PATTERN,
};
use crate::header::Header;
use crate::info::ModelInfo;
use crate::metadata::Metadata;
use crate::value::{Array, Value};

/// Keys (behind `{arch}.`) whose arrays have one entry a layer. Another array of exactly that many entries counts as
/// one as well, unless [`NOT_PER_LAYER`] names it.
const PER_LAYER: &[&str] = &[
    "attention.head_count",
    "attention.head_count_kv",
    "attention.recurrent_layers",
    "attention.sliding_window_pattern",
    "expert_feed_forward_length",
    "expert_used_count",
    "feed_forward_length",
];

/// Keys (behind `{arch}.`) whose arrays have a length of their own, however many layers there are.
const NOT_PER_LAYER: &[&str] = &["rope.dimension_sections", "classifier.output_labels"];

/// Beginnings of keys that speak of layers although no family's name stands before them.
const BARE_PREFIX: &[&str] = &["xielu."];

const EMBEDDING_SCALE: &str = "embedding_scale";

/// Numbers of `LLAMA_EXPERT_GATING_FUNC_TYPE_*`.
const GATE_SOFTMAX: u32 = 1;
const GATE_SIGMOID: u32 = 2;

/// The metadata of a slice, in the source's order; what is new stands at the end.
pub(super) fn cut(header: &Header, family: &Family, info: &ModelInfo, cut: Cut) -> Result<Metadata, HeaderError> {
    let source = header.metadata();
    let prefix = format!("{}.", info.architecture);
    let windows = windows(header, family, info, cut)?;
    let mut out = Metadata::default();
    for (key, value) in source.iter() {
        let own = key.strip_prefix(&prefix).or_else(|| BARE_PREFIX.iter().any(|it| key.starts_with(it)).then_some(key));
        if cut.kind == SliceKind::Rows && (key.starts_with("tokenizer.") || own == Some("vocab_size")) {
            continue;
        }
        if windows == Windows::None && matches!(own, Some(WINDOW | WINDOW_PATTERN)) {
            continue;
        }
        let value = match (own, value) {
            (Some("block_count"), _) => Value::U32(cut.layers()),
            // Layers that predict further tokens are with the last stage.
            (Some("nextn_predict_layers"), _) if !cut.kind.has_head() => Value::U32(0),
            // They are the last ones, and stay with those whose keys and values they use.
            (Some(SHARED_KV), _) if !cut.kind.has_head() => Value::U32(0),
            // Images alone have anything in these; text adds zeros.
            (Some("n_deepstack_layers"), _) => Value::U32(0),
            (Some("leading_dense_block_count"), _) => {
                let leading = source.require_u32(key)?;
                Value::U32(leading.saturating_sub(cut.start).min(cut.layers()))
            }
            (Some(EMBEDDING_SCALE), _) if cut.start > 0 && family.embedding_scale != EmbeddingScale::None => {
                Value::F32(1.0)
            }
            (Some(own), Value::Array(array)) => Value::Array(cut_array(key, own, array, info, cut)?),
            _ => value.clone(),
        };
        out.set(key, value);
    }
    if cut.start > 0 && family.embedding_scale == EmbeddingScale::Always {
        out.set(&format!("{prefix}{EMBEDDING_SCALE}"), Value::F32(1.0));
    }
    for (key, value) in spelled_out(source, family.spelled_out, info)? {
        out.set(&format!("{prefix}{key}"), value);
    }
    let recurrent_key = format!("{prefix}{RECURRENT_LAYERS}");
    if matches!(family.recurrent, Recurrent::Interval(_))
        && source.get(&recurrent_key).is_none()
        && let Some(kinds) = Kinds::recurrent(header, family, info)?
    {
        let flags = kinds.slice(cut.start, cut.end).iter().copied();
        out.set(&recurrent_key, Value::Array(Array::of_bools(flags)));
    }
    if let Windows::Explicit(pattern) = windows {
        out.set(&format!("{prefix}{WINDOW_PATTERN}"), Value::Array(Array::of_bools(pattern)));
    }
    if cut.kind == SliceKind::Rows {
        out.set("tokenizer.ggml.model", Value::from("none"));
        out.set(&format!("{prefix}vocab_size"), Value::U32(SMALL_VOCABULARY));
    }
    Ok(out)
}

fn cut_array(key: &str, own: &str, array: &Array, info: &ModelInfo, cut: Cut) -> Result<Array, HeaderError> {
    let (all, plain) = (info.n_layer_all() as usize, info.n_layer as usize);
    let per_layer = array.len() == all || array.len() == plain;
    if NOT_PER_LAYER.contains(&own) || (!per_layer && !PER_LAYER.contains(&own)) {
        return Ok(array.clone());
    }
    // Some have no entries for the layers that predict further tokens.
    let end = (cut.end as usize).min(array.len());
    per_layer
        .then(|| array.slice(cut.start as usize..end))
        .flatten()
        .ok_or_else(|| HeaderError::key(key, KeyFault::PerLayer { found: array.len(), layers: info.n_layer_all() }))
}

/// What becomes of a model's sliding windows in a slice.
#[derive(Debug, PartialEq, Eq)]
enum Windows {
    /// No rule applies: what the source says is kept, an explicit pattern cut like any array.
    AsTheyAre,
    /// The pattern that the source gives by a period, said or unsaid, written out: a slice's first layer need not be
    /// the first of a period.
    Explicit(Vec<bool>),
    /// No layer of the slice has one: it is a model without windows. llama.cpp would end the process over a window
    /// that no layer uses (`GGML_ASSERT(hparams.is_swa_any())`).
    None,
}

fn windows(header: &Header, family: &Family, info: &ModelInfo, cut: Cut) -> Result<Windows, HeaderError> {
    let Some(kinds) = Kinds::sliding(header, family, info)? else { return Ok(Windows::AsTheyAre) };
    let pattern = kinds.slice(cut.start, cut.end);
    if !pattern.contains(&true) {
        return Ok(Windows::None);
    }
    let key = format!("{}.{WINDOW_PATTERN}", info.architecture);
    Ok(match header.metadata().get(&key) {
        Some(Value::Array(_)) => Windows::AsTheyAre,
        _ => Windows::Explicit(pattern.to_vec()),
    })
}

/// The keys that say what llama.cpp would derive from the number of layers or the vocabulary, with their values.
fn spelled_out(
    source: &Metadata,
    rule: SpelledOut,
    info: &ModelInfo,
) -> Result<Vec<(&'static str, Value)>, HeaderError> {
    let absent = |key: &str| source.get(&format!("{}.{key}", info.architecture)).is_none();
    let mut keys = Vec::new();
    match rule {
        SpelledOut::Nothing => {}
        SpelledOut::ResidualScale if absent("residual_scale") => {
            keys.push(("residual_scale", Value::F32(1.4 / (info.n_layer as f32).sqrt())));
        }
        SpelledOut::ResidualScale => {}
        SpelledOut::DeepSeek2 => {
            let (layers, vocabulary) = (info.n_layer, info.n_vocab);
            if matches!(layers, 26 | 27) || (layers == 48 && vocabulary == 128_256) {
                keys.push(("attention.q_lora_rank", Value::U32(0)));
            }
            // 0 stands for no function, as an absent key does.
            if source.u32(&format!("{}.expert_gating_func", info.architecture))?.unwrap_or(0) == 0 {
                let sigmoid = matches!(layers, 47 | 48) && vocabulary == 154_880;
                keys.push(("expert_gating_func", Value::U32(if sigmoid { GATE_SIGMOID } else { GATE_SOFTMAX })));
            }
        }
    }
    Ok(keys)
}
