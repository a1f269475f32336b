//! Fixed texts in a stream: where one begins, and whether the end of what is there could still become one.

/// How a text compares with what was looked for at its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Match {
    /// It begins with it; so many bytes.
    Yes(usize),
    /// It ends before that is decided.
    Partial,
    /// It does not.
    No,
}

/// Whether `text` begins with `marker`.
pub(crate) fn starts(text: &str, marker: &str) -> Match {
    if text.starts_with(marker) {
        Match::Yes(marker.len())
    } else if marker.starts_with(text) {
        Match::Partial
    } else {
        Match::No
    }
}

/// Whether `text` begins with one of `markers`, none of which begins another.
pub(crate) fn starts_any<'m>(text: &str, markers: impl IntoIterator<Item = &'m str>) -> Match {
    let mut result = Match::No;
    for marker in markers {
        match starts(text, marker) {
            Match::Yes(len) => return Match::Yes(len),
            Match::Partial => result = Match::Partial,
            Match::No => {}
        }
    }
    result
}

/// The first of `markers` in `text`, the longest of those that begin there: its place and itself.
pub(crate) fn find<'m>(text: &str, markers: impl IntoIterator<Item = &'m str>) -> Option<(usize, &'m str)> {
    let found = markers.into_iter().filter_map(|marker| text.find(marker).map(|at| (at, marker)));
    found.min_by_key(|(at, marker)| (*at, usize::MAX - marker.len()))
}

/// Bytes at the end of `text` that are the beginning of one of `markers`, and not all of it.
pub(crate) fn held<'m>(text: &str, markers: impl IntoIterator<Item = &'m str>) -> usize {
    let longest = |marker: &'m str| {
        let most = marker.len().saturating_sub(1).min(text.len());
        (1..=most).rev().find(|&len| marker.is_char_boundary(len) && text.ends_with(&marker[..len])).unwrap_or(0)
    };
    markers.into_iter().map(longest).max().unwrap_or(0)
}

/// Bytes of whitespace at the beginning of `text`.
pub(crate) fn blank(text: &str) -> usize {
    text.len() - text.trim_start().len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_beginning_of_a_marker_is_held() {
        assert_eq!(held("abc<to", ["<tool>", "</tool>"]), 3);
        assert_eq!(held("abc<tool>", ["<tool>"]), 0);
        assert_eq!(held("<<", ["<|x"]), 1);
        assert_eq!(held("<\u{ff5c}", ["<\u{ff5c}x"]), 4);
    }

    #[test]
    fn a_beginning_is_decided_as_soon_as_it_can_be() {
        assert_eq!(starts("<to", "<tool>"), Match::Partial);
        assert_eq!(starts("<ta", "<tool>"), Match::No);
        assert_eq!(starts_any("[B]x", ["[A]", "[B]"]), Match::Yes(3));
        assert_eq!(find("x[B][A]", ["[A]", "[B]"]), Some((1, "[B]")));
    }
}
