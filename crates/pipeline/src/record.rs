//! How often expectations of one kind came true, lately.

/// Weight of what was known, at each expectation that came true or did not.
const MEMORY: f64 = 0.95;

/// Weighted counts, the latest with the most weight.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Record {
    came_true: f64,
    expected: f64,
}

impl Record {
    /// An expectation came true, or did not.
    pub(crate) fn note(&mut self, came_true: bool) {
        self.came_true = self.came_true * MEMORY + f64::from(u8::from(came_true));
        self.expected = self.expected * MEMORY + 1.0;
    }

    /// Nothing was expected: what was known grows old, until it is forgotten.
    pub(crate) fn fade(&mut self, weight: f64) {
        (self.came_true, self.expected) = (self.came_true * weight, self.expected * weight);
    }

    /// The share that comes true, where so many of so many are taken to be known at first.
    pub(crate) fn share(&self, (of_these, at_first): (f64, f64)) -> f64 {
        (self.came_true + of_these) / (self.expected + at_first)
    }
}
