//! `POST /v1/chat/completions`: from the bytes of a request to the canonical one.
//!
//! A field that would change the answer is either honoured or refused by name; see [`crate::fields`] for all of them.
//! A field that nobody here knows is skipped and reported, so that a gateway can say so.

pub(crate) mod enforcement;
mod strict;
pub(crate) mod tools;

use mesh_types::{ChatRequest, Fault, Message, RequestId};
use serde_json::{Map, Value};

use crate::fields::{CHAT, CHAT_MESSAGE};
use crate::ignored::Ignored;
use crate::json::{self, Object};
use crate::reply::{Context, Parsed};
use crate::response::Head;
use crate::settings;
use crate::stream::ChunkWriter;

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
    let request = Object::root(&body);
    let tools = tools::tools(request.get("tools"))?;
    let tool_choice = tools::choice(request.get("tool_choice"), request.get("tools"), &tools)?;
    enforcement::check(&tools)?;
    let response_format = enforcement::response_format(request.object("response_format")?.map(|format| format.map()))?;
    let stream = request.flag("stream")?.unwrap_or(false);
    let max_tokens = settings::count(&request, "max_tokens")?;
    let chat = ChatRequest {
        request: id,
        model: settings::model(&request)?,
        messages: messages(&request)?,
        max_tokens: settings::count(&request, "max_completion_tokens")?.or(max_tokens),
        sampling: settings::sampling(&request, 2.0)?,
        logit_bias: settings::logit_bias(&request)?,
        logprobs: settings::top_logprobs(&request)?,
        stop: settings::stops(&request, "stop")?,
        tools,
        tool_choice,
        parallel_tool_calls: request.flag("parallel_tool_calls")?.unwrap_or(true),
        grammar: settings::grammar(&request)?,
        cache_prompt: request.flag("cache_prompt")?,
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
    let mut ignored = Ignored::default();
    CHAT.sort(request, "", &mut ignored)?;
    let messages = request.get("messages").and_then(Value::as_array);
    for (index, message) in messages.into_iter().flatten().enumerate() {
        if let Value::Object(message) = message {
            CHAT_MESSAGE.sort(message, &format!("messages[{index}]."), &mut ignored)?;
        }
    }
    Ok(ignored.into())
}

fn messages(request: &Object<'_>) -> Result<Vec<Message>, Fault> {
    let turns = request.objects("messages")?;
    match (request.get("messages"), turns.is_empty()) {
        (None, _) => Err(request.missing("messages")),
        (Some(_), true) => Err(request.invalid("messages", "is empty: it needs at least one message")),
        (Some(_), false) => turns.iter().map(message).collect(),
    }
}

fn message(turn: &Object<'_>) -> Result<Message, Fault> {
    let role = turn.required("role")?;
    if role == "function" {
        return Err(turn.unsupported("role", "is `function`, which is not supported: use `tool` instead"));
    }
    let tool_calls = tools::calls(turn)?;
    if role != "assistant" && !tool_calls.is_empty() {
        return Err(turn.invalid("tool_calls", "is only allowed in messages of role `assistant`"));
    }
    let tool_call_id = match (role, turn.text("tool_call_id")?) {
        ("tool", Some(id)) if !id.is_empty() => Some(id.to_owned()),
        ("tool", _) => {
            let what = "is missing: a message of role `tool` names the call that it answers";
            return Err(turn.invalid("tool_call_id", what));
        }
        (_, None) => None,
        (_, Some(_)) => return Err(turn.invalid("tool_call_id", "is only allowed in messages of role `tool`")),
    };
    let content = match turn.get("content") {
        Some(Value::Array(_)) => Some(join(&turn.objects("content")?)?),
        Some(_) => turn.text("content")?.map(str::to_owned),
        None if role == "assistant" => None,
        None => return Err(turn.missing("content")),
    };
    Ok(Message {
        role: role.to_owned(),
        content,
        name: turn.text("name")?.map(str::to_owned),
        reasoning_content: turn.text("reasoning_content")?.map(str::to_owned),
        tool_calls,
        tool_call_id,
    })
}

/// The text of all parts, one a line, as llama.cpp's server and vLLM join them.
fn join(parts: &[Object<'_>]) -> Result<String, Fault> {
    let text = |part: &Object<'_>| {
        let field = match part.required("type")? {
            "text" => "text",
            "refusal" => "refusal",
            kind => return Err(part.unsupported("type", &format!("is `{kind}`; only `text` is supported here"))),
        };
        part.text(field)?.map(str::to_owned).ok_or_else(|| part.missing(field))
    };
    Ok(parts.iter().map(text).collect::<Result<Vec<_>, _>>()?.join("\n"))
}

#[cfg(test)]
mod tests;
