//! Everything that can be wrong with a GGUF, as one sentence each.

use std::io;
use std::path::PathBuf;

use mesh_types::{ErrorClass, LayerRange};

/// Why bytes are no usable GGUF header. Names that come out of the file are shortened and escaped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// The magic number is not there.
    #[error("this is not a GGUF file")]
    NotGguf,
    /// The version's bytes are swapped.
    #[error("this GGUF file is big-endian, only little-endian files are supported")]
    BigEndian,
    /// A version other than 2 and 3.
    #[error("GGUF version {0} is not supported, only 2 and 3 are")]
    Version(u32),
    /// The file ends before its header does.
    #[error("the file ends at byte {ends_at}, in the middle of its header")]
    HeaderCut {
        /// The file's length.
        ends_at: u64,
    },
    /// The file ends before its tensors do.
    #[error("the file ends at byte {ends_at}, its header promises {promised}: it is truncated")]
    Truncated {
        /// The file's length.
        ends_at: u64,
        /// The length that the header implies.
        promised: u64,
    },
    /// A count or a length is beyond what any model needs.
    #[error("the header claims {value} {what}, more than the {limit} that are allowed")]
    TooLarge {
        /// What is counted.
        what: &'static str,
        /// The claim.
        value: u64,
        /// The cap.
        limit: u64,
    },
    /// The alignment cannot be.
    #[error("the alignment {0} is not a power of two up to {max}", max = crate::header::MAX_ALIGNMENT)]
    Alignment(u64),
    /// A key of the metadata is unusable.
    #[error("the key `{key}` {why}")]
    Key {
        /// The key, shortened.
        key: String,
        /// What is wrong, as the rest of a sentence.
        why: KeyFault,
    },
    /// A tensor's description is unusable.
    #[error("the tensor `{name}` {why}")]
    Tensor {
        /// The tensor's name, shortened.
        name: String,
        /// What is wrong, as the rest of a sentence.
        why: TensorFault,
    },
    /// The file could not be read.
    #[error("the header could not be read: {0}")]
    Read(io::ErrorKind),
}

/// What is wrong with a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyFault {
    /// It is empty, too long or not UTF-8.
    #[error("is not a valid name")]
    Name,
    /// It appears twice.
    #[error("appears twice")]
    Duplicate,
    /// Its type id is unknown.
    #[error("has the unknown type {0}")]
    Type(u32),
    /// It is an array of arrays.
    #[error("is an array of arrays, which is not supported")]
    Nested,
    /// It is not there.
    #[error("is missing")]
    Missing,
    /// It holds something else.
    #[error("holds {found} where {expected} belongs")]
    WrongType {
        /// What belongs there.
        expected: &'static str,
        /// What is there.
        found: &'static str,
    },
    /// Its value cannot be.
    #[error("holds {value}, which is out of range")]
    Range {
        /// The value.
        value: i128,
    },
    /// An array with one entry a layer has another length.
    #[error("has {found} entries for {layers} layers")]
    PerLayer {
        /// Entries.
        found: usize,
        /// Layers of the model.
        layers: u32,
    },
}

/// What is wrong with a tensor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TensorFault {
    /// Its name is empty, too long or not UTF-8.
    #[error("has no valid name")]
    Name,
    /// It appears twice.
    #[error("appears twice")]
    Duplicate,
    /// More than four dimensions, or none.
    #[error("has {0} dimensions")]
    Dimensions(u32),
    /// A dimension is zero, or the size is beyond any file.
    #[error("has an impossible shape {0:?}")]
    Shape(Vec<u64>),
    /// The type id is unknown, or was removed from the format.
    #[error("has the unknown type {0}")]
    Type(u32),
    /// A row is no whole number of blocks.
    #[error("has rows of {row} values, which is no multiple of the {block} values in a block of its type")]
    Block {
        /// Values in a row.
        row: u64,
        /// Values in a block.
        block: u32,
    },
    /// Its offset is not aligned.
    #[error("starts at the unaligned offset {0}")]
    Unaligned(u64),
    /// It lies over another.
    #[error("overlaps another tensor")]
    Overlap,
    /// A model needs it.
    #[error("is missing")]
    Missing,
    /// Its shape contradicts the metadata.
    #[error("has the shape {found:?} where the metadata says {expected:?}")]
    Mismatch {
        /// Dimensions in the file.
        found: Vec<u64>,
        /// Dimensions that follow from the metadata.
        expected: Vec<u64>,
    },
    /// It has no equal share for each layer.
    #[error("cannot be divided by the model's {layers} layers")]
    PerLayer {
        /// Layers of the model.
        layers: u32,
    },
    /// It belongs to a layer that the metadata does not count.
    #[error("belongs to none of the model's {0} layers")]
    Layer(u32),
}

/// Why a source, a slice or a manifest could not be had.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A header that is unusable, where no file is at hand.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// A file that is unusable.
    #[error("{path}: {why}", path = path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: HeaderError,
    },
    /// The operating system refused.
    #[error("cannot {doing} {path}: {source}", path = path.display())]
    Io {
        /// What was being done.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// A sharded model is opened by its first file.
    #[error("{path} is file {number} of {count} of a sharded model: open the first one", path = path.display())]
    NotFirstShard {
        /// The file.
        path: PathBuf,
        /// Its number, from 1.
        number: u64,
        /// Files of the model.
        count: u64,
    },
    /// The files of a sharded model do not fit together.
    #[error("{path}: {why}", path = path.display())]
    Shards {
        /// The file at fault.
        path: PathBuf,
        /// What does not fit.
        why: String,
    },
    /// The family has no row in the table.
    #[error("the model family `{0}` is not known to split exactly; it can be served unsplit")]
    UnknownFamily(String),
    /// The family, or this size of it, is known not to split exactly.
    #[error("the model family `{family}` cannot be split: {reason}; it can be served unsplit")]
    CannotSplit {
        /// `general.architecture`.
        family: String,
        /// Why.
        reason: String,
    },
    /// The range is not one that this model can be cut into.
    #[error("layers {range} cannot be a stage of this model of {n_layer} layers: {reason}")]
    Range {
        /// The range asked for.
        range: LayerRange,
        /// Layers of the model.
        n_layer: u32,
        /// Why not.
        reason: String,
    },
    /// A manifest contradicts itself.
    #[error("the manifest is malformed: {0}")]
    Manifest(String),
    /// Bytes are not what the manifest says.
    #[error("chunk {chunk} of the tensor `{tensor}` does not match its digest")]
    ChunkMismatch {
        /// The tensor's name.
        tensor: String,
        /// The chunk's number in it.
        chunk: u64,
    },
    /// A chunk of a slice is of the wrong size, or belongs to no part of it.
    #[error("{len} bytes are no chunk {chunk} of part {part} of this slice")]
    NoSuchChunk {
        /// Index into the plan's parts.
        part: usize,
        /// The chunk's number in it.
        chunk: u64,
        /// Bytes given.
        len: usize,
    },
    /// A slice was finished before all of it was there.
    #[error("the slice is incomplete: {missing} chunks are missing")]
    Incomplete {
        /// Chunks never written.
        missing: u64,
    },
    /// The file is not the one it was.
    #[error("{path} changed while it was being read", path = path.display())]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// The caller's watch asked to stop.
    #[error("cancelled")]
    Cancelled,
}

impl Error {
    /// The class of this error.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Io { source, .. } if source.kind() == io::ErrorKind::NotFound => ErrorClass::NotFound,
            Self::Io { .. } | Self::Incomplete { .. } | Self::NoSuchChunk { .. } => ErrorClass::Internal,
            Self::Changed { .. } => ErrorClass::Unavailable,
            Self::Manifest(_) | Self::ChunkMismatch { .. } => ErrorClass::PeerProtocol,
            Self::Cancelled => ErrorClass::Cancelled,
            _ => ErrorClass::InvalidRequest,
        }
    }

    pub(crate) fn io(doing: &'static str, path: &std::path::Path, source: io::Error) -> Self {
        Self::Io { doing, path: path.to_owned(), source }
    }
}

impl HeaderError {
    pub(crate) fn key(key: &str, why: KeyFault) -> Self {
        Self::Key { key: shown(key), why }
    }

    pub(crate) fn tensor(name: &str, why: TensorFault) -> Self {
        Self::Tensor { name: shown(name), why }
    }
}

/// A name out of an untrusted file, fit for a message.
pub(crate) fn shown(name: &str) -> String {
    const MAX: usize = 80;
    let mut text: String = name.chars().take(MAX).flat_map(char::escape_debug).collect();
    if name.chars().nth(MAX).is_some() {
        text.push('…');
    }
    text
}
