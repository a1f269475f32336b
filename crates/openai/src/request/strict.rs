//! What OpenAI demands of a schema that is called strict: an object at the root, and in every object of it, all
//! properties required and no others allowed. Source: <https://platform.openai.com/docs/guides/structured-outputs>.

use std::fmt;

use serde_json::Value;

/// Keywords whose value is a schema, a list of schemas, or a map of schemas.
const ONE: [&str; 3] = ["items", "additionalItems", "contains"];
const LIST: [&str; 4] = ["anyOf", "oneOf", "allOf", "prefixItems"];
const MAP: [&str; 3] = ["properties", "$defs", "definitions"];

/// The first demand that a schema does not meet.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Violation {
    /// Keys and indices from the root to the object at fault.
    place: Vec<String>,
    demand: Demand,
}

#[derive(Debug, PartialEq, Eq)]
enum Demand {
    ObjectAtRoot,
    NoMore,
    Required(String),
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place.join(".") {
            root if root.is_empty() => f.write_str("at the root, ")?,
            place => write!(f, "at `{place}`, ")?,
        }
        match &self.demand {
            Demand::ObjectAtRoot => f.write_str("a strict schema has to be of type `object`"),
            Demand::NoMore => f.write_str("`additionalProperties` has to be given, and false, in a strict schema"),
            Demand::Required(name) => {
                write!(f, "`required` has to name every property of a strict schema, and lacks `{name}`")
            }
        }
    }
}

/// Checks all of `schema`.
pub(super) fn check(schema: &Value) -> Result<(), Violation> {
    let fault = |demand| Err(Violation { place: Vec::new(), demand });
    // No properties at all: a function without arguments.
    if schema.as_object().is_some_and(serde_json::Map::is_empty) {
        return Ok(());
    }
    if schema.get("type") != Some(&Value::from("object")) {
        return fault(Demand::ObjectAtRoot);
    }
    walk(schema, &mut Vec::new())
}

fn walk(schema: &Value, place: &mut Vec<String>) -> Result<(), Violation> {
    if let Some(demand) = unmet(schema) {
        return Err(Violation { place: place.clone(), demand });
    }
    let mut below = |steps: &[&str], schema: &Value| {
        place.extend(steps.iter().map(|step| (*step).to_owned()));
        let walked = walk(schema, place);
        place.truncate(place.len() - steps.len());
        walked
    };
    for keyword in ONE {
        if let Some(inner) = schema.get(keyword) {
            below(&[keyword], inner)?;
        }
    }
    for keyword in LIST {
        for (index, inner) in schema.get(keyword).and_then(Value::as_array).into_iter().flatten().enumerate() {
            below(&[keyword, &index.to_string()], inner)?;
        }
    }
    for keyword in MAP {
        for (name, inner) in schema.get(keyword).and_then(Value::as_object).into_iter().flatten() {
            below(&[keyword, name], inner)?;
        }
    }
    Ok(())
}

/// What `schema` itself violates, if it is one of objects.
fn unmet(schema: &Value) -> Option<Demand> {
    let is_object = match schema.get("type") {
        Some(Value::String(kind)) => kind == "object",
        Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind == "object"),
        _ => schema.get("properties").is_some(),
    };
    if !is_object {
        return None;
    }
    if schema.get("additionalProperties") != Some(&Value::Bool(false)) {
        return Some(Demand::NoMore);
    }
    let required = schema.get("required").and_then(Value::as_array);
    let is_required = |name: &str| required.is_some_and(|names| names.iter().any(|required| required == name));
    let mut names = schema.get("properties").and_then(Value::as_object).into_iter().flatten().map(|(name, _)| name);
    names.find(|name| !is_required(name)).map(|name| Demand::Required(name.clone()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_a_strict_schema_lacks_is_named_with_its_place() {
        let object = |properties: Value, required: Value| json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false});
        let fine = object(json!({"a": {"type": ["string", "null"]}, "b": {"$ref": "#/$defs/x"}}), json!(["b", "a"]));
        assert_eq!(check(&fine), Ok(()));
        assert_eq!(check(&json!({})), Ok(()));
        let said = |schema: &Value| check(schema).expect_err("a violation").to_string();
        assert!(said(&json!({"type": "array"})).starts_with("at the root, a strict schema has to be of type"));
        assert!(said(&json!({"type": "object"})).starts_with("at the root, `additionalProperties`"));
        assert!(said(&object(json!({"a": {}, "b": {}}), json!(["a"]))).ends_with("lacks `b`"));
        assert!(said(&object(json!({"a": {}}), json!(null))).ends_with("lacks `a`"));
        let open = json!({"type": "object", "properties": {}});
        for (inner, place) in [
            (json!({"type": "array", "items": open}), "properties.a.items"),
            (json!({"anyOf": [{"type": "null"}, open]}), "properties.a.anyOf.1"),
            (json!({"properties": {}}), "properties.a"),
        ] {
            let said = said(&object(json!({"a": inner}), json!(["a"])));
            assert!(said.starts_with(&format!("at `{place}`, `additionalProperties`")), "{said}");
        }
        let mut defined = fine;
        defined["$defs"] = json!({"x": open});
        assert!(said(&defined).starts_with("at `$defs.x`"));
    }
}
