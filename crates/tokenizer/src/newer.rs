//! Characters that Unicode 16 added. The patterns know them as letters, digits and so on; llama.cpp's tables are of
//! Unicode 15.1, and it cuts beside them as beside any character that does not exist.
//!
//! The tests compare every character (`tests/ids/names.rs`): a newer table on either side shows there.

const ADDED: [(char, char); 47] = [
    ('\u{897}', '\u{897}'),
    ('\u{1b4e}', '\u{1b4f}'),
    ('\u{1b7f}', '\u{1b7f}'),
    ('\u{1c89}', '\u{1c8a}'),
    ('\u{2427}', '\u{2429}'),
    ('\u{31e4}', '\u{31e5}'),
    ('\u{a7cb}', '\u{a7cd}'),
    ('\u{a7da}', '\u{a7dc}'),
    ('\u{105c0}', '\u{105f3}'),
    ('\u{10d40}', '\u{10d65}'),
    ('\u{10d69}', '\u{10d85}'),
    ('\u{10d8e}', '\u{10d8f}'),
    ('\u{10ec2}', '\u{10ec4}'),
    ('\u{10efc}', '\u{10efc}'),
    ('\u{11380}', '\u{11389}'),
    ('\u{1138b}', '\u{1138b}'),
    ('\u{1138e}', '\u{1138e}'),
    ('\u{11390}', '\u{113b5}'),
    ('\u{113b7}', '\u{113c0}'),
    ('\u{113c2}', '\u{113c2}'),
    ('\u{113c5}', '\u{113c5}'),
    ('\u{113c7}', '\u{113ca}'),
    ('\u{113cc}', '\u{113d5}'),
    ('\u{113d7}', '\u{113d8}'),
    ('\u{113e1}', '\u{113e2}'),
    ('\u{116d0}', '\u{116e3}'),
    ('\u{11bc0}', '\u{11be1}'),
    ('\u{11bf0}', '\u{11bf9}'),
    ('\u{11f5a}', '\u{11f5a}'),
    ('\u{13460}', '\u{143fa}'),
    ('\u{16100}', '\u{16139}'),
    ('\u{16d40}', '\u{16d79}'),
    ('\u{18cff}', '\u{18cff}'),
    ('\u{1cc00}', '\u{1ccf9}'),
    ('\u{1cd00}', '\u{1ceb3}'),
    ('\u{1e5d0}', '\u{1e5fa}'),
    ('\u{1e5ff}', '\u{1e5ff}'),
    ('\u{1f8b2}', '\u{1f8bb}'),
    ('\u{1f8c0}', '\u{1f8c1}'),
    ('\u{1fa89}', '\u{1fa89}'),
    ('\u{1fa8f}', '\u{1fa8f}'),
    ('\u{1fabe}', '\u{1fabe}'),
    ('\u{1fac6}', '\u{1fac6}'),
    ('\u{1fadc}', '\u{1fadc}'),
    ('\u{1fadf}', '\u{1fadf}'),
    ('\u{1fae9}', '\u{1fae9}'),
    ('\u{1fbcb}', '\u{1fbef}'),
];

/// Whether `text` holds a character that the two would take for different things.
pub(crate) fn any(text: &str) -> bool {
    text.chars().any(|char| char >= ADDED[0].0 && is_newer(char))
}

fn is_newer(char: char) -> bool {
    let before = ADDED.partition_point(|(first, _)| *first <= char);
    before > 0 && char <= ADDED[before - 1].1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_order() {
        assert!(ADDED.is_sorted() && ADDED.iter().all(|(first, last)| first <= last));
        assert!(any("a\u{13460}") && any("\u{897}") && any("\u{1fbef}"));
        assert!(!any("aé中😀\u{898}\u{10ffff}\u{1fbf0}"));
    }
}
