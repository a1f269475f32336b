//! What a JSON schema says about the type of one argument, and arguments written as plain text.

use serde_json::Value;

use crate::parse::json::{self, Flow, Transcoder};

/// Longest chain of references and combinations that is followed; a schema may refer to itself.
const MAX_DEPTH: usize = 8;

/// The types that a schema allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Types(u8);

const STRING: u8 = 1;
const INTEGER: u8 = 2;
const NUMBER: u8 = 4;
const BOOLEAN: u8 = 8;
const NULL: u8 = 16;
const OBJECT: u8 = 32;
const ARRAY: u8 = 64;

impl Types {
    /// The schema says nothing.
    pub(crate) const UNKNOWN: Self = Self(0);
    /// Everything but a string: a value that is marked as JSON.
    pub(crate) const JSON: Self = Self(INTEGER | NUMBER | BOOLEAN | NULL | OBJECT | ARRAY);
    /// A string.
    pub(crate) const STRING: Self = Self(STRING);

    /// Whether the value is a string, whatever its text.
    pub(crate) fn is_string(self) -> bool {
        self.0 & !STRING == 0
    }

    /// Whether a list is one of these.
    pub(crate) fn may_be_list(self) -> bool {
        self.may_be(ARRAY)
    }

    /// Whether an object is.
    pub(crate) fn may_be_object(self) -> bool {
        self.may_be(OBJECT)
    }

    /// Whether a number is.
    pub(crate) fn may_be_number(self) -> bool {
        self.may_be(INTEGER | NUMBER)
    }

    /// Whether `true` and `false` are.
    pub(crate) fn may_be_boolean(self) -> bool {
        self.may_be(BOOLEAN)
    }

    /// Whether `null` is.
    pub(crate) fn may_be_null(self) -> bool {
        self.may_be(NULL)
    }

    fn may_be(self, types: u8) -> bool {
        self == Self::UNKNOWN || self.0 & types != 0
    }

    /// A list, and nothing else.
    pub(crate) fn is_only_list(self) -> bool {
        self.0 == ARRAY
    }

    /// An object, and nothing else.
    pub(crate) fn is_only_object(self) -> bool {
        self.0 == OBJECT
    }

    /// Whether the value may be a string.
    pub(crate) fn allows_string(self) -> bool {
        self.0 & STRING != 0
    }

    /// `text` as a JSON value of one of these types; a string where it is none of them.
    pub(crate) fn value(self, text: &str) -> String {
        self.plain(text.trim()).unwrap_or_else(|| json::quoted(text))
    }

    /// What there is of a value that was cut off, as far as it may become JSON of one of these types; else as a string
    /// that is not closed. Its last `held` bytes may be the beginning of what closes it.
    pub(crate) fn broken_off(self, text: &str, held: usize) -> String {
        let word = text.trim();
        if word.is_empty() {
            return String::new();
        }
        if let Some(whole) = self.plain(text[..text.len() - held].trim()) {
            return whole;
        }
        let has = |types: u8| self.0 & types != 0;
        if has(OBJECT) && word.starts_with('{') || has(ARRAY) && word.starts_with('[') {
            let (mut transcoder, mut out) = (Transcoder::new(), String::new());
            let goes_on = text.trim_start().chars().all(|c| transcoder.push(c, &mut out) == Flow::More);
            if goes_on && !transcoder.is_broken() {
                transcoder.break_off(&mut out);
                return out;
            }
        }
        if has(INTEGER | NUMBER | BOOLEAN | NULL) && json::may_be_scalar(word) {
            return word.to_owned();
        }
        let mut string = json::quoted(text);
        string.pop();
        string
    }

    /// A word as JSON of one of these types, but for strings.
    fn plain(self, word: &str) -> Option<String> {
        let has = |types: u8| self.0 & types != 0;
        match word {
            "true" | "True" if has(BOOLEAN) => Some("true".to_owned()),
            "false" | "False" if has(BOOLEAN) => Some("false".to_owned()),
            "null" | "None" if has(NULL) => Some("null".to_owned()),
            _ if has(NUMBER) && json::is_number(word) => Some(word.to_owned()),
            _ if has(INTEGER) && is_whole(word) => Some(word.to_owned()),
            _ if has(OBJECT) && word.starts_with('{') || has(ARRAY) && word.starts_with('[') => json::mended(word),
            _ => None,
        }
    }
}

fn is_whole(word: &str) -> bool {
    json::is_number(word) && word.parse::<f64>().is_ok_and(|number| number.fract() == 0.0)
}

/// A place in a schema, perhaps one that it says nothing about.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Node<'a> {
    /// The whole schema, and this place in it.
    place: Option<(&'a Value, &'a Value)>,
}

impl<'a> Node<'a> {
    /// Nothing is known.
    pub(crate) const NOTHING: Self = Self { place: None };

    /// A whole schema.
    pub(crate) fn of(root: &'a Value) -> Self {
        Self { place: Some((root, root)) }
    }

    /// The schema of this place alone.
    pub(crate) fn schema(&self) -> Option<&'a Value> {
        self.place.map(|(_, schema)| schema)
    }

    /// The types that are allowed here.
    pub(crate) fn types(&self) -> Types {
        Types(self.place.map_or(0, |(root, schema)| types(root, schema, 0)))
    }

    /// The property `key` of an object.
    pub(crate) fn property(&self, key: &str) -> Self {
        let find = |schema: &'a Value| {
            let own = schema.get("properties").and_then(|properties| properties.get(key));
            own.or_else(|| schema.get("additionalProperties").filter(|more| more.is_object()))
        };
        self.step(&find)
    }

    /// The member of a list at `index`.
    pub(crate) fn item(&self, index: usize) -> Self {
        self.step(&|schema: &'a Value| {
            let own = schema.get("prefixItems").and_then(|items| items.get(index));
            own.or_else(|| schema.get("items")).filter(|items| items.is_object())
        })
    }

    fn step(&self, find: &dyn Fn(&'a Value) -> Option<&'a Value>) -> Self {
        Self { place: self.place.and_then(|(root, schema)| Some((root, step(root, schema, find, 0)?))) }
    }
}

/// The first that `find` finds in a schema, what it refers to, and what it combines.
fn step<'a>(
    root: &'a Value,
    schema: &'a Value,
    find: &dyn Fn(&'a Value) -> Option<&'a Value>,
    depth: usize,
) -> Option<&'a Value> {
    if depth > MAX_DEPTH {
        return None;
    }
    let referred = schema.get("$ref").and_then(|reference| resolve(root, reference));
    let combined = ["anyOf", "oneOf", "allOf"].into_iter().filter_map(|name| schema.get(name)?.as_array()).flatten();
    find(schema).or_else(|| referred.into_iter().chain(combined).find_map(|part| step(root, part, find, depth + 1)))
}

/// What `root`, the schema of an object, says about its property `key`.
pub(crate) fn property(root: &Value, key: &str) -> Types {
    let object = root.get("$ref").and_then(|reference| resolve(root, reference)).unwrap_or(root);
    let schema = object.get("properties").and_then(|properties| properties.get(key));
    Types(schema.map_or(0, |schema| types(root, schema, 0)))
}

fn types(root: &Value, schema: &Value, depth: usize) -> u8 {
    if depth > MAX_DEPTH {
        return 0;
    }
    let mut found = 0;
    if let Some(target) = schema.get("$ref").and_then(|reference| resolve(root, reference)) {
        found |= types(root, target, depth + 1);
    }
    match schema.get("type") {
        Some(Value::String(name)) => found |= named(name),
        Some(Value::Array(names)) => found |= names.iter().filter_map(Value::as_str).map(named).fold(0, |a, b| a | b),
        _ => {}
    }
    if found == 0 {
        let values = schema.get("enum").and_then(Value::as_array).into_iter().flatten().chain(schema.get("const"));
        found |= values.map(of_value).fold(0, |a, b| a | b);
    }
    for combination in ["anyOf", "oneOf", "allOf"] {
        let parts = schema.get(combination).and_then(Value::as_array).into_iter().flatten();
        found |= parts.map(|part| types(root, part, depth + 1)).fold(0, |a, b| a | b);
    }
    found
}

/// The place that a local reference such as `#/$defs/Stop` means.
pub(crate) fn resolve<'a>(root: &'a Value, reference: &Value) -> Option<&'a Value> {
    root.pointer(reference.as_str()?.strip_prefix('#')?)
}

fn named(name: &str) -> u8 {
    match name {
        "string" => STRING,
        "integer" => INTEGER,
        "number" => NUMBER | INTEGER,
        "boolean" => BOOLEAN,
        "null" => NULL,
        "object" => OBJECT,
        "array" => ARRAY,
        _ => 0,
    }
}

fn of_value(value: &Value) -> u8 {
    match value {
        Value::Null => NULL,
        Value::Bool(_) => BOOLEAN,
        Value::Number(_) => NUMBER | INTEGER,
        Value::String(_) => STRING,
        Value::Array(_) => ARRAY,
        Value::Object(_) => OBJECT,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn schema() -> Value {
        json!({
            "$defs": {"Loop": {"$ref": "#/$defs/Loop"}, "Count": {"type": "integer"}},
            "properties": {
                "text": {"type": "string"},
                "count": {"$ref": "#/$defs/Count"},
                "maybe": {"anyOf": [{"type": "number"}, {"type": "null"}]},
                "either": {"type": ["string", "boolean"]},
                "kind": {"enum": ["a", 1]},
                "list": {"type": "array"},
                "loop": {"$ref": "#/$defs/Loop"},
            },
        })
    }

    fn value(key: &str, text: &str) -> String {
        property(&schema(), key).value(text)
    }

    #[test]
    fn a_value_takes_the_declared_type_where_it_fits() {
        assert_eq!(value("text", "007"), "\"007\"");
        assert_eq!(value("count", " 30\n"), "30");
        assert_eq!(value("count", "1.5"), "\"1.5\"");
        assert_eq!(value("count", "2.0"), "2.0");
        assert_eq!(value("count", "many"), "\"many\"");
        assert_eq!(value("maybe", "1.5"), "1.5");
        assert_eq!(value("maybe", "None"), "null");
        assert_eq!(value("either", "True"), "true");
        assert_eq!(value("either", "truth"), "\"truth\"");
        assert_eq!(value("kind", "1"), "1");
        assert_eq!(value("list", "['a', 1]"), "[\"a\", 1]");
        assert_eq!(value("list", "[a"), "\"[a\"");
        assert_eq!(value("unknown", "1"), "\"1\"");
    }

    #[test]
    fn a_schema_that_refers_to_itself_says_nothing() {
        assert_eq!(property(&schema(), "loop"), Types::UNKNOWN);
        assert!(Types::UNKNOWN.is_string());
        assert!(!property(&schema(), "either").is_string());
    }
}
