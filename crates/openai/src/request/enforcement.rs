//! What a client demands of an answer's shape: its `response_format`, and that its schemas hold strictly.
//!
//! Whether a schema can be enforced is for the node that serves the model to say. Here is what the dialect itself
//! demands of schemas that are called strict.

use mesh_types::{Fault, ResponseFormat, ResponseSchema, Tool};
use serde_json::{Map, Value};

use super::strict;
use super::tools::is_name;
use crate::json::{describe, invalid, missing};

/// Most characters of the name of a schema, as at OpenAI.
const MAX_NAME: usize = 64;

/// The shape in `format`, the request's `response_format`.
pub(crate) fn response_format(format: Option<&Map<String, Value>>) -> Result<ResponseFormat, Fault> {
    let Some(format) = format else { return Ok(ResponseFormat::Text) };
    match format.get("type").and_then(Value::as_str) {
        Some("text") => Ok(ResponseFormat::Text),
        // Local servers take a schema here as well.
        Some("json_object") => match given(format, "schema") {
            None => Ok(ResponseFormat::JsonObject),
            Some(schema) => {
                let schema = self::schema(schema, "response_format.schema")?;
                Ok(ResponseFormat::JsonSchema(ResponseSchema { name: "response".to_owned(), schema, strict: false }))
            }
        },
        Some("json_schema") => match given(format, "json_schema") {
            None => Err(missing("response_format.json_schema")),
            Some(Value::Object(fields)) => Ok(ResponseFormat::JsonSchema(response_schema(fields)?)),
            Some(other) => Err(wrong("response_format.json_schema", "an object", other)),
        },
        _ => {
            let message = "`response_format.type` must be `text`, `json_object` or `json_schema`.";
            Err(invalid("response_format.type", message))
        }
    }
}

fn response_schema(fields: &Map<String, Value>) -> Result<ResponseSchema, Fault> {
    const PATH: &str = "response_format.json_schema";
    let name_path = format!("{PATH}.name");
    let name = match given(fields, "name") {
        None => return Err(missing(name_path)),
        Some(Value::String(name)) if is_name(name, MAX_NAME) => name.clone(),
        Some(Value::String(_)) => {
            let message = format!("`{name_path}` must be 1 to {MAX_NAME} letters (a-z, A-Z), digits, `_` or `-`.");
            return Err(invalid(name_path, message));
        }
        Some(other) => return Err(wrong(&name_path, "a string", other)),
    };
    let schema = match given(fields, "schema") {
        None => Value::Object(Map::new()),
        Some(schema) => self::schema(schema, &format!("{PATH}.schema"))?,
    };
    let strict = match given(fields, "strict") {
        None => false,
        Some(Value::Bool(strict)) => *strict,
        Some(other) => return Err(wrong(&format!("{PATH}.strict"), "true or false", other)),
    };
    if strict && let Err(violation) = strict::check(&schema) {
        let message = format!("Invalid schema for the response format `{name}`: {violation}.");
        return Err(invalid("response_format", message));
    }
    Ok(ResponseSchema { name, schema, strict })
}

/// Checks the schemas of all tools that are called strict.
pub(crate) fn check(tools: &[Tool]) -> Result<(), Fault> {
    for (index, tool) in tools.iter().enumerate() {
        if let (true, Some(parameters)) = (tool.is_strict(), &tool.parameters)
            && let Err(violation) = strict::check(parameters)
        {
            let message = format!("Invalid schema for the function `{}`: {violation}.", tool.name);
            let path = format!("tools[{index}].function.parameters");
            return Err(invalid(path, message).with_code("invalid_function_parameters"));
        }
    }
    Ok(())
}

fn given<'a>(fields: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    fields.get(name).filter(|value| !value.is_null())
}

fn schema(value: &Value, path: &str) -> Result<Value, Fault> {
    match value {
        Value::Object(_) => Ok(value.clone()),
        other => Err(wrong(path, "an object that holds a JSON schema", other)),
    }
}

fn wrong(path: &str, expects: &str, value: &Value) -> Fault {
    invalid(path, format!("`{path}` must be {expects}, not {}.", describe(value)))
}
