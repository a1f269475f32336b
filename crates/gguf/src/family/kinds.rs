//! Which layers attend to a sliding window, and which are recurrent, read as llama.cpp reads it.

use mesh_types::LayerRange;

use super::{Family, Period, Recurrent, Window};
use crate::error::{HeaderError, KeyFault};
use crate::header::Header;
use crate::info::ModelInfo;
use crate::value::Value;

pub(crate) const WINDOW: &str = "attention.sliding_window";
pub(crate) const WINDOW_PATTERN: &str = "attention.sliding_window_pattern";

pub(crate) const SHARED_KV: &str = "attention.shared_kv_layers";
const INTERVAL: &str = "full_attention_interval";
pub(crate) const RECURRENT_LAYERS: &str = "attention.recurrent_layers";

/// For each layer, those that predict further tokens included: is it of the one kind or of the other?
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Kinds {
    /// What a layer that is flagged has.
    pub(crate) what: &'static str,
    flags: Vec<bool>,
    /// Layers that are of neither kind.
    neither: Vec<u32>,
    n_layer: u32,
    /// Whether a stage has to have layers of both kinds.
    both_needed: bool,
}

impl Kinds {
    /// The kinds that a cut has to heed; `None` where there are none.
    pub(crate) fn of(header: &Header, family: &Family, info: &ModelInfo) -> Result<Option<Self>, HeaderError> {
        match family.recurrent {
            Recurrent::Never => Self::sliding(header, family, info),
            _ => Self::recurrent(header, family, info),
        }
    }

    /// Which layers attend to a sliding window; `None` where windows are no matter for this model.
    pub(crate) fn sliding(header: &Header, family: &Family, info: &ModelInfo) -> Result<Option<Self>, HeaderError> {
        let metadata = header.metadata();
        let key = |name: &str| format!("{}.{name}", info.architecture);
        let (period, both_needed) = match family.window {
            Window::None => return Ok(None),
            Window::Period(_) if metadata.u32(&key(WINDOW))?.unwrap_or(0) == 0 => return Ok(None),
            Window::Period(period) => (Some(period), false),
            Window::Always(period) => (Some(period), true),
            Window::Explicit => (None, true),
        };
        let flags = match (explicit(header, &key(WINDOW_PATTERN), info)?, period) {
            (Some(flags), _) => flags,
            (None, Some(Period { default, dense_first })) => {
                let period = metadata.u32(&key(WINDOW_PATTERN))?.unwrap_or(default);
                // Layers that predict further tokens attend to everything.
                let sliding = |layer| layer < info.n_layer && is_sliding(layer, period, dense_first);
                (0..info.n_layer_all()).map(sliding).collect()
            }
            (None, None) => return Err(HeaderError::key(&key(WINDOW_PATTERN), KeyFault::Missing)),
        };
        Ok(Some(Self { what: "a sliding window", flags, neither: Vec::new(), n_layer: info.n_layer, both_needed }))
    }

    /// Which layers are recurrent; `None` where none is, or all are.
    pub(crate) fn recurrent(header: &Header, family: &Family, info: &ModelInfo) -> Result<Option<Self>, HeaderError> {
        let key = |name: &str| format!("{}.{name}", info.architecture);
        let mut neither = Vec::new();
        let flags = match family.recurrent {
            Recurrent::Never | Recurrent::EveryLayer => return Ok(None),
            Recurrent::Interval(default) => match explicit(header, &key(RECURRENT_LAYERS), info)? {
                Some(flags) => flags,
                None => {
                    let interval = header.metadata().u32(&key(INTERVAL))?.unwrap_or(default);
                    if interval == 0 {
                        return Err(HeaderError::key(&key(INTERVAL), KeyFault::Range { value: 0 }));
                    }
                    let recurrent = |layer: u32| layer < info.n_layer && !(layer + 1).is_multiple_of(interval);
                    (0..info.n_layer_all()).map(recurrent).collect()
                }
            },
            Recurrent::WithoutKvHeads => match explicit(header, &key("attention.head_count_kv"), info)? {
                Some(heads) => heads.into_iter().map(|any| !any).collect(),
                None => vec![false; info.n_layer_all() as usize],
            },
            Recurrent::WithoutKvHeadsAndFeedForward => {
                // One number stands for all layers.
                let all = || vec![true; info.n_layer_all() as usize];
                let heads = explicit(header, &key("attention.head_count_kv"), info)?.unwrap_or_else(all);
                let feed_forward = explicit(header, &key("feed_forward_length"), info)?.unwrap_or_else(all);
                neither.extend((0..info.n_layer_all()).filter(|layer| feed_forward[*layer as usize]));
                heads.into_iter().zip(feed_forward).map(|(heads, any)| !heads && !any).collect()
            }
        };
        Ok(Some(Self { what: "recurrence", flags, neither, n_layer: info.n_layer, both_needed: true }))
    }

    /// The layers `start` to `end`, the latter not included.
    pub(crate) fn slice(&self, start: u32, end: u32) -> &[bool] {
        self.flags.get(start as usize..end as usize).unwrap_or_default()
    }

    /// Whether `range` has layers of both kinds, where that is needed.
    pub(crate) fn has_both(&self, range: LayerRange) -> bool {
        self.mixed(range.start(), range.end())
    }

    /// Keeps of `cuts`, which ascend, as many as leave every stage between two of them, and at the ends, both kinds.
    pub(crate) fn keep_both(&self, cuts: &mut Vec<u32>) {
        let mut start = 0;
        cuts.retain(|cut| {
            let keep = self.mixed(start, *cut);
            start = if keep { *cut } else { start };
            keep
        });
        while cuts.last().is_some_and(|last| !self.mixed(*last, self.n_layer)) {
            cuts.pop();
        }
    }

    fn mixed(&self, start: u32, end: u32) -> bool {
        let counts = |layer: &u32| !self.neither.contains(layer);
        let has = |kind| (start..end).filter(counts).any(|layer| self.flags.get(layer as usize) == Some(&kind));
        !self.both_needed || (has(true) && has(false))
    }
}

/// A list with an entry a layer: for each, whether it is other than 0. `None` where the key holds no list.
fn explicit(header: &Header, key: &str, info: &ModelInfo) -> Result<Option<Vec<bool>>, HeaderError> {
    let Some(Value::Array(array)) = header.metadata().get(key) else { return Ok(None) };
    let wrong = || KeyFault::WrongType { expected: "booleans", found: array.element().name() };
    let flags = array.ints().ok_or_else(|| HeaderError::key(key, wrong()))?;
    let mut flags: Vec<bool> = flags.map(|flag| flag != 0).collect();
    if flags.len() != info.n_layer_all() as usize && flags.len() != info.n_layer as usize {
        let why = KeyFault::PerLayer { found: flags.len(), layers: info.n_layer_all() };
        return Err(HeaderError::key(key, why));
    }
    flags.resize(info.n_layer_all() as usize, false);
    Ok(Some(flags))
}

/// The layers with which no stage may begin, where a list says how many attention heads each layer has: sizes follow
/// from those of the first.
pub(super) fn without_heads(header: &Header, info: &ModelInfo) -> Result<Option<Vec<u32>>, HeaderError> {
    let heads = explicit(header, &format!("{}.attention.head_count", info.architecture), info)?;
    Ok(heads.map(|heads| (0..info.n_layer).filter(|layer| !heads[*layer as usize]).collect()))
}

/// Attention heads of the first layer, one at least.
pub(super) fn first_heads(header: &Header, info: &ModelInfo) -> Result<u32, HeaderError> {
    let key = format!("{}.attention.head_count", info.architecture);
    let heads = match header.metadata().get(&key) {
        Some(Value::Array(array)) => array.ints().and_then(|mut heads| heads.next()).map_or(0, |heads| heads),
        _ => header.metadata().require_u32(&key)?.into(),
    };
    let heads = u32::try_from(heads).ok().filter(|heads| (1..=info.n_embd).contains(heads));
    heads.ok_or_else(|| HeaderError::key(&key, KeyFault::Range { value: 0 }))
}

/// Whether `layer` attends to a sliding window only, under this `period` (0: every layer does).
pub(super) fn is_sliding(layer: u32, period: u32, dense_first: bool) -> bool {
    match period {
        0 => true,
        _ if dense_first => !layer.is_multiple_of(period),
        _ => layer % period < period - 1,
    }
}

/// The layers at the end that use keys and values of earlier ones.
pub(super) fn shared_kv(header: &Header, info: &ModelInfo) -> Result<u32, HeaderError> {
    Ok(header.metadata().u32(&format!("{}.{SHARED_KV}", info.architecture))?.unwrap_or(0))
}
