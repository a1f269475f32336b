//! Texts, literals and numbers of JSON.

/// `text` as a JSON string.
pub(crate) fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    text.chars().for_each(|c| escape_into(c, &mut out));
    out.push('"');
    out
}

/// Adds `c` as it stands inside a JSON string.
pub(crate) fn escape_into(c: char, out: &mut String) {
    match c {
        '"' => out.push_str("\\\""),
        '\\' => out.push_str("\\\\"),
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        c if c < ' ' => out.push_str(&format!("\\u{:04x}", u32::from(c))),
        c => out.push(c),
    }
}

/// Python's literals as JSON's; other words as they are.
pub(super) fn python_word(word: &str) -> &str {
    match word {
        "True" => "true",
        "False" => "false",
        "None" => "null",
        other => other,
    }
}

/// Whether `word` is a number or a literal, JSON's or Python's, or the beginning of one.
pub(crate) fn may_be_scalar(word: &str) -> bool {
    let is_number = word.starts_with(|c: char| c == '-' || c.is_ascii_digit())
        && word.bytes().all(|b| b.is_ascii_digit() || b"+-.eE".contains(&b));
    is_number || ["true", "false", "null", "True", "False", "None"].iter().any(|literal| literal.starts_with(word))
}

pub(super) fn is_json_scalar(word: &str) -> bool {
    matches!(word, "true" | "false" | "null") || is_number(word)
}

/// Whether `word` is a number by JSON's grammar.
pub(crate) fn is_number(word: &str) -> bool {
    word.starts_with(|c: char| c == '-' || c.is_ascii_digit())
        && word.bytes().all(|b| b.is_ascii_digit() || b"+-.eE".contains(&b))
        && serde_json::from_str::<serde_json::Value>(word).is_ok()
}
