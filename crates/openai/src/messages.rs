//! `POST /v1/messages` and `/v1/messages/count_tokens`: Anthropic's dialect
//! (<https://docs.anthropic.com/en/api/messages>).
//!
//! A message is a list of blocks. Results of tools stand in the user's messages and become messages of their own here;
//! what the model thought stands in the assistant's, with a `signature` that this server makes and reads again.

mod input;
mod reply;
mod tools;

use mesh_types::{ChatRequest, Fault, ResponseFormat, ResponseSchema};
use serde_json::{Map, Value};

use crate::fields::MESSAGES;
use crate::ignored::Ignored;
use crate::json::{self, Object, renamed};
use crate::reply::{Context, Parsed};
use crate::request::enforcement;
use crate::response::Head;
use crate::settings;

/// See [`crate::parse`].
pub(crate) fn parse(body: &[u8], context: &Context) -> Result<Parsed, Fault> {
    let map = json::body(body)?;
    let mut ignored = Ignored::default();
    let chat = read(&map, context, &mut ignored)?;
    let stream = Object::root(&map).flag("stream")?.unwrap_or(false);
    let head = Head::new("msg_", chat.model.as_str(), context);
    let reply = Box::new(reply::Writer::new(head, context.seal.clone()));
    Ok(Parsed { runs: vec![chat], stream, ignored: ignored.into(), reply })
}

/// The body of `POST /v1/messages/count_tokens` as the request whose prompt is to be counted, and the paths of fields
/// without effect.
///
/// # Errors
/// As [`crate::parse`].
pub fn count_tokens(body: &[u8], context: &Context) -> Result<(ChatRequest, Vec<String>), Fault> {
    let mut ignored = Ignored::default();
    let chat = read(&json::body(body)?, context, &mut ignored)?;
    Ok((chat, ignored.into()))
}

/// The answer to it.
pub fn token_count(tokens: usize) -> Vec<u8> {
    format!("{{\"input_tokens\":{tokens}}}").into_bytes()
}

fn read(map: &Map<String, Value>, context: &Context, ignored: &mut Ignored) -> Result<ChatRequest, Fault> {
    MESSAGES.sort(map, "", ignored)?;
    let request = Object::root(map);
    let tools = tools::read(&request, ignored)?;
    let choice = tools::choice(&request, &tools)?;
    let output = request.object("output_config")?;
    let format = match &output {
        Some(output) if output.get("format").is_some() => output.object("format")?,
        _ => request.object("output_format")?,
    };
    let response_format = format.map(|format| self::format(&format)).transpose()?.unwrap_or_default();
    enforcement::check(&tools).map_err(|fault| renamed(fault, "function.parameters", "input_schema"))?;
    let effort = output.as_ref().map(|output| output.text("effort")).transpose()?.flatten();
    let mut template_kwargs = settings::template(&request, effort, "output_config.effort")?;
    if let Some(enabled) = thinking(&request)? {
        template_kwargs.entry("enable_thinking").or_insert(Value::Bool(enabled));
    }
    Ok(ChatRequest {
        request: context.request.clone(),
        model: settings::model(&request)?,
        messages: input::messages(&request, &*context.seal, ignored)?,
        raw: None,
        max_tokens: settings::count(&request, "max_tokens")?,
        sampling: settings::sampling(&request, 1.0)?,
        logit_bias: settings::logit_bias(&request)?,
        logprobs: None,
        stop: settings::stops(&request, "stop_sequences")?,
        tools,
        tool_choice: choice.tools,
        parallel_tool_calls: choice.parallel,
        grammar: settings::grammar(&request)?,
        cache_prompt: request.flag("cache_prompt")?,
        response_format,
        conversation: request.object("metadata")?.and_then(|metadata| settings::conversation(&metadata, "user_id")),
        template_kwargs,
    })
}

/// `{"type": "json_schema", "schema": …}`.
fn format(format: &Object<'_>) -> Result<ResponseFormat, Fault> {
    if format.required("type")? != "json_schema" {
        return Err(format.invalid("type", "must be `json_schema`"));
    }
    let schema = format.object("schema")?.ok_or_else(|| format.missing("schema"))?.map().clone();
    // What this dialect promises of a schema is what is enforced: the paths that are not are named in a header.
    let name = "response".to_owned();
    Ok(ResponseFormat::JsonSchema(ResponseSchema { name, schema: Value::Object(schema), strict: false }))
}

/// Whether the model is to think; `None`: as it likes.
fn thinking(request: &Object<'_>) -> Result<Option<bool>, Fault> {
    let Some(thinking) = request.object("thinking")? else { return Ok(None) };
    match thinking.required("type")? {
        "enabled" => Ok(Some(true)),
        "disabled" => Ok(Some(false)),
        "adaptive" => Ok(None),
        _ => Err(thinking.invalid("type", "must be `enabled`, `disabled` or `adaptive`")),
    }
}

#[cfg(test)]
pub(crate) mod tests;
