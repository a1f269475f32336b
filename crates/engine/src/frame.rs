//! What flows through stages: micro-batches and commands downstream, results home.
//!
//! Frames are applied in the order in which they arrive. Nothing in a frame is trusted by the stage that gets it: see
//! [`MicroBatch::check`].

use mesh_types::{RequestId, Sampling, TokenId};
use serde::{Deserialize, Serialize};

use crate::error::StageError;
use crate::stage::StageSpec;

/// A KV slot: `0..StageSpec::n_seq`. The same number on every stage of a chain; llama.cpp's sequence id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SeqId(pub u32);

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
    /// Token ids, segment by segment. They travel to the last stage, which samples.
    pub tokens: Vec<TokenId>,
    /// Hidden rows, one per token; `None` on the way into the first stage, which makes them from the tokens.
    pub rows: Option<Rows>,
}

/// A change of the sequences that stages hold.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Command {
    /// A run starts on a slot that has none. The slot may hold the first positions of the prompt.
    Open {
        /// The slot.
        seq: SeqId,
        /// Whose run it is; for spans and logs.
        request: RequestId,
        /// How the last stage draws its tokens.
        sampling: Sampling,
        /// Tokens before the first generated one: position `prompt_len` holds generated token 0.
        prompt_len: u32,
    },
    /// Cuts the sequence back: positions `len..` are forgotten. Where a stage cannot do that, its slot is of no use
    /// until it is closed: batches for it fail.
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
}

/// What the last stage says about one segment that wanted something.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// The slot.
    pub seq: SeqId,
    /// Position that the drawn token will have (`start + len` of its segment).
    pub position: u32,
    /// The token, for [`Want::Token`].
    pub token: Option<TokenId>,
    /// For [`Want::Logits`]: row-major `[len, n_vocab]`.
    pub logits: Option<Vec<f32>>,
}

/// What came of one micro-batch: one output per segment whose `want` is not `Nothing`, in segment order.
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

impl MicroBatch {
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
        if let Some(token) = self.tokens.iter().find(|t| t.0 < 0 || t.0 as u32 >= spec.n_vocab) {
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
        for output in &self.outputs {
            match seen.get_mut(output.seq.0 as usize) {
                None => return bad(format!("a result for sequence {} of {}", output.seq.0, spec.n_seq)),
                Some(true) => return bad(format!("two results for sequence {}", output.seq.0)),
                Some(slot) => *slot = true,
            }
            if output.position > spec.n_ctx {
                return bad(format!("a result at position {} in a context of {}", output.position, spec.n_ctx));
            }
            if let Some(token) = output.token.filter(|token| token.0 < 0 || token.0 as u32 >= spec.n_vocab) {
                return bad(format!("token {} of a vocabulary of {}", token.0, spec.n_vocab));
            }
            let logits = output.logits.as_ref().map_or(0, Vec::len);
            if logits % spec.n_vocab as usize != 0 {
                return bad(format!("{logits} logits with a vocabulary of {}", spec.n_vocab));
            }
        }
        Ok(())
    }
}

impl Command {
    /// Checks slots and lengths against `spec`.
    ///
    /// # Errors
    /// [`StageError::InvalidFrame`] names the violation.
    pub fn check(&self, spec: &StageSpec) -> Result<(), StageError> {
        let (slots, len) = match self {
            Self::Open { seq, prompt_len, .. } => ([*seq, *seq], *prompt_len),
            Self::Truncate { seq, len } | Self::Retain { seq, len } => ([*seq, *seq], *len),
            Self::Copy { from, to, len } => ([*from, *to], *len),
            Self::Close { seq } => ([*seq, *seq], 0),
        };
        if let Some(seq) = slots.iter().find(|seq| seq.0 >= spec.n_seq) {
            return Err(StageError::InvalidFrame(format!("sequence {} of {}", seq.0, spec.n_seq)));
        }
        if len > spec.n_ctx {
            return Err(StageError::InvalidFrame(format!("length {len} in a context of {}", spec.n_ctx)));
        }
        Ok(())
    }
}
