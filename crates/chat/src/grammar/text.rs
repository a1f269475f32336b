//! String schemas where strings are written as plain text, without quotes: between tags, or between marks.

use serde_json::Value;

use super::lark::{escaped, literal};
use crate::parse::json;
use crate::schema::resolve;
use crate::tools::schema::Types;

/// Any text.
pub(super) const ANY: &str = "/(?s:.*)/";
/// Longest chain of references and combinations that is followed.
const MAX_DEPTH: usize = 8;

/// What texts a schema allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Texts {
    /// No string at all.
    None,
    /// Every string.
    Any,
    /// Those of this terminal.
    Some(String),
}

/// Reads string schemas.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    /// The schema whose definitions are referred to.
    pub(super) root: &'a Value,
    /// What ends a text, and can be no part of it.
    pub(super) close: &'a str,
    /// The types that a reader of the text looks for.
    pub(super) types: Types,
    /// Keywords that were met and cannot be enforced.
    pub(super) relaxed: Vec<&'static str>,
}

impl Reader<'_> {
    /// The strings that `schema`, which is enforceable, allows.
    pub(super) fn strings(&mut self, schema: &Value) -> Texts {
        self.read(schema, 0)
    }

    fn read(&mut self, schema: &Value, depth: usize) -> Texts {
        let fields = match schema {
            Value::Bool(false) => return Texts::None,
            Value::Object(fields) if depth <= MAX_DEPTH => fields,
            _ => return Texts::Any,
        };
        let says_string = match fields.get("type") {
            Some(Value::String(name)) => name == "string",
            Some(Value::Array(names)) => names.iter().any(|name| name == "string"),
            _ => true,
        };
        if !says_string {
            return Texts::None;
        }
        let values = fields.get("enum").and_then(Value::as_array).into_iter().flatten().chain(fields.get("const"));
        let values: Vec<&Value> = values.collect();
        let mut texts = if values.is_empty() { self.own(schema) } else { self.literals(&values) };
        if let Some(target) =
            fields.get("$ref").and_then(Value::as_str).and_then(|reference| resolve(self.root, reference))
        {
            texts = both(texts, self.read(target, depth + 1));
        }
        for name in ["anyOf", "oneOf"] {
            if let Some(parts) = fields.get(name).and_then(Value::as_array) {
                let parts: Vec<Texts> = parts.iter().map(|part| self.read(part, depth + 1)).collect();
                texts = both(texts, one_of(parts));
            }
        }
        for part in fields.get("allOf").and_then(Value::as_array).into_iter().flatten() {
            texts = both(texts, self.read(part, depth + 1));
        }
        texts
    }

    fn literals(&self, values: &[&Value]) -> Texts {
        let is_read_as_string = |text: &&str| self.types.value(text) == json::quoted(text);
        let texts = values.iter().filter_map(|value| value.as_str()).filter(is_read_as_string);
        let written: Vec<String> = texts.filter(|text| !text.contains(self.close)).map(literal).collect();
        match written.is_empty() {
            true => Texts::None,
            false => Texts::Some(format!("({})", written.join(" | "))),
        }
    }

    fn own(&mut self, schema: &Value) -> Texts {
        let mut terms = Vec::new();
        let count = |name: &str| schema.get(name).and_then(Value::as_u64);
        match (count("minLength"), count("maxLength")) {
            (None | Some(0), None) => {}
            (least, Some(most)) => terms.push(format!("/(?s:.{{{},{most}}})/", least.unwrap_or(0))),
            (Some(least), None) => terms.push(format!("/(?s:.{{{least},}})/")),
        }
        if let Some(pattern) = schema.get("pattern").and_then(Value::as_str) {
            match searched(pattern) {
                Some(term) => terms.push(term),
                None => self.relaxed.push("pattern"),
            }
        }
        if let Some(format) = schema.get("format").and_then(Value::as_str) {
            match FORMATS.iter().find(|(name, _)| *name == format) {
                Some((_, regex)) => terms.push(format!("/{regex}/")),
                None => self.relaxed.push("format"),
            }
        }
        if terms.is_empty() {
            return Texts::Any;
        }
        terms.push(without(self.close));
        Texts::Some(format!("({})", terms.join(" & ")))
    }
}

/// A terminal for texts without `close`.
pub(super) fn without(close: &str) -> String {
    format!("~/(?s:.*){}(?s:.*)/", escaped(close))
}

fn both(a: Texts, b: Texts) -> Texts {
    match (a, b) {
        (Texts::None, _) | (_, Texts::None) => Texts::None,
        (Texts::Any, other) | (other, Texts::Any) => other,
        (Texts::Some(a), Texts::Some(b)) => Texts::Some(format!("({a} & {b})")),
    }
}

fn one_of(parts: Vec<Texts>) -> Texts {
    if parts.contains(&Texts::Any) {
        return Texts::Any;
    }
    let some: Vec<String> =
        parts.into_iter().filter_map(|part| if let Texts::Some(term) = part { Some(term) } else { None }).collect();
    if some.is_empty() { Texts::None } else { Texts::Some(format!("({})", some.join(" | "))) }
}

/// A terminal for texts in which `pattern` is found, where its anchors stand at its ends.
fn searched(pattern: &str) -> Option<String> {
    let (begins, rest) = pattern.strip_prefix('^').map_or((false, pattern), |rest| (true, rest));
    let (ends, rest) = match rest.strip_suffix('$') {
        Some(inner) if inner.len() == inner.trim_end_matches('\\').len() => (true, inner),
        _ => (false, rest),
    };
    let (mut depth, mut is_escaped, mut in_class) = (0usize, false, false);
    for c in rest.chars() {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            ']' => in_class = false,
            _ if in_class => {}
            '[' => in_class = true,
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            '^' | '$' => return None,
            // The anchors belong to the outer alternatives alone.
            '|' if depth == 0 && (begins || ends) => return None,
            _ => {}
        }
    }
    let any = "(?s:.*)";
    let (before, after) = (if begins { "" } else { any }, if ends { "" } else { any });
    Some(format!("/{before}(?:{}){after}/", llguidance::regex_to_lark(rest, "dw")))
}

/// Formats as regular expressions.
const FORMATS: [(&str, &str); 6] = [
    ("date", "[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])"),
    ("time", "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"),
    (
        "date-time",
        "[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?\
         (Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])",
    ),
    ("uuid", "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"),
    ("email", "[A-Za-z0-9_+-]{1,32}(\\.[A-Za-z0-9_+-]{1,32}){0,3}@[A-Za-z0-9]{1,32}(\\.[A-Za-z0-9]{1,32}){1,3}"),
    ("ipv4", "((25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])\\.){3}(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"),
];

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn texts(schema: Value) -> (Texts, Vec<&'static str>) {
        let mut reader = Reader { root: &schema, close: "</p>", types: Types::STRING, relaxed: Vec::new() };
        let texts = reader.strings(&schema);
        (texts, reader.relaxed)
    }

    #[test]
    fn strings_are_free_listed_or_of_a_pattern() {
        let some = |term: &str| (Texts::Some(term.to_owned()), Vec::new());
        assert_eq!(texts(json!({})), (Texts::Any, vec![]));
        assert_eq!(texts(json!({"type": "integer"})), (Texts::None, vec![]));
        assert_eq!(texts(json!({"type": ["string", "null"]})), (Texts::Any, vec![]));
        assert_eq!(texts(json!({"enum": ["a", 1, "x</p>"]})), some("(\"a\")"));
        assert_eq!(texts(json!({"anyOf": [{"type": "null"}, {"const": "b\n"}]})), some("((\"b\\n\"))"));
        let inner = json!({"$defs": {"d": {"maxLength": 3}}, "$ref": "#/$defs/d"});
        assert_eq!(texts(inner), some("(/(?s:.{0,3})/ & ~/(?s:.*)<\\/p>(?s:.*)/)"));
        assert_eq!(texts(json!({"format": "hostname"})), (Texts::Any, vec!["format"]));
    }

    #[test]
    fn patterns_are_found_anywhere_but_for_their_anchors() {
        assert_eq!(searched("^a/b$").as_deref(), Some("/(?:a\\/b)/"));
        assert_eq!(searched("a|b").as_deref(), Some("/(?s:.*)(?:a|b)(?s:.*)/"));
        assert_eq!(searched("^(a|b)").as_deref(), Some("/(?:(a|b))(?s:.*)/"));
        assert_eq!(searched("[$^]\\$").as_deref(), Some("/(?s:.*)(?:[$^]\\$)(?s:.*)/"));
        assert_eq!(searched("^a|b$"), None);
        assert_eq!(searched("a$b"), None);
    }
}
