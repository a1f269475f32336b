//! What a client may demand of an answer's shape that no stage can enforce yet: refused by name rather than hoped for.
//! The one place to change when a demand can be met.

use mesh_types::{Fault, Tool, ToolChoice};

use super::raw::RawFormat;
use super::{UNSUPPORTED, invalid};

/// Refuses what cannot be enforced of a request's tools, the choice of them, and its response format.
pub(super) fn check(tools: &[Tool], choice: &ToolChoice, format: Option<&RawFormat>) -> Result<(), Fault> {
    match choice {
        ToolChoice::Auto | ToolChoice::None => {}
        ToolChoice::Required | ToolChoice::Named(_) => {
            let message = "`tool_choice`: calls cannot be forced yet; only `auto` and `none` are supported.";
            return Err(unsupported("tool_choice".to_owned(), message.to_owned()));
        }
    }
    if let Some(index) = tools.iter().position(is_strict) {
        let path = format!("tools[{index}].function.strict");
        let message = format!("`{path}`: strict schemas are not supported yet.");
        return Err(unsupported(path, message));
    }
    match format.map(|format| format.kind.as_deref()) {
        None | Some(Some("text")) => Ok(()),
        Some(Some("json_object" | "json_schema")) => {
            let message = "`response_format` is not supported yet, but for `{\"type\": \"text\"}`.";
            Err(unsupported("response_format".to_owned(), message.to_owned()))
        }
        Some(_) => {
            let message = "`response_format.type` must be `text`, `json_object` or `json_schema`.";
            Err(invalid("response_format.type", message))
        }
    }
}

fn is_strict(tool: &Tool) -> bool {
    tool.definition.pointer("/function/strict").and_then(serde_json::Value::as_bool) == Some(true)
}

fn unsupported(path: String, message: String) -> Fault {
    invalid(path, message).with_code(UNSUPPORTED)
}
