//! Schemas of what is answered with 200, by content type. They say what is always there; more may be.

use serde_json::{Value, json};

pub(super) fn json_of(schema: Value) -> Value {
    json!({"application/json": {"schema": schema}})
}

/// The same as a whole, or as server-sent events, of which the second schema describes each.
fn streamed(schema: Value) -> Value {
    let text = json!({"type": "string"});
    let event = json!({"type": "object", "required": ["data"], "properties": {"event": text, "data": text}});
    json!({"application/json": {"schema": schema}, "text/event-stream": {"schema": event}})
}

/// An object with all of `properties`.
fn object(properties: Value) -> Value {
    let required: Vec<_> = properties.as_object().into_iter().flat_map(|map| map.keys().cloned()).collect();
    json!({"type": "object", "required": required, "properties": properties})
}

fn text_or_null() -> Value {
    json!({"type": ["string", "null"]})
}

fn count() -> Value {
    json!({"type": "integer", "minimum": 0})
}

fn array(items: Value) -> Value {
    json!({"type": "array", "items": items})
}

fn finish_reason() -> Value {
    json!({"enum": ["stop", "length", "tool_calls"]})
}

fn usage() -> Value {
    object(json!({
        "prompt_tokens": count(), "completion_tokens": count(), "total_tokens": count(),
        "prompt_tokens_details": object(json!({"cached_tokens": count()})),
        "completion_tokens_details": object(json!({"reasoning_tokens": count()})),
    }))
}

fn completion_of(kind: &str, choice: Value) -> Value {
    streamed(object(json!({
        "id": {"type": "string"}, "object": {"const": kind}, "created": count(), "model": {"type": "string"},
        "choices": array(choice), "usage": usage(),
    })))
}

pub(super) fn chat() -> Value {
    let message =
        object(json!({"role": {"const": "assistant"}, "content": text_or_null(), "refusal": {"type": "null"}}));
    let choice = object(json!({
        "index": count(), "message": message, "logprobs": {"type": ["object", "null"]}, "finish_reason": finish_reason(),
    }));
    completion_of("chat.completion", choice)
}

pub(super) fn completion() -> Value {
    let choice = object(json!({
        "index": count(), "text": {"type": "string"}, "logprobs": {"type": ["object", "null"]},
        "finish_reason": finish_reason(),
    }));
    completion_of("text_completion", choice)
}

pub(super) fn response() -> Value {
    let usage = object(json!({
        "input_tokens": count(), "output_tokens": count(), "total_tokens": count(),
        "input_tokens_details": object(json!({"cached_tokens": count()})),
        "output_tokens_details": object(json!({"reasoning_tokens": count()})),
    }));
    let item = object(json!({"id": {"type": "string"}, "type": {"enum": ["message", "reasoning", "function_call"]}}));
    streamed(object(json!({
        "id": {"type": "string"}, "object": {"const": "response"}, "created_at": count(), "model": {"type": "string"},
        "status": {"enum": ["completed", "incomplete"]}, "output": array(item), "usage": usage,
    })))
}

pub(super) fn message() -> Value {
    let block = object(json!({"type": {"enum": ["text", "thinking", "tool_use"]}}));
    let usage = object(json!({
        "input_tokens": count(), "output_tokens": count(), "cache_read_input_tokens": count(),
        "cache_creation_input_tokens": count(),
    }));
    streamed(object(json!({
        "id": {"type": "string"}, "type": {"const": "message"}, "role": {"const": "assistant"},
        "model": {"type": "string"}, "content": array(block), "usage": usage, "stop_sequence": text_or_null(),
        "stop_reason": {"enum": ["end_turn", "max_tokens", "stop_sequence", "tool_use"]},
    })))
}

pub(super) fn count_of_tokens() -> Value {
    json_of(object(json!({"input_tokens": count()})))
}

pub(super) fn embeddings() -> Value {
    let vector = json!({"oneOf": [array(json!({"type": "number"})), {"type": "string"}]});
    let entry = object(json!({"object": {"const": "embedding"}, "index": count(), "embedding": vector}));
    json_of(object(json!({
        "object": {"const": "list"}, "model": {"type": "string"}, "data": array(entry),
        "usage": object(json!({"prompt_tokens": count(), "total_tokens": count()})),
    })))
}

pub(super) fn tokens() -> Value {
    let piece = json!({"type": ["string", "array"]});
    let token = json!({"oneOf": [{"type": "integer"}, object(json!({"id": {"type": "integer"}, "piece": piece}))]});
    json_of(object(json!({"tokens": array(token), "count": count(), "max_model_len": count()})))
}

pub(super) fn text() -> Value {
    json_of(object(json!({"content": {"type": "string"}, "prompt": {"type": "string"}})))
}

pub(super) fn models() -> Value {
    let entries = array(json!({"$ref": "#/components/schemas/Model"}));
    json_of(object(json!({"object": {"const": "list"}, "data": entries})))
}

pub(super) fn model() -> Value {
    json_of(json!({"$ref": "#/components/schemas/Model"}))
}

/// What `#/components/schemas/Model` is.
pub(super) fn model_entry() -> Value {
    let stage = object(json!({"node": {"type": "string"}, "layers": {"type": "string"}}));
    let mesh = object(json!({
        "context": count(), "layers": count(), "tools": {"type": "string"}, "scripted": {"type": "boolean"},
        "replicas": array(object(json!({"stages": array(stage)}))),
    }));
    object(json!({
        "id": {"type": "string"}, "object": {"const": "model"}, "created": {"type": "integer"},
        "owned_by": {"type": "string"}, "max_model_len": count(), "x-mesh": mesh,
    }))
}

pub(super) fn health() -> Value {
    let nodes = array(json!({"type": "string"}));
    let model = object(json!({
        "name": {"type": "string"}, "ready": {"type": "boolean"}, "last_forward_ms": {"type": ["integer", "null"]},
        "nodes": nodes,
    }));
    json_of(object(json!({"status": {"enum": ["ok", "unavailable"]}, "models": array(model)})))
}

pub(super) fn ready() -> Value {
    let names = array(json!({"type": "string"}));
    json_of(object(json!({"status": {"enum": ["ready", "unavailable"]}, "models": names})))
}

pub(super) fn counters() -> Value {
    json!({"application/openmetrics-text": {"schema": {"type": "string"}}})
}
