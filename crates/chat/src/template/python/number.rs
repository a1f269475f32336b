//! Values from JSON as Python has them: integers of any size, and floats that print themselves in Python's words.
//!
//! minijinja's integers have 128 bits, and it prints a float outside a middle range with all its digits. Such numbers
//! become a [`Literal`]: a value that is nothing but its text, and is never calculated with.

use std::fmt;
use std::sync::Arc;

use minijinja::Value;
use minijinja::value::{Object, ObjectRepr};

use super::dict::dict;

/// A number as Python writes it.
pub(super) struct Literal {
    pub(super) text: String,
    pub(super) is_integer: bool,
}

impl fmt::Debug for Literal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Object for Literal {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn is_true(self: &Arc<Self>) -> bool {
        true
    }
}

/// Stands before an integer that a text of JSON holds as a string: a noncharacter.
const MARK: char = '\u{fdd0}';
/// Python reads no longer ones.
const MAX_DIGITS: usize = 4300;

/// The template's value of a text that is a JSON object.
pub(in crate::template) fn object(json: &str) -> Option<Value> {
    let marked = with_marks(json);
    let parsed: serde_json::Value = serde_json::from_str(marked.as_deref().unwrap_or(json)).ok()?;
    parsed.is_object().then(|| convert(&parsed, marked.is_some()))
}

/// The template's value of a JSON value.
pub(in crate::template) fn value(json: &serde_json::Value) -> Value {
    convert(json, false)
}

/// The text with all integers marked that `serde_json` would round; `None`: there is none.
fn with_marks(json: &str) -> Option<String> {
    if json.contains(MARK) || json.to_ascii_lowercase().contains("\\ufdd0") {
        return None;
    }
    let bytes = json.as_bytes();
    let (mut out, mut done, mut at) = (String::new(), 0, 0);
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => at = end_of_string(bytes, at),
            b'-' | b'0'..=b'9' => {
                let end =
                    bytes[at..].iter().position(|b| !b"+-.eE0123456789".contains(b)).map_or(bytes.len(), |n| at + n);
                if is_big(&json[at..end]) {
                    out.push_str(&json[done..at]);
                    out.push('"');
                    out.push(MARK);
                    out.push_str(&json[at..end]);
                    out.push('"');
                    done = end;
                }
                at = end;
            }
            _ => at += 1,
        }
    }
    out.push_str(&json[done..]);
    (done > 0).then_some(out)
}

fn end_of_string(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    bytes.len()
}

fn is_big(word: &str) -> bool {
    let digits = word.strip_prefix('-').unwrap_or(word);
    (19..=MAX_DIGITS).contains(&digits.len())
        && digits.bytes().all(|b| b.is_ascii_digit())
        && !digits.starts_with('0')
        && word.parse::<i64>().is_err()
        && word.parse::<u64>().is_err()
}

fn convert(json: &serde_json::Value, marked: bool) -> Value {
    match json {
        serde_json::Value::Null => Value::from(()),
        serde_json::Value::Bool(flag) => Value::from(*flag),
        serde_json::Value::Number(number) => of_number(number),
        serde_json::Value::String(text) => match text.strip_prefix(MARK).filter(|_| marked) {
            Some(digits) => Value::from_object(Literal { text: digits.to_owned(), is_integer: true }),
            None => Value::from(text.as_str()),
        },
        serde_json::Value::Array(items) => items.iter().map(|item| convert(item, marked)).collect(),
        serde_json::Value::Object(fields) => {
            dict(fields.iter().map(|(key, field)| (key.as_str(), convert(field, marked))))
        }
    }
}

fn of_number(number: &serde_json::Number) -> Value {
    if let Some(number) = number.as_i64() {
        return Value::from(number);
    }
    if let Some(number) = number.as_u64() {
        return Value::from(number);
    }
    let number = number.as_f64().unwrap_or(f64::NAN);
    match float(number) {
        text if text.contains('e') => Value::from_object(Literal { text, is_integer: false }),
        _ => Value::from(number),
    }
}

/// Python's `repr` of a float: the shortest digits that read back, an exponent outside 1e-4 .. 1e16.
pub(super) fn float(number: f64) -> String {
    if number.is_nan() {
        return "NaN".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>() {
        Ok(exponent) if number != 0.0 && !(-4..16).contains(&exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.abs())
        }
        _ => format!("{number:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_written_as_python_writes_them() {
        for (number, text) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (f64::NEG_INFINITY, "-Infinity"),
        ] {
            assert_eq!(float(number), text);
        }
    }

    #[test]
    fn integers_keep_all_their_digits() {
        let printed = |json: &str| {
            let json = format!("{{\"x\": {json}}}");
            object(&json).and_then(|object| object.get_attr("x").ok()).map(|value| value.to_string())
        };
        let text = "[123456789012345678901234567890, -99999999999999999999, 18446744073709551615, \
            -9223372036854775808, 1e-07, 2.5]";
        assert_eq!(printed(text).as_deref(), Some(text));
        let digits = "123456789012345678901234567890";
        assert_eq!(printed(&format!("\"{digits}\"")).as_deref(), Some(digits));
        assert_eq!(printed("[\"\\\"\", 99999999999999999999]").as_deref(), Some("['\"', 99999999999999999999]"));
        assert_eq!(printed("099999999999999999999"), None);
        assert_eq!(printed("[99999999999999999999"), None);
        assert_eq!(printed("\"\\uFDD0999\"").as_deref(), Some("\u{fdd0}999"));
    }
}
