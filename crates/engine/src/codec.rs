//! Frames as bytes, for a socket to a child process or to another machine. The only user of bincode.
//!
//! ```text
//! prefix   24 bytes, little endian:
//!          magic "MSF1" | kind u8 | 3 zero bytes | session u32 | header length u32 | body length u64
//! header   bincode 2 (standard configuration) of what is small
//! body     raw f32, little endian: hidden rows of a batch, logits of a result
//! ```
//!
//! Nothing is allocated for a length that the local [`Limits`] do not allow, for a text not more than a small multiple of
//! what its header could hold, and no body is read that its header does not account for. What is decoded is well formed,
//! but not yet checked against a stage: stages do that ([`crate::MicroBatch::check`]), and for results
//! [`crate::StepResult::check`] is there.
//!
//! Owns: the byte format. Does not own: sockets, order, what a frame means. Start with [`write()`] and [`read`].

mod wire;

use std::io;

use bytes::Bytes;
use mesh_types::{Constraint, Logprobs};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::error::StageError;
use crate::frame::{Frame, MAX_EXTRA_ROWS};
use crate::stage::StageSpec;
use wire::{Kind, PREFIX_LEN, Prefix};

#[cfg(target_endian = "big")]
compile_error!("rows travel as little-endian f32 straight from memory");

/// One thing on the wire. `C` is what the two ends of a socket say to each other beside frames.
#[derive(Clone, Debug, PartialEq)]
pub enum Message<C> {
    /// A frame.
    Frame(Frame),
    /// No frame follows in this direction: all is done, or the link has failed.
    End(Result<(), StageError>),
    /// Between the two ends themselves.
    Control(C),
}

/// Most bytes that one direction of a link may carry in a message. Derived from what is known here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Of the header.
    pub header: u32,
    /// Of the body.
    pub body: u64,
}

/// Room for all that does not grow with a batch: ids, sampling parameters, reasons.
const HEADER_ROOM: u32 = 64 << 10;
/// Room for a run's constraint: its grammar, and its lists of texts with their lengths.
const CONSTRAINT_ROOM: u32 = (Constraint::MAX_GRAMMAR + 4 * Constraint::MAX_TEXTS * (Constraint::MAX_TEXT + 3)) as u32;
/// Longer texts of errors are cut by the sender.
const REASON_MAX: usize = 4 << 10;

impl Limits {
    /// For what flows into a stage of `spec`.
    pub fn into_stage(spec: &StageSpec) -> Self {
        let width = if spec.is_first() { 0 } else { u64::from(spec.n_embd) };
        Self { header: header_limit(spec), body: u64::from(spec.n_batch) * width * 4 }
    }

    /// For what flows out of a stage of `spec`.
    pub fn out_of_stage(spec: &StageSpec) -> Self {
        let width = if spec.is_last() { spec.n_vocab } else { spec.n_embd };
        Self { header: header_limit(spec), body: u64::from(spec.n_batch) * u64::from(width) * 4 }
    }

    /// For control messages alone.
    pub fn control() -> Self {
        Self { header: HEADER_ROOM, body: 0 }
    }

    /// For control messages of up to `header` bytes.
    pub fn control_of(header: u32) -> Self {
        Self { header, body: 0 }
    }
}

/// A varint of 32 bits takes at most 5 bytes, one of 64 at most 9: a token is 5, a segment 16, an output with its log
/// probabilities 40 and 9 for each of these. A command holds the tokens of its run and a constraint; a reason is cut.
fn header_limit(spec: &StageSpec) -> u32 {
    let output = 40 + 9 * u32::from(Logprobs::MAX_TOP) + REASON_MAX as u32;
    let outputs = spec.n_seq.saturating_add(MAX_EXTRA_ROWS).saturating_mul(output);
    let tokens = spec.n_batch.saturating_mul(5);
    let command = spec.n_ctx.saturating_mul(5).saturating_add(CONSTRAINT_ROOM);
    tokens.saturating_add(outputs).max(command).saturating_add(HEADER_ROOM).min(wire::MAX_HEADER)
}

/// Why no message could be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The bytes break the format.
    #[error("{0}")]
    Invalid(String),
    /// The socket failed, or ended within a message.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<bincode::error::DecodeError> for ReadError {
    fn from(error: bincode::error::DecodeError) -> Self {
        Self::Invalid(format!("malformed header: {error}"))
    }
}

/// A message as bytes, its rows or logits borrowed.
#[derive(Debug)]
pub struct Encoded<'a> {
    /// Prefix and header.
    pub head: Vec<u8>,
    /// The body's parts; empty for most messages.
    pub body: Vec<&'a [u8]>,
}

/// Encodes without copying rows or logits. `session` tells the links apart that use one socket after another; 0 where
/// each has its own stream.
///
/// # Errors
/// [`StageError::InvalidFrame`] where a length does not fit its field.
pub fn encode<'a, C: Serialize>(message: &'a Message<C>, session: u32) -> Result<Encoded<'a>, StageError> {
    let (kind, header, body) = match message {
        Message::Frame(frame) => wire::frame_header(frame)?,
        Message::End(end) => (Kind::End, wire::header(&wire::cut_end(end))?, Vec::new()),
        Message::Control(control) => (Kind::Control, wire::header(control)?, Vec::new()),
    };
    let body: Vec<&[u8]> = body.into_iter().map(bytemuck::cast_slice).collect();
    let body_len = body.iter().map(|part| part.len() as u64).sum();
    Ok(Encoded { head: wire::with_prefix(kind, session, header, body_len)?, body })
}

/// Encodes into buffers that own what they hold: rows and logits move into them without a copy.
///
/// # Errors
/// As [`encode`].
pub fn encode_owned<C: Serialize>(message: Message<C>, session: u32) -> Result<Vec<Bytes>, StageError> {
    let head = encode(&message, session)?.head;
    let mut chunks = vec![Bytes::from(head)];
    match message {
        Message::Frame(Frame::Batch(batch)) => chunks.extend(batch.rows.map(|rows| owned(rows.data))),
        Message::Frame(Frame::Result(result)) => {
            chunks.extend(result.outputs.into_iter().filter_map(|output| output.logits).map(owned));
        }
        _ => {}
    }
    Ok(chunks)
}

fn owned(values: Vec<f32>) -> Bytes {
    struct Values(Vec<f32>);
    impl AsRef<[u8]> for Values {
        fn as_ref(&self) -> &[u8] {
            bytemuck::cast_slice(&self.0)
        }
    }
    Bytes::from_owner(Values(values))
}

/// Writes one message; vectored, unflushed.
///
/// # Errors
/// [`io::ErrorKind::InvalidInput`] where a length does not fit its field; otherwise what the writer says.
///
/// # Cancel safety
/// None: a dropped write may leave half a message behind.
pub async fn write<C, W>(to: &mut W, message: &Message<C>, session: u32) -> io::Result<()>
where
    C: Serialize,
    W: AsyncWrite + Unpin,
{
    let encoded = encode(message, session).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    let mut parts: Vec<io::IoSlice<'_>> = Vec::with_capacity(1 + encoded.body.len());
    parts.push(io::IoSlice::new(&encoded.head));
    parts.extend(encoded.body.iter().map(|part| io::IoSlice::new(part)));
    let mut parts = parts.as_mut_slice();
    while !parts.is_empty() {
        match to.write_vectored(parts).await? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            written => io::IoSlice::advance_slices(&mut parts, written),
        }
    }
    Ok(())
}

/// Reads one message and the session that it belongs to; `None` where the stream ends between two messages.
///
/// # Errors
/// [`ReadError`]; nothing can be read after one.
///
/// # Cancel safety
/// None: a dropped read may have taken part of a message.
pub async fn read<C, R>(from: &mut R, limits: Limits) -> Result<Option<(u32, Message<C>)>, ReadError>
where
    C: DeserializeOwned,
    R: AsyncRead + Unpin,
{
    let mut bytes = [0; PREFIX_LEN];
    let first = from.read(&mut bytes).await?;
    if first == 0 {
        return Ok(None);
    }
    from.read_exact(&mut bytes[first..]).await?;
    let prefix = Prefix::parse(&bytes, limits)?;
    let mut header = vec![0; prefix.header_len as usize];
    from.read_exact(&mut header).await?;
    let message = match prefix.kind {
        Kind::End => Message::End(prefix.bodiless(&header)?),
        Kind::Control => Message::Control(prefix.bodiless(&header)?),
        Kind::Command => Message::Frame(Frame::Command(prefix.bodiless(&header)?)),
        Kind::Failure => Message::Frame(Frame::Failure(prefix.bodiless(&header)?)),
        Kind::Batch => {
            let header = wire::BatchHeader::parse(&header, &prefix)?;
            let rows = read_values(from, prefix.body_len).await?;
            Message::Frame(Frame::Batch(header.batch(rows)))
        }
        Kind::Result => {
            let header = wire::ResultHeader::parse(&header, &prefix)?;
            Message::Frame(Frame::Result(header.read(from).await?))
        }
    };
    Ok(Some((prefix.session, message)))
}

/// Large allocations come zeroed from the system and cost nothing until the bytes arrive.
async fn read_values<R: AsyncRead + Unpin>(from: &mut R, bytes: u64) -> io::Result<Vec<f32>> {
    let count = usize::try_from(bytes / 4).map_err(|_| io::ErrorKind::InvalidData)?;
    let mut values = vec![0f32; count];
    from.read_exact(bytemuck::cast_slice_mut(&mut values)).await?;
    Ok(values)
}

#[cfg(test)]
mod tests;
