//! Bytes of token pieces to text.
//!
//! A token's piece may end in the middle of a UTF-8 character. The [`Detokenizer`] holds such a beginning back until
//! the character is whole, or can no longer become one.

/// Turns the pieces of one answer into text.
///
/// The text of all pieces together, the flush included, equals `String::from_utf8_lossy` of all bytes.
#[derive(Clone, Debug, Default)]
pub struct Detokenizer {
    /// The beginning of one character; at most three bytes.
    partial: Vec<u8>,
}

impl Detokenizer {
    /// Nothing held back.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next piece and gives the characters that are whole with it.
    ///
    /// Bytes that can no longer become a character come out as U+FFFD, one for each maximal subpart (Unicode 15,
    /// section 3.9).
    pub fn push(&mut self, piece: &[u8]) -> String {
        self.partial.extend_from_slice(piece);
        let mut text = String::with_capacity(self.partial.len());
        let mut rest = self.partial.as_slice();
        let held = loop {
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    break 0;
                }
                Err(error) => {
                    let (valid, after) = rest.split_at(error.valid_up_to());
                    text.push_str(&String::from_utf8_lossy(valid));
                    let Some(bad) = error.error_len() else { break after.len() };
                    text.push(char::REPLACEMENT_CHARACTER);
                    rest = &after[bad..];
                }
            }
        };
        self.partial.drain(..self.partial.len() - held);
        text
    }

    /// Ends the answer: a character that was begun and never completed is U+FFFD.
    pub fn flush(&mut self) -> String {
        let text = String::from_utf8_lossy(&self.partial).into_owned();
        self.partial.clear();
        text
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_character_comes_when_it_is_whole() {
        let mut detokenizer = Detokenizer::new();
        assert_eq!(detokenizer.push(b"a\xf0\x9f"), "a");
        assert_eq!(detokenizer.push(b"\xa6"), "");
        assert_eq!(detokenizer.push(b"\x80b"), "\u{1f980}b");
        assert_eq!(detokenizer.flush(), "");
    }

    #[test]
    fn bytes_that_cannot_become_a_character_are_replaced_at_once() {
        let mut detokenizer = Detokenizer::new();
        assert_eq!(detokenizer.push(b"\xff"), "\u{fffd}");
        assert_eq!(detokenizer.push(b"\xe2\x82"), "");
        assert_eq!(detokenizer.push(b"x"), "\u{fffd}x");
        assert_eq!(detokenizer.push(b"\xe2\x82"), "");
        assert_eq!(detokenizer.flush(), "\u{fffd}");
        assert_eq!(detokenizer.flush(), "");
    }

    proptest! {
        #[test]
        fn pieces_add_up_to_the_lossy_text(pieces in prop::collection::vec(piece(), 0..12)) {
            let mut detokenizer = Detokenizer::new();
            let mut text = String::new();
            for piece in &pieces {
                text.push_str(&detokenizer.push(piece));
                prop_assert!(detokenizer.partial.len() <= 3);
            }
            text.push_str(&detokenizer.flush());
            let all = pieces.concat();
            prop_assert_eq!(text, String::from_utf8_lossy(&all).into_owned());
        }
    }

    /// Bytes that often are parts of long characters.
    fn piece() -> impl Strategy<Value = Vec<u8>> {
        let byte = prop_oneof![
            Just(b'a'),
            Just(0xf0u8),
            Just(0x9f),
            Just(0xa6),
            Just(0x80),
            Just(0xe2),
            Just(0x82),
            Just(0xc3),
            any::<u8>(),
        ];
        prop::collection::vec(byte, 0..4)
    }
}
