//! Arguments as elements, `MARK<key>value MARK</key>`, the members of a list as `item`s: schemas, rule by rule.
//!
//! A reader tells objects, lists and texts apart by the elements that are there and by the types that the tool's schema
//! allows, as [`elements`] has it. So no text contains the mark, and an empty list or object is only written where
//! nothing else is possible; a constant is written where it is read back as itself.

use std::collections::HashMap;

use mesh_types::Tool;
use serde_json::{Map, Value};

use super::Maker;
use super::lark::{either, literal};
use super::tagged::{followed, is_key, mixed};
use super::text::{self, Texts};
use crate::format::Tagged;
use crate::parse::marked::elements::{self, ITEM};
use crate::schema::{Enforceable, is_plain_object, resolve};
use crate::tools::schema::Node;

/// Deepest nesting that is spelled out.
const MAX_DEPTH: usize = 16;

/// The parameters of `tool`, whose schema is `arguments`.
pub(super) fn arguments(maker: &mut Maker, tagged: &Tagged, tool: &Tool, arguments: &Enforceable) -> String {
    let root = &arguments.schema;
    let schema = followed(root);
    if !is_plain_object(schema) {
        maker.relax("");
    }
    let node = tool.parameters.as_ref().map_or(Node::NOTHING, Node::of);
    let mut writer = Writer { maker, tagged, root, known: HashMap::new() };
    let members = writer.members(schema, &Place { node, path: String::new(), depth: 0 });
    members.into_iter().map(|(rule, is_required)| optional(rule, is_required)).collect::<Vec<_>>().join(" ")
}

struct Writer<'a, 'm> {
    maker: &'m mut Maker,
    tagged: &'a Tagged,
    root: &'a Value,
    /// Rules of what is referred to, each with the tag that closes it.
    known: HashMap<(String, String), String>,
}

/// Where in the tool's schema something stands.
struct Place<'n> {
    /// What a reader knows about it.
    node: Node<'n>,
    path: String,
    depth: usize,
}

impl<'n> Place<'n> {
    fn inner(&self, node: Node<'n>, name: &str) -> Self {
        let path = if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) };
        Self { node, path, depth: self.depth + 1 }
    }
}

impl Writer<'_, '_> {
    /// The element `tag`, whose value is of `schema`.
    fn element(&mut self, tag: &str, schema: &Value, place: &Place<'_>) -> String {
        let mut values = self.values(tag, schema, place);
        if values.is_empty() {
            self.maker.relax(&place.path);
            values.push(self.text(tag, text::ANY));
        }
        let element = format!("{} {}", literal(&format!("{}<{tag}>", self.tagged.nested)), either(&values));
        self.maker.lark.rule(&element)
    }

    /// Ways to write a value with what closes it; none: it cannot be written.
    fn values(&mut self, tag: &str, schema: &Value, place: &Place<'_>) -> Vec<String> {
        let fields = match schema {
            Value::Object(fields) if place.depth <= MAX_DEPTH => fields,
            Value::Bool(false) => return Vec::new(),
            _ => return self.anything(tag, place),
        };
        if let Some(reference) = fields.get("$ref").and_then(Value::as_str) {
            return vec![self.reference(tag, reference, place)];
        }
        let listed = fields.get("enum").and_then(Value::as_array).into_iter().flatten().chain(fields.get("const"));
        let listed: Vec<&Value> = listed.collect();
        if !listed.is_empty() {
            return listed.into_iter().filter_map(|value| self.constant(tag, value, place)).collect();
        }
        for name in ["anyOf", "oneOf", "allOf"] {
            let Some(parts) = fields.get(name).and_then(Value::as_array) else { continue };
            let is_alone = fields.keys().all(|key| matches!(key.as_str(), "type" | "$defs") || key == name);
            if !is_alone || (name == "allOf" && parts.len() > 1) {
                self.maker.relax(&place.inner(place.node, name).path);
            }
            let place = Place { node: place.node, path: place.path.clone(), depth: place.depth + 1 };
            return parts.iter().flat_map(|part| self.values(tag, part, &place)).collect();
        }
        let kinds: Vec<&str> = match fields.get("type") {
            Some(Value::String(kind)) => vec![kind],
            Some(Value::Array(kinds)) => kinds.iter().filter_map(Value::as_str).collect(),
            _ => return self.anything(tag, place),
        };
        let mut values: Vec<String> = self.scalar(tag, schema, &kinds, place).into_iter().collect();
        if kinds.contains(&"object") {
            values.extend(self.object(tag, schema, place));
        }
        if kinds.contains(&"array") {
            values.extend(self.list(tag, fields, place));
        }
        values
    }

    fn reference(&mut self, tag: &str, reference: &str, place: &Place<'_>) -> String {
        let key = (reference.to_owned(), tag.to_owned());
        if let Some(name) = self.known.get(&key) {
            return name.clone();
        }
        let name = self.maker.lark.name();
        self.known.insert(key, name.clone());
        let target = resolve(self.root, reference).cloned().unwrap_or(Value::Bool(true));
        let mut values = self.values(tag, &target, place);
        if values.is_empty() {
            self.maker.relax(&place.path);
            values.push(self.text(tag, text::ANY));
        }
        self.maker.lark.define(&name, &either(&values));
        name
    }

    /// A value of which nothing is said: a text, which is what a reader takes it for.
    fn anything(&mut self, tag: &str, place: &Place<'_>) -> Vec<String> {
        if !place.node.types().is_string() {
            self.maker.relax(&place.path);
        }
        vec![self.text(tag, text::ANY)]
    }

    /// A text of the terminal `body`, up to what closes it.
    fn text(&mut self, tag: &str, body: &str) -> String {
        let body = format!("({body} & {})", text::without(self.tagged.nested));
        self.maker.lark.text_up_to(&body, &self.close(tag))
    }

    fn close(&self, tag: &str) -> String {
        format!("{}{tag}>", self.tagged.close)
    }

    fn constant(&self, tag: &str, value: &Value, place: &Place<'_>) -> Option<String> {
        let mark = self.tagged.nested;
        let text = written(value, mark);
        let is_clean = !value.as_str().is_some_and(|text| text.contains(mark));
        let read: Option<Value> = serde_json::from_str(&elements::json(&text, mark, &place.node)).ok();
        (is_clean && read.as_ref() == Some(value)).then(|| literal(&(text + &self.close(tag))))
    }

    /// Texts, numbers, truths and nothing.
    fn scalar(&mut self, tag: &str, schema: &Value, kinds: &[&str], place: &Place<'_>) -> Option<String> {
        let types = place.node.types();
        if kinds.contains(&"string") {
            let mut reader = text::Reader { root: self.root, close: self.tagged.nested, relaxed: Vec::new() };
            let texts = reader.strings(schema);
            for keyword in reader.relaxed {
                self.maker.relax(&place.inner(place.node, keyword).path);
            }
            let body = match &texts {
                _ if !types.is_string() => mixed(&texts, schema, self.tagged.nested),
                Texts::Some(term) => term.clone(),
                Texts::Any | Texts::None => text::ANY.to_owned(),
            };
            return Some(self.text(tag, &body));
        }
        let kinds: Vec<&str> = kinds.iter().copied().filter(|kind| !matches!(*kind, "object" | "array")).collect();
        // What a reader takes for a text cannot be anything else.
        if kinds.is_empty() || types.is_string() {
            return None;
        }
        let bounds = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"];
        let bounds = bounds.into_iter().filter_map(|name| Some((name.to_owned(), schema.get(name)?.clone())));
        let mut only: Map<String, Value> = bounds.collect();
        only.insert("type".to_owned(), kinds.into());
        let rule = self.maker.lark.json(&Value::Object(only));
        Some(format!("{rule} {}", literal(&self.close(tag))))
    }

    fn object(&mut self, tag: &str, schema: &Value, place: &Place<'_>) -> Option<String> {
        let mut members = self.members(schema, place);
        // Without any element it would be an empty text.
        if !place.node.types().is_only_object() && !members.iter().any(|(_, is_required)| *is_required) {
            members.first_mut()?.1 = true;
        }
        let members = members.into_iter().map(|(rule, is_required)| optional(rule, is_required));
        let members = members.collect::<Vec<_>>().join(" ");
        Some(format!("{members} {}", literal(&self.close(tag))).trim().to_owned())
    }

    /// The properties of an object, each with whether it has to be there. Others cannot be written: an element's beginning
    /// and end would have to agree.
    fn members(&mut self, schema: &Value, place: &Place<'_>) -> Vec<(String, bool)> {
        let none = Map::new();
        let properties = schema.get("properties").and_then(Value::as_object).unwrap_or(&none);
        let required = schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
        let required: Vec<&str> = required.collect();
        let undeclared = required.iter().filter(|name| !properties.contains_key(**name));
        let anything = Value::Bool(true);
        let all = properties.iter().map(|(name, schema)| (name.as_str(), schema));
        let all: Vec<(&str, &Value)> = all.chain(undeclared.map(|name| (*name, &anything))).collect();
        let mut members = Vec::new();
        for (name, schema) in all {
            let inner = place.inner(place.node.property(name), &format!("properties.{name}"));
            if is_key(self.tagged, name) {
                members.push((self.element(name, schema, &inner), required.contains(&name)));
            } else {
                self.maker.relax(&inner.path);
            }
        }
        members
    }

    fn list(&mut self, tag: &str, fields: &Map<String, Value>, place: &Place<'_>) -> Option<String> {
        let count = |name: &str| fields.get(name).and_then(Value::as_u64);
        let may_be_empty = place.node.types().is_only_list();
        let least = count("minItems").unwrap_or(0).max(u64::from(!may_be_empty));
        let first = fields.get("prefixItems").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let most = match fields.get("items") {
            Some(Value::Bool(false)) => Some(first.len() as u64),
            _ => count("maxItems"),
        };
        if most.is_some_and(|most| most < least) {
            return None;
        }
        let mut items = String::new();
        for (index, schema) in (0u64..).zip(first).take_while(|(index, _)| most.is_none_or(|most| *index < most)) {
            let inner = place.inner(place.node.item(index as usize), &format!("prefixItems[{index}]"));
            let item = self.element(ITEM, schema, &inner);
            items += &format!(" {}", optional(item, index < least));
        }
        let behind = first.len() as u64;
        if most.is_none_or(|most| most > behind) {
            let inner = place.inner(place.node.item(first.len()), "items");
            let item = self.element(ITEM, fields.get("items").unwrap_or(&Value::Bool(true)), &inner);
            let most = most.map(|most| (most - behind).to_string()).unwrap_or_default();
            items += &format!(" {item}{{{},{most}}}", least.saturating_sub(behind));
        }
        Some(format!("{items} {}", literal(&self.close(tag))).trim().to_owned())
    }
}

fn optional(rule: String, is_required: bool) -> String {
    if is_required { rule } else { format!("({rule})?") }
}

/// A value as it stands between its tags.
fn written(value: &Value, mark: &str) -> String {
    let element = |tag: &str, value: &Value| format!("{mark}<{tag}>{}{mark}</{tag}>", written(value, mark));
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(|item| element(ITEM, item)).collect(),
        Value::Object(members) => members.iter().map(|(name, value)| element(name, value)).collect(),
        scalar => scalar.to_string(),
    }
}
