//! Where in a JSON value its text so far ends.

/// The end of a text, as the beginning of a JSON list or object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Within a string.
    InString,
    /// Between tokens, or behind the value; or no such value began.
    Outside,
    /// What came before can be part of no such value.
    Broken,
}

/// Where `text` ends. Knows strings and what may stand beside them, no more of the grammar.
pub(crate) fn place(text: &str) -> Place {
    let text = text.trim_start();
    if !text.starts_with(['[', '{']) {
        return Place::Outside;
    }
    let (mut in_string, mut escaped, mut open) = (false, false, 0_usize);
    // The last character outside of strings that is not blank; a quote is a string that ended.
    let mut before = ',';
    for c in text.chars() {
        match (in_string, c) {
            (true, _) if escaped => escaped = false,
            (true, '\\') => escaped = true,
            (true, '"') => (in_string, before) = (false, '"'),
            (true, _) => {}
            (false, ' ' | '\t' | '\r' | '\n') => {}
            // Behind the value.
            (false, _) if open == 0 && matches!(before, ']' | '}') => return Place::Broken,
            (false, '"') if matches!(before, '[' | '{' | ',' | ':') => in_string = true,
            (false, _) if before == '"' && !matches!(c, ',' | ':' | ']' | '}') => return Place::Broken,
            (false, '[' | '{') => (open, before) = (open + 1, c),
            (false, ']' | '}') => (open, before) = (open.saturating_sub(1), c),
            (false, ',' | ':' | '0'..='9' | 'a'..='z' | 'E' | '+' | '-' | '.') => before = c,
            (false, _) => return Place::Broken,
        }
    }
    if in_string { Place::InString } else { Place::Outside }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_told_from_what_is_between_them() {
        for text in ["[\"", "[\"a", " {\"a\": \"b\\\"", "[1, {\"k\": null}, \"x\\\\\", \"]\"\n, \"<", "{\"a\":true,\""]
        {
            assert_eq!(place(text), Place::InString, "{text}");
        }
        for text in ["", "text \"", "12", "[", "[1, 2", "{\"a\"", "[\"a\", ", "[\"a\"]", "\"a", "[[], {}]\n"] {
            assert_eq!(place(text), Place::Outside, "{text}");
        }
        for text in ["[\"a\" b", "[\"a\"\"", "[\"a\" <parameter name=\"b\"", "[1]]", "[] \"", "[<", "{\"a\": 'b"] {
            assert_eq!(place(text), Place::Broken, "{text}");
        }
    }
}
