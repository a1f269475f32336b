//! Contiguous ranges of a model's layers.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Layers `start..end` of a model (half-open, zero-based, never empty). People write and read it inclusively: `0-9`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "Ends")]
pub struct LayerRange {
    start: u32,
    end: u32,
}

/// What a [`LayerRange`] is read from: never trusted to be one.
#[derive(Deserialize)]
struct Ends {
    start: u32,
    end: u32,
}

impl TryFrom<Ends> for LayerRange {
    type Error = &'static str;

    fn try_from(ends: Ends) -> Result<Self, Self::Error> {
        Self::new(ends.start, ends.end).ok_or("an empty layer range")
    }
}

impl LayerRange {
    /// `start..end`, or `None` where that is empty.
    pub fn new(start: u32, end: u32) -> Option<Self> {
        (start < end).then_some(Self { start, end })
    }

    /// The first layer.
    pub fn start(self) -> u32 {
        self.start
    }

    /// One past the last layer.
    pub fn end(self) -> u32 {
        self.end
    }

    /// How many layers; at least one.
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(self) -> u32 {
        self.end - self.start
    }

    /// Whether `layer` lies in this range.
    pub fn contains(self, layer: u32) -> bool {
        (self.start..self.end).contains(&layer)
    }
}

impl fmt::Display for LayerRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.start, self.end - 1)
    }
}

/// The text is no layer range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no layer range: write the first and the last layer, as in 0-9")]
pub struct LayerRangeError(String);

impl FromStr for LayerRange {
    type Err = LayerRangeError;

    fn from_str(text: &str) -> Result<Self, LayerRangeError> {
        let bad = || LayerRangeError(text.to_owned());
        let (first, last) = text.trim().split_once('-').ok_or_else(bad)?;
        let first: u32 = first.trim().parse().map_err(|_| bad())?;
        let last: u32 = last.trim().parse().map_err(|_| bad())?;
        last.checked_add(1).and_then(|end| Self::new(first, end)).ok_or_else(bad)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_written_inclusively() {
        let range: LayerRange = "10-19".parse().unwrap();
        assert_eq!((range.start(), range.end(), range.len()), (10, 20, 10));
        assert_eq!(range.to_string(), "10-19");
        for bad in ["", "5", "9-3", "a-b", "0-4294967295", "-1-3"] {
            assert!(bad.parse::<LayerRange>().is_err(), "{bad}");
        }
    }
}
