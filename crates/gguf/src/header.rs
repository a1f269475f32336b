//! A GGUF's header: metadata and tensor descriptions, checked; and the canonical bytes of one.
//!
//! A header that was parsed is sound: tensors have known types and possible shapes, are aligned, and do not overlap.
//! Whether the file is long enough for them is [`Header::check_file_len`]. Format:
//! <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.

use std::io::{self, Read, Write};

use crate::error::{HeaderError, TensorFault};
use crate::ggml::GgmlType;
use crate::metadata::Metadata;
use crate::value::write_string;

mod read;

/// Most bytes of a header, so that a hostile one cannot take 64 MiB of memory. The largest vocabularies take some 10 MB,
/// and a whole `tokenizer.json` beside one some 35.
pub const MAX_HEADER_BYTES: u64 = 48 << 20;
/// Most bytes of one string or array.
pub const MAX_VALUE_BYTES: u64 = 40 << 20;
/// Most keys: models have up to a hundred.
pub const MAX_KEYS: u64 = 1 << 13;
/// Most tensors: unmerged experts of the largest models come to some 50,000.
pub const MAX_TENSORS: u64 = 1 << 17;
/// Most bytes of a key.
pub const MAX_KEY_BYTES: u64 = u16::MAX as u64;
/// Most bytes of a tensor's name, as in llama.cpp (`GGML_MAX_NAME` less its end mark).
pub const MAX_NAME_BYTES: u64 = 63;
/// Largest alignment.
pub const MAX_ALIGNMENT: u64 = 1 << 20;

const MAX_DIMS: usize = 4;
const MAGIC: [u8; 4] = *b"GGUF";
const VERSION: u32 = 3;
const ALIGNMENT_KEY: &str = "general.alignment";
const DEFAULT_ALIGNMENT: u64 = 32;

/// What a tensor is and where its bytes lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    name: Box<str>,
    /// Zeros after the first `n_dims`.
    dims: [u64; MAX_DIMS],
    n_dims: u8,
    ggml_type: GgmlType,
    offset: u64,
    n_bytes: u64,
}

impl TensorInfo {
    /// A tensor of this shape (innermost dimension first), at offset 0.
    ///
    /// # Errors
    /// Where no such tensor can be.
    pub fn new(name: &str, dims: &[u64], ggml_type: GgmlType) -> Result<Self, HeaderError> {
        let fault = |why| Err(HeaderError::tensor(name, why));
        if name.is_empty() || name.len() as u64 > MAX_NAME_BYTES {
            return fault(TensorFault::Name);
        }
        let [row, rest @ ..] = dims else { return fault(TensorFault::Dimensions(0)) };
        if dims.len() > MAX_DIMS {
            return fault(TensorFault::Dimensions(dims.len() as u32));
        }
        let block = ggml_type.block_size();
        if !row.is_multiple_of(u64::from(block)) {
            return fault(TensorFault::Block { row: *row, block });
        }
        let n_bytes = ggml_type.row_bytes(*row).and_then(|bytes| {
            // Signed in ggml, and padding must not wrap.
            rest.iter().try_fold(bytes, |sum, dim| sum.checked_mul(*dim)).filter(|sum| *sum <= 1 << 62)
        });
        match n_bytes {
            Some(n_bytes) if n_bytes > 0 => {
                let mut all = [0; MAX_DIMS];
                all[..dims.len()].copy_from_slice(dims);
                Ok(Self { name: name.into(), dims: all, n_dims: dims.len() as u8, ggml_type, offset: 0, n_bytes })
            }
            _ => fault(TensorFault::Shape(dims.to_vec())),
        }
    }

    /// Its name, as in `blk.0.attn_q.weight`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// One to four dimensions, the innermost (the length of a row) first; none is zero.
    pub fn dims(&self) -> &[u64] {
        &self.dims[..usize::from(self.n_dims)]
    }

    /// The type of its values.
    pub fn ggml_type(&self) -> GgmlType {
        self.ggml_type
    }

    /// Bytes from the start of the data section.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes that it takes.
    pub fn n_bytes(&self) -> u64 {
        self.n_bytes
    }
}

/// A GGUF's header.
#[derive(Clone, Debug, PartialEq)]
pub struct Header {
    version: u32,
    alignment: u64,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    /// Indices of the tensors, in the order of their names.
    by_name: Vec<u32>,
    data_offset: u64,
    data_len: u64,
}

impl Header {
    /// Reads a header from bytes that begin with one, as a peer sends them. What follows the header is not looked at.
    ///
    /// # Errors
    /// Names the first thing that is wrong.
    pub fn parse(bytes: &[u8]) -> Result<Self, HeaderError> {
        Self::read(bytes, bytes.len() as u64)
    }

    /// Reads a header from the start of a file of `len` bytes, and checks that the file holds its tensors.
    ///
    /// # Errors
    /// Names the first thing that is wrong.
    pub fn read_file(file: impl Read, len: u64) -> Result<Self, HeaderError> {
        let header = Self::read(file, len)?;
        header.check_file_len(len)?;
        Ok(header)
    }

    /// A header of these parts: version 3, tensors one after the other in the order given.
    ///
    /// # Errors
    /// Where a name appears twice, a cap is passed, or the alignment key is invalid.
    pub fn build(metadata: Metadata, tensors: Vec<TensorInfo>) -> Result<Self, HeaderError> {
        read::check_cap("keys", metadata.len() as u64, MAX_KEYS)?;
        read::check_cap("tensors", tensors.len() as u64, MAX_TENSORS)?;
        let alignment = read::alignment(&metadata)?;
        let mut header = Self {
            version: VERSION,
            alignment,
            by_name: read::by_name(&tensors)?,
            metadata,
            tensors,
            data_offset: 0,
            data_len: 0,
        };
        let mut end = 0u64;
        for tensor in &mut header.tensors {
            tensor.offset = end;
            end = pad(end, tensor.n_bytes, alignment)
                .ok_or_else(|| HeaderError::tensor(&tensor.name, TensorFault::Shape(tensor.dims().to_vec())))?;
        }
        header.data_len = end;
        let mut length = Length(0);
        // Counting does not fail.
        let _ = header.write_to(&mut length);
        header.data_offset = length.0;
        read::check_cap("bytes", header.data_offset, MAX_HEADER_BYTES)?;
        Ok(header)
    }

    /// The same model as [`Self::build`] would lay it out in one file: what both ends of a transfer agree on, however
    /// the source is stored. Keys that speak of shards (`split.*`) are gone.
    ///
    /// # Errors
    /// Where the tensors of a sharded model do not fit one header.
    pub fn canonical(&self) -> Result<Self, HeaderError> {
        self.clone().into_canonical()
    }

    /// [`Self::canonical`] without a second copy of a large header.
    ///
    /// # Errors
    /// As [`Self::canonical`].
    pub fn into_canonical(mut self) -> Result<Self, HeaderError> {
        self.metadata.retain(|key| !key.starts_with("split."));
        Self::build(self.metadata, self.tensors)
    }

    /// Whether it is its own [`Self::canonical`]: one tensor behind the other, and no word of shards.
    pub fn is_canonical(&self) -> bool {
        let mut end = Some(0);
        let together = self.tensors.iter().all(|tensor| {
            let fits = end == Some(tensor.offset);
            end = pad(tensor.offset, tensor.n_bytes, self.alignment);
            fits
        });
        together && self.metadata.iter().all(|(key, _)| !key.starts_with("split."))
    }

    /// Its keys and values, and its tensors.
    pub fn into_parts(self) -> (Metadata, Vec<TensorInfo>) {
        (self.metadata, self.tensors)
    }

    /// Writes the header's bytes up to the data section, padding included.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_to(&self, out: impl Write) -> io::Result<()> {
        let mut out = Counted { out, written: 0 };
        out.write_all(&MAGIC)?;
        out.write_all(&VERSION.to_le_bytes())?;
        out.write_all(&(self.tensors.len() as u64).to_le_bytes())?;
        out.write_all(&(self.metadata.len() as u64).to_le_bytes())?;
        for (key, value) in self.metadata.iter() {
            write_string(&mut out, key.as_bytes())?;
            out.write_all(&value.value_type().id().to_le_bytes())?;
            value.write_to(&mut out)?;
        }
        for tensor in &self.tensors {
            write_string(&mut out, tensor.name.as_bytes())?;
            out.write_all(&u32::from(tensor.n_dims).to_le_bytes())?;
            for dim in tensor.dims() {
                out.write_all(&dim.to_le_bytes())?;
            }
            out.write_all(&tensor.ggml_type.id().to_le_bytes())?;
            out.write_all(&tensor.offset.to_le_bytes())?;
        }
        let padding = out.written.next_multiple_of(self.alignment) - out.written;
        io::copy(&mut io::repeat(0).take(padding), &mut out)?;
        Ok(())
    }

    /// What [`Self::write_to`] writes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        // Memory takes all that is written to it.
        let _ = self.write_to(&mut out);
        out
    }

    /// Whether `bytes` are what [`Self::write_to`] writes.
    pub fn is_written_as(&self, bytes: &[u8]) -> bool {
        let mut expected = Expected(bytes);
        self.write_to(&mut expected).is_ok() && expected.0.is_empty()
    }

    /// Checks that a file of `len` bytes holds all tensors.
    ///
    /// # Errors
    /// [`HeaderError::Truncated`].
    pub fn check_file_len(&self, len: u64) -> Result<(), HeaderError> {
        let last = self.tensors.iter().map(|tensor| tensor.offset + tensor.n_bytes).max().unwrap_or(0);
        let promised = self.data_offset.saturating_add(last);
        if last > 0 && len < promised {
            return Err(HeaderError::Truncated { ends_at: len, promised });
        }
        Ok(())
    }

    /// The format's version: 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// What the data section and every tensor in it are aligned to, in bytes.
    pub fn alignment(&self) -> u64 {
        self.alignment
    }

    /// Keys and values.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The tensors, in the order of the file.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor called `name`, and its index.
    pub fn tensor(&self, name: &str) -> Option<(usize, &TensorInfo)> {
        let name_of = |index: &u32| self.tensors.get(*index as usize).map_or("", TensorInfo::name);
        let at = self.by_name.binary_search_by(|index| name_of(index).cmp(name)).ok()?;
        let index = *self.by_name.get(at)? as usize;
        self.tensors.get(index).map(|tensor| (index, tensor))
    }

    /// Where the data section begins, in bytes from the start of the file.
    pub fn data_offset(&self) -> u64 {
        self.data_offset
    }

    /// Bytes of the data section, the padding after the last tensor included.
    pub fn data_len(&self) -> u64 {
        self.data_len
    }
}

/// Passes on what is written, and counts it.
struct Counted<W> {
    out: W,
    written: u64,
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.out.write(bytes)?;
        self.written += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Counts what is written.
struct Length(u64);

impl Write for Length {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Takes these bytes and no others.
struct Expected<'a>(&'a [u8]);

impl Write for Expected<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = self.0.strip_prefix(bytes).ok_or(io::ErrorKind::InvalidData)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// `start + len`, rounded up to `alignment`.
fn pad(start: u64, len: u64, alignment: u64) -> Option<u64> {
    start.checked_add(len)?.checked_next_multiple_of(alignment).filter(|end| *end <= 1 << 62)
}

#[cfg(test)]
mod tests;
