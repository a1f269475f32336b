//! What flows through stages: micro-batches and commands downstream, results home.
//!
//! Frames are applied in the order in which they arrive. Nothing in a frame is trusted by the stage that gets it: see
//! [`MicroBatch::check`].

use mesh_types::{Constraint, GenerateSpec, Logprobs, RequestId, Sampling, TokenId};
use serde::{Deserialize, Serialize};

use crate::error::StageError;
use crate::stage::StageSpec;

/// A KV slot: `0..StageSpec::n_seq`. The same number on every stage of a chain; llama.cpp's sequence id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SeqId(pub u32);

/// Most rows in one micro-batch that the last stage reports on besides one a segment: those of drafts, and of prompt
/// tokens that are scored. It has room for their logits, besides one row a slot.
pub const MAX_EXTRA_ROWS: u32 = 32;

/// Stands in a micro-batch for the token that was drawn for the sequence in the one before: the whole model in one stage
/// need not wait to be told. In a segment of its own, for [`Want::Token`]. Where no token was drawn there, or one that
/// ended the run ([`Open::stop_tokens`]), nothing is computed, and the answer is [`DrawFailure::Over`].
pub const DRAWN: TokenId = TokenId(-1);

/// Counts the micro-batches of one link, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StepId(pub u64);

/// One message through a chain of stages.
#[derive(Clone, Debug, PartialEq)]
pub enum Frame {
    /// Work: downstream only. Each stage replaces the rows and hands it on; the last one turns it into `Result`.
    Batch(MicroBatch),
    /// A change of sequences: applied by each stage and handed on; the last one swallows it.
    Command(Command),
    /// What the last stage made of a batch. Exactly one `Result` or `Failure` comes home per batch, in step order.
    Result(StepResult),
    /// A stage could not compute a batch. Stages behind it hand it on; the chain lives.
    Failure(StepFailure),
}

/// Which rows of a segment the last stage reports on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Want {
    /// None: a prefill chunk that is not the prompt's last.
    Nothing,
    /// A token drawn after the segment's last row.
    Token,
    /// The tokens of the segment behind its first are drafts. A token is drawn after each row, up to the first that is
    /// not what the next draft says: an output for each, in order. The slot holds all of the segment afterwards.
    Verified,
    /// How likely each token of the segment behind its first was, and the one behind its last, which is this one: an
    /// output for each, in order, with as many log probabilities as the run asks for. Where none is given, a token is
    /// drawn behind the last.
    Scored(Option<TokenId>),
    /// The raw logits of every row (f32, `n_vocab` each). Costs bandwidth: for tests and tools.
    Logits,
}

/// Consecutive tokens of one sequence in a micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// The KV slot.
    pub seq: SeqId,
    /// Position of the first token in the sequence.
    pub start: u32,
    /// Number of tokens; at least one.
    pub len: u32,
    /// What to report.
    pub want: Want,
}

/// Hidden rows: f32, row-major `[n_tokens, n_embd]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Rows {
    /// Values per row.
    pub n_embd: u32,
    /// `n_tokens * n_embd` values.
    pub data: Vec<f32>,
}

/// One `llama_decode` on every stage of a chain.
#[derive(Clone, Debug, PartialEq)]
pub struct MicroBatch {
    /// Its number.
    pub step: StepId,
    /// At most one segment per sequence; their lengths sum up to `tokens.len()`.
    pub segments: Vec<Segment>,
    /// Token ids, segment by segment; or [`DRAWN`]. They travel to the last stage, which samples.
    pub tokens: Vec<TokenId>,
    /// Hidden rows, one per token; `None` on the way into the first stage, which makes them from the tokens.
    pub rows: Option<Rows>,
}

/// A change of the sequences that stages hold.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Command {
    /// A run starts on a slot that has none. The slot may hold the first positions of the prompt.
    Open(Box<Open>),
    /// Cuts the sequence back: positions `len..` are forgotten. A stage that cannot do that sets its state to the
    /// checkpoint taken at exactly `len`; without one, its slot is of no use until it is closed: batches for it fail.
    Truncate {
        /// The slot.
        seq: SeqId,
        /// Positions kept.
        len: u32,
    },
    /// Gives `to` (which is emptied first) the first `len` positions of `from`.
    Copy {
        /// Source slot.
        from: SeqId,
        /// Target slot.
        to: SeqId,
        /// Positions copied.
        len: u32,
    },
    /// Keeps what recurrent layers hold of the sequence now, if that is `len` positions, so that it can be cut back to
    /// them. Does nothing on a stage that can cut back anyway, nor beyond [`StageSpec::n_states`].
    Checkpoint {
        /// The slot.
        seq: SeqId,
        /// Positions that it holds.
        len: u32,
    },
    /// Moves what a slot without a run holds to a place on the host, over what is there. The slot is empty then.
    Park {
        /// The slot.
        seq: SeqId,
        /// The place: below [`StageSpec::places`].
        place: u32,
    },
    /// Gives the slot, which is emptied first, the first `len` positions of what is at a place, and keeps it there.
    Fetch {
        /// The place.
        place: u32,
        /// The slot.
        seq: SeqId,
        /// Positions.
        len: u32,
    },
    /// Forgets what is at a place.
    Drop {
        /// The place.
        place: u32,
    },
    /// The run is over: all of the slot is forgotten, sampling state included.
    Close {
        /// The slot.
        seq: SeqId,
    },
    /// The run is over, its sampling state is forgotten, and the slot keeps its first `len` positions (or what it has
    /// of them) for another run to go on behind.
    Retain {
        /// The slot.
        seq: SeqId,
        /// Positions kept.
        len: u32,
    },
    /// Gives up the checkpoint that the slot has at `len` positions, if any.
    Forget {
        /// The slot.
        seq: SeqId,
        /// Its length.
        len: u32,
    },
}

/// A run, as the stage that samples needs to know it. Its state (penalties, constraint) is a function of this and of the
/// tokens that follow in batches, so that a run can go on elsewhere as if nothing had happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Open {
    /// The slot.
    pub seq: SeqId,
    /// Whose run it is; for spans and logs.
    pub request: RequestId,
    /// Tokens before the first generated one: position `prompt_len` holds generated token 0.
    pub prompt_len: u32,
    /// Generated tokens after which the run ends, or with the context.
    pub max_tokens: u32,
    /// How the last stage draws its tokens.
    pub sampling: Sampling,
    /// See [`GenerateSpec::logit_bias`].
    pub logit_bias: Vec<(TokenId, f32)>,
    /// See [`GenerateSpec::logprobs`].
    pub logprobs: Option<u8>,
    /// See [`GenerateSpec::constraint`].
    pub constraint: Option<Constraint>,
    /// Tokens that end the run: behind them, [`DRAWN`] asks for nothing.
    pub stop_tokens: Vec<TokenId>,
    /// The prompt's last tokens, oldest first: as many as [`Sampling::repeat_last_n`] looks back.
    pub prompt_tail: Vec<TokenId>,
    /// What the run has generated so far, from `prompt_len` on; empty but for a run that goes on from elsewhere.
    pub generated: Vec<TokenId>,
}

/// What the last stage says about one segment that wanted something.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// The slot.
    pub seq: SeqId,
    /// Position of the token; of a drawn one, the one that it will have (`start + len` of its segment).
    pub position: u32,
    /// The token that was drawn, or that is scored ([`Want::Scored`]).
    pub token: Option<TokenId>,
    /// How likely the token was, where the run asks for it.
    pub logprobs: Option<Logprobs>,
    /// For [`Want::Logits`]: row-major `[len, n_vocab]`.
    pub logits: Option<Vec<f32>>,
    /// Why no token could be drawn or scored: this run fails, the others of the step go on.
    pub failure: Option<DrawFailure>,
}

/// Why no token could be drawn for a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum DrawFailure {
    /// What the run asks for is not possible: a constraint that cannot be enforced, or that leaves no token.
    #[error("{0}")]
    Invalid(String),
    /// The computation gave no usable logits, or the enforcer failed.
    #[error("{0}")]
    Internal(String),
    /// The token before was to be what was drawn, and that ended the run, or nothing was drawn.
    #[error("there is nothing to go on behind")]
    Over,
}

/// What came of one micro-batch: one output per segment whose `want` is not `Nothing` (of [`Want::Verified`] and
/// [`Want::Scored`] one or more, with consecutive positions), in segment order.
#[derive(Clone, Debug, PartialEq)]
pub struct StepResult {
    /// Which micro-batch.
    pub step: StepId,
    /// May be empty: the step was computed.
    pub outputs: Vec<Output>,
}

/// A micro-batch that a stage could not compute. The KV of its sequences is undefined from its positions on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepFailure {
    /// Which micro-batch.
    pub step: StepId,
    /// For the log: which stage, and why.
    pub reason: String,
}

impl Output {
    /// A token, and nothing else.
    pub fn token(seq: SeqId, position: u32, token: TokenId) -> Self {
        Self { seq, position, token: Some(token), logprobs: None, logits: None, failure: None }
    }

    /// The logits of a segment's rows.
    pub fn logits(seq: SeqId, position: u32, logits: Vec<f32>) -> Self {
        Self { seq, position, token: None, logprobs: None, logits: Some(logits), failure: None }
    }
}

impl Segment {
    /// Whether its token, of these, is to be the one that was drawn before: [`DRAWN`].
    pub fn is_drawn(&self, tokens: &[TokenId]) -> bool {
        self.want == Want::Token && tokens == [DRAWN]
    }
}

impl MicroBatch {
    /// Rows that the last stage reports on besides one a segment: at most [`MAX_EXTRA_ROWS`].
    pub fn extra_rows(&self) -> u32 {
        let has_them = |segment: &&Segment| matches!(segment.want, Want::Verified | Want::Scored(_));
        self.segments.iter().filter(has_them).fold(0, |rows, segment| rows.saturating_add(segment.len - 1))
    }

    /// Segments with their tokens. Those of a batch that was checked; of another, there may be fewer.
    pub fn parts(&self) -> impl Iterator<Item = (&Segment, &[TokenId])> {
        let mut rest = &self.tokens[..];
        self.segments.iter().map_while(move |segment| {
            let (own, behind) = rest.split_at_checked(segment.len as usize)?;
            rest = behind;
            Some((segment, own))
        })
    }

    /// Checks all that a stage relies on: sizes against `spec`, slots, positions within the context, and rows present
    /// exactly where the stage is not the first.
    ///
    /// # Errors
    /// [`StageError::InvalidFrame`] names the first violation.
    pub fn check(&self, spec: &StageSpec) -> Result<(), StageError> {
        let bad = |what: String| Err(StageError::InvalidFrame(what));
        if self.tokens.is_empty() || self.tokens.len() > spec.n_batch as usize {
            return bad(format!("{} tokens in a micro-batch of at most {}", self.tokens.len(), spec.n_batch));
        }
        let mut sum = 0u64;
        let mut seen = vec![false; spec.n_seq as usize];
        for segment in &self.segments {
            match seen.get_mut(segment.seq.0 as usize) {
                None => return bad(format!("sequence {} of {}", segment.seq.0, spec.n_seq)),
                Some(true) => return bad(format!("sequence {} twice in a micro-batch", segment.seq.0)),
                Some(slot) => *slot = true,
            }
            let end = u64::from(segment.start) + u64::from(segment.len);
            if segment.len == 0 || end > u64::from(spec.n_ctx) {
                return bad(format!("positions {}..{end} in a context of {}", segment.start, spec.n_ctx));
            }
            sum += u64::from(segment.len);
        }
        if sum != self.tokens.len() as u64 {
            return bad(format!("segments of {sum} tokens over {} tokens", self.tokens.len()));
        }
        if self.extra_rows() > MAX_EXTRA_ROWS {
            return bad(format!("{} rows to report on where at most {MAX_EXTRA_ROWS} belong", self.extra_rows()));
        }
        let behind = self.segments.iter().filter_map(|segment| match &segment.want {
            Want::Scored(next) => next.as_ref(),
            _ => None,
        });
        let draws_itself = spec.is_first() && spec.is_last();
        let known = self.parts().filter(|part| !(draws_itself && part.0.is_drawn(part.1))).flat_map(|part| part.1);
        if let Some(token) = known.chain(behind).find(|token| !is_token(**token, spec)) {
            return bad(format!("token {} of a vocabulary of {}", token.0, spec.n_vocab));
        }
        match &self.rows {
            None if spec.is_first() => Ok(()),
            None => bad("no hidden rows".to_owned()),
            Some(_) if spec.is_first() => bad("hidden rows into the first stage".to_owned()),
            Some(rows) => {
                let expected = self.tokens.len() * spec.n_embd as usize;
                if rows.n_embd != spec.n_embd || rows.data.len() != expected {
                    return bad(format!("{} hidden values where {expected} belong", rows.data.len()));
                }
                Ok(())
            }
        }
    }
}

impl StepResult {
    /// Checks what a caller relies on in the answer of a stage that is not trusted: slots, positions, tokens and sizes.
    ///
    /// # Errors
    /// [`StageError::InvalidFrame`] names the first violation.
    pub fn check(&self, spec: &StageSpec) -> Result<(), StageError> {
        let bad = |what: String| Err(StageError::InvalidFrame(what));
        let mut seen = vec![false; spec.n_seq as usize];
        let mut before: Option<&Output> = None;
        for output in &self.outputs {
            let follows =
                before.is_some_and(|before| (before.seq, before.position + 1) == (output.seq, output.position));
            match seen.get_mut(output.seq.0 as usize) {
                None => return bad(format!("a result for sequence {} of {}", output.seq.0, spec.n_seq)),
                Some(true) if !follows => return bad(format!("two results for sequence {}", output.seq.0)),
                Some(slot) => *slot = true,
            }
            before = Some(output);
            if output.position > spec.n_ctx {
                return bad(format!("a result at position {} in a context of {}", output.position, spec.n_ctx));
            }
            if let Some(token) = output.token.filter(|token| token.0 < 0 || token.0 as u32 >= spec.n_vocab) {
                return bad(format!("token {} of a vocabulary of {}", token.0, spec.n_vocab));
            }
            if output.logprobs.as_ref().is_some_and(|logprobs| !is_sound(logprobs, spec)) {
                return bad(format!("unsound log probabilities for sequence {}", output.seq.0));
            }
            let logits = output.logits.as_ref().map_or(0, Vec::len);
            if logits % spec.n_vocab as usize != 0 {
                return bad(format!("{logits} logits with a vocabulary of {}", spec.n_vocab));
            }
        }
        Ok(())
    }
}

/// Whether these can have come of a log-softmax over the vocabulary.
fn is_sound(logprobs: &Logprobs, spec: &StageSpec) -> bool {
    // Rounding may lift the likeliest above 0 by a hair.
    let is_log = |value: f32| value <= 1e-3;
    is_log(logprobs.chosen)
        && logprobs.top.len() <= usize::from(Logprobs::MAX_TOP)
        && logprobs.top.iter().all(|(token, value)| is_token(*token, spec) && is_log(*value))
}

fn is_token(token: TokenId, spec: &StageSpec) -> bool {
    token.0 >= 0 && token.0.cast_unsigned() < spec.n_vocab
}

impl Open {
    /// A run whose tokens are drawn as `sampling` says, and nothing else asked for.
    pub fn new(seq: SeqId, request: RequestId, prompt_len: u32, sampling: Sampling) -> Self {
        Self {
            seq,
            request,
            prompt_len,
            max_tokens: u32::MAX,
            sampling,
            logit_bias: Vec::new(),
            logprobs: None,
            constraint: None,
            stop_tokens: Vec::new(),
            prompt_tail: Vec::new(),
            generated: Vec::new(),
        }
    }

    /// Checks sizes and tokens against `spec`.
    fn check(&self, spec: &StageSpec) -> Result<(), StageError> {
        let bad = |what: String| Err(StageError::InvalidFrame(what));
        let tokens = self.prompt_tail.iter().chain(&self.generated);
        if let Some(token) = tokens.chain(self.logit_bias.iter().map(|(token, _)| token)).find(|t| !is_token(**t, spec))
        {
            return bad(format!("token {} of a vocabulary of {}", token.0, spec.n_vocab));
        }
        let held = self.prompt_len as usize + self.generated.len();
        if held > spec.n_ctx as usize || self.prompt_tail.len() > self.prompt_len as usize {
            return bad(format!("a run of {held} tokens in a context of {}", spec.n_ctx));
        }
        if self.logit_bias.len() > GenerateSpec::MAX_LOGIT_BIAS || self.logit_bias.iter().any(|(_, b)| b.is_nan()) {
            return bad(format!("{} logit biases", self.logit_bias.len()));
        }
        if self.logprobs.is_some_and(|top| top > Logprobs::MAX_TOP) {
            return bad("too many log probabilities wanted".to_owned());
        }
        self.constraint.iter().try_for_each(|c| c.check()).map_err(|error| StageError::InvalidFrame(error.to_string()))
    }
}

impl Command {
    /// Checks slots and lengths against `spec`.
    ///
    /// # Errors
    /// [`StageError::InvalidFrame`] names the violation.
    pub fn check(&self, spec: &StageSpec) -> Result<(), StageError> {
        let (slots, len) = match self {
            Self::Open(open) => {
                open.check(spec)?;
                ([open.seq, open.seq], open.prompt_len)
            }
            Self::Truncate { seq, len }
            | Self::Retain { seq, len }
            | Self::Checkpoint { seq, len }
            | Self::Forget { seq, len }
            | Self::Fetch { seq, len, .. } => ([*seq, *seq], *len),
            Self::Copy { from, to, len } => ([*from, *to], *len),
            Self::Close { seq } | Self::Park { seq, .. } => ([*seq, *seq], 0),
            Self::Drop { .. } => ([SeqId(0); 2], 0),
        };
        if let Self::Park { place, .. } | Self::Fetch { place, .. } | Self::Drop { place } = self
            && *place >= spec.places()
        {
            return Err(StageError::InvalidFrame(format!("place {place} of {}", spec.places())));
        }
        if let Some(seq) = slots.iter().find(|seq| seq.0 >= spec.n_seq) {
            return Err(StageError::InvalidFrame(format!("sequence {} of {}", seq.0, spec.n_seq)));
        }
        if len > spec.n_ctx {
            return Err(StageError::InvalidFrame(format!("length {len} in a context of {}", spec.n_ctx)));
        }
        Ok(())
    }
}
