//! Arguments as elements, `MARK<key>value MARK</key>`, the members of a list as `item`s: schemas, rule by rule.
//!
//! A reader tells objects, lists and texts apart by the elements that are there and by the types that the tool's schema
//! allows, as [`elements`] has it. So no text contains the mark, and an empty list or object is only written where
//! nothing else is possible; a constant is written where it is read back as itself. What cannot be written is left out,
//! and reported.

use std::collections::HashMap;

use mesh_types::Tool;
use serde_json::{Map, Value};

use super::Maker;
use super::lark::{either, literal};
use super::tagged::{followed, has_bounds, is_key, mixed};
use super::text::{self, Texts};
use crate::format::Tagged;
use crate::parse::marked::elements::{self, ITEM};
use crate::schema::{Enforceable, is_plain_object, resolve};
use crate::tools::schema::Node;

/// A value that holds itself is a rule of its own, so that only what is written out this deep is left out.
const MAX_DEPTH: usize = elements::MAX_DEPTH;

/// The parameters of `tool`, whose schema is `arguments`.
pub(super) fn arguments(maker: &mut Maker, tagged: &Tagged, tool: &Tool, arguments: &Enforceable) -> String {
    let root = &arguments.schema;
    let schema = followed(root);
    if !is_plain_object(schema) {
        maker.relax("");
    }
    let node = tool.parameters.as_ref().map_or(Node::NOTHING, Node::of);
    let mut writer = Writer { maker, tagged, root, known: HashMap::new() };
    let members = writer.members(schema, &Place { node, path: String::new(), depth: 0, is_bound: false });
    in_order(members)
}

struct Writer<'a, 'm> {
    maker: &'m mut Maker,
    tagged: &'a Tagged,
    root: &'a Value,
    /// Rules of what is referred to; `None`: it cannot be written.
    known: HashMap<Referred, Option<String>>,
}

/// A reference, the tag that closes its value, and the place by which a reader knows what that is.
type Referred = (String, String, Option<*const Value>);

/// Where in the tool's schema something stands.
struct Place<'n> {
    /// What a reader knows about it.
    node: Node<'n>,
    path: String,
    depth: usize,
    /// Whether more than types is said of a value here that is no string, by what else it may be.
    is_bound: bool,
}

impl<'n> Place<'n> {
    fn inner(&self, node: Node<'n>, name: &str) -> Self {
        Self { node, path: self.at(name), depth: self.depth + 1, is_bound: false }
    }

    /// The same place, of which `schema` says what is one way among others.
    fn within(&self, schema: &Value) -> Self {
        let is_bound = self.is_bound || has_bounds(schema);
        Self { node: self.node, path: self.path.clone(), depth: self.depth + 1, is_bound }
    }

    /// The path of `name` here.
    fn at(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }
}

impl Writer<'_, '_> {
    /// The element `tag`, whose value is of `schema`. `None`: no such value can be written.
    fn element(&mut self, tag: &str, schema: &Value, place: &Place<'_>) -> Option<String> {
        let values = self.values(tag, schema, place);
        if values.is_empty() {
            self.maker.relax(&place.path);
            return None;
        }
        let element = format!("{} {}", literal(&format!("{}<{tag}>", self.tagged.nested)), either(&values));
        Some(self.maker.lark.rule(&element))
    }

    /// Ways to write a value with what closes it; none: it cannot be written.
    fn values(&mut self, tag: &str, schema: &Value, place: &Place<'_>) -> Vec<String> {
        let fields = match schema {
            Value::Object(fields) if place.depth <= MAX_DEPTH => fields,
            Value::Bool(false) => return Vec::new(),
            _ => return self.anything(tag, place),
        };
        if let Some(reference) = fields.get("$ref").and_then(Value::as_str) {
            return self.reference(tag, reference, place).into_iter().collect();
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
                self.maker.relax(&place.at(name));
            }
            let place = place.within(schema);
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

    fn reference(&mut self, tag: &str, reference: &str, place: &Place<'_>) -> Option<String> {
        let key = (reference.to_owned(), tag.to_owned(), place.node.schema().map(std::ptr::from_ref));
        if let Some(known) = self.known.get(&key) {
            return known.clone();
        }
        let name = self.maker.lark.name();
        self.known.insert(key.clone(), Some(name.clone()));
        let target = resolve(self.root, reference).cloned().unwrap_or(Value::Bool(true));
        let values = self.values(tag, &target, place);
        let is_written = !values.is_empty();
        // A rule that nothing reaches any more may name it.
        let body = if is_written { either(&values) } else { literal(&self.close(tag)) };
        self.maker.lark.define(&name, &body);
        let rule = is_written.then_some(name);
        self.known.insert(key, rule.clone());
        rule
    }

    /// A value of which nothing is said: a text, where a reader takes it for nothing that is not allowed.
    fn anything(&mut self, tag: &str, place: &Place<'_>) -> Vec<String> {
        let types = place.node.types();
        if types.is_string() {
            return vec![self.text(tag, text::ANY)];
        }
        self.maker.relax(&place.path);
        types.allows_string().then(|| self.text(tag, text::ANY)).into_iter().collect()
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
            let mut reader = text::Reader { root: self.root, close: self.tagged.nested, types, relaxed: Vec::new() };
            let texts = reader.strings(schema);
            for keyword in reader.relaxed {
                self.maker.relax(&place.at(keyword));
            }
            let body = match &texts {
                _ if !types.is_string() => {
                    mixed(&texts, schema, types, place.is_bound || has_bounds(schema), self.tagged.nested)
                }
                Texts::Some(term) => term.clone(),
                Texts::Any | Texts::None => text::ANY.to_owned(),
            };
            // All that it could be would be read as something else.
            return (!body.is_empty()).then(|| self.text(tag, &body));
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
        Some(format!("{} {}", in_order(members), literal(&self.close(tag))).trim().to_owned())
    }

    /// The properties of an object, each with whether it has to be there. Others cannot be written: an element's beginning
    /// and end would have to agree.
    fn members(&mut self, schema: &Value, place: &Place<'_>) -> Vec<(String, bool)> {
        let none = Map::new();
        let properties = schema.get("properties").and_then(Value::as_object).unwrap_or(&none);
        let required = schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
        let required: Vec<&str> = required.collect();
        let undeclared = required.iter().filter(|name| !properties.contains_key(**name));
        let anything = schema.get("additionalProperties").filter(|more| more.is_object()).unwrap_or(&Value::Bool(true));
        let all = properties.iter().map(|(name, schema)| (name.as_str(), schema));
        let all: Vec<(&str, &Value)> = all.chain(undeclared.map(|name| (*name, anything))).collect();
        let mut members = Vec::new();
        for (name, schema) in all {
            let inner = place.inner(place.node.property(name), &format!("properties.{name}"));
            // Where a list may stand, nothing but `item`s are one.
            if !is_key(self.tagged, name) || (name == ITEM && place.node.types().may_be_list()) {
                self.maker.relax(&inner.path);
            } else if let Some(element) = self.element(name, schema, &inner) {
                members.push((element, required.contains(&name)));
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
            Some(Value::Bool(false)) => Some(count("maxItems").unwrap_or(u64::MAX).min(first.len() as u64)),
            _ => count("maxItems"),
        };
        if most.is_some_and(|most| most < least) {
            return None;
        }
        let mut items = Vec::new();
        for (index, schema) in (0u64..).zip(first).take_while(|(index, _)| most.is_none_or(|most| *index < most)) {
            let inner = place.inner(place.node.item(index as usize), &format!("prefixItems[{index}]"));
            match self.element(ITEM, schema, &inner) {
                Some(item) => items.push((item, index < least)),
                // No list is longer.
                None if index < least => return None,
                None => return Some(self.listed(tag, &items)),
            }
        }
        let behind = first.len() as u64;
        if most.is_none_or(|most| most > behind) {
            let inner = place.inner(place.node.item(first.len()), "items");
            let least = least.saturating_sub(behind);
            let most = most.map(|most| (most - behind).to_string()).unwrap_or_default();
            match self.element(ITEM, fields.get("items").unwrap_or(&Value::Bool(true)), &inner) {
                Some(item) => items.push((format!("{item}{{{least},{most}}}"), true)),
                None if least > 0 => return None,
                None => {}
            }
        }
        Some(self.listed(tag, &items))
    }

    /// The items of a list, each there only where the one before is, and what closes it.
    fn listed(&self, tag: &str, items: &[(String, bool)]) -> String {
        let items = items.iter().rev().fold(String::new(), |after, (item, is_required)| match is_required {
            true => format!("{item} {after}"),
            false => format!("({item} {after})?"),
        });
        format!("{items} {}", literal(&self.close(tag))).trim().to_owned()
    }
}

fn in_order(members: Vec<(String, bool)>) -> String {
    members.into_iter().map(|(rule, is_required)| optional(rule, is_required)).collect::<Vec<_>>().join(" ")
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
