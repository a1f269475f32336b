//! The slice of a model that one stage loads: an ordinary GGUF that holds a range of its layers.
//!
//! A plan is a function of the source's header and the range alone, so that a worker makes the same bytes from a header
//! that a holder sent. Writing is in [`SliceWriter`], the rules for the metadata in `slice/metadata.rs`.

use std::collections::BTreeMap;
use std::path::Path;

use mesh_types::LayerRange;

use crate::copy::BLOCK_BYTES;
use crate::error::{Error, HeaderError, TensorFault};
use crate::family::{Boundary, Family, Input};
use crate::header::Header;
use crate::info::{ModelInfo, layer_of};
use crate::source::Source;
use crate::value::Value;
use crate::{CHUNK_BYTES, Watch};
use tensors::Tensors;

mod columns;
mod embedding;
mod id;
mod metadata;
mod tensors;
mod write;

pub use columns::Columns;
pub use embedding::EmbeddingSource;
pub use id::{SLICER_VERSION, SliceId};
pub(crate) use write::partial_path;
pub use write::{MissingChunk, SliceWriter, Unsynced};

/// The vocabulary of a stage that has neither tokens to look up nor a head; the loader insists on one.
pub(crate) const SMALL_VOCABULARY: u32 = 32;

/// A key that nobody reads: its value fills the header.
const PADDING_KEY: &str = "mesh.padding";
/// Bytes that its entry takes beside the value: the key and its length, the type, the value's length.
const PADDING_ENTRY: u64 = 8 + PADDING_KEY.len() as u64 + 4 + 8;
/// Fewer bytes than these are not worth a padding.
const WORTH_ALIGNING: u64 = 1 << 20;

/// What a stage is fed with, and whether it has the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SliceKind {
    /// All layers: fed with tokens, has the head.
    Whole,
    /// The first layers, fed with tokens: keeps vocabulary and embedding.
    Tokens,
    /// Layers in the middle, fed with tokens beside rows: keeps vocabulary and embedding, begins with a layer more.
    Led,
    /// Fed with rows, not last: no vocabulary to speak of. Also the first stage, where rows are a plain lookup.
    Rows,
    /// The last layers, fed with rows (and, where the middle is, with tokens): keeps vocabulary and head.
    Last,
}

impl SliceKind {
    fn of(family: &Family, range: LayerRange, n_layer: u32) -> Self {
        match (range.start() == 0, range.end() == n_layer) {
            (true, true) => Self::Whole,
            (true, false) if family.input == Input::Tokens => Self::Tokens,
            (false, false) if family.has_lead() => Self::Led,
            (_, false) => Self::Rows,
            (false, true) => Self::Last,
        }
    }

    /// Whether hidden rows go in (`llama_batch.embd`), not tokens.
    pub fn takes_rows(self) -> bool {
        matches!(self, Self::Rows | Self::Led | Self::Last)
    }

    /// Whether logits come out, not rows.
    pub fn has_head(self) -> bool {
        matches!(self, Self::Whole | Self::Last)
    }
}

/// Where the bytes of a part come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bytes {
    /// All bytes of tensor number `tensor` of the source's header.
    Source {
        /// Its index.
        tensor: usize,
    },
    /// Some columns of that tensor.
    Columns {
        /// Its index.
        tensor: usize,
        /// Which ones.
        columns: Columns,
    },
    /// Zeros, left as a hole in the file.
    Hole,
}

/// The bytes of one tensor in a slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The tensor's name in the slice.
    pub name: String,
    /// Bytes from the start of the slice's file.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// Where they come from.
    pub bytes: Bytes,
}

impl Part {
    /// Bytes of the source that it is made from.
    pub fn source_len(&self) -> u64 {
        match self.bytes {
            Bytes::Source { .. } => self.len,
            Bytes::Columns { columns, .. } => columns.source_len(),
            Bytes::Hole => 0,
        }
    }

    /// Number of chunks of the source's tensor ([`CHUNK_BYTES`], the last may be shorter) that it is made from; 0 for a
    /// hole.
    pub fn chunks(&self) -> u64 {
        match self.bytes {
            Bytes::Hole => 0,
            _ => self.source_len().div_ceil(CHUNK_BYTES),
        }
    }
}

/// How a slice is made.
#[derive(Clone, Debug, PartialEq)]
pub struct SlicePlan {
    range: LayerRange,
    kind: SliceKind,
    boundary: Boundary,
    query_factor: Option<f32>,
    header: Vec<u8>,
    parts: Vec<Part>,
    file_len: u64,
    weight_bytes: u64,
}

impl SlicePlan {
    /// Plans the slice that holds `range` of the model with this header.
    ///
    /// # Errors
    /// Where the header is unusable, the family cannot be split, or the range is not one that it can be cut into.
    pub fn new(header: &Header, range: LayerRange) -> Result<Self, Error> {
        let info = ModelInfo::of(header)?;
        let family = Family::of(header)?;
        family.check_range(header, &info, range)?;
        let cut = Cut::new(&info, family, range);
        check_tensors(header, &info, cut)?;

        let metadata = metadata::cut(header, family, &info, cut)?;
        let (tensors, sources) = Tensors::cut(header, &info, cut)?;
        let sliced = aligned(Header::build(metadata, tensors)?, header, &sources)?;
        let parts: Vec<Part> = sliced
            .tensors()
            .iter()
            .zip(sources)
            .map(|(tensor, bytes)| Part {
                name: tensor.name().to_owned(),
                offset: sliced.data_offset() + tensor.offset(),
                len: tensor.n_bytes(),
                bytes,
            })
            .collect();
        Ok(Self {
            range,
            kind: cut.kind,
            boundary: family.boundary(cut.layers()),
            query_factor: if cut.kind == SliceKind::Whole { None } else { family.query_factor(header, &info)? },
            weight_bytes: parts.iter().map(Part::source_len).sum(),
            file_len: sliced.data_offset() + sliced.data_len(),
            header: sliced.to_bytes(),
            parts,
        })
    }

    /// The layers of the source that it holds.
    pub fn range(&self) -> LayerRange {
        self.range
    }

    /// What the stage is fed with, and whether it has the head.
    pub fn kind(&self) -> SliceKind {
        self.kind
    }

    /// The names of the tensors at its boundaries; `tap` says nothing where the slice has the head.
    pub fn boundary(&self) -> &Boundary {
        &self.boundary
    }

    /// What every layer has to multiply its queries with, where llama.cpp derives that from the whole model.
    pub fn query_factor(&self) -> Option<f32> {
        self.query_factor
    }

    /// The slice's own header: its file up to the first tensor.
    pub fn header(&self) -> &[u8] {
        &self.header
    }

    /// Its tensors, in the order of the file.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Length of its file in bytes, holes included.
    pub fn file_len(&self) -> u64 {
        self.file_len
    }

    /// Bytes of the source that it is made from: what a worker fetches.
    pub fn weight_bytes(&self) -> u64 {
        self.weight_bytes
    }

    /// Writes the slice to `target`, in whole or not at all: a file of another name is renamed when it is complete, and
    /// removed when it is not. `source` has to be the one whose header was planned for.
    ///
    /// # Errors
    /// Where a file cannot be read or written, or `watch` cancels.
    pub fn write(&self, source: &Source, target: &Path, watch: Watch<'_>) -> Result<(), Error> {
        let partial = partial_path(target);
        let writer = SliceWriter::create(self, &partial)?;
        let written = writer.copy_missing(source, watch).and_then(|()| writer.finish(target));
        if written.is_err() {
            // The error that is told is the one that came first.
            let _ = std::fs::remove_file(&partial);
        }
        written
    }
}

/// A range of layers of a particular model.
#[derive(Clone, Copy, Debug)]
struct Cut {
    kind: SliceKind,
    /// The first layer of the slice: the stage's own, or the one before it.
    start: u32,
    /// One past the last layer; for the last stage that includes the layers that predict further tokens.
    end: u32,
    /// Whether the first layer is not the stage's own, and has no weights.
    lead: bool,
}

impl Cut {
    fn new(info: &ModelInfo, family: &Family, range: LayerRange) -> Self {
        let kind = SliceKind::of(family, range, info.n_layer);
        let end = if kind.has_head() { info.n_layer_all() } else { range.end() };
        let lead = family.has_lead() && range.start() > 0;
        Self { kind, start: range.start() - u32::from(lead), end, lead }
    }

    fn layers(self) -> u32 {
        self.end - self.start
    }

    fn contains(self, layer: u32) -> bool {
        (self.start..self.end).contains(&layer)
    }
}

/// Checks what the loader would otherwise find out by failing.
fn check_tensors(header: &Header, info: &ModelInfo, cut: Cut) -> Result<(), HeaderError> {
    embedding::embedding(header, info)?;
    let mut seen = vec![false; info.n_layer_all() as usize];
    for (layer, _) in header.tensors().iter().filter_map(|tensor| layer_of(tensor.name())) {
        if let Some(seen) = seen.get_mut(layer as usize) {
            *seen = true;
        }
    }
    match (cut.start..cut.end).find(|layer| !seen[*layer as usize]) {
        Some(layer) => Err(HeaderError::tensor(&format!("blk.{layer}.*"), TensorFault::Missing)),
        None => Ok(()),
    }
}

/// The slice's header, padded so that most of its bytes lie in their blocks as they do in the source: a file system that
/// can then shares the blocks, and the slice costs nothing.
fn aligned(sliced: Header, source: &Header, bytes: &[Bytes]) -> Result<Header, HeaderError> {
    let mut by_shift: BTreeMap<u64, u64> = BTreeMap::new();
    for (tensor, bytes) in sliced.tensors().iter().zip(bytes) {
        let Bytes::Source { tensor: index } = *bytes else { continue };
        let Some(original) = source.tensors().get(index) else { continue };
        let (from, to) = (source.data_offset() + original.offset(), sliced.data_offset() + tensor.offset());
        *by_shift.entry(from.wrapping_sub(to) % BLOCK_BYTES).or_default() += tensor.n_bytes();
    }
    let most = by_shift.into_iter().max_by_key(|(_, bytes)| *bytes);
    match most {
        Some((shift, bytes)) if shift > 0 && shift % sliced.alignment() == 0 && bytes >= WORTH_ALIGNING => {
            let padding = shift.wrapping_sub(PADDING_ENTRY) % BLOCK_BYTES;
            let (mut metadata, tensors) = sliced.into_parts();
            metadata.set(PADDING_KEY, Value::String(vec![b' '; padding as usize]));
            Header::build(metadata, tensors)
        }
        _ => Ok(sliced),
    }
}

#[cfg(test)]
mod tests;
