//! The request that `template render` and `template parse --request` read.

use mesh_types::{Message, Tool, ToolCall, ToolChoice};
use serde_json::{Map, Value};

use super::TemplateError;

/// What of a request concerns templates.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) messages: Vec<Message>,
    pub(super) tools: Vec<Tool>,
    pub(super) choice: ToolChoice,
    pub(super) parallel: bool,
    pub(super) add_generation_prompt: bool,
    pub(super) variables: Map<String, Value>,
    pub(super) bos_token: Option<String>,
    pub(super) eos_token: Option<String>,
}

fn wrong(place: &str, expected: &str) -> TemplateError {
    TemplateError::Input(format!("`{place}` must be {expected}"))
}

impl Request {
    /// Reads one. All fields may be absent or null.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, TemplateError> {
        let value: Value = serde_json::from_slice(bytes)
            .map_err(|error| TemplateError::Input(format!("the request is no JSON: {error}")))?;
        let Value::Object(fields) = value else { return Err(wrong("request", "a JSON object")) };
        let flag = |name: &str| match field(&fields, name) {
            None => Ok(true),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(_) => Err(wrong(name, "true or false")),
        };
        let messages = list(&fields, "messages")?.iter().enumerate();
        let tools = list(&fields, "tools")?.iter().enumerate();
        Ok(Self {
            messages: messages.map(|(index, value)| message(value, index)).collect::<Result<_, _>>()?,
            tools: tools.map(|(index, value)| tool(value, index)).collect::<Result<_, _>>()?,
            choice: choice(field(&fields, "tool_choice"))?,
            parallel: flag("parallel_tool_calls")?,
            add_generation_prompt: flag("add_generation_prompt")?,
            variables: match field(&fields, "chat_template_kwargs") {
                None => Map::new(),
                Some(Value::Object(variables)) => variables.clone(),
                Some(_) => return Err(wrong("chat_template_kwargs", "an object")),
            },
            bos_token: text(&fields, "bos_token", "bos_token")?,
            eos_token: text(&fields, "eos_token", "eos_token")?,
        })
    }
}

fn field<'a>(fields: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    fields.get(name).filter(|value| !value.is_null())
}

fn list<'a>(fields: &'a Map<String, Value>, name: &str) -> Result<&'a [Value], TemplateError> {
    match field(fields, name) {
        None => Ok(&[]),
        Some(Value::Array(items)) => Ok(items),
        Some(_) => Err(wrong(name, "an array")),
    }
}

fn text(fields: &Map<String, Value>, name: &str, place: &str) -> Result<Option<String>, TemplateError> {
    match field(fields, name) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(wrong(place, "a string")),
    }
}

fn message(value: &Value, index: usize) -> Result<Message, TemplateError> {
    let place = |field: &str| format!("messages[{index}].{field}");
    let Value::Object(fields) = value else { return Err(wrong(&format!("messages[{index}]"), "an object")) };
    let calls = match field(fields, "tool_calls") {
        None => &[],
        Some(Value::Array(calls)) => calls.as_slice(),
        Some(_) => return Err(wrong(&place("tool_calls"), "an array")),
    };
    let calls = calls.iter().enumerate().map(|(at, value)| call(value, &place(&format!("tool_calls[{at}]"))));
    Ok(Message {
        role: text(fields, "role", &place("role"))?.ok_or_else(|| wrong(&place("role"), "a string"))?,
        content: content(field(fields, "content"), &place("content"))?,
        name: text(fields, "name", &place("name"))?,
        reasoning_content: text(fields, "reasoning_content", &place("reasoning_content"))?,
        tool_calls: calls.collect::<Result<_, _>>()?,
        tool_call_id: text(fields, "tool_call_id", &place("tool_call_id"))?,
    })
}

/// Text, or parts of text, one a line.
fn content(value: Option<&Value>, place: &str) -> Result<Option<String>, TemplateError> {
    match value {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(Value::Array(parts)) => {
            let text = |part: &Value| part.get("text").and_then(Value::as_str).map(str::to_owned);
            let texts: Option<Vec<String>> = parts.iter().map(text).collect();
            texts.map(|texts| Some(texts.join("\n"))).ok_or_else(|| wrong(place, "text, or parts of text"))
        }
        Some(_) => Err(wrong(place, "text, or parts of text")),
    }
}

fn call(value: &Value, place: &str) -> Result<ToolCall, TemplateError> {
    let function = value.get("function").unwrap_or(value);
    let name = function.get("name").and_then(Value::as_str);
    Ok(ToolCall {
        id: value.get("id").and_then(Value::as_str).unwrap_or_default().to_owned(),
        name: name.ok_or_else(|| wrong(&format!("{place}.function.name"), "a string"))?.to_owned(),
        arguments: match function.get("arguments") {
            None | Some(Value::Null) => "{}".to_owned(),
            Some(Value::String(text)) => text.clone(),
            Some(object @ Value::Object(_)) => object.to_string(),
            Some(_) => return Err(wrong(&format!("{place}.function.arguments"), "a string that holds JSON")),
        },
    })
}

fn tool(value: &Value, index: usize) -> Result<Tool, TemplateError> {
    Tool::from_definition(value.clone()).map_err(|what| TemplateError::Input(format!("`tools[{index}]` {what}")))
}

fn choice(value: Option<&Value>) -> Result<ToolChoice, TemplateError> {
    match value {
        None => Ok(ToolChoice::Auto),
        Some(Value::String(word)) => match word.as_str() {
            "auto" => Ok(ToolChoice::Auto),
            "none" => Ok(ToolChoice::None),
            "required" => Ok(ToolChoice::Required),
            _ => Err(wrong("tool_choice", "\"auto\", \"none\", \"required\" or a function")),
        },
        Some(object) => match object.pointer("/function/name").and_then(Value::as_str) {
            Some(name) => Ok(ToolChoice::Named(name.to_owned())),
            None => Err(wrong("tool_choice.function.name", "a string")),
        },
    }
}
