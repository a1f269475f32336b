//! The ordered key-value part of a header, with typed getters.

use crate::error::{HeaderError, KeyFault};
use crate::value::{Array, Value};

/// Keys and values in the order of the file; no key twice.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metadata {
    entries: Vec<(Box<str>, Value)>,
    /// Indices of the entries, in the order of their keys.
    index: Vec<u32>,
}

impl Metadata {
    /// Number of keys.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All entries, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(key, value)| (&**key, value))
    }

    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<&Value> {
        let at = *self.index.get(self.find(key).ok()?)? as usize;
        self.entries.get(at).map(|(_, value)| value)
    }

    /// Appends `key`, or replaces its value in place; gives the old value back.
    pub fn set(&mut self, key: &str, value: Value) -> Option<Value> {
        match self.find(key) {
            Ok(found) => {
                let (_, old) = self.entries.get_mut(self.index[found] as usize)?;
                Some(std::mem::replace(old, value))
            }
            Err(place) => {
                self.index.insert(place, self.entries.len() as u32);
                self.entries.push((key.into(), value));
                None
            }
        }
    }

    /// Keeps the keys that `keep` wants.
    pub fn retain(&mut self, mut keep: impl FnMut(&str) -> bool) {
        self.entries.retain(|(key, _)| keep(key));
        self.index = (0..self.entries.len() as u32).collect();
        self.index.sort_unstable_by_key(|at| &*self.entries[*at as usize].0);
    }

    /// Where `key` stands in the index, or belongs.
    fn find(&self, key: &str) -> Result<usize, usize> {
        self.index.binary_search_by(|at| self.entries.get(*at as usize).map_or("", |(key, _)| key).cmp(key))
    }

    /// An unsigned integer, stored in any width; `None` where the key is absent.
    ///
    /// # Errors
    /// Where it holds something else, or a value beyond 32 bits.
    pub fn u32(&self, key: &str) -> Result<Option<u32>, HeaderError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let int = value.as_int().ok_or_else(|| wrong(key, "an unsigned integer", value))?;
        u32::try_from(int).map(Some).map_err(|_| HeaderError::key(key, KeyFault::Range { value: int }))
    }

    /// Like [`Self::u32`], for a key that has to be there.
    ///
    /// # Errors
    /// As [`Self::u32`], and where the key is absent.
    pub fn require_u32(&self, key: &str) -> Result<u32, HeaderError> {
        self.u32(key)?.ok_or_else(|| HeaderError::key(key, KeyFault::Missing))
    }

    /// A float of either width; `None` where the key is absent.
    ///
    /// # Errors
    /// Where it holds something else.
    pub fn f32(&self, key: &str) -> Result<Option<f32>, HeaderError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_float().map(|float| Some(float as f32)).ok_or_else(|| wrong(key, "a float", value))
    }

    /// Text; `None` where the key is absent.
    ///
    /// # Errors
    /// Where it holds something else, or is not UTF-8.
    pub fn str(&self, key: &str) -> Result<Option<&str>, HeaderError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| wrong(key, "text", value))
    }

    /// Like [`Self::str`], for a key that has to be there.
    ///
    /// # Errors
    /// As [`Self::str`], and where the key is absent.
    pub fn require_str(&self, key: &str) -> Result<&str, HeaderError> {
        self.str(key)?.ok_or_else(|| HeaderError::key(key, KeyFault::Missing))
    }

    /// An array; `None` where the key is absent.
    ///
    /// # Errors
    /// Where it holds something else.
    pub fn array(&self, key: &str) -> Result<Option<&Array>, HeaderError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(array)) => Ok(Some(array)),
            Some(value) => Err(wrong(key, "an array", value)),
        }
    }
}

fn wrong(key: &str, expected: &'static str, value: &Value) -> HeaderError {
    HeaderError::key(key, KeyFault::WrongType { expected, found: value.value_type().name() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn getters_check_types_and_ranges() {
        let mut metadata = Metadata::default();
        metadata.set("n", Value::U64(7));
        metadata.set("big", Value::U64(1 << 40));
        metadata.set("neg", Value::I32(-1));
        metadata.set("text", Value::from("hi"));
        metadata.set("bytes", Value::String(vec![0xff]));
        metadata.set("f", Value::F64(0.5));
        assert_eq!(metadata.u32("n"), Ok(Some(7)));
        assert_eq!(metadata.u32("absent"), Ok(None));
        assert!(metadata.require_u32("absent").unwrap_err().to_string().contains("`absent` is missing"));
        assert!(metadata.u32("big").is_err());
        assert!(metadata.u32("neg").is_err());
        assert!(metadata.u32("text").is_err());
        assert_eq!(metadata.str("text"), Ok(Some("hi")));
        assert!(metadata.str("bytes").is_err());
        assert_eq!(metadata.f32("f"), Ok(Some(0.5)));
        assert!(metadata.array("f").is_err());
    }

    #[test]
    fn set_keeps_the_place_of_a_key() {
        let mut metadata = Metadata::default();
        metadata.set("a", Value::U8(1));
        metadata.set("b", Value::U8(2));
        assert_eq!(metadata.set("a", Value::U8(3)), Some(Value::U8(1)));
        assert_eq!(metadata.iter().map(|(key, _)| key).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(metadata.get("a"), Some(&Value::U8(3)));
        metadata.set("0", Value::U8(4));
        metadata.retain(|key| key != "a");
        assert_eq!(metadata.iter().map(|(key, _)| key).collect::<Vec<_>>(), ["b", "0"]);
        assert_eq!(metadata.get("a"), None);
        assert_eq!([metadata.get("b"), metadata.get("0")], [Some(&Value::U8(2)), Some(&Value::U8(4))]);
    }
}
