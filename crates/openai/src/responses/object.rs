//! The response object and its items.

use std::collections::HashMap;
use std::sync::Arc;

use mesh_types::{FinishReason, ToolCall, Usage};
use serde_json::{Map, Value, json};

use super::tools::Origin;
use super::value;
use crate::error::ApiError;
use crate::event::{Answer, Part};
use crate::response::Head;
use crate::seal::Seal;

/// What of a request stands in its response.
pub(super) struct Echo(Map<String, Value>);

impl Echo {
    pub(super) fn of(request: &Map<String, Value>) -> Self {
        let mut echo = Map::new();
        let or = |name: &str, default: Value| match value(request, name) {
            Value::Null => default,
            value => value,
        };
        for name in
            ["instructions", "max_output_tokens", "max_tool_calls", "prompt_cache_key", "safety_identifier", "user"]
        {
            echo.insert(name.to_owned(), value(request, name));
        }
        for (name, default) in [
            ("metadata", json!({})),
            ("parallel_tool_calls", json!(true)),
            ("temperature", Value::Null),
            ("top_p", Value::Null),
            ("tool_choice", json!("auto")),
            ("tools", json!([])),
        ] {
            echo.insert(name.to_owned(), or(name, default));
        }
        let reasoning = value(request, "reasoning");
        let reasoning = json!({"effort": reasoning.get("effort"), "summary": reasoning.get("summary")});
        echo.insert("reasoning".to_owned(), reasoning);
        let format = value(request, "text").get("format").cloned().filter(|format| !format.is_null());
        let text = json!({"format": format.unwrap_or_else(|| json!({"type": "text"})), "verbosity": "medium"});
        echo.insert("text".to_owned(), text);
        Self(echo)
    }
}

/// Makes the response object at every moment of its life.
pub(super) struct Response {
    head: Head,
    /// What makes the items' ids unique.
    unique: String,
    echo: Echo,
    origins: HashMap<String, Origin>,
    /// Where reasoning is to be sealed.
    seal: Option<Arc<dyn Seal>>,
}

impl Response {
    pub(super) fn new(
        head: Head,
        unique: &str,
        echo: Echo,
        origins: HashMap<String, Origin>,
        seal: Option<Arc<dyn Seal>>,
    ) -> Self {
        Self { head, unique: unique.to_owned(), echo, origins, seal }
    }

    /// The response with `answer` as far as it is; `error`: it failed.
    pub(super) fn object(&self, answer: &Answer, error: Option<&ApiError>) -> Value {
        let (status, incomplete) = match (answer.end, error) {
            (_, Some(_)) => ("failed", Value::Null),
            (None, None) => ("in_progress", Value::Null),
            (Some((FinishReason::Length, _)), None) => ("incomplete", json!({"reason": "max_output_tokens"})),
            (Some(_), None) => ("completed", Value::Null),
        };
        let is_over = status != "in_progress";
        let output: Vec<_> = match is_over {
            true => answer.parts.iter().enumerate().map(|(index, part)| self.item(index, part, true)).collect(),
            false => Vec::new(),
        };
        let error = error.map(|error| {
            json!({"code": error.error.code.as_deref().unwrap_or("server_error"), "message": error.error.message})
        });
        let mut object = json!({
            "id": self.head.id, "object": "response", "created_at": self.head.created, "status": status,
            "background": false, "error": error, "incomplete_details": incomplete, "model": self.head.model,
            "output": output, "previous_response_id": null, "service_tier": "default", "store": false,
            "top_logprobs": 0, "truncation": "disabled", "usage": answer.end.map(|end| usage(end.1)),
        });
        if let Value::Object(object) = &mut object {
            object.extend(self.echo.0.clone());
        }
        object
    }

    /// The id of the item `index`, which holds `part`. A call has one besides its `call_id`.
    pub(super) fn id(&self, index: usize, part: &Part) -> String {
        let kind = match part {
            Part::Text(_) => "msg",
            Part::Reasoning(_) => "rs",
            Part::Call(_) => "fc",
        };
        format!("{kind}_{}_{index}", self.unique)
    }

    /// The item `index`: whole if `done`, else as it begins.
    pub(super) fn item(&self, index: usize, part: &Part, done: bool) -> Value {
        let id = self.id(index, part);
        let status = if done { "completed" } else { "in_progress" };
        match part {
            Part::Text(text) => {
                let content = if done { vec![text_part(text)] } else { Vec::new() };
                json!({"id": id, "type": "message", "status": status, "role": "assistant", "content": content})
            }
            Part::Reasoning(text) => {
                let content = if done { vec![json!({"type": "reasoning_text", "text": text})] } else { Vec::new() };
                let mut item =
                    json!({"id": id, "type": "reasoning", "status": status, "summary": [], "content": content});
                if let (Some(seal), true) = (&self.seal, done) {
                    item["encrypted_content"] = json!(seal.seal(text));
                }
                item
            }
            Part::Call(call) => self.call(&id, status, call, done),
        }
    }

    fn call(&self, id: &str, status: &str, call: &ToolCall, done: bool) -> Value {
        let arguments = if done { call.arguments.as_str() } else { "" };
        let origin = self.origins.get(&call.name);
        let name = origin.map_or(call.name.as_str(), |origin| &origin.name);
        let mut item = json!({
            "id": id, "type": "function_call", "status": status, "call_id": call.id, "name": name,
            "arguments": arguments,
        });
        if let Some(origin) = origin {
            item["namespace"] = json!(origin.namespace);
        }
        item
    }
}

/// A part of a message.
pub(super) fn text_part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}

fn usage(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.prompt_tokens, "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.completion_tokens, "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": u64::from(usage.prompt_tokens) + u64::from(usage.completion_tokens),
    })
}
