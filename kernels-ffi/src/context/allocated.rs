//! What llama.cpp allocated for a context, as its own log says.

use crate::log::BufferSize;

/// Bytes that a context takes, over all devices, to about a hundredth of a MiB. Weights are the model's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allocated {
    /// Cached keys and values, those of selections included.
    pub cache: u64,
    /// Running states of recurrent layers.
    pub state: u64,
    /// What the largest graph needs while it is computed.
    pub compute: u64,
    /// Logits on their way out. Grows when more rows than sequences are asked for.
    pub output: u64,
}

impl Allocated {
    pub(super) fn of(sizes: &[BufferSize]) -> Self {
        let mut sum = Self::default();
        for BufferSize { what, bytes } in sizes {
            match what.rsplit(' ').next() {
                Some("KV") => sum.cache += bytes,
                Some("RS" | "state") => sum.state += bytes,
                Some("compute") => sum.compute += bytes,
                Some("output") => sum.output += bytes,
                _ => {}
            }
        }
        sum
    }

    /// All of it.
    pub fn total(&self) -> u64 {
        self.cache + self.state + self.compute + self.output
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_told_apart() {
        let size = |what: &str, bytes| BufferSize { what: what.to_owned(), bytes };
        let sizes = [size("CPU KV", 1), size("CPU KV", 2), size("CPU RS", 4), size("Vulkan0 compute", 8)];
        let all =
            [sizes.as_slice(), &[size("CPU compute", 16), size("CPU  output", 32), size("CPU model", 64)]].concat();
        assert_eq!(Allocated::of(&all), Allocated { cache: 3, state: 4, compute: 24, output: 32 });
        assert_eq!(Allocated::of(&all).total(), 63);
    }
}
