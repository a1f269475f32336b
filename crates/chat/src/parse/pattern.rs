//! Texts with places in it, such as `<function=NAME>`, at the beginning of a stream.

use crate::format::{Part, Pattern};
use crate::parse::marker::{self, Match, blank};

/// Longest name or id, in bytes.
const MAX_SLOT: usize = 256;

/// What stood in a pattern's places.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Slots {
    pub(crate) name: String,
    pub(crate) key: String,
    pub(crate) id: String,
    pub(crate) is_string: Option<bool>,
}

/// How a text compares with a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// It begins with it; so many bytes.
    Yes(usize, Slots),
    /// It ends before that is decided.
    Partial,
    /// It does not.
    No,
}

/// Whether `text` begins with one of `patterns`: the one that is complete first.
pub(crate) fn any(patterns: &[Pattern], text: &str) -> Found {
    let mut result = Found::No;
    for pattern in patterns {
        result = match (one(pattern, text), result) {
            (Found::Yes(len, slots), Found::Yes(best, _)) if len < best => Found::Yes(len, slots),
            (_, Found::Yes(len, slots)) => Found::Yes(len, slots),
            (Found::Yes(len, slots), _) => Found::Yes(len, slots),
            (Found::Partial, _) | (_, Found::Partial) => Found::Partial,
            (Found::No, Found::No) => Found::No,
        };
    }
    result
}

fn one(pattern: Pattern, text: &str) -> Found {
    let mut slots = Slots::default();
    let mut at = 0;
    for (index, part) in pattern.iter().enumerate() {
        let taken = match *part {
            Part::Text(literal) => {
                if !literal.starts_with(' ') {
                    at += blank(&text[at..]);
                }
                marker::starts(&text[at..], literal)
            }
            Part::Name | Part::Any | Part::Kind(..) => {
                at += blank(&text[at..]);
                word(&text[at..], *part)
            }
            Part::Key => up_to(&text[at..], pattern.get(index + 1)),
            Part::Id => match up_to(&text[at..], pattern.get(index + 1)) {
                // Another marker opens something of its own.
                Match::Yes(len) if text[at..at + len].contains(['<', '[']) => Match::No,
                found => found,
            },
        };
        let slot = match taken {
            Match::Yes(len) => &text[at..at + len],
            Match::Partial => return Found::Partial,
            Match::No => return Found::No,
        };
        at += slot.len();
        match part {
            Part::Name => slots.name = slot.to_owned(),
            Part::Key => slots.key = slot.trim().to_owned(),
            Part::Id => slots.id = slot.trim().to_owned(),
            Part::Kind(string, _) => slots.is_string = Some(slot == *string),
            Part::Text(_) | Part::Any => {}
        }
    }
    Found::Yes(at, slots)
}

/// The key in `text`, which ends before it is decided whether one of `patterns` begins it, and whether all of the key is
/// there. `None`: nothing of it is.
pub(crate) fn key<'a>(patterns: &[Pattern], text: &'a str) -> Option<(&'a str, bool)> {
    patterns.iter().find_map(|pattern| {
        let before = pattern.iter().position(|part| *part == Part::Key)?;
        let Found::Yes(at, _) = one(&pattern[..before], text) else { return None };
        let (rest, next) = (&text[at..], pattern.get(before + 1));
        let key = match (up_to(rest, next), next) {
            (Match::Yes(len), _) => (rest[..len].trim(), true),
            (Match::Partial, Some(Part::Text(end))) => (rest[..rest.len() - marker::held(rest, [*end])].trim(), false),
            _ => return None,
        };
        (!key.0.is_empty()).then_some(key)
    })
}

/// A word that has ended.
fn word(text: &str, part: Part) -> Match {
    let belongs = |c: char| c.is_alphanumeric() || (part == Part::Name && "_-./".contains(c));
    let len = text.find(|c: char| !belongs(c)).unwrap_or(text.len());
    match len {
        _ if len > MAX_SLOT => Match::No,
        _ if len == text.len() => Match::Partial,
        0 => Match::No,
        _ => Match::Yes(len),
    }
}

/// All before the text that comes next.
fn up_to(text: &str, next: Option<&Part>) -> Match {
    let Some(Part::Text(literal)) = next else { return Match::No };
    match text.find(literal) {
        Some(at) if (1..=MAX_SLOT).contains(&at) && !text[..at].contains('\n') => Match::Yes(at),
        None if text.len() <= MAX_SLOT && !text.contains('\n') => Match::Partial,
        _ => Match::No,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADS: &[Pattern] =
        &[&[Part::Name, Part::Text("[A]")], &[Part::Name, Part::Text("[ID]"), Part::Id, Part::Text("[A]")]];

    #[test]
    fn places_are_filled_when_the_whole_pattern_is_there() {
        assert_eq!(any(HEADS, "get_it"), Found::Partial);
        assert_eq!(any(HEADS, "get_it["), Found::Partial);
        let slots = |id: &str| Slots { name: "get_it".to_owned(), id: id.to_owned(), ..Slots::default() };
        assert_eq!(any(HEADS, "get_it[A]{"), Found::Yes(9, slots("")));
        assert_eq!(any(HEADS, "\n get_it[ID]x:1[A]{}[A]"), Found::Yes(18, slots("x:1")));
        assert_eq!(any(HEADS, "get_it{"), Found::No);
        assert_eq!(any(HEADS, "{"), Found::No);
        assert_eq!(any(HEADS, &"x".repeat(300)), Found::No);
    }
}
