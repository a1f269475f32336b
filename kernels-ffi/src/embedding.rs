//! Rows of a token embedding table, read straight from a GGUF file.
//!
//! A first stage that is fed with rows makes them here: a token's row in the table, unpacked by ggml's own routine and
//! multiplied by the family's factor. Only the rows asked for are read.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use llama_cpp_sys_2 as sys;

use crate::backend::Backend;

/// Where a table lies in its file, and what it is made of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TableLayout {
    /// Byte of the file at which the table begins.
    pub offset: u64,
    /// ggml's number of its type, as in a GGUF header.
    pub type_id: u32,
    /// Values in a row.
    pub n_embd: u32,
    /// Rows.
    pub n_vocab: u32,
    /// What every value is multiplied by; 1 where the family does nothing.
    pub factor: f32,
}

/// Why a table, or a row of it, cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum EmbeddingError {
    /// The file cannot be read.
    #[error("cannot read the token embeddings in {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The layout makes no sense.
    #[error("the token embeddings in {} are unusable: {reason}", path.display())]
    Layout {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// No such row.
    #[error("token {token} is not among the {n_vocab} token embeddings")]
    Token {
        /// The token.
        token: i32,
        /// Rows there are.
        n_vocab: u32,
    },
}

/// A table, open for reading.
#[derive(Debug)]
pub struct EmbeddingTable {
    file: File,
    path: PathBuf,
    layout: TableLayout,
    row_bytes: usize,
    unpack: Unpack,
    row: Vec<u8>,
}

/// How a row becomes f32.
#[derive(Debug)]
enum Unpack {
    /// It is f32.
    Plain,
    /// ggml's routine for its type.
    Routine(unsafe extern "C" fn(*const std::ffi::c_void, *mut f32, i64)),
}

impl EmbeddingTable {
    /// Opens the table that lies in the file at `path` as `layout` says.
    ///
    /// # Errors
    /// [`EmbeddingError::Layout`] where ggml cannot unpack its type, rows are no whole blocks, or the file is too short.
    pub fn open(path: &Path, layout: TableLayout) -> Result<Self, EmbeddingError> {
        Backend::init();
        let read = |source| EmbeddingError::Read { path: path.to_owned(), source };
        let bad = |reason: String| EmbeddingError::Layout { path: path.to_owned(), reason };
        let (unpack, row_bytes) = row_format(layout.type_id, layout.n_embd).map_err(bad)?;
        let file = File::open(path).map_err(read)?;
        let end = (row_bytes as u64).checked_mul(layout.n_vocab.into()).and_then(|n| n.checked_add(layout.offset));
        let len = file.metadata().map_err(read)?.len();
        if end.is_none_or(|end| end > len) {
            return Err(bad(format!(
                "{} rows of {row_bytes} bytes at {} end behind {len}",
                layout.n_vocab, layout.offset
            )));
        }
        Ok(Self { file, path: path.to_owned(), layout, row_bytes, unpack, row: vec![0; row_bytes] })
    }

    /// Its layout.
    pub fn layout(&self) -> &TableLayout {
        &self.layout
    }

    /// The rows of `tokens`: row-major `[tokens, n_embd]`, each value times the factor.
    ///
    /// # Errors
    /// [`EmbeddingError::Token`] and [`EmbeddingError::Read`].
    pub fn rows(&mut self, tokens: &[i32]) -> Result<Vec<f32>, EmbeddingError> {
        let n_embd = self.layout.n_embd as usize;
        let mut rows = vec![0.0; tokens.len() * n_embd];
        for (token, row) in tokens.iter().zip(rows.chunks_exact_mut(n_embd)) {
            self.read_row(*token, row)?;
        }
        Ok(rows)
    }

    fn read_row(&mut self, token: i32, out: &mut [f32]) -> Result<(), EmbeddingError> {
        let n_vocab = self.layout.n_vocab;
        let index = u64::try_from(token).ok().filter(|index| *index < n_vocab.into());
        let index = index.ok_or(EmbeddingError::Token { token, n_vocab })?;
        let at = self.layout.offset + index * self.row_bytes as u64;
        read_exact_at(&self.file, &mut self.row, at)
            .map_err(|source| EmbeddingError::Read { path: self.path.clone(), source })?;
        match self.unpack {
            Unpack::Plain => {
                for (value, bytes) in out.iter_mut().zip(self.row.chunks_exact(4)) {
                    *value = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                }
            }
            // SAFETY: `row` holds one row of `n_embd` values of this type (`row_format` has its size from ggml), and
            // `out` has room for `n_embd` floats. The routines read unaligned blocks.
            Unpack::Routine(routine) => unsafe {
                routine(self.row.as_ptr().cast(), out.as_mut_ptr(), self.layout.n_embd.into());
            },
        }
        if self.layout.factor != 1.0 {
            out.iter_mut().for_each(|value| *value *= self.layout.factor);
        }
        Ok(())
    }
}

/// The routine that unpacks a row of `n_embd` values of type `type_id`, and the row's bytes.
fn row_format(type_id: u32, n_embd: u32) -> Result<(Unpack, usize), String> {
    let kind = type_id as sys::ggml_type;
    if n_embd == 0 || kind >= sys::GGML_TYPE_COUNT {
        return Err(format!("{n_embd} values of the unknown type {type_id}"));
    }
    // SAFETY: `kind` is below the count, and the pointer is to static memory.
    let traits = unsafe { &*sys::ggml_get_type_traits(kind) };
    if traits.blck_size <= 0 || i64::from(n_embd) % traits.blck_size != 0 {
        return Err(format!("a row of {n_embd} values is not made of whole blocks of type {type_id}"));
    }
    let unpack = match traits.to_float {
        _ if kind == sys::GGML_TYPE_F32 => Unpack::Plain,
        Some(routine) => Unpack::Routine(routine),
        None => return Err(format!("type {type_id} cannot be unpacked")),
    };
    // SAFETY: the type is known and a row is whole blocks, which is all that ggml asserts.
    Ok((unpack, unsafe { sys::ggml_row_size(kind, n_embd.into()) }))
}

#[cfg(unix)]
fn read_exact_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, buffer, offset)
}

#[cfg(windows)]
fn read_exact_at(file: &File, mut buffer: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !buffer.is_empty() {
        match std::os::windows::fs::FileExt::seek_read(file, buffer, offset)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => {
                buffer = &mut buffer[n..];
                offset += n as u64;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn layout(type_id: u32, n_embd: u32) -> TableLayout {
        TableLayout { offset: 4, type_id, n_embd, n_vocab: 2, factor: 1.0 }
    }

    #[test]
    fn rows_are_read_unpacked_and_scaled() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"head").unwrap();
        [1.0f32, -2.0, 0.5, 4.0].iter().for_each(|v| file.write_all(&v.to_le_bytes()).unwrap());
        let mut plain = EmbeddingTable::open(file.path(), layout(sys::GGML_TYPE_F32, 2)).unwrap();
        assert_eq!(plain.rows(&[1, 0, 1]).unwrap(), [0.5, 4.0, 1.0, -2.0, 0.5, 4.0]);
        let scaled = TableLayout { factor: 3.0, ..layout(sys::GGML_TYPE_F32, 2) };
        assert_eq!(EmbeddingTable::open(file.path(), scaled).unwrap().rows(&[0]).unwrap(), [3.0, -6.0]);
        assert!(matches!(plain.rows(&[2]), Err(EmbeddingError::Token { token: 2, n_vocab: 2 })));
        assert!(matches!(plain.rows(&[-1]), Err(EmbeddingError::Token { .. })));
    }

    #[test]
    fn half_floats_and_blocks_are_unpacked_by_ggml() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"head").unwrap();
        // f16: 1.0, -2.0, 0.5, 0.0
        file.write_all(&[0x00, 0x3c, 0x00, 0xc0, 0x00, 0x38, 0x00, 0x00]).unwrap();
        let mut table = EmbeddingTable::open(file.path(), layout(sys::GGML_TYPE_F16, 2)).unwrap();
        assert_eq!(table.rows(&[0, 1]).unwrap(), [1.0, -2.0, 0.5, 0.0]);

        // q8_0: blocks of a scale in f16 and 32 signed bytes
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"head").unwrap();
        for scale in [0x3c00u16, 0x3800] {
            file.write_all(&scale.to_le_bytes()).unwrap();
            file.write_all(&(0..32).collect::<Vec<u8>>()).unwrap();
        }
        let mut table = EmbeddingTable::open(file.path(), layout(sys::GGML_TYPE_Q8_0, 32)).unwrap();
        let expected: Vec<f32> = (0..32).map(|i| i as f32 / 2.0).collect();
        assert_eq!(table.rows(&[1]).unwrap(), expected);
    }

    #[test]
    fn an_impossible_layout_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let open = |layout| EmbeddingTable::open(file.path(), layout).map(|_| ());
        let reasons = [
            layout(sys::GGML_TYPE_F32, 2),                                     // file too short
            layout(sys::GGML_TYPE_Q8_0, 33),                                   // no whole blocks
            layout(4, 32),                                                     // a type that ggml removed
            layout(9999, 32),                                                  // no type
            layout(sys::GGML_TYPE_I32, 4),                                     // not unpackable
            TableLayout { offset: u64::MAX, ..layout(sys::GGML_TYPE_F32, 2) }, // overflow
        ];
        for layout in reasons {
            assert!(matches!(open(layout), Err(EmbeddingError::Layout { .. })), "{layout:?}");
        }
        let missing = EmbeddingTable::open(Path::new("/nonexistent"), layout(sys::GGML_TYPE_F32, 2));
        assert!(matches!(missing, Err(EmbeddingError::Read { .. })));
    }
}
