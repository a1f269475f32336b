//! Every field of every request that is known, and what is done with it: the one place to change when a field becomes
//! supported. The tables drive the reading of requests, `docs/parameters.md` and `/openapi.json`.
//!
//! A field that would change the answer is honoured or refused by name. One that would not is accepted, and named in
//! the `x-mesh-ignored` header, as is one that nobody here knows.

mod chat;
mod completions;
mod messages;
mod responses;
mod shared;
mod tokens;

use mesh_types::Fault;
use serde_json::{Map, Value};

use crate::ignored::Ignored;
use crate::json::{UNSUPPORTED, describe, invalid};

pub use shared::TABLES;
pub(crate) use {chat::*, completions::*, messages::*, responses::*, tokens::*};

/// The fields of one object of a request.
#[derive(Debug)]
pub struct Table {
    /// The request, as in `POST /v1/chat/completions`.
    pub request: &'static str,
    /// The object, as in `messages[]`; empty: the request itself.
    pub place: &'static str,
    /// Its fields, by topic; and those that it shares with other dialects.
    pub fields: &'static [&'static [Field]],
}

/// A field, and what is done with it.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// What is done with it.
    pub handling: Handling,
    /// More for people; may be empty.
    pub note: &'static str,
}

/// What is done with a field.
#[derive(Clone, Copy, Debug)]
pub enum Handling {
    /// Honoured, if its value is of this kind.
    Read(Kind),
    /// Accepted and without effect on the answer's content.
    Harmless,
    /// Would change the answer and is not supported: refused unless it says what happens anyway.
    Refused(Neutral),
    /// Has a successor, and is refused unless it is null or empty.
    Legacy {
        /// What took its place, in the words of the refusal.
        successor: &'static str,
    },
}

/// What a value must be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// A string.
    Text,
    /// True or false.
    Flag,
    /// A positive integer.
    Count,
    /// An integer that says more by itself.
    Integer(&'static str),
    /// A number from the first to the second.
    Range(f64, f64),
    /// An array of what is named.
    Array(&'static str),
    /// An object.
    Object,
    /// A string or an array of what is named.
    TextOr(&'static str),
    /// A string or an object.
    TextOrObject,
    /// Anything; whoever reads it looks for itself.
    Any(&'static str),
}

/// The value of a refused field that asks for nothing; null always does.
#[derive(Clone, Copy, Debug)]
pub enum Neutral {
    /// Only null.
    Null,
    /// An empty array, object or string.
    Empty,
    /// This number.
    Number(f64),
    /// This truth value.
    Bool(bool),
    /// One of these strings.
    OneOf(&'static [&'static str]),
    /// `["text"]`.
    TextOnly,
}

const fn field(name: &'static str, handling: Handling) -> Field {
    Field { name, handling, note: "" }
}

const fn read(name: &'static str, kind: Kind) -> Field {
    field(name, Handling::Read(kind))
}

const fn harmless(name: &'static str) -> Field {
    field(name, Handling::Harmless)
}

const fn refused(name: &'static str, neutral: Neutral) -> Field {
    field(name, Handling::Refused(neutral))
}

const fn legacy(name: &'static str, successor: &'static str) -> Field {
    field(name, Handling::Legacy { successor })
}

impl Field {
    const fn note(self, note: &'static str) -> Self {
        Self { note, ..self }
    }
}

impl Table {
    /// All fields.
    pub fn all(&self) -> impl Iterator<Item = &Field> {
        self.fields.iter().copied().flatten()
    }

    fn find(&self, name: &str) -> Option<&Field> {
        self.all().find(|field| field.name == name)
    }

    /// Checks the fields of `map`, whose own path (`request.`, say; empty for the request itself) is `prefix`: refuses
    /// what is not supported and values of a wrong type, and adds to `ignored` what has no effect.
    pub(crate) fn sort(&self, map: &Map<String, Value>, prefix: &str, ignored: &mut Ignored) -> Result<(), Fault> {
        for (name, value) in map {
            let path = format!("{prefix}{name}");
            let Some(field) = self.find(name) else {
                ignored.push(path);
                continue;
            };
            match field.handling {
                _ if value.is_null() => {}
                Handling::Read(kind) if kind.fits(value) => {}
                Handling::Read(kind) => {
                    let message = format!("`{path}` must be {}, not {}.", kind.expects(), describe(value));
                    return Err(invalid(path, message));
                }
                // Parts of a conversation carry them by the dozen: one word for all of them.
                Handling::Harmless => ignored.push(without_indices(&path)),
                Handling::Refused(neutral) if neutral.covers(value) => {}
                Handling::Legacy { .. } if Neutral::Empty.covers(value) => {}
                Handling::Refused(_) => {
                    let message = format!("`{path}` is not supported.");
                    return Err(invalid(path, message).with_code(UNSUPPORTED));
                }
                Handling::Legacy { successor } => {
                    let message = format!("`{path}` is not supported: use {successor} instead.");
                    return Err(invalid(path, message).with_code(UNSUPPORTED));
                }
            }
        }
        Ok(())
    }
}

/// `messages[3].content[0].x` as `messages[].content[].x`.
fn without_indices(path: &str) -> String {
    let mut parts = path.split('[');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        out.push('[');
        out.push_str(part.trim_start_matches(|c: char| c.is_ascii_digit()));
    }
    out
}

impl Kind {
    /// Whether `value` is of this kind, as far as JSON types go. Ranges are for whoever reads it.
    fn fits(self, value: &Value) -> bool {
        match self {
            Self::Text => value.is_string(),
            Self::Flag => value.is_boolean(),
            Self::Count | Self::Integer(_) => value.is_i64() || value.is_u64(),
            Self::Range(..) => value.is_number(),
            Self::Array(_) => value.is_array(),
            Self::Object => value.is_object(),
            Self::TextOr(_) => value.is_string() || value.is_array(),
            Self::TextOrObject => value.is_string() || value.is_object(),
            Self::Any(_) => true,
        }
    }

    /// The same with what it says by itself, for a table.
    pub fn describe(self) -> String {
        match self {
            Self::Integer(more) if !more.is_empty() => format!("{}; {more}", self.expects()),
            _ => self.expects(),
        }
    }

    /// What a value must be, for a sentence.
    fn expects(self) -> String {
        match self {
            Self::Text => "a string".to_owned(),
            Self::Flag => "true or false".to_owned(),
            Self::Count => "a positive integer".to_owned(),
            Self::Integer(_) => "an integer".to_owned(),
            Self::Range(min, max) => format!("a number from {min} to {max}"),
            Self::Array(of) => format!("an array of {of}"),
            Self::Object => "an object".to_owned(),
            Self::TextOr(of) => format!("a string or an array of {of}"),
            Self::TextOrObject => "a string or an object".to_owned(),
            Self::Any(what) => what.to_owned(),
        }
    }

    /// The same as a JSON schema.
    pub fn schema(self) -> Value {
        use serde_json::json;
        match self {
            Self::Text => json!({"type": ["string", "null"]}),
            Self::Flag => json!({"type": ["boolean", "null"]}),
            Self::Count => json!({"type": ["integer", "null"], "minimum": 1}),
            Self::Integer(_) => json!({"type": ["integer", "null"]}),
            Self::Range(min, max) => json!({"type": ["number", "null"], "minimum": min, "maximum": max}),
            Self::Array(_) => json!({"type": ["array", "null"]}),
            Self::Object => json!({"type": ["object", "null"]}),
            Self::TextOr(_) => json!({"type": ["string", "array", "null"]}),
            Self::TextOrObject => json!({"type": ["string", "object", "null"]}),
            Self::Any(_) => json!({}),
        }
    }
}

impl Neutral {
    /// Whether `value` asks for nothing.
    fn covers(self, value: &Value) -> bool {
        match (self, value) {
            (_, Value::Null) => true,
            (Self::Empty, Value::Array(items)) => items.is_empty(),
            (Self::Empty, Value::Object(map)) => map.is_empty(),
            (Self::Empty, Value::String(text)) => text.is_empty(),
            (Self::Number(neutral), Value::Number(number)) => number.as_f64() == Some(neutral),
            (Self::Bool(neutral), Value::Bool(flag)) => *flag == neutral,
            (Self::OneOf(neutral), Value::String(text)) => neutral.contains(&text.as_str()),
            (Self::TextOnly, Value::Array(items)) => items.iter().all(|item| item.as_str() == Some("text")),
            _ => false,
        }
    }

    /// The values that are not refused, for people.
    pub fn describe(self) -> String {
        match self {
            Self::Null => "null".to_owned(),
            Self::Empty => "null or empty".to_owned(),
            Self::Number(number) => format!("null or {number}"),
            Self::Bool(flag) => format!("null or {flag}"),
            Self::OneOf(texts) => format!("null or `{}`", texts.join("`, `")),
            Self::TextOnly => "null or `[\"text\"]`".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn no_field_is_listed_twice() {
        for table in TABLES {
            let mut names: Vec<_> = table.all().map(|field| field.name).collect();
            let count = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), count, "{} {}", table.request, table.place);
        }
    }

    #[test]
    fn what_has_no_effect_is_named_once() {
        let map = json!({"cache_control": {"type": "ephemeral"}, "colour": 1, "text": "x"});
        let mut ignored = Ignored::default();
        for index in 0..2 {
            let prefix = format!("messages[0].content[{index}].");
            MESSAGES_BLOCK.sort(map.as_object().unwrap(), &prefix, &mut ignored).unwrap();
        }
        let unknown = |index: u32| format!("messages[0].content[{index}].colour");
        assert_eq!(Vec::from(ignored), ["messages[].content[].cache_control".to_owned(), unknown(0), unknown(1)]);
    }
}
