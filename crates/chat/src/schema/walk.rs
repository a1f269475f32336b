//! A client's schema, copied keyword by keyword as far as it can be enforced.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::keywords::{FORMATS, Keyword, TYPES, keyword, meant_type, resolve};
use super::{Enforceable, Pass, compiles};

/// Deepest nesting of schemas.
const MAX_DEPTH: usize = 32;
/// Most schemas in a schema, definitions included.
const MAX_SCHEMAS: usize = 5_000;
/// Most properties of one object: the compiler nests as deep.
const MAX_PROPERTIES: usize = 500;
/// Most values of an enumeration.
const MAX_VALUES: usize = 10_000;
/// Largest count of items or characters.
const MAX_COUNT: u64 = 1 << 20;
/// Most paths that are reported.
const MAX_REPORTED: usize = 64;

/// Copies one schema.
pub(super) struct Walk<'a> {
    root: &'a Value,
    pass: Pass,
    schemas: usize,
    /// Names of definitions by what is referred to, and whether it may be closed.
    names: HashMap<(String, bool), String>,
    /// Definitions that are still to be copied.
    pending: Vec<(String, bool)>,
    relaxed: Vec<String>,
}

/// Where in the client's schema the walk is.
#[derive(Clone, Copy)]
struct Place<'a> {
    path: &'a str,
    depth: usize,
    /// Nothing else says what may be in this object, so that an open one may be closed.
    alone: bool,
}

impl Place<'_> {
    fn at(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }
}

impl<'a> Walk<'a> {
    pub(super) fn new(root: &'a Value, pass: Pass) -> Self {
        Self { root, pass, schemas: 0, names: HashMap::new(), pending: Vec::new(), relaxed: Vec::new() }
    }

    /// The copy. `is_object`: nothing but an object is wanted.
    pub(super) fn run(mut self, is_object: bool) -> Enforceable {
        let root = self.root;
        let mut schema = self.schema(root, Place { path: "", depth: 0, alone: true });
        let combined = ["$ref", "anyOf", "oneOf", "allOf"].iter().any(|name| schema.get(name).is_some());
        if is_object && !combined && schema.get("type") != Some(&Value::from("object")) {
            if schema.get("type").is_some() {
                self.relax("type");
            }
            schema = json!({"type": "object"});
        }
        let mut definitions = Map::new();
        while let Some((reference, alone)) = self.pending.pop() {
            let name = self.names[&(reference.clone(), alone)].clone();
            let path = reference.trim_start_matches(['#', '/']).replace('/', ".");
            let copy = match resolve(root, &reference) {
                Some(target) => self.schema(target, Place { path: &path, depth: 0, alone }),
                None => Value::Bool(true),
            };
            definitions.insert(name, copy);
        }
        if let (false, Value::Object(fields)) = (definitions.is_empty(), &mut schema) {
            fields.insert("$defs".to_owned(), Value::Object(definitions));
        }
        Enforceable { schema, relaxed: self.relaxed }
    }

    fn relax(&mut self, path: impl Into<String>) {
        let path = path.into();
        if self.relaxed.len() < MAX_REPORTED && !self.relaxed.contains(&path) {
            self.relaxed.push(path);
        }
    }

    fn schema(&mut self, schema: &Value, place: Place<'_>) -> Value {
        self.schemas += 1;
        let fields = match schema {
            Value::Bool(_) => return schema.clone(),
            Value::Object(fields) if self.schemas <= MAX_SCHEMAS && place.depth <= MAX_DEPTH => fields,
            _ => {
                self.relax(place.path);
                return Value::Bool(true);
            }
        };
        let mut copy = Map::new();
        if let Some(kind) = meant_type(fields) {
            copy.insert("type".to_owned(), kind.into());
        }
        for (name, value) in fields {
            if self.is_left_out(fields, name) {
                self.relax(place.at(name));
                continue;
            }
            match self.keyword(fields, name, value, place) {
                Copied::As(entries) => entries.into_iter().for_each(|(name, value)| {
                    copy.insert(name.to_owned(), value);
                }),
                Copied::Relaxed => self.relax(place.at(name)),
                Copied::Nothing => {}
            }
        }
        self.check_text(&mut copy, place);
        self.check_numbers(&mut copy, place);
        self.check_properties(&mut copy, place);
        if place.alone && is_open(fields, &copy) {
            copy.insert("additionalProperties".to_owned(), Value::Bool(false));
        }
        Value::Object(copy)
    }

    /// Whether the pass leaves out a keyword for what stands beside it.
    fn is_left_out(&self, fields: &Map<String, Value>, name: &str) -> bool {
        let is_sibling = fields.contains_key("$ref") || fields.contains_key("allOf");
        let kind = keyword(name);
        self.pass == Pass::Siblings
            && is_sibling
            && !matches!(kind, Keyword::Annotation)
            && !(kind == Keyword::Ref || (name == "allOf" && !fields.contains_key("$ref")))
    }

    fn keyword(&mut self, fields: &Map<String, Value>, name: &str, value: &Value, place: Place<'_>) -> Copied {
        let same = || Copied::one(known(name), value.clone());
        match keyword(name) {
            Keyword::Annotation => Copied::Nothing,
            Keyword::Beyond if *value == Value::Bool(false) && name == "uniqueItems" => Copied::Nothing,
            Keyword::Beyond => Copied::Relaxed,
            Keyword::Type => types(value),
            Keyword::Const => same(),
            Keyword::Enum => match value.as_array() {
                Some(values) if (1..=MAX_VALUES).contains(&values.len()) => same(),
                _ => Copied::Relaxed,
            },
            Keyword::Ref => self.reference(fields, value, place),
            Keyword::Combination => self.combination(fields, name, value, place),
            Keyword::Properties => self.map(name, value, place),
            Keyword::PatternProperties => match value.as_object() {
                Some(patterns) if patterns.keys().all(|pattern| is_pattern(pattern)) => self.map(name, value, place),
                _ => Copied::Relaxed,
            },
            Keyword::AdditionalProperties => {
                // Without the patterns, what they allow has to be allowed here.
                let patterns = fields.get("patternProperties").and_then(Value::as_object);
                if patterns.is_some_and(|patterns| !patterns.keys().all(|pattern| is_pattern(pattern))) {
                    return Copied::Nothing;
                }
                self.one(name, value, place)
            }
            Keyword::Required => {
                let names = value.as_array().into_iter().flatten().filter(|name| name.is_string()).cloned();
                if value.is_array() { Copied::one("required", Value::from_iter(names)) } else { Copied::Relaxed }
            }
            Keyword::Items => match value {
                // A tuple, as it was written before 2020.
                Value::Array(_) => match self.list(value, &place.at(name), place) {
                    Some(items) => self.tuple(fields, items, place),
                    None => Copied::Relaxed,
                },
                _ => self.one(name, value, place),
            },
            Keyword::PrefixItems => match self.list(value, &place.at(name), place) {
                Some(items) => Copied::one("prefixItems", items),
                None => Copied::Relaxed,
            },
            Keyword::Count if value.as_u64().is_some_and(|count| count <= MAX_COUNT) => same(),
            Keyword::Bound if value.is_number() || value.is_boolean() => same(),
            Keyword::MultipleOf if value.as_f64().is_some_and(|number| number > 0.0) => same(),
            Keyword::Pattern if value.is_string() => same(),
            Keyword::Format if value.as_str().is_some_and(|format| FORMATS.contains(&format)) => same(),
            Keyword::Count | Keyword::Bound | Keyword::MultipleOf | Keyword::Pattern | Keyword::Format => {
                Copied::Relaxed
            }
        }
    }

    fn one(&mut self, name: &str, value: &Value, place: Place<'_>) -> Copied {
        let path = place.at(name);
        let copy = self.schema(value, Place { path: &path, depth: place.depth + 1, ..place });
        Copied::one(known(name), copy)
    }

    fn map(&mut self, name: &str, value: &Value, place: Place<'_>) -> Copied {
        let Some(schemas) = value.as_object().filter(|schemas| schemas.len() <= MAX_PROPERTIES) else {
            return Copied::Relaxed;
        };
        let copies = schemas.iter().map(|(key, schema)| {
            let path = place.at(&format!("{name}.{key}"));
            (key.clone(), self.schema(schema, Place { path: &path, depth: place.depth + 1, ..place }))
        });
        Copied::one(known(name), Value::Object(copies.collect()))
    }

    fn list(&mut self, value: &Value, path: &str, place: Place<'_>) -> Option<Value> {
        let schemas = value.as_array().filter(|schemas| !schemas.is_empty())?;
        let copies = schemas.iter().enumerate().map(|(index, schema)| {
            let path = format!("{path}.{index}");
            self.schema(schema, Place { path: &path, depth: place.depth + 1, ..place })
        });
        Some(Value::Array(copies.collect()))
    }

    fn tuple(&mut self, fields: &Map<String, Value>, items: Value, place: Place<'_>) -> Copied {
        let mut entries = vec![("prefixItems", items)];
        if let Some(more) = fields.get("additionalItems") {
            let path = place.at("additionalItems");
            let more = self.schema(more, Place { path: &path, depth: place.depth + 1, ..place });
            entries.push(("items", more));
        }
        Copied::As(entries)
    }

    fn combination(&mut self, fields: &Map<String, Value>, name: &str, value: &Value, place: Place<'_>) -> Copied {
        let is_only = is_only(fields, name) && (name != "allOf" || value.as_array().is_some_and(|all| all.len() == 1));
        let inner = Place { alone: place.alone && is_only, ..place };
        let Some(schemas) = self.list(value, &place.at(name), inner) else { return Copied::Relaxed };
        if name != "oneOf" || self.pass < Pass::AnyOf {
            return Copied::one(known(name), schemas);
        }
        self.relax(place.at(name));
        if fields.contains_key("anyOf") { Copied::Nothing } else { Copied::one("anyOf", schemas) }
    }

    fn reference(&mut self, fields: &Map<String, Value>, value: &Value, place: Place<'_>) -> Copied {
        let Some(reference) = value.as_str().filter(|reference| resolve(self.root, reference).is_some()) else {
            return Copied::Relaxed;
        };
        let alone = place.alone && (is_only(fields, "$ref") || self.pass == Pass::Siblings);
        let key = (reference.to_owned(), alone);
        let fresh = format!("d{}", self.names.len());
        let name = match self.names.get(&key) {
            Some(name) => name.clone(),
            None => {
                self.names.insert(key.clone(), fresh.clone());
                self.pending.push(key);
                fresh
            }
        };
        Copied::one("$ref", format!("#/$defs/{name}").into())
    }

    /// Leaves out a pattern, then a format, that the enforcer cannot compile.
    fn check_text(&mut self, copy: &mut Map<String, Value>, place: Place<'_>) {
        const NAMES: [&str; 4] = ["pattern", "format", "minLength", "maxLength"];
        for name in ["pattern", "format"] {
            if copy.contains_key(name) && !compiles(&part(copy, "string", &NAMES)) {
                copy.remove(name);
                self.relax(place.at(name));
            }
        }
    }

    /// Leaves out what of bounds and multiples the enforcer cannot compile.
    fn check_numbers(&mut self, copy: &mut Map<String, Value>, place: Place<'_>) {
        const NAMES: [&str; 5] = ["multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"];
        let kind = if copy.get("type") == Some(&Value::from("integer")) { "integer" } else { "number" };
        for name in NAMES {
            if copy.contains_key(name) && !compiles(&part(copy, kind, &NAMES)) {
                copy.remove(name);
                self.relax(place.at(name));
            }
        }
    }

    /// Counts of properties are understood only where no property is optional.
    fn check_properties(&mut self, copy: &mut Map<String, Value>, place: Place<'_>) {
        let required = copy.get("required").and_then(Value::as_array);
        let is_required = |name: &String| required.is_some_and(|names| names.iter().any(|required| required == name));
        let properties = copy.get("properties").and_then(Value::as_object);
        if properties.is_none_or(|properties| properties.keys().all(is_required)) {
            return;
        }
        for name in ["minProperties", "maxProperties"] {
            if copy.remove(name).is_some() {
                self.relax(place.at(name));
            }
        }
    }
}

/// What becomes of a keyword.
enum Copied {
    As(Vec<(&'static str, Value)>),
    Relaxed,
    Nothing,
}

impl Copied {
    fn one(name: &'static str, value: Value) -> Self {
        Self::As(vec![(name, value)])
    }
}

/// The keyword `name`, which is one of those that are copied.
fn known(name: &str) -> &'static str {
    const NAMES: [&str; 23] = [
        "const",
        "enum",
        "anyOf",
        "oneOf",
        "allOf",
        "properties",
        "patternProperties",
        "additionalProperties",
        "items",
        "minItems",
        "maxItems",
        "minLength",
        "maxLength",
        "minProperties",
        "maxProperties",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
        "pattern",
        "format",
        "required",
    ];
    NAMES.into_iter().find(|known| *known == name).unwrap_or("title")
}

fn types(value: &Value) -> Copied {
    let is_type = |value: &Value| value.as_str().is_some_and(|name| TYPES.contains(&name));
    match value {
        Value::Array(names) if !names.is_empty() && names.iter().all(is_type) => Copied::one("type", value.clone()),
        Value::String(_) if is_type(value) => Copied::one("type", value.clone()),
        _ => Copied::Relaxed,
    }
}

/// Whether `name` is the only keyword of `fields` that says what is valid.
fn is_only(fields: &Map<String, Value>, name: &str) -> bool {
    fields
        .keys()
        .all(|other| other == name || matches!(other.as_str(), "type") || keyword(other) == Keyword::Annotation)
}

/// Whether an object declares properties and leaves others open without a word. `copy` is what is enforced of `fields`.
fn is_open(fields: &Map<String, Value>, copy: &Map<String, Value>) -> bool {
    let silent = ["additionalProperties", "patternProperties", "$ref", "anyOf", "oneOf", "allOf", "minProperties"];
    let Some(properties) = copy.get("properties").and_then(Value::as_object) else { return false };
    let required = copy.get("required").and_then(Value::as_array).into_iter().flatten();
    let are_declared = required.filter_map(Value::as_str).all(|name| properties.contains_key(name));
    are_declared && !silent.iter().any(|name| fields.contains_key(*name))
}

fn is_pattern(pattern: &str) -> bool {
    compiles(&json!({"type": "string", "pattern": pattern}))
}

/// A schema of the `names` in `copy` alone.
fn part(copy: &Map<String, Value>, kind: &str, names: &[&str]) -> Value {
    let named = copy.iter().filter(|(name, _)| names.contains(&name.as_str()));
    let mut part: Map<String, Value> = named.map(|(name, value)| (name.clone(), value.clone())).collect();
    part.insert("type".to_owned(), kind.into());
    Value::Object(part)
}
