//! Where the rows come from that a first stage is fed with, which carries no vocabulary itself.

use std::path::PathBuf;

use crate::error::{Error, HeaderError, TensorFault};
use crate::family::Family;
use crate::ggml::GgmlType;
use crate::header::{Header, TensorInfo};
use crate::info::ModelInfo;
use crate::source::Source;

/// Where the first stage's node finds the rows of the token embedding, and how it makes hidden rows of them: the row of
/// a token, dequantised to f32, times `factor`.
#[derive(Clone, Debug, PartialEq)]
pub struct EmbeddingSource {
    /// The file.
    pub path: PathBuf,
    /// Absolute offset of row 0.
    pub offset: u64,
    /// Type of the stored values.
    pub ggml_type: GgmlType,
    /// Values in a row.
    pub n_embd: u32,
    /// Rows.
    pub n_vocab: u32,
    /// Bytes of a stored row.
    pub row_bytes: u64,
    /// What the values are multiplied with.
    pub factor: f32,
}

impl EmbeddingSource {
    /// The embedding of `source`; `None` where its family's rows are not a plain lookup, and its first stage takes
    /// tokens.
    ///
    /// # Errors
    /// Where the header is unusable, or the family is unknown or cannot be split.
    pub fn of(source: &Source) -> Result<Option<Self>, Error> {
        let info = ModelInfo::of(source.header())?;
        let Some(factor) = Family::of(source.header())?.embedding_factor(info.n_embd) else { return Ok(None) };
        let (index, tensor) = embedding(source.header(), &info)?;
        let place = source.place(index).zip(tensor.ggml_type().row_bytes(info.n_embd.into()));
        let ((path, offset), row_bytes) =
            place.ok_or_else(|| HeaderError::tensor(tensor.name(), TensorFault::Missing))?;
        Ok(Some(Self {
            path: path.to_owned(),
            offset,
            ggml_type: tensor.ggml_type(),
            n_embd: info.n_embd,
            n_vocab: info.n_vocab,
            row_bytes,
            factor,
        }))
    }
}

/// The embedding, if its shape is what the metadata says.
pub(super) fn embedding<'a>(header: &'a Header, info: &ModelInfo) -> Result<(usize, &'a TensorInfo), HeaderError> {
    let name = "token_embd.weight";
    let found = header.tensor(name).ok_or_else(|| HeaderError::tensor(name, TensorFault::Missing))?;
    let expected = [u64::from(info.n_embd), u64::from(info.n_vocab)];
    if found.1.dims() != expected {
        let why = TensorFault::Mismatch { found: found.1.dims().to_vec(), expected: expected.to_vec() };
        return Err(HeaderError::tensor(name, why));
    }
    Ok(found)
}
