//! Which model families split into stages exactly on stock llama.cpp, and by which rules. To add one, add a row to
//! [`FAMILIES`]; a family that is known not to split gets a row in [`REFUSED`].
//!
//! A row is earned by comparing all logits of the split and of the unsplit model, at uneven cuts: a difference of 0.
//! Equal greedy text proves nothing.

use mesh_types::LayerRange;

use crate::error::Error;
use crate::header::Header;

/// What splitting a family takes.
#[derive(Debug, PartialEq, Eq)]
pub struct Family {
    /// `general.architecture`.
    pub architecture: &'static str,
    /// How the rows that enter layer 0 are made.
    pub input: Input,
    /// Name of the tensor that holds the rows a layer hands on, without its `-LAYER` suffix.
    pub tap: &'static str,
    /// Tensor to overwrite with incoming rows, where the graph treats its input specially before layer 0; `None`: the
    /// batch's embeddings are the rows.
    pub inject: Option<&'static str>,
    /// Where a stage may begin.
    pub cuts: Cuts,
    /// Which layers attend to a sliding window, where a key gives that as a period.
    pub window: Window,
    /// Whole-model layer counts from which llama.cpp derives a parameter: such a model cannot be split, since its
    /// slices would no longer have that many layers, and no slice may have so many.
    pub sized_by_layers: &'static [u32],
}

/// How the rows that enter layer 0 are made from token ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// Rows of `token_embd.weight`, as f32, times a factor. The node does this itself, so that no stage but the last
    /// carries a vocabulary.
    Lookup(Factor),
    /// By the model's own graph: the first stage is fed with tokens and keeps the vocabulary.
    Tokens,
}

/// What looked-up rows are multiplied with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Factor {
    /// Nothing.
    One,
    /// The square root of `n_embd`, in f32.
    SqrtEmbd,
}

/// Where a stage may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cuts {
    /// Anywhere.
    Any,
    /// At multiples of a period that is built into llama.cpp.
    MultipleOf(u32),
}

/// A sliding-window pattern given by a period, as `llama_model_base::load_swa_pattern` reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// The family has none, or its files always carry the explicit array.
    None,
    /// Active where `{arch}.attention.sliding_window` is above 0; a file without that key is a model without windows,
    /// and so is a slice without a sliding layer.
    Period {
        /// Used where `{arch}.attention.sliding_window_pattern` is absent.
        default: u32,
        /// Whether the first layer of a period is the one that attends to everything; else it is the last.
        dense_first: bool,
    },
}

/// The names at a boundary between two stages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Boundary {
    /// Tensor to copy the outgoing rows from.
    pub tap: String,
    /// Tensor to overwrite with the incoming rows; `None`: they are the batch's embeddings.
    pub inject: Option<&'static str>,
}

/// The families that split exactly.
pub const FAMILIES: &[Family] = &[
    Family {
        architecture: "llama",
        input: Input::Lookup(Factor::One),
        tap: "l_out",
        inject: None,
        cuts: Cuts::Any,
        window: Window::None,
        sized_by_layers: &[],
    },
    Family {
        architecture: "gemma3",
        input: Input::Lookup(Factor::SqrtEmbd),
        tap: "l_out",
        inject: None,
        cuts: Cuts::Any,
        window: Window::Period { default: 6, dense_first: false },
        // The 27B model, whose attention scale follows from its 62 layers.
        sized_by_layers: &[62],
    },
];

/// Families that are known not to split exactly, and why.
pub const REFUSED: &[(&str, &str)] = &[
    ("arwkv7", MANY_ROWS),
    ("cogvlm", "rows given in place of tokens mean an image to it"),
    ("deepseek4", MANY_ROWS),
    ("gemma3n", MANY_ROWS),
    ("gemma4", MANY_ROWS),
    ("glm5-next", MANY_ROWS),
    ("kimi-k3", "its residual blocks reach across layers"),
    ("minicpm3", "a residual scale follows from the number of layers"),
    ("minimax-01", "attention slopes follow from the layer's number in the whole model"),
    ("plamo2", "llama.cpp gives its layers' outputs no name"),
    ("qwen4exp", MANY_ROWS),
    ("rwkv6", MANY_ROWS),
    ("rwkv6qwen2", MANY_ROWS),
    ("rwkv7", MANY_ROWS),
];

const MANY_ROWS: &str = "more than one row a token crosses from layer to layer";

impl Family {
    /// The family of a model.
    ///
    /// # Errors
    /// [`Error::UnknownFamily`] or [`Error::CannotSplit`] name it; such a model can still be served unsplit.
    pub fn of(header: &Header) -> Result<&'static Self, Error> {
        let architecture = header.metadata().require_str("general.architecture")?;
        if let Some(family) = FAMILIES.iter().find(|row| row.architecture == architecture) {
            return Ok(family);
        }
        let family = crate::error::shown(architecture);
        match REFUSED.iter().find(|row| row.0 == architecture) {
            Some((_, reason)) => Err(Error::CannotSplit { family, reason: (*reason).to_owned() }),
            None => Err(Error::UnknownFamily(family)),
        }
    }

    /// The names at the boundary behind a stage of `layers` layers.
    pub fn boundary(&self, layers: u32) -> Boundary {
        Boundary { tap: format!("{}-{}", self.tap, layers.saturating_sub(1)), inject: self.inject }
    }

    /// What looked-up embedding rows are multiplied with; `None` where rows are not a plain lookup.
    pub fn embedding_factor(&self, n_embd: u32) -> Option<f32> {
        match self.input {
            Input::Lookup(Factor::One) => Some(1.0),
            Input::Lookup(Factor::SqrtEmbd) => Some((n_embd as f32).sqrt()),
            Input::Tokens => None,
        }
    }

    /// The layers at which a model of `n_layer` layers may be cut.
    ///
    /// # Errors
    /// [`Error::CannotSplit`] where llama.cpp derives a parameter from exactly that many layers.
    pub fn allowed_cuts(&self, n_layer: u32) -> Result<Vec<u32>, Error> {
        self.check_size(n_layer)?;
        Ok((1..n_layer).filter(|cut| self.may_cut(*cut)).collect())
    }

    /// Checks that `range` can be a stage of a model of `n_layer` layers. The whole model always can.
    ///
    /// # Errors
    /// [`Error::Range`] or [`Error::CannotSplit`].
    pub fn check_range(&self, range: LayerRange, n_layer: u32) -> Result<(), Error> {
        let bad = |reason: String| Err(Error::Range { range, n_layer, reason });
        if range.end() > n_layer {
            return bad("it does not have them".to_owned());
        }
        if range.len() == n_layer {
            return Ok(());
        }
        self.check_size(n_layer)?;
        for cut in [range.start(), range.end()] {
            if cut != 0 && cut != n_layer && !self.may_cut(cut) {
                return bad(format!("the family `{}` cannot be cut at layer {cut}", self.architecture));
            }
        }
        if self.sized_by_layers.contains(&range.len()) {
            return bad(format!("a stage of this family cannot have exactly {} layers", range.len()));
        }
        Ok(())
    }

    fn may_cut(&self, cut: u32) -> bool {
        match self.cuts {
            Cuts::Any => true,
            Cuts::MultipleOf(period) => cut.is_multiple_of(period),
        }
    }

    fn check_size(&self, n_layer: u32) -> Result<(), Error> {
        if self.sized_by_layers.contains(&n_layer) {
            let reason = format!("llama.cpp derives a parameter from its having exactly {n_layer} layers");
            return Err(Error::CannotSplit { family: self.architecture.to_owned(), reason });
        }
        Ok(())
    }
}

impl Window {
    /// Whether `layer` attends to a sliding window only, under this `period` (0: every layer does).
    pub(crate) fn is_sliding(layer: u32, period: u32, dense_first: bool) -> bool {
        match period {
            0 => true,
            _ if dense_first => !layer.is_multiple_of(period),
            _ => layer % period < period - 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn family(architecture: &str) -> &'static Family {
        FAMILIES.iter().find(|row| row.architecture == architecture).unwrap()
    }

    #[test]
    fn a_family_is_in_one_table_only() {
        let mut names: Vec<&str> =
            FAMILIES.iter().map(|row| row.architecture).chain(REFUSED.iter().map(|r| r.0)).collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
    }

    #[test]
    fn a_boundary_taps_the_stages_own_last_layer() {
        assert_eq!(family("llama").boundary(7), Boundary { tap: "l_out-6".to_owned(), inject: None });
    }

    #[test]
    fn rows_of_gemma3_are_scaled_in_f32() {
        assert_eq!(family("llama").embedding_factor(640), Some(1.0));
        assert_eq!(family("gemma3").embedding_factor(640), Some(640f32.sqrt()));
    }

    #[test]
    fn ranges_are_checked() {
        let range = |a, b| LayerRange::new(a, b).unwrap();
        assert!(family("llama").check_range(range(3, 31), 30).is_err());
        assert!(family("llama").check_range(range(3, 30), 30).is_ok());
        assert_eq!(family("llama").allowed_cuts(4).unwrap(), [1, 2, 3]);

        // gemma3's 27B: its 62 layers decide its attention scale.
        assert!(family("gemma3").check_range(range(0, 62), 62).is_ok());
        assert!(family("gemma3").check_range(range(0, 31), 62).is_err());
        assert!(family("gemma3").check_range(range(0, 62), 64).is_err());
        let refusal = family("gemma3").allowed_cuts(62).unwrap_err().to_string();
        assert!(refusal.contains("62 layers") && refusal.contains("unsplit"), "{refusal}");

        let periodic = Family { cuts: Cuts::MultipleOf(4), ..*family("llama") };
        assert_eq!(periodic.allowed_cuts(9).unwrap(), [4, 8]);
        assert!(periodic.check_range(range(4, 9), 9).is_ok());
        assert!(periodic.check_range(range(3, 8), 9).is_err());
    }

    #[test]
    fn the_window_pattern_is_llama_cpps() {
        let pattern = |period, dense_first| -> Vec<bool> {
            (0..7).map(|layer| Window::is_sliding(layer, period, dense_first)).collect()
        };
        assert_eq!(pattern(3, false), [true, true, false, true, true, false, true]);
        assert_eq!(pattern(3, true), [false, true, true, false, true, true, false]);
        assert_eq!(pattern(0, false), [true; 7]);
        assert_eq!(pattern(1, false), [false; 7]);
    }
}
