//! Arguments between tags: each parameter by its schema, strings as plain text.

use mesh_types::Tool;
use serde_json::{Map, Value, json};

use super::Maker;
use super::lark::{Sequence, either, is_possible, literal};
use super::text::{self, Texts};
use crate::format::{Part, Tagged};
use crate::schema::{Enforceable, compiles, is_plain_object, resolve};
use crate::tools::schema::{Types, property};

/// Most parameters that nobody declared.
const MAX_UNDECLARED: usize = 16;
/// What a name that nobody declared looks like.
const NAME: &str = "/[A-Za-z_][A-Za-z0-9_-]{0,40}/";

/// How a value is marked where the format says whether it is a string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Text,
    Json,
}

/// The parameters of `tool`, whose schema is `arguments`, each with blanks before it.
pub(super) fn arguments(maker: &mut Maker, tagged: &Tagged, tool: &Tool, arguments: &Enforceable) -> String {
    let root = &arguments.schema;
    let schema = followed(root);
    let Some(properties) = schema.get("properties").and_then(Value::as_object) else {
        return match schema.get("additionalProperties") {
            Some(Value::Bool(false)) => String::new(),
            _ => undeclared(maker, tagged),
        };
    };
    if !is_plain_object(schema) {
        maker.relax("");
    }
    let required = schema.get("required").and_then(Value::as_array);
    let is_required = |name: &str| required.is_some_and(|names| names.iter().any(|required| required == name));
    let mut items = Vec::new();
    for (name, property) in properties {
        let types = tool.parameters.as_ref().map_or(Types::UNKNOWN, |root| self::property(root, name));
        match value(maker, tagged, Parameter { name, property, types, root }) {
            Some(item) if is_required(name) => items.push(item),
            Some(item) => items.push(format!("({item})?")),
            None => maker.relax(&format!("properties.{name}")),
        }
    }
    items.join(" ")
}

/// A parameter, as a tool's schema has it.
struct Parameter<'a> {
    name: &'a str,
    property: &'a Value,
    /// What a reader takes its value for.
    types: Types,
    root: &'a Value,
}

/// The parameter with its tags, and blanks before them. `None`: it cannot be written.
fn value(maker: &mut Maker, tagged: &Tagged, parameter: Parameter<'_>) -> Option<String> {
    if !is_key(tagged, parameter.name) {
        return None;
    }
    let marks_strings =
        tagged.values.iter().flat_map(|pattern| pattern.iter()).any(|part| matches!(part, Part::Kind(..)));
    let key = Key::Is(parameter.name);
    let mut options = Vec::new();
    // Where strings are marked as such, a reader takes every text for one.
    let looked_for = if marks_strings { Types::STRING } else { parameter.types };
    let mut reader = text::Reader { root: parameter.root, close: tagged.close, types: looked_for, relaxed: Vec::new() };
    let texts = reader.strings(parameter.property);
    let relaxed = reader.relaxed;
    let is_text = parameter.types.is_string();
    if is_text || marks_strings || parameter.types.allows_string() {
        let body = match (&texts, is_text || marks_strings) {
            // The schema says no type, and a reader makes a string of it.
            (Texts::None, true) if is_text => Some(text::ANY.to_owned()),
            (Texts::None, true) => None,
            (Texts::Any, true) => Some(text::ANY.to_owned()),
            (Texts::Some(term), true) => Some(term.clone()),
            (texts, false) => {
                let is_bound = has_bounds(parameter.property);
                Some(mixed(texts, parameter.property, parameter.types, is_bound, tagged.close))
            }
        };
        if let Some(body) = body {
            for keyword in relaxed {
                maker.relax(&format!("properties.{}.{keyword}", parameter.name));
            }
            // A newline on either side of a value is layout.
            // All that it could be would be read as something else.
            if body.is_empty() {
                return None;
            }
            let body = match tagged.newlines && body != text::ANY {
                true => format!("{body} \"\\n\""),
                false => body,
            };
            let rest = maker.lark.text_up_to(&body, tagged.close);
            options.push(opened(tagged, &key, Kind::Text, rest));
        }
    }
    if !is_text && (marks_strings || !parameter.types.allows_string()) {
        let schema = document(&parameter, parameter.types.allows_string());
        if compiles(&schema) {
            let mut rest = Sequence::default();
            let json = maker.lark.json(&schema);
            rest.rule(json);
            rest.blank();
            rest.text(tagged.close);
            options.push(opened(tagged, &key, Kind::Json, rest.finish()));
        }
    }
    (!options.is_empty()).then(|| either(&options))
}

/// The schema of a parameter as one of its own. `not_text`: without the strings.
fn document(parameter: &Parameter<'_>, not_text: bool) -> Value {
    let mut schema = match (parameter.property, not_text) {
        (property, true) => {
            json!({"type": ["null", "boolean", "number", "array", "object"], "allOf": [property.clone()]})
        }
        (Value::Object(fields), false) => Value::Object(fields.clone()),
        _ => Value::Object(Map::new()),
    };
    if let Some(definitions) = parameter.root.get("$defs") {
        schema["$defs"] = definitions.clone();
    }
    schema
}

/// Text that a reader takes for what it looks like, of `types`: strings that look like nothing else, and what else
/// `property` allows whatever its value. `is_bound`: more than types is said of what is no string.
pub(super) fn mixed(texts: &Texts, property: &Value, types: Types, is_bound: bool, close: &str) -> String {
    let strings = match texts {
        Texts::Any if !is_bound => return text::ANY.to_owned(),
        Texts::Any => Some(only_strings(&format!("{} & {}", text::ANY, text::without(close)), types)),
        Texts::Some(term) => Some(only_strings(term, types)).filter(|term| is_possible(term)),
        Texts::None => None,
    };
    either(&strings.into_iter().chain(scalars_of(property)).collect::<Vec<_>>())
}

/// The texts of `term` that a reader takes for strings, where it looks for values of `types`.
fn only_strings(term: &str, types: Types) -> String {
    let others = [
        (types.may_be_number(), r"-?[0-9.][0-9.eE+-]*"),
        (types.may_be_boolean(), "([Tt]rue|[Ff]alse)"),
        (types.may_be_null(), "(null|None)"),
        (types.may_be_object(), r"\{(?s:.*)"),
        (types.may_be_list(), r"\[(?s:.*)"),
    ];
    let others = others.iter().filter(|(is_looked_for, _)| *is_looked_for);
    let others: String = others.map(|(_, regex)| format!(r" & ~/\s*{regex}\s*/")).collect();
    format!("({term}{others})")
}

/// Whether more is said of what is no string than its types.
pub(super) fn has_bounds(schema: &Value) -> bool {
    let is_bound = |name: &str| {
        !matches!(name, "type" | "anyOf" | "oneOf" | "minLength" | "maxLength" | "pattern" | "format" | "title")
    };
    let Some(fields) = schema.as_object() else { return false };
    let mut parts = parts_of(schema).peekable();
    let is_narrowed = parts.peek().is_some() && fields.contains_key("type");
    is_narrowed || fields.keys().any(|name| is_bound(name)) || parts.any(has_bounds)
}

fn parts_of(schema: &Value) -> impl Iterator<Item = &Value> {
    ["anyOf", "oneOf"].into_iter().filter_map(|name| schema.get(name)?.as_array()).flatten()
}

/// Values without quotes that are no strings: those that `schema` lists, and all of the types that it says no more of.
fn scalars_of(schema: &Value) -> Vec<String> {
    let says = |names: &[&str]| names.iter().any(|name| schema.get(name).is_some());
    if says(&["enum", "const"]) {
        let listed = schema.get("enum").and_then(Value::as_array).into_iter().flatten().chain(schema.get("const"));
        let listed = listed.filter(|value| !value.is_string() && !value.is_array() && !value.is_object());
        return listed.map(|value| literal(&value.to_string())).collect();
    }
    if says(&["$ref", "allOf"]) {
        return Vec::new();
    }
    if says(&["anyOf", "oneOf"]) {
        return if says(&["type"]) { Vec::new() } else { parts_of(schema).flat_map(scalars_of).collect() };
    }
    let names: Vec<&str> = match schema.get("type") {
        Some(Value::String(name)) => vec![name],
        Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    let has_bounds = says(&["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"]);
    let scalar = |name| match name {
        "null" => Some("\"null\""),
        "boolean" => Some("(\"true\" | \"false\")"),
        "integer" if !has_bounds => Some("/-?(0|[1-9][0-9]{0,15})/"),
        "number" if !has_bounds => Some("/-?(0|[1-9][0-9]{0,15})(\\.[0-9]{1,15})?/"),
        _ => None,
    };
    names.into_iter().filter_map(scalar).map(str::to_owned).collect()
}

/// A few parameters of any name, whose values are strings: that is what a reader takes them for.
fn undeclared(maker: &mut Maker, tagged: &Tagged) -> String {
    let rest = maker.lark.text_up_to(text::ANY, tagged.close);
    let item = opened(tagged, &Key::Any, Kind::Text, rest);
    let item = maker.lark.rule(&item);
    format!("({item}){{0,{MAX_UNDECLARED}}}")
}

enum Key<'a> {
    Is(&'a str),
    Any,
}

/// Blanks and the opening tag before `rest`, which is a value with its closing tag.
fn opened(tagged: &Tagged, key: &Key<'_>, kind: Kind, rest: String) -> String {
    let mut sequence = Sequence::default();
    sequence.blank();
    let mut was_text = false;
    for part in tagged.values.first().copied().unwrap_or_default() {
        match (part, key) {
            (Part::Text(text), _) => {
                if was_text {
                    sequence.blank();
                }
                sequence.text(text);
            }
            (Part::Key, Key::Is(name)) if tagged.entities => sequence.text(&with_entities(name)),
            (Part::Key, Key::Is(name)) => sequence.text(name),
            (Part::Key, Key::Any) => sequence.rule(NAME),
            (Part::Kind(string, _), _) if kind == Kind::Text => sequence.text(string),
            (Part::Kind(_, [json]), _) => sequence.text(json),
            (Part::Kind(_, words), _) => {
                sequence.rule(either(&words.iter().map(|word| literal(word)).collect::<Vec<_>>()));
            }
            (Part::Name | Part::Id | Part::Any, _) => {}
        }
        was_text = matches!(part, Part::Text(_));
    }
    if tagged.newlines {
        sequence.text("\n");
    }
    sequence.rule(rest);
    sequence.finish()
}

/// `name` as it stands in an attribute.
fn with_entities(name: &str) -> String {
    name.replace('&', "&amp;").replace('"', "&quot;")
}

/// Whether a name can stand between the tags.
pub(super) fn is_key(tagged: &Tagged, name: &str) -> bool {
    let texts = tagged.values.iter().flat_map(|pattern| pattern.iter()).filter_map(|part| match part {
        Part::Text(text) => Some(*text),
        _ => None,
    });
    let is_plain = (1..=200).contains(&name.len()) && name.trim() == name && !name.contains(['\n', '"', '<', '>']);
    is_plain && !texts.into_iter().any(|text| name.contains(text))
}

/// What `schema` refers to at its root.
pub(super) fn followed(schema: &Value) -> &Value {
    let target = schema.get("$ref").and_then(Value::as_str).and_then(|reference| resolve(schema, reference));
    target.unwrap_or(schema)
}
