//! What a request hands to the model's chat template: `chat_template_kwargs` and `reasoning_effort`.

use mesh_types::Fault;
use serde_json::{Map, Value};

use super::invalid;

/// Variables that have fields of their own, or are the model's: a template gets them from there alone.
const RESERVED: [&str; 5] = ["messages", "tools", "add_generation_prompt", "bos_token", "eos_token"];
/// OpenAI's efforts, and `max`, which templates know.
const EFFORTS: [&str; 7] = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];

/// More variables for the template. `reasoning_effort` is one, unless `kwargs` has it already.
pub(super) fn variables(
    kwargs: Option<Map<String, Value>>,
    effort: Option<String>,
) -> Result<Map<String, Value>, Fault> {
    let mut variables = kwargs.unwrap_or_default();
    if let Some(name) = RESERVED.iter().find(|name| variables.contains_key(**name)) {
        let path = format!("chat_template_kwargs.{name}");
        return Err(invalid(path.clone(), format!("`{path}` is not allowed: the template has a `{name}` already.")));
    }
    if let Some(effort) = effort {
        if !EFFORTS.contains(&effort.as_str()) {
            let message = format!("`reasoning_effort` must be one of `{}`.", EFFORTS.join("`, `"));
            return Err(invalid("reasoning_effort", message));
        }
        variables.entry("reasoning_effort").or_insert(Value::String(effort));
    }
    Ok(variables)
}
