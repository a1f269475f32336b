//! `tojson` as Hugging Face defines it: Python's `json.dumps` with `ensure_ascii=False`, and no escaping for HTML.

use std::fmt::Write;

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

use super::number::{Literal, float};

/// Nesting at which a value is refused, well below what the stack bears.
const MAX_DEPTH: usize = 128;

/// `tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
pub(super) fn tojson(
    state: &State,
    value: &Value,
    ensure_ascii: Option<Value>,
    indent: Option<Value>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let indent = indent.or(kwargs.get("indent")?).filter(|indent| !indent.is_none());
    let separators: Option<Value> = kwargs.get("separators")?;
    let is_set = |value: Option<Value>| value.is_some_and(|value| value.is_true());
    let mut writer = Writer {
        state,
        out: String::new(),
        ensure_ascii: is_set(ensure_ascii.or(kwargs.get("ensure_ascii")?)),
        sort_keys: is_set(kwargs.get("sort_keys")?),
        indent: indent.as_ref().map(indentation).transpose()?,
        between: if indent.is_some() { "," } else { ", " }.to_owned(),
        after_key: ": ".to_owned(),
        paid: 0,
    };
    if let Some(separators) = separators.filter(|separators| !separators.is_none()) {
        writer.between = separators.get_item_by_index(0)?.to_string();
        writer.after_key = separators.get_item_by_index(1)?.to_string();
    }
    kwargs.assert_all_used()?;
    writer.value(value, 0)?;
    Ok(Value::from(writer.out))
}

/// One level: so many spaces, or the text given.
fn indentation(indent: &Value) -> Result<String, Error> {
    if let Some(text) = indent.as_str() {
        return Ok(text.to_owned());
    }
    let width = indent.as_i64().ok_or_else(|| refuse("the indent is no number"))?;
    match usize::try_from(width.max(0)) {
        Ok(width) if width <= 64 => Ok(" ".repeat(width)),
        _ => Err(refuse("the indent is too wide")),
    }
}

struct Writer<'a, 'env> {
    state: &'a State<'a, 'env>,
    out: String,
    ensure_ascii: bool,
    sort_keys: bool,
    indent: Option<String>,
    between: String,
    after_key: String,
    /// Bytes of `out` that fuel was paid for.
    paid: usize,
}

impl Writer<'_, '_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(refuse("the value is nested too deeply"));
        }
        // One for the value, and one per 64 bytes as everywhere.
        self.state.consume_fuel(1 + ((self.out.len() - self.paid) / 64) as u64)?;
        self.paid = self.out.len() - (self.out.len() - self.paid) % 64;
        if let Some(number) = value.downcast_object_ref::<Literal>() {
            self.out.push_str(&number.text);
            return Ok(());
        }
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number if value.is_integer() => write!(self.out, "{value}").map_err(|_| refuse("number"))?,
            ValueKind::Number => self.out.push_str(&float(f64::try_from(value.clone())?)),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq => self.list(value, depth)?,
            ValueKind::Map => self.dict(value, depth)?,
            kind => return Err(refuse(&format!("a value of kind {kind} is not JSON serializable"))),
        }
        Ok(())
    }

    fn list(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.out.push('[');
        let mut empty = true;
        for item in value.try_iter()?.checked() {
            self.begin(empty, depth + 1);
            empty = false;
            self.value(&item?, depth + 1)?;
        }
        self.end(']', empty, depth);
        Ok(())
    }

    fn dict(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        let pairs = value.as_object().and_then(|object| object.try_iter_pairs());
        let mut fields: Vec<(Value, Value)> = pairs.ok_or_else(|| refuse("a dict without fields"))?.collect();
        if self.sort_keys {
            fields.sort_by(|(a, _), (b, _)| a.cmp(b));
        }
        self.out.push('{');
        let mut empty = true;
        for (key, field) in fields {
            self.begin(empty, depth + 1);
            empty = false;
            match key.kind() {
                ValueKind::String => self.string(key.as_str().unwrap_or_default()),
                ValueKind::None => self.string("null"),
                ValueKind::Bool => self.string(if key.is_true() { "true" } else { "false" }),
                ValueKind::Number => self.string(&key.to_string()),
                _ => return Err(refuse("a key is neither text nor a number")),
            }
            self.out.push_str(&self.after_key);
            self.value(&field, depth + 1)?;
        }
        self.end('}', empty, depth);
        Ok(())
    }

    fn begin(&mut self, first: bool, depth: usize) {
        if !first {
            self.out.push_str(&self.between);
        }
        self.line(depth);
    }

    fn end(&mut self, bracket: char, empty: bool, depth: usize) {
        if !empty {
            self.line(depth);
        }
        self.out.push(bracket);
    }

    fn line(&mut self, depth: usize) {
        if let Some(indent) = &self.indent {
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(indent.as_str(), depth));
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        let mut done = 0;
        for (at, character) in text.char_indices() {
            let is_special = matches!(character, '"' | '\\' | '\0'..='\u{1f}');
            if !(is_special || self.ensure_ascii && character > '~') {
                continue;
            }
            self.out.push_str(&text[done..at]);
            done = at + character.len_utf8();
            match character {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                other => {
                    for unit in other.encode_utf16(&mut [0; 2]) {
                        self.out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
            }
        }
        self.out.push_str(&text[done..]);
        self.out.push('"');
    }
}

fn refuse(what: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("tojson: {what}"))
}
