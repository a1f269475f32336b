//! Arguments as JSON with bare keys and a mark on both sides of strings: schemas, rule by rule.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::Maker;
use super::lark::{either, literal};
use super::text::{self, Texts};
use crate::schema::resolve;
use crate::tools::schema::Types;

/// Deepest nesting that is spelled out.
const MAX_DEPTH: usize = 16;
/// Most items and members of what nothing is said about.
const MAX_UNDECLARED: usize = 64;
const KEY: &str = "/[A-Za-z_][A-Za-z0-9_]{0,40}/";
const INTEGER: &str = "/-?(0|[1-9][0-9]{0,17})/";
const NUMBER: &str = "/-?(0|[1-9][0-9]{0,17})(\\.[0-9]{1,17})?([eE][+-]?[0-9]{1,2})?/";

/// The arguments, braces included, under the enforceable schema `root`.
pub(super) fn arguments(maker: &mut Maker, quote: &str, root: &Value) -> String {
    let mut writer = Writer { maker, quote, root, known: HashMap::new(), any: None };
    writer.value(root, "", 0)
}

struct Writer<'a, 'm> {
    maker: &'m mut Maker,
    quote: &'a str,
    root: &'a Value,
    /// Rules of what is referred to.
    known: HashMap<String, String>,
    any: Option<String>,
}

impl Writer<'_, '_> {
    fn value(&mut self, schema: &Value, path: &str, depth: usize) -> String {
        let Some(fields) = schema.as_object() else { return self.any() };
        if depth > MAX_DEPTH {
            self.maker.relax(path);
            return self.any();
        }
        if let Some(reference) = fields.get("$ref").and_then(Value::as_str) {
            return self.reference(reference, path, depth);
        }
        if let Some(value) = fields.get("const") {
            return self.constant(value);
        }
        if let Some(values) = fields.get("enum").and_then(Value::as_array) {
            return either(&values.iter().map(|value| self.constant(value)).collect::<Vec<_>>());
        }
        for name in ["anyOf", "oneOf"] {
            if let Some(parts) = fields.get(name).and_then(Value::as_array) {
                if fields.keys().any(|key| !matches!(key.as_str(), "anyOf" | "oneOf" | "type" | "$defs")) {
                    self.maker.relax(&at(path, name));
                }
                return either(&parts.iter().map(|part| self.value(part, path, depth + 1)).collect::<Vec<_>>());
            }
        }
        match fields.get("allOf").and_then(Value::as_array).map(Vec::as_slice) {
            Some([only]) => return self.value(only, path, depth + 1),
            Some(_) => {
                self.maker.relax(&at(path, "allOf"));
                return self.any();
            }
            None => {}
        }
        match fields.get("type") {
            Some(Value::String(kind)) => self.typed(fields, schema, kind, path, depth),
            Some(Value::Array(kinds)) => {
                let kinds = kinds.iter().filter_map(Value::as_str);
                either(&kinds.map(|kind| self.typed(fields, schema, kind, path, depth)).collect::<Vec<_>>())
            }
            _ => self.any(),
        }
    }

    fn typed(&mut self, fields: &Map<String, Value>, schema: &Value, kind: &str, path: &str, depth: usize) -> String {
        match kind {
            "null" => literal("null"),
            "boolean" => format!("({} | {})", literal("true"), literal("false")),
            "integer" | "number" => self.number(fields, kind),
            "string" => self.string(schema, path),
            "array" => self.array(fields, path, depth),
            "object" => self.object(fields, path, depth),
            _ => self.any(),
        }
    }

    fn reference(&mut self, reference: &str, path: &str, depth: usize) -> String {
        if let Some(name) = self.known.get(reference) {
            return name.clone();
        }
        let name = self.maker.lark.name();
        self.known.insert(reference.to_owned(), name.clone());
        let target = resolve(self.root, reference).cloned().unwrap_or(Value::Bool(true));
        let body = self.value(&target, path, depth + 1);
        self.maker.lark.define(&name, &body);
        name
    }

    fn number(&mut self, fields: &Map<String, Value>, kind: &str) -> String {
        let names = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"];
        let bounds = fields.iter().filter(|(name, _)| names.contains(&name.as_str()));
        let mut bounds: Map<String, Value> = bounds.map(|(name, value)| (name.clone(), value.clone())).collect();
        if bounds.is_empty() {
            return if kind == "integer" { INTEGER.to_owned() } else { NUMBER.to_owned() };
        }
        bounds.insert("type".to_owned(), kind.into());
        self.maker.lark.json(&Value::Object(bounds))
    }

    fn string(&mut self, schema: &Value, path: &str) -> String {
        let mut reader = text::Reader { root: self.root, close: self.quote, types: Types::STRING, relaxed: Vec::new() };
        let body = match reader.strings(schema) {
            Texts::Some(term) => term,
            Texts::Any | Texts::None => text::ANY.to_owned(),
        };
        for keyword in reader.relaxed {
            self.maker.relax(&at(path, keyword));
        }
        format!("{} {}", literal(self.quote), self.maker.lark.text_up_to(&body, self.quote))
    }

    fn array(&mut self, fields: &Map<String, Value>, path: &str, depth: usize) -> String {
        if fields.contains_key("prefixItems") {
            self.maker.relax(&at(path, "prefixItems"));
        }
        let item = match fields.get("items") {
            Some(Value::Bool(false)) => return literal("[]"),
            Some(items) if !fields.contains_key("prefixItems") => self.value(items, &at(path, "items"), depth + 1),
            _ => self.any(),
        };
        let item = self.maker.lark.rule(&item);
        let count = |name: &str| fields.get(name).and_then(Value::as_u64);
        let least = count("minItems").unwrap_or(0);
        let more = match count("maxItems") {
            Some(0) => return literal("[]"),
            Some(1) => String::new(),
            Some(most) => format!("(\",\" {item}){{{},{}}}", least.saturating_sub(1), most - 1),
            None => format!("(\",\" {item}){{{},}}", least.saturating_sub(1)),
        };
        let items = format!("{item} {more}");
        format!("\"[\" {} \"]\"", if least == 0 { format!("({})?", items.trim()) } else { items })
    }

    fn object(&mut self, fields: &Map<String, Value>, path: &str, depth: usize) -> String {
        let none = Map::new();
        let properties = fields.get("properties").and_then(Value::as_object).unwrap_or(&none);
        let required = fields.get("required").and_then(Value::as_array);
        let is_required = |name: &str| required.is_some_and(|names| names.iter().any(|required| required == name));
        let mut items = Vec::new();
        for (name, property) in properties {
            let value = self.value(property, &at(path, &format!("properties.{name}")), depth + 1);
            items.push((format!("{} {value}", literal(&format!("{}:", self.key(name)))), is_required(name)));
        }
        match fields.get("additionalProperties") {
            Some(Value::Bool(false)) => {}
            _ if !properties.is_empty() => {}
            more => {
                let value =
                    self.value(more.unwrap_or(&Value::Bool(true)), &at(path, "additionalProperties"), depth + 1);
                let member = self.maker.lark.rule(&format!("{KEY} \":\" {value}"));
                items.push((format!("{member} (\",\" {member}){{0,{MAX_UNDECLARED}}}"), false));
            }
        }
        let members = self.maker.lark.sequence(&items, "\",\"");
        format!("\"{{\" {members} \"}}\"")
    }

    fn key(&self, name: &str) -> String {
        let is_bare =
            !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
        if is_bare { name.to_owned() } else { format!("{0}{name}{0}", self.quote) }
    }

    fn constant(&mut self, value: &Value) -> String {
        literal(&self.written(value))
    }

    fn written(&self, value: &Value) -> String {
        match value {
            Value::String(text) => format!("{0}{text}{0}", self.quote),
            Value::Array(items) => {
                let items: Vec<String> = items.iter().map(|item| self.written(item)).collect();
                format!("[{}]", items.join(","))
            }
            Value::Object(members) => {
                let members = members.iter().map(|(name, value)| format!("{}:{}", self.key(name), self.written(value)));
                format!("{{{}}}", members.collect::<Vec<_>>().join(","))
            }
            scalar => scalar.to_string(),
        }
    }

    /// Anything.
    fn any(&mut self) -> String {
        if let Some(name) = &self.any {
            return name.clone();
        }
        let name = self.maker.lark.name();
        self.any = Some(name.clone());
        let text = self.string(&json!({}), "");
        let more = format!("{{0,{MAX_UNDECLARED}}}");
        let body = format!(
            "{text} | {NUMBER} | \"null\" | \"true\" | \"false\" | \"[\" ({name} (\",\" {name}){more})? \"]\" \
             | \"{{\" ({KEY} \":\" {name} (\",\" {KEY} \":\" {name}){more})? \"}}\""
        );
        self.maker.lark.define(&name, &body);
        name
    }
}

fn at(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}
