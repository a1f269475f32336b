//! A request's `tools`, the choice of them, and the calls and results in its messages.

use std::collections::HashSet;

use mesh_types::{Fault, Tool, ToolCall, ToolChoice};
use serde_json::{Map, Value};

use crate::json::{Object, UNSUPPORTED, invalid, missing, wrong};

/// Most tools in one request. OpenAI takes 128; agents with many servers of tools have more.
pub const MAX_TOOLS: usize = 1024;
/// Most characters of a tool's name, as at OpenAI.
pub const MAX_TOOL_NAME: usize = 64;

/// The tools in `value`, the request's field.
pub(crate) fn tools(value: Option<&Value>) -> Result<Vec<Tool>, Fault> {
    let definitions = match value {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(definitions)) => definitions,
        Some(other) => return Err(wrong("tools", "an array of tools", other)),
    };
    if definitions.len() > MAX_TOOLS {
        let message = format!("`tools` holds {} tools; at most {MAX_TOOLS} are allowed.", definitions.len());
        return Err(invalid("tools", message));
    }
    let mut names = HashSet::new();
    let mut tools = Vec::with_capacity(definitions.len());
    for (index, definition) in definitions.iter().enumerate() {
        let tool = tool(definition, &format!("tools[{index}]"))?;
        if !names.insert(tool.name.clone()) {
            let path = format!("tools[{index}].function.name");
            return Err(invalid(path, format!("`tools` holds two functions of the name `{}`.", tool.name)));
        }
        tools.push(tool);
    }
    Ok(tools)
}

fn tool(definition: &Value, path: &str) -> Result<Tool, Fault> {
    let Value::Object(fields) = definition else { return Err(wrong(path, "an object", definition)) };
    function_type(fields, path)?;
    let path = format!("{path}.function");
    let function = match fields.get("function") {
        Some(Value::Object(function)) => function,
        None | Some(Value::Null) => return Err(missing(path)),
        Some(other) => return Err(wrong(&path, "an object", other)),
    };
    name(function.get("name"), &format!("{path}.name"))?;
    for (field, expects, fits) in [
        ("description", "a string", Value::is_string as fn(&Value) -> bool),
        ("parameters", "an object that holds a JSON schema", Value::is_object),
        ("strict", "true or false", Value::is_boolean),
    ] {
        match function.get(field) {
            Some(value) if !value.is_null() && !fits(value) => {
                return Err(wrong(&format!("{path}.{field}"), expects, value));
            }
            _ => {}
        }
    }
    Tool::from_definition(definition.clone()).map_err(|what| invalid(path.clone(), format!("`{path}` {what}.")))
}

/// `type` has to be `function`: the only type of tools that the dialect's clients run themselves and are served here.
fn function_type(fields: &Map<String, Value>, path: &str) -> Result<(), Fault> {
    let path = format!("{path}.type");
    match fields.get("type") {
        None | Some(Value::Null) => Err(missing(path)),
        Some(Value::String(kind)) if kind == "function" => Ok(()),
        Some(Value::String(kind)) if kind == "custom" => {
            let message = format!("`{path}`: the type `{kind}` is not supported yet; only `function` is.");
            Err(invalid(path, message).with_code(UNSUPPORTED))
        }
        Some(Value::String(kind)) => Err(invalid(path.clone(), format!("`{path}` must be `function`, not `{kind}`."))),
        Some(other) => Err(wrong(&path, "the string `function`", other)),
    }
}

/// A tool has a name that every client and model can write.
pub(crate) fn name(value: Option<&Value>, path: &str) -> Result<(), Fault> {
    let name = match value {
        None | Some(Value::Null) => return Err(missing(path)),
        Some(Value::String(name)) => name,
        Some(other) => return Err(wrong(path, "a string", other)),
    };
    if is_name(name, MAX_TOOL_NAME) {
        return Ok(());
    }
    let message = format!("`{path}` must be 1 to {MAX_TOOL_NAME} letters (a-z, A-Z), digits, `_` or `-`.");
    Err(invalid(path, message))
}

/// Whether `name` is of the letters, and of the length, that the dialect's names have.
pub(super) fn is_name(name: &str, most: usize) -> bool {
    let is_plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-');
    is_plain && (1..=most).contains(&name.len())
}

/// The choice in `value`, the request's `tool_choice`. `given` is the request's `tools`, and `tools` what is in it.
pub(crate) fn choice(value: Option<&Value>, given: Option<&Value>, tools: &[Tool]) -> Result<ToolChoice, Fault> {
    const PATH: &str = "tool_choice";
    let choice = match value {
        None | Some(Value::Null) => return Ok(ToolChoice::Auto),
        Some(Value::String(word)) => match word.as_str() {
            "auto" => ToolChoice::Auto,
            "none" => ToolChoice::None,
            "required" => ToolChoice::Required,
            _ => {
                let message = "`tool_choice` must be `auto`, `none`, `required` or a function.";
                return Err(invalid(PATH, message));
            }
        },
        Some(Value::Object(fields)) if fields.get("type").and_then(Value::as_str) == Some("allowed_tools") => {
            allowed(fields)?
        }
        Some(Value::Object(fields)) => ToolChoice::Named(named(fields, PATH)?),
        Some(other) => return Err(wrong(PATH, "a string or an object", other)),
    };
    let asks_for_nothing = matches!(choice, ToolChoice::Auto | ToolChoice::None);
    if given.is_none_or(Value::is_null) || (tools.is_empty() && !asks_for_nothing) {
        return Err(invalid(PATH, "`tool_choice` is only allowed when `tools` are given."));
    }
    match choice.names().iter().find(|name| !tools.iter().any(|tool| tool.name == **name)) {
        Some(name) => {
            Err(invalid(PATH, format!("`tool_choice` names the function `{name}`, which is not in `tools`.")))
        }
        None => Ok(choice),
    }
}

/// `{"type": "function", "function": {"name": …}}` at `path`.
fn named(fields: &Map<String, Value>, path: &str) -> Result<String, Fault> {
    function_type(fields, path)?;
    let path = format!("{path}.function");
    match fields.get("function") {
        None | Some(Value::Null) => Err(missing(path)),
        Some(Value::Object(function)) => {
            let path = format!("{path}.name");
            match function.get("name") {
                Some(Value::String(name)) => Ok(name.clone()),
                None | Some(Value::Null) => Err(missing(path)),
                Some(other) => Err(wrong(&path, "a string", other)),
            }
        }
        Some(other) => Err(wrong(&path, "an object", other)),
    }
}

/// `{"type": "allowed_tools", "allowed_tools": {"mode": "auto" | "required", "tools": [{"type": "function", …}]}}`.
fn allowed(fields: &Map<String, Value>) -> Result<ToolChoice, Fault> {
    const PATH: &str = "tool_choice.allowed_tools";
    let fields = match fields.get("allowed_tools") {
        None | Some(Value::Null) => return Err(missing(PATH)),
        Some(Value::Object(fields)) => fields,
        Some(other) => return Err(wrong(PATH, "an object", other)),
    };
    let required = match fields.get("mode").and_then(Value::as_str) {
        Some("auto") => false,
        Some("required") => true,
        _ => {
            let path = format!("{PATH}.mode");
            return Err(invalid(path.clone(), format!("`{path}` must be `auto` or `required`.")));
        }
    };
    let path = format!("{PATH}.tools");
    let tools = match fields.get("tools") {
        Some(Value::Array(tools)) if (1..=MAX_TOOLS).contains(&tools.len()) => tools,
        _ => return Err(invalid(path.clone(), format!("`{path}` must be an array of 1 to {MAX_TOOLS} functions."))),
    };
    let names = tools.iter().enumerate().map(|(index, tool)| match (tool, format!("{path}[{index}]")) {
        (Value::Object(fields), path) => named(fields, &path),
        (other, path) => Err(wrong(&path, "an object", other)),
    });
    Ok(ToolChoice::Allowed { names: names.collect::<Result<_, _>>()?, required })
}

/// The calls of an assistant's turn.
pub(crate) fn calls(turn: &Object<'_>) -> Result<Vec<ToolCall>, Fault> {
    turn.objects("tool_calls")?.iter().map(call).collect()
}

fn call(call: &Object<'_>) -> Result<ToolCall, Fault> {
    match call.text("type")? {
        None | Some("function") => {}
        Some(kind) => return Err(call.unsupported("type", &format!("is `{kind}`; only `function` is supported here"))),
    }
    let id = call.required("id")?.to_owned();
    let function = call.object("function")?.ok_or_else(|| call.missing("function"))?;
    let name = function.required("name")?.to_owned();
    // What a model wrote need not be JSON, and stays as it is.
    let arguments = function.text("arguments")?.ok_or_else(|| function.missing("arguments"))?.to_owned();
    Ok(ToolCall { id, name, arguments })
}
