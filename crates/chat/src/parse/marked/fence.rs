//! Code fences in which models wrap calls.

use crate::parse::marker::{self, Match};

/// What a code fence is made of.
pub(super) const FENCE: &str = "```";

/// What models write behind a fence that wraps a call. Any other word is text.
const LANGUAGES: [&str; 11] =
    ["", "json", "JSON", "jsonc", "json5", "javascript", "python", "text", "plaintext", "tool", "tool_call"];

/// Bytes at the end of `text` that open a fence: three backticks, perhaps a language, and blanks.
pub(super) fn before(text: &str) -> usize {
    ending(text, |word| LANGUAGES.contains(&word))
}

/// The same where the language may go on.
pub(super) fn begun_before(text: &str) -> usize {
    ending(text, |word| LANGUAGES.iter().any(|language| language.starts_with(word)))
}

fn ending(text: &str, is_language: impl Fn(&str) -> bool) -> usize {
    let Some(at) = text.rfind(FENCE) else { return 0 };
    if is_language(text[at + FENCE.len()..].trim_end()) { text.len() - at } else { 0 }
}

/// The length of a fence's opening at the beginning of `text`, language included; `Some(None)`: there is none; `None`:
/// not to be said yet.
pub(super) fn opening(text: &str) -> Option<Option<usize>> {
    match marker::starts(text, FENCE) {
        Match::No => Some(None),
        Match::Partial => None,
        Match::Yes(len) => {
            let word = text[len..].find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))?;
            Some(LANGUAGES.contains(&&text[len..len + word]).then_some(len + word))
        }
    }
}
