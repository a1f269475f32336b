//! What a model is told about its tools.

use std::fmt::Write;

use mesh_types::{Tool, ToolChoice};
use serde_json::{Map, Value};

use crate::format::EMULATED_MARKER;
use crate::tools::schema::resolve;

/// Longest chain of references that is followed.
const MAX_REFERENCES: usize = 8;
/// Levels of nesting that are spelled out: the arguments, and what is inside them.
const LEVELS: usize = 2;

/// The instruction for `tools`.
pub(super) fn text(tools: &[Tool], choice: &ToolChoice, parallel: bool) -> String {
    let mut text = format!(
        "# Tools\n\nYou can call tools. To call one, write a single line of exactly this form, with JSON arguments:\n\n\
         {EMULATED_MARKER} {{\"name\": \"TOOL_NAME\", \"arguments\": {{\"ARGUMENT\": \"VALUE\"}}}}\n\n\
         Stop after the call; its result comes in the next message, headed `Tool result:`. Never write a result \
         yourself. "
    );
    text.push_str(match parallel {
        true => "For several calls at once, write one such line for each. ",
        false => "Call one tool at a time. ",
    });
    match choice {
        ToolChoice::Required => text.push_str("Your next answer must be a call of a tool."),
        ToolChoice::Named(name) => {
            let _ = write!(text, "Your next answer must be a call of `{name}`.");
        }
        ToolChoice::Allowed { names, required: true } => {
            let _ = write!(text, "Your next answer must be a call of one of these: `{}`.", names.join("`, `"));
        }
        // What is not allowed of this, an answer is kept from; the prompt stays the same.
        ToolChoice::Auto | ToolChoice::None | ToolChoice::Allowed { required: false, .. } => {
            text.push_str("If no tool is needed, answer in plain text.");
        }
    }
    text.push_str("\n\nThe tools (`?` marks an optional argument):\n");
    for tool in tools {
        let _ = write!(text, "\n- {}({})", tool.name, signature(tool.parameters.as_ref()));
        if let Some(description) = tool.description.as_deref().map(str::trim).filter(|text| !text.is_empty()) {
            let _ = write!(text, ": {}", description.replace('\n', "\n  "));
        }
    }
    text
}

/// `city: string, unit?: "c" | "f"`.
fn signature(parameters: Option<&Value>) -> String {
    let Some(root) = parameters else { return String::new() };
    let schema = followed(root, root);
    fields(root, schema, LEVELS).unwrap_or_default()
}

fn fields(root: &Value, schema: &Value, levels: usize) -> Option<String> {
    let properties: &Map<String, Value> = schema.get("properties")?.as_object()?;
    let required = schema.get("required").and_then(Value::as_array);
    let is_required = |key: &str| required.is_some_and(|keys| keys.iter().any(|required| required == key));
    let fields = properties.iter().map(|(key, schema)| {
        let optional = if is_required(key) { "" } else { "?" };
        format!("{key}{optional}: {}", kind(root, schema, levels - 1))
    });
    Some(fields.collect::<Vec<_>>().join(", "))
}

/// A type in a few characters.
fn kind(root: &Value, schema: &Value, levels: usize) -> String {
    let schema = followed(root, schema);
    if let Some(value) = schema.get("const") {
        return value.to_string();
    }
    if let Some(values) = schema.get("enum").and_then(Value::as_array).filter(|values| !values.is_empty()) {
        return joined(values.iter().map(Value::to_string));
    }
    for combination in ["anyOf", "oneOf"] {
        if let Some(parts) = schema.get(combination).and_then(Value::as_array).filter(|parts| !parts.is_empty()) {
            return match levels {
                0 => "any".to_owned(),
                _ => joined(parts.iter().map(|part| kind(root, part, levels - 1))),
            };
        }
    }
    match schema.get("type") {
        Some(Value::Array(names)) => {
            joined(names.iter().filter_map(Value::as_str).map(|name| named(root, schema, name, levels)))
        }
        Some(Value::String(name)) => named(root, schema, name, levels),
        _ if schema.get("properties").is_some() => named(root, schema, "object", levels),
        _ => "any".to_owned(),
    }
}

fn named(root: &Value, schema: &Value, name: &str, levels: usize) -> String {
    match (name, levels) {
        ("object", 1..) => {
            fields(root, schema, levels).map_or_else(|| "object".to_owned(), |inner| format!("{{{inner}}}"))
        }
        ("array", _) => match schema.get("items") {
            // A list is no level of its own: what matters is in its items.
            Some(items) => format!("[{}]", items_kind(root, items, levels)),
            None => "array".to_owned(),
        },
        _ => name.to_owned(),
    }
}

/// Lists of lists end somewhere, also in a schema that refers to itself.
fn items_kind(root: &Value, items: &Value, levels: usize) -> String {
    let followed = followed(root, items);
    match followed.get("items") {
        Some(_) if levels == 0 => "array".to_owned(),
        Some(inner) => format!("[{}]", items_kind(root, inner, levels - 1)),
        None => kind(root, followed, levels),
    }
}

fn joined(kinds: impl Iterator<Item = String>) -> String {
    kinds.collect::<Vec<_>>().join(" | ")
}

/// What a chain of local references ends at.
fn followed<'a>(root: &'a Value, schema: &'a Value) -> &'a Value {
    let mut schema = schema;
    for _ in 0..MAX_REFERENCES {
        match schema.get("$ref").and_then(|reference| resolve(root, reference)) {
            Some(target) => schema = target,
            None => break,
        }
    }
    schema
}
