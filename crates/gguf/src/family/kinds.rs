//! Which layers attend to a sliding window, read as llama.cpp reads it.

use mesh_types::LayerRange;

use super::{Family, Period, Window};
use crate::error::{HeaderError, KeyFault};
use crate::header::Header;
use crate::info::ModelInfo;
use crate::value::Value;

pub(crate) const WINDOW: &str = "attention.sliding_window";
pub(crate) const WINDOW_PATTERN: &str = "attention.sliding_window_pattern";

/// For each layer, those that predict further tokens included: does it attend to a sliding window?
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Kinds {
    sliding: Vec<bool>,
    n_layer: u32,
    /// Whether a stage has to have layers of both kinds.
    both_needed: bool,
}

impl Kinds {
    /// `None` where windows are no matter for this model.
    pub(crate) fn of(header: &Header, family: &Family, info: &ModelInfo) -> Result<Option<Self>, HeaderError> {
        let key = |name: &str| format!("{}.{name}", info.architecture);
        let (period, both_needed) = match family.window {
            Window::None => return Ok(None),
            Window::Period(_) if header.metadata().u32(&key(WINDOW))?.unwrap_or(0) == 0 => return Ok(None),
            Window::Period(period) => (Some(period), false),
            Window::Always(period) => (Some(period), true),
            Window::Explicit => (None, true),
        };
        let pattern_key = key(WINDOW_PATTERN);
        let sliding = match (header.metadata().get(&pattern_key), period) {
            (Some(Value::Array(array)), _) => {
                let wrong = || KeyFault::WrongType { expected: "booleans", found: array.element().name() };
                let flags = array.ints().ok_or_else(|| HeaderError::key(&pattern_key, wrong()))?;
                let mut sliding: Vec<bool> = flags.map(|flag| flag != 0).collect();
                if sliding.len() != info.n_layer_all() as usize && sliding.len() != info.n_layer as usize {
                    let why = KeyFault::PerLayer { found: sliding.len(), layers: info.n_layer_all() };
                    return Err(HeaderError::key(&pattern_key, why));
                }
                sliding.resize(info.n_layer_all() as usize, false);
                sliding
            }
            (_, Some(Period { default, dense_first })) => {
                let period = header.metadata().u32(&pattern_key)?.unwrap_or(default);
                // Layers that predict further tokens attend to everything.
                let sliding = |layer| layer < info.n_layer && is_sliding(layer, period, dense_first);
                (0..info.n_layer_all()).map(sliding).collect()
            }
            (_, None) => return Err(HeaderError::key(&pattern_key, KeyFault::Missing)),
        };
        Ok(Some(Self { sliding, n_layer: info.n_layer, both_needed }))
    }

    /// The layers `start` to `end`, the latter not included.
    pub(crate) fn slice(&self, start: u32, end: u32) -> &[bool] {
        self.sliding.get(start as usize..end as usize).unwrap_or_default()
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
        let layers = self.slice(start, end);
        !self.both_needed || (layers.contains(&true) && layers.contains(&false))
    }
}

/// Whether `layer` attends to a sliding window only, under this `period` (0: every layer does).
pub(super) fn is_sliding(layer: u32, period: u32, dense_first: bool) -> bool {
    match period {
        0 => true,
        _ if dense_first => !layer.is_multiple_of(period),
        _ => layer % period < period - 1,
    }
}
