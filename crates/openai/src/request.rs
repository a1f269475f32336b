//! From the bytes of a request to the canonical one.
//!
//! A field that would change the answer is either honoured or refused by name; see [`fields`] for all of them. A field
//! that nobody here knows is skipped and reported, so that a gateway can say so.

mod enforcement;
mod fields;
mod raw;
mod strict;
mod template;
mod tools;

use mesh_types::chat::SamplingOverrides;
use mesh_types::{ChatRequest, Fault, Message, ModelId, RequestId, ResponseFormat, Tool, ToolChoice};
use serde_json::{Map, Value};

use fields::{Handling, Neutral};
use raw::{OneOrMany, RawContent, RawMessage, RawPart, RawRequest};

pub use tools::{MAX_TOOL_NAME, MAX_TOOLS};

/// Most stop strings in one request. OpenAI takes 4; local servers take more.
pub const MAX_STOPS: usize = 64;

/// A request, and what of it concerns the dialect alone.
#[derive(Clone, Debug, PartialEq)]
pub struct ParsedChat {
    /// The canonical request.
    pub chat: ChatRequest,
    /// Whether the answer is streamed.
    pub stream: bool,
    /// Whether a streamed answer ends with its usage.
    pub include_usage: bool,
    /// Paths of fields that are not known and were skipped, in the order of the request.
    pub ignored: Vec<String>,
}

/// Reads and checks the body of `POST /v1/chat/completions`.
///
/// # Errors
/// An invalid request whose message is for the client, with the field's path in `param` where there is one.
pub fn parse(body: &[u8], request: RequestId) -> Result<ParsedChat, Fault> {
    let value: Value =
        serde_json::from_slice(body).map_err(|e| Fault::invalid(format!("The body is not valid JSON: {e}.")))?;
    let Value::Object(map) = &value else {
        return Err(Fault::invalid("The body must be a JSON object."));
    };
    let ignored = sort_fields(map)?;
    let raw: RawRequest = serde_path_to_error::deserialize(&value).map_err(|e| wrong_type(map, &e))?;
    let tools = tools::tools(map.get("tools"))?;
    let tool_choice = tools::choice(map.get("tool_choice"), map.get("tools"), &tools)?;
    enforcement::check(&tools)?;
    let response_format = enforcement::response_format(raw.response_format.as_ref())?;
    build(raw, Demands { tools, tool_choice, response_format }, request, ignored)
}

/// What the answer may and must be.
struct Demands {
    tools: Vec<Tool>,
    tool_choice: ToolChoice,
    response_format: ResponseFormat,
}

fn build(raw: RawRequest, demands: Demands, request: RequestId, ignored: Vec<String>) -> Result<ParsedChat, Fault> {
    let stream = raw.stream.unwrap_or(false);
    if raw.stream_options.is_some() && !stream {
        return Err(invalid("stream_options", "`stream_options` is only allowed when `stream` is true."));
    }
    match raw.n {
        None | Some(1) => {}
        Some(n) if n > 1 => {
            let message = format!("`n` = {n} is not supported yet: this gateway gives one choice per request.");
            return Err(invalid("n", message).with_code(UNSUPPORTED));
        }
        Some(n) => return Err(invalid("n", format!("`n` must be 1, not {n}."))),
    }
    let max_tokens = count("max_tokens", raw.max_tokens)?;
    let max_completion_tokens = count("max_completion_tokens", raw.max_completion_tokens)?;
    let sampling = SamplingOverrides {
        temperature: number("temperature", raw.temperature, 2.0)?,
        top_k: raw.top_k.map(top_k).transpose()?,
        top_p: number("top_p", raw.top_p, 1.0)?,
        min_p: number("min_p", raw.min_p, 1.0)?,
        // Any 64 bits are a seed: -1 is one like every other.
        seed: raw.seed.map(i64::cast_unsigned),
        ignore_eos: raw.ignore_eos,
    };
    let chat = ChatRequest {
        request,
        model: model(raw.model)?,
        messages: messages(raw.messages)?,
        max_tokens: max_completion_tokens.or(max_tokens),
        sampling,
        stop: stops(raw.stop)?,
        tools: demands.tools,
        tool_choice: demands.tool_choice,
        parallel_tool_calls: raw.parallel_tool_calls.unwrap_or(true),
        response_format: demands.response_format,
        raw: None,
        template_kwargs: template::variables(raw.chat_template_kwargs, raw.reasoning_effort)?,
        conversation: raw.prompt_cache_key.and_then(|key| key.as_str().map(str::to_owned)),
    };
    let include_usage = raw.stream_options.and_then(|options| options.include_usage).unwrap_or(false);
    Ok(ParsedChat { chat, stream, include_usage, ignored })
}

const UNSUPPORTED: &str = "unsupported_parameter";

fn invalid(param: impl Into<String>, message: impl Into<String>) -> Fault {
    Fault::invalid(message).with_param(param)
}

fn missing(path: impl Into<String>) -> Fault {
    let path = path.into();
    let message = format!("`{path}` is missing.");
    invalid(path, message)
}

/// Refuses what is not supported, and gives the paths of what is not known.
fn sort_fields(request: &Map<String, Value>) -> Result<Vec<String>, Fault> {
    let mut ignored = Vec::new();
    sort(request, "", fields::handling, &mut ignored)?;
    let messages = request.get("messages").and_then(Value::as_array);
    for (index, message) in messages.into_iter().flatten().enumerate() {
        if let Value::Object(message) = message {
            sort(message, &format!("messages[{index}]."), fields::message_handling, &mut ignored)?;
        }
    }
    Ok(ignored)
}

fn sort(
    map: &Map<String, Value>,
    prefix: &str,
    handling: fn(&str) -> Option<Handling>,
    ignored: &mut Vec<String>,
) -> Result<(), Fault> {
    for (name, value) in map {
        match handling(name) {
            Some(Handling::Read { .. } | Handling::Harmless) => {}
            Some(Handling::Refused(neutral)) if neutral.covers(value) => {}
            Some(Handling::Refused(_)) => {
                let path = format!("{prefix}{name}");
                let message = format!("`{path}` is not supported yet.");
                return Err(invalid(path, message).with_code(UNSUPPORTED));
            }
            Some(Handling::Legacy { .. }) if Neutral::Empty.covers(value) => {}
            Some(Handling::Legacy { successor }) => {
                let path = format!("{prefix}{name}");
                let message = format!("`{path}` is not supported: use {successor} instead.");
                return Err(invalid(path, message).with_code(UNSUPPORTED));
            }
            None => ignored.push(format!("{prefix}{name}")),
        }
    }
    Ok(())
}

/// The sentence about a value of the wrong type: from the table for a top-level field, else serde's own.
fn wrong_type(request: &Map<String, Value>, error: &serde_path_to_error::Error<serde_json::Error>) -> Fault {
    let path = error.path().to_string();
    let message = match (fields::handling(&path), request.get(&path)) {
        (Some(Handling::Read { expects }), Some(value)) => {
            format!("`{path}` must be {expects}, not {}.", describe(value))
        }
        _ => format!("`{path}` has the wrong type: {}.", error.inner()),
    };
    invalid(path, message)
}

fn describe(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(flag) => flag.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(_) => "a string".to_owned(),
        Value::Array(_) => "an array".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    }
}

fn model(name: Option<String>) -> Result<ModelId, Fault> {
    match name {
        Some(name) if !name.is_empty() => Ok(ModelId::new(name)),
        Some(_) => Err(invalid("model", "`model` is empty.")),
        None => Err(missing("model")),
    }
}

fn count(field: &str, value: Option<i64>) -> Result<Option<u32>, Fault> {
    match value {
        None => Ok(None),
        Some(value) if value < 1 => Err(invalid(field, format!("`{field}` must be at least 1, not {value}."))),
        // The context is far smaller than that and bounds it.
        Some(value) => Ok(Some(u32::try_from(value).unwrap_or(u32::MAX))),
    }
}

fn number(field: &str, value: Option<f64>, max: f64) -> Result<Option<f32>, Fault> {
    match value {
        Some(value) if !(0.0..=max).contains(&value) => {
            Err(invalid(field, format!("`{field}` must be from 0 to {max}, not {value}.")))
        }
        value => Ok(value.map(|value| value as f32)),
    }
}

fn top_k(value: i64) -> Result<u32, Fault> {
    match value {
        // -1 is how other local servers write "all".
        -1 => Ok(0),
        value if value < 0 => Err(invalid("top_k", format!("`top_k` must be at least 0, not {value}."))),
        value => Ok(u32::try_from(value).unwrap_or(u32::MAX)),
    }
}

fn stops(stop: Option<OneOrMany>) -> Result<Vec<String>, Fault> {
    let stops = stop.map(|stop| stop.0).unwrap_or_default();
    if stops.len() > MAX_STOPS {
        let message = format!("`stop` holds {} strings; at most {MAX_STOPS} are allowed.", stops.len());
        return Err(invalid("stop", message));
    }
    if stops.iter().any(String::is_empty) {
        return Err(invalid("stop", "`stop` must not hold an empty string."));
    }
    Ok(stops)
}

fn messages(messages: Option<Vec<RawMessage>>) -> Result<Vec<Message>, Fault> {
    let messages = messages.ok_or_else(|| missing("messages"))?;
    if messages.is_empty() {
        return Err(invalid("messages", "`messages` is empty: it needs at least one message."));
    }
    messages.into_iter().enumerate().map(|(index, raw)| message(raw, index)).collect()
}

fn message(raw: RawMessage, index: usize) -> Result<Message, Fault> {
    let path = |field: &str| format!("messages[{index}].{field}");
    let role = raw.role.unwrap_or_default();
    match role.as_str() {
        "" => return Err(missing(path("role"))),
        "function" => {
            let message = format!("`{}`: the role `function` is not supported: use `tool` instead.", path("role"));
            return Err(invalid(path("role"), message).with_code(UNSUPPORTED));
        }
        _ => {}
    }
    let tool_calls = tools::calls(raw.tool_calls.unwrap_or_default(), &path("tool_calls"))?;
    if role != "assistant" && !tool_calls.is_empty() {
        let message = format!("`{}` is only allowed in messages of role `assistant`.", path("tool_calls"));
        return Err(invalid(path("tool_calls"), message));
    }
    let tool_call_id = match (role.as_str(), raw.tool_call_id) {
        ("tool", id) => Some(tools::answered(id, path("tool_call_id"))?),
        (_, None) => None,
        (_, Some(_)) => {
            let message = format!("`{}` is only allowed in messages of role `tool`.", path("tool_call_id"));
            return Err(invalid(path("tool_call_id"), message));
        }
    };
    let content = match raw.content {
        Some(RawContent::Text(text)) => Some(text),
        Some(RawContent::Parts(parts)) => Some(join(parts, index)?),
        None if role == "assistant" => None,
        None => return Err(missing(path("content"))),
    };
    let reasoning_content = raw.reasoning_content;
    Ok(Message { role, content, name: raw.name, reasoning_content, tool_calls, tool_call_id })
}

/// The text of all parts, one a line, as llama.cpp's server and vLLM join them.
fn join(parts: Vec<RawPart>, message: usize) -> Result<String, Fault> {
    let path = |part: usize, field: &str| format!("messages[{message}].content[{part}].{field}");
    let mut texts = Vec::with_capacity(parts.len());
    for (index, part) in parts.into_iter().enumerate() {
        let (field, text) = match part.kind.as_deref() {
            Some("text") => ("text", part.text),
            Some("refusal") => ("refusal", part.refusal),
            Some(kind) => {
                let path = path(index, "type");
                let message = format!("`{path}`: content of type `{kind}` is not supported yet; only `text` is.");
                return Err(invalid(path, message).with_code(UNSUPPORTED));
            }
            None => {
                return Err(missing(path(index, "type")));
            }
        };
        texts.push(text.ok_or_else(|| missing(path(index, field)))?);
    }
    Ok(texts.join("\n"))
}

#[cfg(test)]
mod tests;
