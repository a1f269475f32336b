//! The rules that turn a model's metadata into a slice's.

use super::{Cut, SMALL_VOCABULARY, SliceKind};
use crate::error::{HeaderError, KeyFault};
use crate::family::{Family, Window};
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

const WINDOW: &str = "attention.sliding_window";
const WINDOW_PATTERN: &str = "attention.sliding_window_pattern";

/// The metadata of a slice, in the source's order; what is new stands at the end.
pub(super) fn cut(header: &Header, family: &Family, info: &ModelInfo, cut: Cut) -> Result<Metadata, HeaderError> {
    let source = header.metadata();
    let prefix = format!("{}.", info.architecture);
    let windows = windows(source, family, info, cut)?;
    let mut out = Metadata::default();
    for (key, value) in source.iter() {
        let own = key.strip_prefix(&prefix);
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
            (Some("leading_dense_block_count"), _) => {
                let leading = source.require_u32(key)?;
                Value::U32(leading.saturating_sub(cut.start).min(cut.layers()))
            }
            (Some(own), Value::Array(array)) => Value::Array(cut_array(key, own, array, info, cut)?),
            _ => value.clone(),
        };
        out.set(key, value);
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

fn windows(source: &Metadata, family: &Family, info: &ModelInfo, cut: Cut) -> Result<Windows, HeaderError> {
    let Window::Period { default, dense_first } = family.window else { return Ok(Windows::AsTheyAre) };
    let key = |name: &str| format!("{}.{name}", info.architecture);
    if source.u32(&key(WINDOW))?.unwrap_or(0) == 0 {
        return Ok(Windows::AsTheyAre);
    }
    let pattern_key = key(WINDOW_PATTERN);
    if let Some(Value::Array(array)) = source.get(&pattern_key) {
        let pattern = cut_array(&pattern_key, WINDOW_PATTERN, array, info, cut)?;
        let wrong = || KeyFault::WrongType { expected: "booleans", found: array.element().name() };
        let mut flags = pattern.ints().ok_or_else(|| HeaderError::key(&pattern_key, wrong()))?;
        return Ok(if flags.all(|flag| flag == 0) { Windows::None } else { Windows::AsTheyAre });
    }
    let period = source.u32(&pattern_key)?.unwrap_or(default);
    // Layers that predict further tokens attend to everything.
    let sliding = |layer| layer < info.n_layer && Window::is_sliding(layer, period, dense_first);
    let pattern: Vec<bool> = (cut.start..cut.end).map(sliding).collect();
    Ok(if pattern.contains(&true) { Windows::Explicit(pattern) } else { Windows::None })
}
