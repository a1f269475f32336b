//! Stop strings over a stream of text.
//!
//! The text ends just before the stop string that is complete first; of several that are complete at the same
//! character, the longest counts. So the result does not depend on how the text is cut into pieces, and nothing is
//! generated only to see whether a longer match would have come.

use std::mem;

/// Watches one answer for its stop strings.
#[derive(Clone, Debug)]
pub struct StopScanner {
    stops: Vec<Matcher>,
    /// The end of the text so far that is the beginning of a stop string; not yet given out.
    held: String,
    stopped: bool,
    /// The stop string that ended the answer.
    found: Option<String>,
}

/// What comes of one piece of text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stopped {
    /// Text that is certainly part of the answer.
    pub text: String,
    /// A stop string is complete: the answer ends after `text`.
    pub stopped: bool,
}

impl StopScanner {
    /// Watches for `stops`. Empty ones are passed over.
    pub fn new<S: AsRef<str>>(stops: impl IntoIterator<Item = S>) -> Self {
        let stops = stops.into_iter().filter(|stop| !stop.as_ref().is_empty());
        Self {
            stops: stops.map(|stop| Matcher::new(stop.as_ref())).collect(),
            held: String::new(),
            stopped: false,
            found: None,
        }
    }

    /// Takes the next text and gives what can no longer be part of a stop string. After a stop: nothing.
    pub fn push(&mut self, text: &str) -> Stopped {
        if self.stopped {
            return Stopped { text: String::new(), stopped: true };
        }
        let before = self.held.len();
        self.held.push_str(text);
        for (index, byte) in text.bytes().enumerate() {
            let complete = self.stops.iter_mut().filter_map(|stop| stop.step(byte)).max();
            if let Some(len) = complete {
                self.stopped = true;
                self.found = self.held.get(before + index + 1 - len..before + index + 1).map(str::to_owned);
                self.held.truncate(before + index + 1 - len);
                return Stopped { text: mem::take(&mut self.held), stopped: true };
            }
        }
        let hold = self.stops.iter().map(|stop| stop.matched).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - hold);
        Stopped { text: mem::replace(&mut self.held, rest), stopped: false }
    }

    /// The stop string that ended the answer, once one did.
    pub fn matched(&self) -> Option<&str> {
        self.found.as_deref()
    }

    /// Ends the answer: what was held back is text after all.
    pub fn finish(&mut self) -> String {
        self.stops.iter_mut().for_each(|stop| stop.matched = 0);
        mem::take(&mut self.held)
    }
}

/// Knuth-Morris-Pratt automaton of one stop string.
#[derive(Clone, Debug)]
struct Matcher {
    stop: Vec<u8>,
    /// `fallback[i]`: length of the longest proper prefix of `stop` that ends `stop[..=i]`.
    fallback: Vec<usize>,
    /// How much of `stop` the text ends with; less than its length.
    matched: usize,
}

impl Matcher {
    fn new(stop: &str) -> Self {
        let stop = stop.as_bytes().to_vec();
        let mut fallback = vec![0; stop.len()];
        let mut matched = 0;
        for i in 1..stop.len() {
            while matched > 0 && stop[matched] != stop[i] {
                matched = fallback[matched - 1];
            }
            matched += usize::from(stop[matched] == stop[i]);
            fallback[i] = matched;
        }
        Self { stop, fallback, matched: 0 }
    }

    /// Takes one byte; gives the stop string's length when it is complete.
    fn step(&mut self, byte: u8) -> Option<usize> {
        while self.matched > 0 && self.stop[self.matched] != byte {
            self.matched = self.fallback[self.matched - 1];
        }
        self.matched += usize::from(self.stop[self.matched] == byte);
        if self.matched < self.stop.len() {
            return None;
        }
        self.matched = 0;
        Some(self.stop.len())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text(text: &str) -> Stopped {
        Stopped { text: text.to_owned(), stopped: false }
    }

    fn stop(text: &str) -> Stopped {
        Stopped { text: text.to_owned(), stopped: true }
    }

    #[test]
    fn only_a_possible_beginning_is_held_back() {
        let mut scanner = StopScanner::new(["\n\nUser:"]);
        assert_eq!(scanner.push("Hello\n"), text("Hello"));
        assert_eq!(scanner.push("world\n\nUs"), text("\nworld"));
        assert_eq!(scanner.push("ain"), text("\n\nUsain"));
        assert_eq!(scanner.push(" Bolt\n\nUser"), text(" Bolt"));
        assert_eq!(scanner.push(": and so on"), stop(""));
        assert_eq!(scanner.push("more"), stop(""));
        assert_eq!(scanner.finish(), "");
    }

    #[test]
    fn the_end_gives_back_what_was_held() {
        let mut scanner = StopScanner::new(["END"]);
        assert_eq!(scanner.push("the EN"), text("the "));
        assert_eq!(scanner.finish(), "EN");
    }

    #[test]
    fn the_first_complete_one_counts_and_of_those_the_longest() {
        assert_eq!(StopScanner::new(["abc", "b"]).push("xabc"), stop("xa"));
        assert_eq!(StopScanner::new(["b", "ab"]).push("xabc"), stop("x"));
    }

    #[test]
    fn a_beginning_within_a_beginning_is_found() {
        let mut scanner = StopScanner::new(["aab"]);
        assert_eq!(scanner.push("aaa"), text("a"));
        assert_eq!(scanner.push("b"), stop(""));
    }

    #[test]
    fn characters_are_never_cut() {
        let mut scanner = StopScanner::new(["é!", "日本"]);
        assert_eq!(scanner.push("日é"), text("日"));
        assert_eq!(scanner.push("è日"), text("éè"));
        assert_eq!(scanner.push("本"), stop(""));
    }

    #[test]
    fn without_stop_strings_all_goes_through() {
        let mut scanner = StopScanner::new([""]);
        assert_eq!(scanner.push("anything"), text("anything"));
    }

    /// The same by its definition: the shortest beginning of the text that ends with a stop string decides.
    fn by_definition(stops: &[String], text: &str) -> Stopped {
        let ends = text.char_indices().map(|(at, c)| &text[..at + c.len_utf8()]);
        for beginning in ends {
            let longest =
                stops.iter().filter(|s| !s.is_empty() && beginning.ends_with(s.as_str())).map(String::len).max();
            if let Some(len) = longest {
                return stop(&beginning[..beginning.len() - len]);
            }
        }
        Stopped { text: text.to_owned(), stopped: false }
    }

    proptest! {
        #[test]
        fn the_cut_into_pieces_does_not_matter(
            stops in prop::collection::vec("[abé]{0,4}", 0..4),
            pieces in prop::collection::vec("[abcé]{0,5}", 0..8),
        ) {
            let mut scanner = StopScanner::new(&stops);
            let mut result = Stopped::default();
            let mut seen = String::new();
            for piece in &pieces {
                let step = scanner.push(piece);
                result.text.push_str(&step.text);
                seen.push_str(piece);
                result.stopped = step.stopped;
                if !step.stopped {
                    let held = &seen[result.text.len()..];
                    prop_assert!(held.is_empty() || stops.iter().any(|s| s.starts_with(held)), "held back {held:?}");
                }
            }
            result.text.push_str(&scanner.finish());
            prop_assert_eq!(result, by_definition(&stops, &pieces.concat()));
        }
    }
}
