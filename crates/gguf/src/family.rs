//! Which model families split into stages exactly on stock llama.cpp, and by which rules. The data is in
//! `family/table.rs`; `docs/adding-a-family.md` says how a row is earned.
//!
//! A row is earned by comparing all logits of the split and of the unsplit model, at uneven cuts: a difference of 0.
//! Equal greedy text proves nothing.

use mesh_types::LayerRange;

use crate::error::{Error, HeaderError};
use crate::header::Header;
use crate::info::ModelInfo;

mod kinds;
mod page;
mod table;

pub(crate) use kinds::{Kinds, RECURRENT_LAYERS, SHARED_KV, WINDOW, WINDOW_PATTERN};
pub use page::page;
pub use table::{FAMILIES, REFUSED};

/// What splitting a family takes.
#[derive(Debug, PartialEq, Eq)]
pub struct Family {
    /// `general.architecture`.
    pub architecture: &'static str,
    /// How the rows that enter layer 0 are made.
    pub input: Input,
    /// Tensor that holds the rows which the last layer of a stage hands on.
    pub tap: Tap,
    /// Where rows are written into the graph; `None`: the batch's embeddings are the rows.
    pub inject: Option<Inject>,
    /// Where a stage may begin.
    pub cuts: Cuts,
    /// Which layers attend to a sliding window.
    pub window: Window,
    /// Which layers are recurrent.
    pub recurrent: Recurrent,
    /// What becomes of the factor on whatever enters the graph.
    pub embedding_scale: EmbeddingScale,
    /// What llama.cpp derives from the whole model, and slices say in so many words.
    pub spelled_out: SpelledOut,
    /// The number of a whole model's layers at which queries are multiplied with one over the root of `n_embd / n_head`,
    /// and not of the heads' width: stages of such a model set the factor themselves.
    pub query_factor_at: Option<u32>,
    /// Whole-model layer counts from which llama.cpp derives a parameter: such a model cannot be split, since its
    /// slices would no longer have that many layers.
    pub sized_by_layers: &'static [u32],
    /// Numbers of layers that no stage may have, since llama.cpp would take it for another model.
    pub no_stage_of: &'static [u32],
    /// Whether the last layer computes all rows, and not only those whose logits are wanted.
    pub keeps_rows: bool,
    /// What a file has to say, or must not, for it to split.
    pub conditions: &'static [Condition],
}

/// Name of the tensor that holds the rows which the last layer of a stage hands on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tap {
    /// This, followed by `-LAYER`.
    Layer(&'static str),
    /// This: the family gives the last layer's rows a second name.
    Last(&'static str),
}

/// A tensor to overwrite with the rows that come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inject {
    /// In stages behind the first, which are fed with rows all the same: the graph treats its input in a way that rows
    /// of a middle layer must not be treated, and this is what comes out of it.
    Behind(&'static str),
    /// In every stage that takes rows, while the graph is fed with placeholder tokens: it takes rows for an image, or
    /// not at all.
    Over(&'static str),
    /// In stages behind the first, which are fed with tokens all the same, since the graph makes something of them for
    /// every layer: such a stage begins with the layer before its own, without weights, and this, its result, becomes
    /// the rows that come in.
    Lead(&'static str),
}

/// How the rows that enter layer 0 are made from token ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// Rows of `token_embd.weight`, as f32, times a factor. The node does this itself, so that no stage but the last
    /// carries a vocabulary. What the graph does to its input behind that, it does in the first stage as well.
    Lookup(Factor),
    /// By the model's own graph: the first stage is fed with tokens and keeps the vocabulary.
    Tokens,
}

/// What looked-up rows are multiplied with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Factor {
    /// Nothing.
    One,
    /// The square root of `n_embd`, in f32: the graph does so to tokens, and not to rows.
    SqrtEmbd,
}

/// Where a stage may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cuts {
    /// Anywhere.
    Any,
    /// At multiples of a period that is built into llama.cpp.
    MultipleOf(u32),
    /// At multiples of `{arch}.interleave_moe_layer_step` and of this period.
    ExpertStep(u32),
    /// Before the last two layers that have keys and values of their own, where the last
    /// `{arch}.attention.shared_kv_layers` use theirs; else anywhere.
    BeforeSharedKv,
}

/// A sliding-window pattern, as `llama_model_base::load_swa_pattern` reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// The family has none.
    None,
    /// Active where `{arch}.attention.sliding_window` is above 0; a file without that key is a model without windows,
    /// and so is a slice without a sliding layer.
    Period(Period),
    /// Always active: llama.cpp ends the process over a file without a sliding layer, so every stage has one of either
    /// kind.
    Always(Period),
    /// Always active, the pattern always an explicit array; every stage has a layer of either kind.
    Explicit,
}

/// Which layers keep a running state in place of a cell for every position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recurrent {
    /// None.
    Never,
    /// Every layer has such a state, beside attention or without.
    EveryLayer,
    /// All but the last of every `{arch}.full_attention_interval` layers (or of this many), unless
    /// `{arch}.attention.recurrent_layers` lists them. Every stage has a layer of either kind.
    Interval(u32),
    /// Those for which `{arch}.attention.head_count_kv` has a 0. Every stage has a layer of either kind.
    WithoutKvHeads,
    /// Those for which `{arch}.feed_forward_length` has a 0 as well; the others have attention or a feed-forward part.
    /// Every stage has a layer with a state and one without.
    WithoutKvHeadsAndFeedForward,
}

/// Which layers of a period slide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Period {
    /// Used where `{arch}.attention.sliding_window_pattern` is absent.
    pub default: u32,
    /// Whether the first layer of a period is the one that attends to everything; else it is the last.
    pub dense_first: bool,
}

/// What a later stage does about `{arch}.embedding_scale`, which scales rows as well as tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmbeddingScale {
    /// The family has none.
    None,
    /// It is 1 where the file says something.
    WherePresent,
    /// It is 1; llama.cpp has another default.
    Always,
}

/// Values that llama.cpp derives from the number of layers, or from the vocabulary, where the file does not say them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpelledOut {
    /// There are none.
    Nothing,
    /// `residual_scale` is 1.4 over the root of the number of layers.
    ResidualScale,
    /// 26, 27 and certain models of 48 layers have no low-rank query (`attention.q_lora_rank`), whatever the key says;
    /// the gating function follows from layers and vocabulary.
    DeepSeek2,
}

/// A condition on a file's metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Condition {
    /// The key, behind `{arch}.`.
    pub key: &'static str,
    /// What is demanded of it.
    pub demand: Demand,
    /// Why, as the rest of a sentence.
    pub reason: &'static str,
}

/// What a [`Condition`] demands of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demand {
    /// It is there.
    Present,
    /// It is not there.
    Absent,
    /// It is absent, or at most this.
    AtMost(u32),
    /// It is absent, or at least this.
    AtLeast(u32),
}

/// The names at a boundary between two stages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Boundary {
    /// Tensor to copy the outgoing rows from.
    pub tap: String,
    /// Where incoming rows are written into the graph; `None`: they are the batch's embeddings.
    pub inject: Option<Inject>,
    /// Whether all rows come out at the tap, even of a micro-batch of which no logits are wanted.
    pub keeps_rows: bool,
}

impl Family {
    /// The family of a model.
    ///
    /// # Errors
    /// [`Error::UnknownFamily`] or [`Error::CannotSplit`] name it; such a model can still be served unsplit.
    pub fn of(header: &Header) -> Result<&'static Self, Error> {
        let architecture = header.metadata().require_str("general.architecture")?;
        let family = crate::error::shown(architecture);
        let mut unmet = None;
        for row in FAMILIES.iter().filter(|row| row.architecture == architecture) {
            match row.unmet(header)? {
                None => return Ok(row),
                Some(condition) => unmet = unmet.or(Some(condition.reason)),
            }
        }
        let refused = || REFUSED.iter().find(|row| row.0 == architecture).map(|row| row.1);
        match unmet.or_else(refused) {
            Some(reason) => Err(Error::CannotSplit { family, reason: reason.to_owned() }),
            None => Err(Error::UnknownFamily(family)),
        }
    }

    /// The first condition that does not hold.
    fn unmet(&self, header: &Header) -> Result<Option<&Condition>, Error> {
        for condition in self.conditions {
            if !condition.holds(header, self.architecture)? {
                return Ok(Some(condition));
            }
        }
        Ok(None)
    }

    /// Whether a stage behind the first begins with the layer before its own.
    pub(crate) fn has_lead(&self) -> bool {
        matches!(self.inject, Some(Inject::Lead(_)))
    }

    /// The names at the boundary behind a stage of `layers` layers.
    pub fn boundary(&self, layers: u32) -> Boundary {
        let tap = match self.tap {
            Tap::Layer(name) => format!("{name}-{}", layers.saturating_sub(1)),
            Tap::Last(name) => name.to_owned(),
        };
        Boundary { tap, inject: self.inject, keeps_rows: self.keeps_rows }
    }

    /// What looked-up embedding rows are multiplied with; `None` where rows are not a plain lookup.
    pub fn embedding_factor(&self, n_embd: u32) -> Option<f32> {
        match self.input {
            Input::Lookup(Factor::One) => Some(1.0),
            Input::Lookup(Factor::SqrtEmbd) => Some((n_embd as f32).sqrt()),
            Input::Tokens => None,
        }
    }

    /// What the stages of a model of this size multiply queries with; `None` where llama.cpp derives it from what a
    /// stage has as well.
    ///
    /// # Errors
    /// Where the number of heads is missing or impossible.
    pub(crate) fn query_factor(&self, header: &Header, info: &ModelInfo) -> Result<Option<f32>, HeaderError> {
        if self.query_factor_at != Some(info.n_layer) {
            return Ok(None);
        }
        let heads = kinds::first_heads(header, info)?;
        Ok(Some(1.0 / ((info.n_embd / heads) as f32).sqrt()))
    }

    /// The layers at which the model with this header may be cut.
    ///
    /// # Errors
    /// [`Error::CannotSplit`] where llama.cpp derives a parameter from exactly that many layers.
    pub(crate) fn cuts(&self, header: &Header, info: &ModelInfo) -> Result<Vec<u32>, Error> {
        self.check_size(info.n_layer)?;
        let period = self.period(header, info)?;
        let mut cuts: Vec<u32> = (1..info.n_layer).filter(|cut| cut.is_multiple_of(period)).collect();
        let last = self.last_cut(header, info)?;
        cuts.retain(|cut| *cut <= last);
        if let Some(headless) = kinds::without_heads(header, info)? {
            cuts.retain(|cut| !headless.contains(cut));
        }
        if let Some(kinds) = Kinds::of(header, self, info)? {
            kinds.keep_both(&mut cuts);
        }
        Ok(cuts)
    }

    /// Checks that `range` can be a stage of the model with this header. The whole model always can.
    ///
    /// # Errors
    /// [`Error::Range`] or [`Error::CannotSplit`].
    pub(crate) fn check_range(&self, header: &Header, info: &ModelInfo, range: LayerRange) -> Result<(), Error> {
        let n_layer = info.n_layer;
        let bad = |reason: String| Err(Error::Range { range, n_layer, reason });
        if range.end() > n_layer {
            return bad("it does not have them".to_owned());
        }
        if range.len() == n_layer {
            return Ok(());
        }
        self.check_size(n_layer)?;
        let (period, last) = (self.period(header, info)?, self.last_cut(header, info)?);
        for cut in [range.start(), range.end()] {
            if cut != n_layer && !cut.is_multiple_of(period) {
                return bad(format!("it can be cut at multiples of {period} only, not at layer {cut}"));
            }
            if cut != n_layer && cut > last {
                return bad(format!("its last layers use the keys and values of layers {last} and {}", last + 1));
            }
        }
        if self.no_stage_of.contains(&range.len()) {
            return bad(format!("a stage of the family `{}` cannot have {} layers", self.architecture, range.len()));
        }
        if kinds::without_heads(header, info)?.is_some_and(|headless| headless.contains(&range.start())) {
            return bad(
                "llama.cpp derives sizes from the attention heads of a stage's first layer, and it has none".into()
            );
        }
        if let Some(kinds) = Kinds::of(header, self, info)?.filter(|kinds| !kinds.has_both(range)) {
            return bad(format!("every stage needs a layer with {0} and one without", kinds.what));
        }
        Ok(())
    }

    /// What every cut is a multiple of.
    fn period(&self, header: &Header, info: &ModelInfo) -> Result<u32, Error> {
        match self.cuts {
            Cuts::Any | Cuts::BeforeSharedKv => Ok(1),
            Cuts::MultipleOf(period) => Ok(period),
            Cuts::ExpertStep(period) => {
                let key = format!("{}.interleave_moe_layer_step", info.architecture);
                // A step beyond any model's layers has no multiple that could be a cut.
                let step = header.metadata().u32(&key)?.unwrap_or(1).clamp(1, crate::info::MAX_LAYERS);
                Ok(least_common_multiple(step, period))
            }
        }
    }

    /// The last layer at which it may be cut.
    fn last_cut(&self, header: &Header, info: &ModelInfo) -> Result<u32, Error> {
        let shared = match self.cuts {
            Cuts::BeforeSharedKv => kinds::shared_kv(header, info)?,
            _ => 0,
        };
        let own = info.n_layer.saturating_sub(shared);
        Ok(if shared > 0 { own.saturating_sub(2) } else { own })
    }

    fn check_size(&self, n_layer: u32) -> Result<(), Error> {
        if self.sized_by_layers.contains(&n_layer) {
            let reason = format!("llama.cpp derives a parameter from its having exactly {n_layer} layers");
            return Err(Error::CannotSplit { family: self.architecture.to_owned(), reason });
        }
        Ok(())
    }
}

impl Condition {
    fn holds(&self, header: &Header, architecture: &str) -> Result<bool, Error> {
        let key = format!("{architecture}.{}", self.key);
        Ok(match self.demand {
            Demand::Present => header.metadata().get(&key).is_some(),
            Demand::Absent => header.metadata().get(&key).is_none(),
            Demand::AtMost(most) => header.metadata().u32(&key)?.is_none_or(|value| value <= most),
            Demand::AtLeast(least) => header.metadata().u32(&key)?.is_none_or(|value| value >= least),
        })
    }
}

fn least_common_multiple(a: u32, b: u32) -> u32 {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    a / x * b
}

#[cfg(test)]
mod tests;
