//! A text with the places at which it holds special tokens, as bytes that can be compared.

use std::ops::Range;

use mesh_types::TokenId;

use crate::prompt::{Fragment, SpecialTokens};

/// Before and behind a special token; neither byte is in any UTF-8 text.
const OPEN: u8 = 0xff;
const CLOSE: u8 = 0xfe;
/// Not in any UTF-8 text either.
const NO_TEXT: u8 = 0xfd;

/// A rendered prompt.
#[derive(Clone, Debug)]
pub struct Layout {
    /// The text, each special token between two marks.
    pub(super) key: Vec<u8>,
    /// Of each fragment: where it begins in `key`, and whether special tokens are looked for in it.
    starts: Vec<(usize, bool)>,
}

impl Layout {
    /// The layout of a prompt of these fragments.
    pub fn new(fragments: &[Fragment], special: &SpecialTokens) -> Self {
        let mut layout = Self { key: Vec::new(), starts: Vec::new() };
        for fragment in fragments {
            layout.starts.push((layout.key.len(), fragment.parse_special));
            let text = fragment.text.as_str();
            let mut done = 0;
            if fragment.parse_special {
                for range in special.find(text) {
                    layout.key.extend_from_slice(&text.as_bytes()[done..range.start]);
                    mark(&mut layout.key, &text.as_bytes()[range.clone()]);
                    done = range.end;
                }
            }
            layout.key.extend_from_slice(&text.as_bytes()[done..]);
        }
        layout
    }

    /// All of the text.
    pub fn whole_text(&self) -> String {
        self.text(0..self.key.len())
    }

    /// Whether a text may be cut here without another tokenisation of the rest: at a special token, or at the end.
    pub(super) fn is_edge(&self, at: usize) -> bool {
        at == self.key.len() || self.key[at] == OPEN || (at > 0 && self.key[at - 1] == CLOSE)
    }

    /// Special tokens behind `at`, marks included.
    pub(super) fn specials(&self, at: usize) -> impl Iterator<Item = Range<usize>> {
        let open = (at..self.key.len()).filter(|index| self.key[*index] == OPEN);
        open.filter_map(|start| {
            let len = self.key[start..].iter().position(|byte| *byte == CLOSE)?;
            Some(start..start + len + 1)
        })
    }

    /// The text of a part of `key`; where that cuts a character, without it.
    pub(super) fn text(&self, range: Range<usize>) -> String {
        let bytes: Vec<u8> = self.key[range].iter().copied().filter(|byte| !is_mark(*byte)).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// A part of the prompt, as fragments.
    pub(super) fn fragments(&self, range: Range<usize>) -> impl Iterator<Item = Fragment> {
        let ends = self.starts.iter().skip(1).map(|(start, _)| *start).chain([self.key.len()]);
        self.starts.iter().zip(ends).filter_map(move |((start, parse_special), end)| {
            let part = (*start).max(range.start)..end.min(range.end);
            let text = if part.is_empty() { String::new() } else { self.text(part) };
            (!text.is_empty()).then_some(Fragment { text, parse_special: *parse_special })
        })
    }
}

/// What a model said: its tokens, and their text with special tokens marked.
#[derive(Clone, Debug, Default)]
pub struct Said {
    pub(super) tokens: Vec<TokenId>,
    pub(super) key: Vec<u8>,
    /// Where the last token begins, if it is a special one.
    pub(super) last: Option<usize>,
}

impl Said {
    /// Adds a token with its bytes, those of a special token included.
    pub fn push(&mut self, token: TokenId, bytes: &[u8], is_special: bool) {
        self.tokens.push(token);
        self.last = is_special.then_some(self.key.len());
        if is_special {
            mark(&mut self.key, bytes);
        } else {
            // A model can say any byte. These are marks here; and no text that is rendered holds them.
            self.key.extend(bytes.iter().map(|byte| if is_mark(*byte) { NO_TEXT } else { *byte }));
        }
    }
}

fn is_mark(byte: u8) -> bool {
    byte == OPEN || byte == CLOSE
}

fn mark(key: &mut Vec<u8>, special: &[u8]) {
    key.push(OPEN);
    key.extend_from_slice(special);
    key.push(CLOSE);
}
