//! Values of a GGUF's metadata. Arrays stay in their encoded form, so that a value never takes more memory than the
//! bytes that claimed it.

use std::io::{self, Write};
use std::ops::Range;

/// The type of a metadata value, with its id in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[allow(missing_docs)] // the names are the documentation
pub enum ValueType {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    Bool = 7,
    String = 8,
    Array = 9,
    U64 = 10,
    I64 = 11,
    F64 = 12,
}

impl ValueType {
    const ALL: [Self; 13] = [
        Self::U8,
        Self::I8,
        Self::U16,
        Self::I16,
        Self::U32,
        Self::I32,
        Self::F32,
        Self::Bool,
        Self::String,
        Self::Array,
        Self::U64,
        Self::I64,
        Self::F64,
    ];

    /// The type with this id.
    pub fn from_id(id: u32) -> Option<Self> {
        Self::ALL.get(id as usize).copied()
    }

    /// The id in a file.
    pub fn id(self) -> u32 {
        self as u32
    }

    /// Bytes of one value; `None` for strings and arrays.
    pub fn width(self) -> Option<usize> {
        match self {
            Self::U8 | Self::I8 | Self::Bool => Some(1),
            Self::U16 | Self::I16 => Some(2),
            Self::U32 | Self::I32 | Self::F32 => Some(4),
            Self::U64 | Self::I64 | Self::F64 => Some(8),
            Self::String | Self::Array => None,
        }
    }

    /// A word for messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::U8 | Self::U16 | Self::U32 | Self::U64 => "an unsigned integer",
            Self::I8 | Self::I16 | Self::I32 | Self::I64 => "an integer",
            Self::F32 | Self::F64 => "a float",
            Self::Bool => "a boolean",
            Self::String => "a string",
            Self::Array => "an array",
        }
    }
}

/// One metadata value. Strings are bytes: GGUF says UTF-8, and vocabularies in the wild do not always keep to it.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(Vec<u8>),
    Array(Array),
    U64(u64),
    I64(i64),
    F64(f64),
}

impl Value {
    /// The value's type.
    pub fn value_type(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::F32(_) => ValueType::F32,
            Self::Bool(_) => ValueType::Bool,
            Self::String(_) => ValueType::String,
            Self::Array(_) => ValueType::Array,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
        }
    }

    /// The value as an integer, if it is one of any width.
    pub fn as_int(&self) -> Option<i128> {
        Some(match *self {
            Self::U8(v) => v.into(),
            Self::I8(v) => v.into(),
            Self::U16(v) => v.into(),
            Self::I16(v) => v.into(),
            Self::U32(v) => v.into(),
            Self::I32(v) => v.into(),
            Self::U64(v) => v.into(),
            Self::I64(v) => v.into(),
            _ => return None,
        })
    }

    /// The value as a float, if it is one of either width.
    pub fn as_float(&self) -> Option<f64> {
        match *self {
            Self::F32(v) => Some(v.into()),
            Self::F64(v) => Some(v),
            _ => None,
        }
    }

    /// The value as text, if it is a string of valid UTF-8.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }

    /// Writes the value as a file holds it, its type not included.
    pub(crate) fn write_to(&self, out: &mut impl Write) -> io::Result<()> {
        match self {
            Self::U8(v) => out.write_all(&[*v]),
            Self::I8(v) => out.write_all(&v.to_le_bytes()),
            Self::U16(v) => out.write_all(&v.to_le_bytes()),
            Self::I16(v) => out.write_all(&v.to_le_bytes()),
            Self::U32(v) => out.write_all(&v.to_le_bytes()),
            Self::I32(v) => out.write_all(&v.to_le_bytes()),
            Self::F32(v) => out.write_all(&v.to_le_bytes()),
            Self::Bool(v) => out.write_all(&[u8::from(*v)]),
            Self::String(v) => write_string(out, v),
            Self::Array(array) => {
                out.write_all(&array.element.id().to_le_bytes())?;
                out.write_all(&(array.len as u64).to_le_bytes())?;
                out.write_all(&array.bytes)
            }
            Self::U64(v) => out.write_all(&v.to_le_bytes()),
            Self::I64(v) => out.write_all(&v.to_le_bytes()),
            Self::F64(v) => out.write_all(&v.to_le_bytes()),
        }
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::String(text.as_bytes().to_vec())
    }
}

/// Writes a string as a file holds it: its length as 64 bits, then its bytes.
pub(crate) fn write_string(out: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    out.write_all(&(bytes.len() as u64).to_le_bytes())?;
    out.write_all(bytes)
}

/// Appends a string as [`write_string`] writes it.
fn encode_string(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend((bytes.len() as u64).to_le_bytes());
    out.extend_from_slice(bytes);
}

/// An array of metadata values of one type (never of arrays), encoded as in a file.
#[derive(Clone, PartialEq, Eq)]
pub struct Array {
    element: ValueType,
    len: usize,
    bytes: Vec<u8>,
}

impl std::fmt::Debug for Array {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Array({:?}; {} in {} bytes)", self.element, self.len, self.bytes.len())
    }
}

impl Array {
    /// Wraps encoded values. The reader has checked that `bytes` holds exactly `len` of them.
    pub(crate) fn from_encoded(element: ValueType, len: usize, bytes: Vec<u8>) -> Self {
        Self { element, len, bytes }
    }

    /// An array of booleans.
    pub fn of_bools(values: impl IntoIterator<Item = bool>) -> Self {
        let bytes: Vec<u8> = values.into_iter().map(u8::from).collect();
        Self { element: ValueType::Bool, len: bytes.len(), bytes }
    }

    /// An array of unsigned integers.
    pub fn of_u32s(values: impl IntoIterator<Item = u32>) -> Self {
        let bytes: Vec<u8> = values.into_iter().flat_map(u32::to_le_bytes).collect();
        Self { element: ValueType::U32, len: bytes.len() / 4, bytes }
    }

    /// An array of integers.
    pub fn of_i32s(values: impl IntoIterator<Item = i32>) -> Self {
        let bytes: Vec<u8> = values.into_iter().flat_map(i32::to_le_bytes).collect();
        Self { element: ValueType::I32, len: bytes.len() / 4, bytes }
    }

    /// An array of floats.
    pub fn of_f32s(values: impl IntoIterator<Item = f32>) -> Self {
        let bytes: Vec<u8> = values.into_iter().flat_map(f32::to_le_bytes).collect();
        Self { element: ValueType::F32, len: bytes.len() / 4, bytes }
    }

    /// An array of texts.
    pub fn of_strs<S: AsRef<str>>(values: impl IntoIterator<Item = S>) -> Self {
        let (mut len, mut bytes) = (0, Vec::new());
        for value in values {
            encode_string(&mut bytes, value.as_ref().as_bytes());
            len += 1;
        }
        Self { element: ValueType::String, len, bytes }
    }

    /// The type of its elements.
    pub fn element(&self) -> ValueType {
        self.element
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements as integers (booleans as 0 and 1); `None` for other types.
    pub fn ints(&self) -> Option<impl Iterator<Item = i128> + '_> {
        let width = self.element.width()?;
        if matches!(self.element, ValueType::F32 | ValueType::F64) {
            return None;
        }
        let element = self.element;
        Some(self.bytes.chunks_exact(width).map(move |bytes| decode_int(element, bytes)))
    }

    /// The elements as floats of 32 bits; `None` for other types.
    pub fn floats(&self) -> Option<impl Iterator<Item = f32> + '_> {
        let floats = self.bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
        (self.element == ValueType::F32).then_some(floats)
    }

    /// The elements as strings; `None` for other types.
    pub fn strings(&self) -> Option<impl Iterator<Item = &[u8]> + '_> {
        (self.element == ValueType::String).then_some(Strings { rest: &self.bytes })
    }

    /// The elements `range`; `None` where they are not all there.
    pub fn slice(&self, range: Range<usize>) -> Option<Self> {
        if range.start > range.end || range.end > self.len {
            return None;
        }
        let len = range.len();
        let bytes = match self.element.width() {
            Some(width) => self.bytes.get(range.start * width..range.end * width)?.to_vec(),
            None => {
                let mut bytes = Vec::new();
                for text in self.strings()?.skip(range.start).take(len) {
                    encode_string(&mut bytes, text);
                }
                bytes
            }
        };
        Some(Self { element: self.element, len, bytes })
    }
}

struct Strings<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Strings<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let (len, rest) = self.rest.split_first_chunk::<8>()?;
        let (text, rest) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*len)).ok()?)?;
        self.rest = rest;
        Some(text)
    }
}

/// The little-endian integer in `bytes`, which has the width of `element`.
fn decode_int(element: ValueType, bytes: &[u8]) -> i128 {
    let mut wide = [0u8; 16];
    wide[..bytes.len()].copy_from_slice(bytes);
    let signed = matches!(element, ValueType::I8 | ValueType::I16 | ValueType::I32 | ValueType::I64);
    if signed && bytes.last().is_some_and(|top| top & 0x80 != 0) {
        wide[bytes.len()..].fill(0xff);
    }
    i128::from_le_bytes(wide)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_of_every_width_keep_their_sign() {
        let ints = |element: ValueType, bytes: &[u8]| -> Vec<i128> {
            let len = bytes.len() / element.width().unwrap();
            Array::from_encoded(element, len, bytes.to_vec()).ints().unwrap().collect()
        };
        assert_eq!(ints(ValueType::U8, &[1, 255]), [1, 255]);
        assert_eq!(ints(ValueType::I8, &[1, 255]), [1, -1]);
        assert_eq!(ints(ValueType::I32, &(-7i32).to_le_bytes()), [-7]);
        assert_eq!(ints(ValueType::U64, &u64::MAX.to_le_bytes()), [i128::from(u64::MAX)]);
        assert!(Array::from_encoded(ValueType::F32, 1, vec![0; 4]).ints().is_none());
        assert!(Array::of_f32s([0.5, -1e9]).floats().unwrap().eq([0.5, -1e9]));
        assert!(Array::of_i32s([1]).floats().is_none());
    }

    #[test]
    fn slices_of_arrays_hold_the_same_elements() {
        let mut bytes = Vec::new();
        for text in ["a", "", "ccc"] {
            encode_string(&mut bytes, text.as_bytes());
        }
        let strings = Array::from_encoded(ValueType::String, 3, bytes);
        let cut = strings.slice(1..3).unwrap();
        assert_eq!(cut.strings().unwrap().collect::<Vec<_>>(), [b"".as_slice(), b"ccc"]);
        assert!(strings.slice(2..4).is_none());

        let bools = Array::of_bools([true, false, true]);
        assert_eq!(bools.slice(1..3).unwrap().ints().unwrap().collect::<Vec<_>>(), [0, 1]);
    }
}
