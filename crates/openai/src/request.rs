//! `POST /v1/chat/completions`: from the bytes of a request to the canonical one.
//!
//! A field that would change the answer is either honoured or refused by name; see [`crate::fields`] for all of them.
//! A field that nobody here knows is skipped and reported, so that a gateway can say so.

pub(crate) mod enforcement;
pub(crate) mod raw;
mod strict;
pub(crate) mod tools;

use mesh_types::{ChatRequest, Fault, Message, RequestId};
use serde_json::{Map, Value};

use crate::fields::{CHAT, CHAT_MESSAGE};
use crate::json::{self, Object};
use crate::reply::{Context, Parsed};
use crate::response::Head;
use crate::settings;
use crate::stream::ChunkWriter;
use raw::{RawContent, RawMessage, RawPart, RawRequest};

pub(crate) use crate::json::{UNSUPPORTED, describe, invalid, missing};
pub use tools::{MAX_TOOL_NAME, MAX_TOOLS};

/// A request, and what of it concerns the dialect alone.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ParsedChat {
    pub(crate) chat: ChatRequest,
    pub(crate) n: usize,
    pub(crate) stream: bool,
    /// Whether a streamed answer ends with its usage.
    pub(crate) include_usage: bool,
    /// Paths of fields that have no effect, in the order of the request.
    pub(crate) ignored: Vec<String>,
}

/// See [`crate::parse`].
pub(crate) fn parse(body: &[u8], context: &Context) -> Result<Parsed, Fault> {
    let ParsedChat { chat, n, stream, include_usage, ignored } = read(json::body(body)?, context.request.clone())?;
    let head = Head::new("chatcmpl-", chat.model.as_str(), context);
    let reply = Box::new(ChunkWriter::new(head, n, include_usage));
    Ok(Parsed { runs: settings::runs(vec![chat], n), stream, ignored, reply })
}

pub(crate) fn read(body: Map<String, Value>, id: RequestId) -> Result<ParsedChat, Fault> {
    let ignored = sort_fields(&body)?;
    let value = Value::Object(body);
    let raw: RawRequest = serde_path_to_error::deserialize(&value).map_err(|error| wrong_type(&error))?;
    let request = Object::at(&value, "")?;
    let tools = tools::tools(request.get("tools"))?;
    let tool_choice = tools::choice(request.get("tool_choice"), request.get("tools"), &tools)?;
    enforcement::check(&tools)?;
    let response_format = enforcement::response_format(raw.response_format.as_ref())?;
    let stream = request.flag("stream")?.unwrap_or(false);
    let max_tokens = settings::count(&request, "max_tokens")?;
    let chat = ChatRequest {
        request: id,
        model: settings::model(&request)?,
        messages: messages(raw.messages)?,
        max_tokens: settings::count(&request, "max_completion_tokens")?.or(max_tokens),
        sampling: settings::sampling(&request, 2.0)?,
        logit_bias: settings::logit_bias(&request)?,
        logprobs: settings::top_logprobs(&request)?,
        stop: settings::stops(&request, "stop")?,
        tools,
        tool_choice,
        parallel_tool_calls: request.flag("parallel_tool_calls")?.unwrap_or(true),
        grammar: settings::grammar(&request)?,
        response_format,
        raw: None,
        conversation: settings::conversation(&request, "prompt_cache_key"),
        template_kwargs: settings::template(&request, request.text("reasoning_effort")?, "reasoning_effort")?,
    };
    let include_usage = settings::include_usage(&request, stream)?;
    Ok(ParsedChat { chat, n: settings::choices(&request, 1)?, stream, include_usage, ignored })
}

/// Refuses what is not supported, and gives the paths of what has no effect.
fn sort_fields(request: &Map<String, Value>) -> Result<Vec<String>, Fault> {
    let mut ignored = Vec::new();
    CHAT.sort(request, "", &mut ignored)?;
    let messages = request.get("messages").and_then(Value::as_array);
    for (index, message) in messages.into_iter().flatten().enumerate() {
        if let Value::Object(message) = message {
            CHAT_MESSAGE.sort(message, &format!("messages[{index}]."), &mut ignored)?;
        }
    }
    Ok(ignored)
}

fn wrong_type(error: &serde_path_to_error::Error<serde_json::Error>) -> Fault {
    let path = error.path().to_string();
    let message = format!("`{path}` has the wrong type: {}.", error.inner());
    invalid(path, message)
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
