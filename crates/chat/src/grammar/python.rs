//! Arguments as Python's keywords: `key=value, …`, where strings stand in single quotes and all else is JSON.

use serde_json::{Map, Value};

use super::Maker;
use crate::schema::is_plain_object;

/// A string in single quotes.
const STRING: &str = r"/'([^'\\\x00-\x1f\x7f]|\\['\\nrt])*'/";

/// The keywords of the enforceable schema `root`.
pub(super) fn arguments(maker: &mut Maker, root: &Value) -> String {
    if !is_plain_object(root) {
        maker.relax("");
    }
    let none = Map::new();
    let properties = root.get("properties").and_then(Value::as_object).unwrap_or(&none);
    let required = root.get("required").and_then(Value::as_array);
    let is_required = |name: &str| required.is_some_and(|names| names.iter().any(|required| required == name));
    let mut items = Vec::new();
    for (name, property) in properties {
        let is_word = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        if name.is_empty() || !is_word {
            maker.relax(&format!("properties.{name}"));
            continue;
        }
        let key = super::lark::literal(&format!("{name}="));
        items.push((format!("{key} {}", value(maker, root, property)), is_required(name)));
    }
    maker.lark.sequence(&items, "\",\" BLANK?")
}

fn value(maker: &mut Maker, root: &Value, property: &Value) -> String {
    let fields = property.as_object();
    let is_alone = fields.is_some_and(|fields| fields.len() == 1);
    match fields.and_then(|fields| fields.get("type")).and_then(Value::as_str) {
        Some("string") if is_alone => STRING.to_owned(),
        Some("boolean") if is_alone => "(\"True\" | \"False\")".to_owned(),
        _ => {
            let mut schema = Value::Object(fields.cloned().unwrap_or_default());
            if let Some(definitions) = root.get("$defs") {
                schema["$defs"] = definitions.clone();
            }
            maker.lark.json(&schema)
        }
    }
}
