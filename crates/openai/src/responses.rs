//! `POST /v1/responses`: <https://platform.openai.com/docs/api-reference/responses>.
//!
//! A conversation is a list of items here: messages, calls, results and reasoning, each by itself. They are put
//! together to turns, and an answer is taken apart to items. Nothing is stored: `store` has no effect, and what would need
//! something stored is refused by name.

mod input;
mod object;
mod reply;
mod tools;

use mesh_types::{ChatRequest, Fault, ResponseFormat};
use serde_json::{Map, Value};

use crate::fields::RESPONSES;
use crate::ignored::Ignored;
use crate::json::{self, Object, UNSUPPORTED, invalid, renamed};
use crate::reply::{Context, Parsed};
use crate::request::enforcement;
use crate::response::Head;
use crate::settings;

/// What asks for sealed reasoning.
const ENCRYPTED: &str = "reasoning.encrypted_content";

/// See [`crate::parse`].
pub(crate) fn parse(body: &[u8], context: &Context) -> Result<Parsed, Fault> {
    let map = json::body(body)?;
    let mut ignored = Ignored::default();
    RESPONSES.sort(&map, "", &mut ignored)?;
    let request = Object::root(&map);
    let tools = tools::read(&request, &mut ignored)?;
    let tool_choice = tools::choice(&request, &tools)?;
    let response_format = format(&request)?;
    enforcement::check(&tools.tools).map_err(|fault| renamed(fault, "function.parameters", "parameters"))?;
    let reasoning = request.object("reasoning")?;
    let effort = reasoning.as_ref().map(|reasoning| reasoning.text("effort")).transpose()?.flatten();
    if let Some(reasoning) = &reasoning {
        let others = reasoning.map().iter().filter(|(name, value)| name.as_str() != "effort" && !value.is_null());
        others.for_each(|(name, _)| ignored.push(reasoning.path(name)));
    }
    let seal = include(&request, &mut ignored)?.then(|| context.seal.clone());
    let chat = ChatRequest {
        request: context.request.clone(),
        model: settings::model(&request)?,
        messages: input::messages(&request, &tools, &*context.seal, &mut ignored)?,
        raw: None,
        max_tokens: settings::count(&request, "max_output_tokens")?,
        sampling: settings::sampling(&request, 2.0)?,
        logit_bias: settings::logit_bias(&request)?,
        logprobs: None,
        stop: settings::stops(&request, "stop")?,
        tool_choice,
        parallel_tool_calls: request.flag("parallel_tool_calls")?.unwrap_or(true),
        grammar: settings::grammar(&request)?,
        cache_prompt: request.flag("cache_prompt")?,
        response_format,
        conversation: settings::conversation(&request, "prompt_cache_key"),
        template_kwargs: settings::template(&request, effort, "reasoning.effort")?,
        tools: tools.tools,
    };
    let head = Head::new("resp_", chat.model.as_str(), context);
    let object = object::Response::new(head, &context.unique, object::Echo::of(&map), tools.origins, seal);
    let stream = request.flag("stream")?.unwrap_or(false);
    Ok(Parsed { runs: vec![chat], stream, ignored: ignored.into(), reply: Box::new(reply::Writer::new(object)) })
}

/// `text.format`, and a look at the rest of `text`.
fn format(request: &Object<'_>) -> Result<ResponseFormat, Fault> {
    let Some(text) = request.object("text")? else { return Ok(ResponseFormat::Text) };
    if text.text("verbosity")?.is_some_and(|verbosity| verbosity != "medium") {
        return Err(invalid("text.verbosity", "`text.verbosity` is not supported.").with_code(UNSUPPORTED));
    }
    let Some(format) = text.object("format")? else { return Ok(ResponseFormat::Text) };
    // What chat completions hold in `json_schema` stands here by itself.
    let mut fields = format.map().clone();
    if format.text("type")? == Some("json_schema") {
        let schema = Value::Object(std::mem::take(&mut fields));
        fields.insert("type".to_owned(), "json_schema".into());
        fields.insert("json_schema".to_owned(), schema);
    }
    enforcement::response_format(Some(&fields)).map_err(|fault| {
        renamed(renamed(fault, "response_format.json_schema", "text.format"), "response_format", "text.format")
    })
}

/// Whether reasoning is to be sealed for the client to carry.
fn include(request: &Object<'_>, ignored: &mut Ignored) -> Result<bool, Fault> {
    let mut encrypted = false;
    for (index, item) in request.list("include")?.unwrap_or_default().iter().enumerate() {
        match item.as_str() {
            Some(ENCRYPTED) => encrypted = true,
            Some(other) => ignored.push(format!("include[{index}] ({other})")),
            None => return Err(json::wrong(&format!("include[{index}]"), "a string", item)),
        }
    }
    Ok(encrypted)
}

/// The value of a field, or null.
fn value(map: &Map<String, Value>, name: &str) -> Value {
    map.get(name).cloned().unwrap_or(Value::Null)
}

#[cfg(test)]
mod tests;
