//! The parser. Every length is checked against the caps and against what is left of the file before a byte of it is
//! read or allocated.

use std::io::{ErrorKind, Read};

use super::{
    ALIGNMENT_KEY, DEFAULT_ALIGNMENT, Header, MAGIC, MAX_ALIGNMENT, MAX_HEADER_BYTES, MAX_KEY_BYTES, MAX_KEYS,
    MAX_NAME_BYTES, MAX_TENSORS, MAX_VALUE_BYTES, TensorInfo, pad,
};
use crate::error::{HeaderError, KeyFault, TensorFault};
use crate::ggml::GgmlType;
use crate::metadata::Metadata;
use crate::value::{Array, Value, ValueType};

/// Bytes that the shortest entry takes: a name of one byte with its length, a type, and one byte of value; or a name,
/// a dimension count, one dimension, a type and an offset.
const MIN_KEY_ENTRY: u64 = 9 + 4 + 1;
const MIN_TENSOR_ENTRY: u64 = 9 + 4 + 8 + 4 + 8;

impl Header {
    pub(super) fn read(input: impl Read, len: u64) -> Result<Self, HeaderError> {
        let mut cursor = Cursor { input, position: 0, len };
        let magic = match cursor.array::<4>() {
            Err(HeaderError::HeaderCut { .. }) => return Err(HeaderError::NotGguf),
            magic => magic?,
        };
        if magic != MAGIC {
            return Err(HeaderError::NotGguf);
        }
        let version = cursor.u32()?;
        if !(2..=3).contains(&version) {
            let swapped = (1..=3).contains(&version.swap_bytes());
            return Err(if swapped { HeaderError::BigEndian } else { HeaderError::Version(version) });
        }
        let n_tensors = cursor.count("tensors", MAX_TENSORS, MIN_TENSOR_ENTRY)?;
        let n_keys = cursor.count("keys", MAX_KEYS, MIN_KEY_ENTRY)?;

        let mut metadata = Metadata::default();
        for _ in 0..n_keys {
            let (key, value) = cursor.entry()?;
            if metadata.set(&key, value).is_some() {
                return Err(HeaderError::key(&key, KeyFault::Duplicate));
            }
        }
        let alignment = alignment(&metadata)?;
        let mut tensors = Vec::with_capacity(n_tensors as usize);
        for _ in 0..n_tensors {
            tensors.push(cursor.tensor(alignment)?);
        }
        let data_offset = cursor.position.next_multiple_of(alignment);
        let by_name = by_name(&tensors)?;
        let data_len = check_layout(&tensors, alignment)?;
        Ok(Self { version, alignment, metadata, tensors, by_name, data_offset, data_len })
    }
}

pub(super) fn check_cap(what: &'static str, value: u64, limit: u64) -> Result<(), HeaderError> {
    if value > limit { Err(HeaderError::TooLarge { what, value, limit }) } else { Ok(()) }
}

pub(super) fn alignment(metadata: &Metadata) -> Result<u64, HeaderError> {
    match metadata.get(ALIGNMENT_KEY) {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(Value::U32(value)) => {
            let value = u64::from(*value);
            let valid = value.is_power_of_two() && value <= MAX_ALIGNMENT;
            if valid { Ok(value) } else { Err(HeaderError::Alignment(value)) }
        }
        Some(other) => {
            let why = KeyFault::WrongType { expected: "a 32-bit unsigned integer", found: other.value_type().name() };
            Err(HeaderError::key(ALIGNMENT_KEY, why))
        }
    }
}

/// The indices of `tensors` in the order of their names.
pub(super) fn by_name(tensors: &[TensorInfo]) -> Result<Vec<u32>, HeaderError> {
    let mut order: Vec<u32> = (0..tensors.len() as u32).collect();
    order.sort_unstable_by_key(|index| tensors[*index as usize].name());
    match order.windows(2).find(|pair| tensors[pair[0] as usize].name == tensors[pair[1] as usize].name) {
        Some(pair) => Err(HeaderError::tensor(tensors[pair[0] as usize].name(), TensorFault::Duplicate)),
        None => Ok(order),
    }
}

/// Checks that no two tensors share a byte; gives the length of the data section.
fn check_layout(tensors: &[TensorInfo], alignment: u64) -> Result<u64, HeaderError> {
    let mut order: Vec<&TensorInfo> = tensors.iter().collect();
    order.sort_by_key(|tensor| tensor.offset);
    let mut end = 0u64;
    for tensor in order {
        if tensor.offset < end {
            return Err(HeaderError::tensor(&tensor.name, TensorFault::Overlap));
        }
        end = pad(tensor.offset, tensor.n_bytes, alignment)
            .ok_or_else(|| HeaderError::tensor(&tensor.name, TensorFault::Shape(tensor.dims().to_vec())))?;
    }
    Ok(end)
}

/// A position in a header of a file whose length is known.
struct Cursor<R> {
    input: R,
    position: u64,
    len: u64,
}

impl<R: Read> Cursor<R> {
    /// Fails unless `n` more bytes are there and within the cap on headers.
    fn reserve(&self, n: u64) -> Result<(), HeaderError> {
        if n > self.len.saturating_sub(self.position) {
            return Err(HeaderError::HeaderCut { ends_at: self.len });
        }
        check_cap("bytes", self.position.saturating_add(n), MAX_HEADER_BYTES)
    }

    fn fill(&mut self, out: &mut [u8]) -> Result<(), HeaderError> {
        self.reserve(out.len() as u64)?;
        self.input.read_exact(out).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => HeaderError::HeaderCut { ends_at: self.len },
            kind => HeaderError::Read(kind),
        })?;
        self.position += out.len() as u64;
        Ok(())
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], HeaderError> {
        let mut out = [0; N];
        self.fill(&mut out)?;
        Ok(out)
    }

    fn u32(&mut self) -> Result<u32, HeaderError> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, HeaderError> {
        self.array().map(u64::from_le_bytes)
    }

    /// Appends `n` bytes to `out`.
    fn append(&mut self, out: &mut Vec<u8>, n: u64) -> Result<(), HeaderError> {
        self.reserve(n)?;
        let start = out.len();
        out.reserve_exact(n as usize);
        out.resize(start + n as usize, 0);
        self.fill(&mut out[start..])
    }

    /// Appends a string of `length` bytes, and its length before it. Grows by a quarter: doubling would waste as much
    /// as a whole header may take.
    fn append_string(&mut self, out: &mut Vec<u8>, length: u64) -> Result<(), HeaderError> {
        self.reserve(length)?;
        let needed = 8 + length as usize;
        if out.capacity() - out.len() < needed {
            out.reserve_exact(needed.max(out.len() / 4));
        }
        out.extend(length.to_le_bytes());
        self.append(out, length)
    }

    fn count(&mut self, what: &'static str, limit: u64, min_bytes: u64) -> Result<u64, HeaderError> {
        let count = self.u64()?;
        check_cap(what, count, limit)?;
        self.reserve(count * min_bytes)?;
        Ok(count)
    }

    fn string(&mut self, what: &'static str, limit: u64) -> Result<Vec<u8>, HeaderError> {
        let len = self.u64()?;
        check_cap(what, len, limit)?;
        let mut bytes = Vec::new();
        self.append(&mut bytes, len)?;
        Ok(bytes)
    }

    fn entry(&mut self) -> Result<(String, Value), HeaderError> {
        let bytes = self.string("bytes in a key", MAX_KEY_BYTES)?;
        let key = String::from_utf8(bytes)
            .map_err(|error| HeaderError::key(&String::from_utf8_lossy(error.as_bytes()), KeyFault::Name))?;
        if key.is_empty() {
            return Err(HeaderError::key(&key, KeyFault::Name));
        }
        let id = self.u32()?;
        let value_type = ValueType::from_id(id).ok_or_else(|| HeaderError::key(&key, KeyFault::Type(id)))?;
        let value = match value_type {
            ValueType::U8 => Value::U8(u8::from_le_bytes(self.array()?)),
            ValueType::I8 => Value::I8(i8::from_le_bytes(self.array()?)),
            ValueType::U16 => Value::U16(u16::from_le_bytes(self.array()?)),
            ValueType::I16 => Value::I16(i16::from_le_bytes(self.array()?)),
            ValueType::U32 => Value::U32(self.u32()?),
            ValueType::I32 => Value::I32(i32::from_le_bytes(self.array()?)),
            ValueType::F32 => Value::F32(f32::from_le_bytes(self.array()?)),
            ValueType::Bool => Value::Bool(self.array::<1>()? != [0]),
            ValueType::String => Value::String(self.string("bytes in a string", MAX_VALUE_BYTES)?),
            ValueType::U64 => Value::U64(self.u64()?),
            ValueType::I64 => Value::I64(i64::from_le_bytes(self.array()?)),
            ValueType::F64 => Value::F64(f64::from_le_bytes(self.array()?)),
            ValueType::Array => Value::Array(self.value_array(&key)?),
        };
        Ok((key, value))
    }

    fn value_array(&mut self, key: &str) -> Result<Array, HeaderError> {
        let id = self.u32()?;
        let element = ValueType::from_id(id).ok_or_else(|| HeaderError::key(key, KeyFault::Type(id)))?;
        let len = self.u64()?;
        let mut bytes = Vec::new();
        match element {
            ValueType::Array => return Err(HeaderError::key(key, KeyFault::Nested)),
            ValueType::String => {
                // Each has at least its length.
                check_cap("bytes in an array", len.saturating_mul(8), MAX_VALUE_BYTES)?;
                for _ in 0..len {
                    let length = self.u64()?;
                    check_cap("bytes in an array", (bytes.len() as u64).saturating_add(length), MAX_VALUE_BYTES)?;
                    self.append_string(&mut bytes, length)?;
                }
                bytes.shrink_to_fit();
            }
            _ => {
                let width = element.width().unwrap_or(1) as u64;
                let total = len.saturating_mul(width);
                check_cap("bytes in an array", total, MAX_VALUE_BYTES)?;
                self.append(&mut bytes, total)?;
            }
        }
        Ok(Array::from_encoded(element, len as usize, bytes))
    }

    fn tensor(&mut self, alignment: u64) -> Result<TensorInfo, HeaderError> {
        let bytes = self.string("bytes in a tensor's name", MAX_NAME_BYTES)?;
        let name = String::from_utf8(bytes)
            .map_err(|error| HeaderError::tensor(&String::from_utf8_lossy(error.as_bytes()), TensorFault::Name))?;
        let fault = |why| HeaderError::tensor(&name, why);
        let n_dims = self.u32()?;
        if !(1..=4).contains(&n_dims) {
            return Err(fault(TensorFault::Dimensions(n_dims)));
        }
        let mut dims = [0u64; 4];
        let dims = &mut dims[..n_dims as usize];
        for dim in dims.iter_mut() {
            *dim = self.u64()?;
        }
        let id = self.u32()?;
        let ggml_type = GgmlType::from_id(id).ok_or_else(|| fault(TensorFault::Type(id)))?;
        let offset = self.u64()?;
        if !offset.is_multiple_of(alignment) {
            return Err(fault(TensorFault::Unaligned(offset)));
        }
        TensorInfo::new(&name, dims, ggml_type).map(|tensor| TensorInfo { offset, ..tensor })
    }
}
