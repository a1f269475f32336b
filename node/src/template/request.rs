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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(request: Value) -> Result<Request, String> {
        Request::parse(request.to_string().as_bytes()).map_err(|error| error.to_string())
    }

    #[test]
    fn all_may_be_absent_or_null() {
        for request in [json!({}), json!({"messages": null, "tools": null, "tool_choice": null, "bos_token": null})] {
            let request = parse(request).expect("a request");
            assert!(request.messages.is_empty() && request.tools.is_empty() && request.variables.is_empty());
            assert!(request.parallel && request.add_generation_prompt);
            assert_eq!(request.choice, ToolChoice::Auto);
        }
    }

    #[test]
    fn messages_keep_their_calls_and_join_their_parts() {
        let call = json!({"id": "a", "type": "function", "function": {"name": "look", "arguments": "{ }"}});
        let part = |text: &str| json!({"type": "text", "text": text});
        let request = parse(json!({
            "messages": [
                {"role": "assistant", "content": null, "reasoning_content": "Hm.", "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "a", "content": [part("x"), part("y")]},
            ],
            "tool_choice": {"type": "function", "function": {"name": "look"}},
        }));
        let request = request.expect("a request");
        let [assistant, tool] = request.messages.as_slice() else { panic!("{:?}", request.messages) };
        assert_eq!((assistant.content.as_deref(), assistant.reasoning_content.as_deref()), (None, Some("Hm.")));
        let call = ToolCall { id: "a".to_owned(), name: "look".to_owned(), arguments: "{ }".to_owned() };
        assert_eq!(assistant.tool_calls, [call]);
        assert_eq!((tool.content.as_deref(), tool.tool_call_id.as_deref()), (Some("x\ny"), Some("a")));
        assert_eq!(request.choice, ToolChoice::Named("look".to_owned()));
    }

    #[test]
    fn what_is_wrong_is_named_by_its_place() {
        for (request, place) in [
            (json!([]), "`request`"),
            (json!({"messages": [{}]}), "`messages[0].role`"),
            (json!({"messages": [{"role": "user", "content": 1}]}), "`messages[0].content`"),
            (
                json!({"messages": [{"role": "assistant", "tool_calls": [{}]}]}),
                "`messages[0].tool_calls[0].function.name`",
            ),
            (json!({"tools": [{"name": "a"}, {}]}), "`tools[1]` has no `name`"),
            (json!({"tool_choice": "always"}), "`tool_choice`"),
            (json!({"add_generation_prompt": 1}), "`add_generation_prompt`"),
        ] {
            let error = parse(request).expect_err(place);
            assert!(error.contains(place), "{error}");
        }
        assert!(Request::parse(b"{").expect_err("no JSON").to_string().contains("no JSON"));
    }
}
