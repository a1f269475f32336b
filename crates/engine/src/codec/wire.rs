//! The prefix and the headers, and what must hold between them.

use std::io;

use bincode::config;
use bincode::serde::decode_from_slice;
use mesh_types::{Logprobs, TokenId};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::AsyncRead;

use super::{Limits, REASON_MAX, ReadError, read_values};
use crate::error::StageError;
use crate::frame::{DrawFailure, Frame, MicroBatch, Output, Rows, Segment, SeqId, StepFailure, StepId, StepResult};

pub(super) const PREFIX_LEN: usize = 24;
const MAGIC: [u8; 4] = *b"MSF1";
/// No header of a stage is longer, whatever its numbers would allow: room for the ids of six million tokens. A longer one
/// would not be decoded.
pub(super) const MAX_HEADER: u32 = 32 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Batch = 1,
    Command = 2,
    Result = 3,
    Failure = 4,
    End = 5,
    Control = 6,
}

const KINDS: [Kind; 6] = [Kind::Batch, Kind::Command, Kind::Result, Kind::Failure, Kind::End, Kind::Control];

#[derive(Debug)]
pub(super) struct Prefix {
    pub(super) kind: Kind,
    pub(super) session: u32,
    pub(super) header_len: u32,
    pub(super) body_len: u64,
}

impl Prefix {
    pub(super) fn parse(bytes: &[u8; PREFIX_LEN], limits: Limits) -> Result<Self, ReadError> {
        let invalid = |what: String| Err(ReadError::Invalid(what));
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        if bytes[..4] != MAGIC || bytes[5..8] != [0; 3] {
            return invalid("no frame begins here".to_owned());
        }
        let Some(kind) = KINDS.into_iter().find(|kind| *kind as u8 == bytes[4]) else {
            return invalid(format!("frames of kind {} are unknown", bytes[4]));
        };
        let (session, header_len) = (word(8), word(12));
        let body_len = u64::from(word(16)) | u64::from(word(20)) << 32;
        if header_len > limits.header || body_len > limits.body {
            return invalid(format!(
                "a header of {header_len} and a body of {body_len} bytes, where at most {} and {} belong",
                limits.header, limits.body
            ));
        }
        Ok(Self { kind, session, header_len, body_len })
    }

    /// The header of a message that has no body.
    pub(super) fn bodiless<T: DeserializeOwned>(&self, header: &[u8]) -> Result<T, ReadError> {
        self.account(0)?;
        parse(header)
    }

    fn account(&self, values: u64) -> Result<(), ReadError> {
        if values.checked_mul(4) == Some(self.body_len) {
            return Ok(());
        }
        Err(ReadError::Invalid(format!("a body of {} bytes for {values} values", self.body_len)))
    }
}

pub(super) fn header<T: Serialize>(value: &T) -> Result<Vec<u8>, StageError> {
    let mut bytes = vec![0; PREFIX_LEN];
    bincode::serde::encode_into_std_write(value, &mut bytes, config::standard())
        .map_err(|error| StageError::InvalidFrame(error.to_string()))?;
    Ok(bytes)
}

/// bincode allocates the length that a text claims before it looks for the bytes, and without a limit any 64-bit length
/// is believed. A limit counts values as they lie in memory, where a byte of a header becomes at most eight (a `u64`), and
/// is a constant of the type: so a few stand ready, the smallest that no true header can reach is taken.
fn parse<T: DeserializeOwned>(header: &[u8]) -> Result<T, ReadError> {
    const SMALL: usize = 4 << 10;
    const MEDIUM: usize = 1 << 20;
    const LARGE: usize = 8 * MAX_HEADER as usize;
    let standard = config::standard();
    let (value, used) = match header.len().saturating_mul(8) {
        most if most <= SMALL => decode_from_slice(header, standard.with_limit::<SMALL>()),
        most if most <= MEDIUM => decode_from_slice(header, standard.with_limit::<MEDIUM>()),
        _ => decode_from_slice(header, standard.with_limit::<LARGE>()),
    }?;
    if used != header.len() {
        return Err(ReadError::Invalid(format!("{} bytes too many in a header", header.len() - used)));
    }
    Ok(value)
}

/// Fills in the prefix for which [`header`] left room.
pub(super) fn with_prefix(kind: Kind, session: u32, mut head: Vec<u8>, body_len: u64) -> Result<Vec<u8>, StageError> {
    let header_len = u32::try_from(head.len() - PREFIX_LEN)
        .map_err(|_| StageError::InvalidFrame(format!("a header of {} bytes", head.len())))?;
    head[..4].copy_from_slice(&MAGIC);
    head[4] = kind as u8;
    head[8..12].copy_from_slice(&session.to_le_bytes());
    head[12..16].copy_from_slice(&header_len.to_le_bytes());
    head[16..24].copy_from_slice(&body_len.to_le_bytes());
    Ok(head)
}

type Parts<'a> = (Kind, Vec<u8>, Vec<&'a [f32]>);

pub(super) fn frame_header(frame: &Frame) -> Result<Parts<'_>, StageError> {
    Ok(match frame {
        Frame::Command(command) => (Kind::Command, header(command)?, Vec::new()),
        Frame::Failure(StepFailure { step, reason }) => {
            let cut = StepFailure { step: *step, reason: cut(reason) };
            (Kind::Failure, header(&cut)?, Vec::new())
        }
        Frame::Batch(batch) => {
            let wire = BatchRef {
                step: batch.step,
                segments: &batch.segments,
                tokens: &batch.tokens,
                n_embd: batch.rows.as_ref().map(|rows| rows.n_embd),
            };
            (Kind::Batch, header(&wire)?, batch.rows.iter().map(|rows| rows.data.as_slice()).collect())
        }
        Frame::Result(result) => {
            let outputs = result.outputs.iter().map(OutputHeader::of).collect();
            let header = header(&ResultHeader { step: result.step, outputs })?;
            (Kind::Result, header, result.outputs.iter().filter_map(|output| output.logits.as_deref()).collect())
        }
    })
}

/// An end whose texts fit into every limit.
pub(super) fn cut_end(end: &Result<(), StageError>) -> Result<(), StageError> {
    let mut end = end.clone();
    if let Err(error) = &mut end {
        match error {
            StageError::Lost { host, reason, .. } => {
                *host = cut(host);
                *reason = cut(reason);
            }
            StageError::InvalidFrame(reason) | StageError::Load(reason) => *reason = cut(reason),
            StageError::Closed => {}
        }
    }
    end
}

fn cut_failure(failure: &DrawFailure) -> DrawFailure {
    match failure {
        DrawFailure::Invalid(reason) => DrawFailure::Invalid(cut(reason)),
        DrawFailure::Internal(reason) => DrawFailure::Internal(cut(reason)),
        DrawFailure::Over => DrawFailure::Over,
    }
}

fn cut(text: &str) -> String {
    let mut end = text.len().min(REASON_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

/// [`BatchHeader`], borrowed.
#[derive(Serialize)]
struct BatchRef<'a> {
    step: StepId,
    segments: &'a [Segment],
    tokens: &'a [TokenId],
    n_embd: Option<u32>,
}

/// A batch without its rows; `n_embd` where it has some.
#[derive(Debug, Deserialize)]
pub(super) struct BatchHeader {
    step: StepId,
    segments: Vec<Segment>,
    tokens: Vec<TokenId>,
    n_embd: Option<u32>,
}

impl BatchHeader {
    pub(super) fn parse(bytes: &[u8], prefix: &Prefix) -> Result<Self, ReadError> {
        let header: Self = parse(bytes)?;
        prefix.account(header.tokens.len() as u64 * u64::from(header.n_embd.unwrap_or(0)))?;
        Ok(header)
    }

    pub(super) fn batch(self, data: Vec<f32>) -> MicroBatch {
        let Self { step, segments, tokens, n_embd } = self;
        MicroBatch { step, segments, tokens, rows: n_embd.map(|n_embd| Rows { n_embd, data }) }
    }
}

/// A result without its logits.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ResultHeader {
    step: StepId,
    outputs: Vec<OutputHeader>,
}

#[derive(Debug, Serialize, Deserialize)]
struct OutputHeader {
    seq: SeqId,
    position: u32,
    token: Option<TokenId>,
    logprobs: Option<Logprobs>,
    /// How many values.
    logits: Option<u64>,
    failure: Option<DrawFailure>,
}

impl OutputHeader {
    fn of(output: &Output) -> Self {
        Self {
            seq: output.seq,
            position: output.position,
            token: output.token,
            logprobs: output.logprobs.clone(),
            logits: output.logits.as_ref().map(|logits| logits.len() as u64),
            failure: output.failure.as_ref().map(cut_failure),
        }
    }
}

impl ResultHeader {
    pub(super) fn parse(bytes: &[u8], prefix: &Prefix) -> Result<Self, ReadError> {
        let header: Self = parse(bytes)?;
        let values = header.outputs.iter().filter_map(|output| output.logits);
        prefix.account(values.fold(0, u64::saturating_add))?;
        Ok(header)
    }

    /// Takes the logits, whose number [`Self::parse`] has checked, from the body.
    pub(super) async fn read<R: AsyncRead + Unpin>(self, from: &mut R) -> io::Result<StepResult> {
        let mut outputs = Vec::with_capacity(self.outputs.len());
        for OutputHeader { seq, position, token, logprobs, logits, failure } in self.outputs {
            let logits = match logits {
                Some(values) => Some(read_values(from, values * 4).await?),
                None => None,
            };
            outputs.push(Output { seq, position, token, logprobs, logits, failure });
        }
        Ok(StepResult { step: self.step, outputs })
    }
}
