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

const WINDOW_PATTERN: &str = "attention.sliding_window_pattern";

/// The metadata of a slice, in the source's order; what is new stands at the end.
pub(super) fn cut(header: &Header, family: &Family, info: &ModelInfo, cut: Cut) -> Result<Metadata, HeaderError> {
    let source = header.metadata();
    let prefix = format!("{}.", info.architecture);
    let mut out = Metadata::default();
    for (key, value) in source.iter() {
        let own = key.strip_prefix(&prefix);
        if cut.kind == SliceKind::Rows && (key.starts_with("tokenizer.") || own == Some("vocab_size")) {
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
    if let Some(pattern) = window_pattern(source, family, info, cut)? {
        out.set(&format!("{prefix}{WINDOW_PATTERN}"), Value::Array(pattern));
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

/// The explicit pattern of a sliding window that is given by a period, said or unsaid: a slice's first layer need not
/// be the first of a period.
fn window_pattern(
    source: &Metadata,
    family: &Family,
    info: &ModelInfo,
    cut: Cut,
) -> Result<Option<Array>, HeaderError> {
    let Window::Period { default, dense_first } = family.window else { return Ok(None) };
    let key = |name: &str| format!("{}.{name}", info.architecture);
    if source.u32(&key("attention.sliding_window"))?.unwrap_or(0) == 0 {
        return Ok(None);
    }
    let period = match source.get(&key(WINDOW_PATTERN)) {
        Some(Value::Array(_)) => return Ok(None),
        _ => source.u32(&key(WINDOW_PATTERN))?.unwrap_or(default),
    };
    // Layers that predict further tokens attend to everything.
    let sliding = |layer| layer < info.n_layer && Window::is_sliding(layer, period, dense_first);
    Ok(Some(Array::of_bools((cut.start..cut.end).map(sliding))))
}
