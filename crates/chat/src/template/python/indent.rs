//! The filter `indent`, with Jinja2's own way with a last newline.

use minijinja::value::Kwargs;
use minijinja::{Error, ErrorKind, State, Value};

/// `indent(width=4, first=False, blank=False)`; the last by name only.
pub(super) fn indent(
    state: &State,
    value: &str,
    width: Option<Value>,
    first: Option<bool>,
    named: Kwargs,
) -> Result<Value, Error> {
    let width = width.or(named.get("width")?);
    let first = first.or(named.get("first")?).unwrap_or(false);
    let blank = named.get::<Option<bool>>("blank")?.unwrap_or(false);
    named.assert_all_used()?;
    let indentation = match width {
        None => "    ".to_owned(),
        Some(width) => match (width.as_str(), width.as_usize()) {
            (Some(text), _) => text.to_owned(),
            (None, Some(width @ 0..=1024)) => " ".repeat(width),
            _ => return Err(Error::new(ErrorKind::InvalidOperation, "indent: the width is no number, or too wide")),
        },
    };
    let text = format!("{value}\n");
    let lines = lines(&text);
    state.consume_fuel(((value.len() + lines.len() * indentation.len()) / 64) as u64)?;
    let mut out = if first { indentation.clone() } else { String::new() };
    for (index, line) in lines.iter().enumerate() {
        if index > 0 {
            out.push('\n');
            if blank || !line.is_empty() {
                out.push_str(&indentation);
            }
        }
        out.push_str(line);
    }
    Ok(Value::from(out))
}

/// Python's `splitlines`.
fn lines(text: &str) -> Vec<&str> {
    let is_end = |c: char| {
        matches!(c, '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}')
    };
    let mut lines = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(is_end) {
        let (line, end) = rest.split_at(at);
        lines.push(line);
        let len = if end.starts_with("\r\n") { 2 } else { end.chars().next().map_or(1, char::len_utf8) };
        rest = &end[len..];
    }
    if !rest.is_empty() {
        lines.push(rest);
    }
    lines
}
