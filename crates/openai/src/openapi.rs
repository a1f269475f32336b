//! `/openapi.json`: what the gateway serves, for tools that read it. Request bodies are made from the tables that
//! decide about their fields.

use serde_json::{Map, Value, json};

use crate::fields::{Handling, TABLES};

/// What answers at a path.
struct Operation {
    method: &'static str,
    path: &'static str,
    summary: &'static str,
    /// Schemas of the answer, by content type.
    answer: fn() -> Value,
    /// Statuses of errors, beyond those that every path has.
    errors: &'static [u16],
}

const fn get(path: &'static str, summary: &'static str, answer: fn() -> Value, errors: &'static [u16]) -> Operation {
    Operation { method: "get", path, summary, answer, errors }
}

const fn post(path: &'static str, summary: &'static str, answer: fn() -> Value) -> Operation {
    const ERRORS: &[u16] = &[400, 404, 408, 413, 415, 429, 500, 502, 503, 504];
    Operation { method: "post", path, summary, answer, errors: ERRORS }
}

#[rustfmt::skip]
const OPERATIONS: &[Operation] = &[
    post("/v1/chat/completions", "Answer a conversation", || streamed("chat.completion")),
    post("/v1/completions", "Go on with a text", || streamed("text_completion")),
    post("/v1/responses", "Answer a conversation, in the shapes of the Responses API", || streamed("response")),
    post("/v1/messages", "Answer a conversation, in Anthropic's shapes", streamed_message),
    post("/v1/messages/count_tokens", "Count the tokens of a conversation", || json_of(json!({
        "type": "object", "required": ["input_tokens"], "properties": {"input_tokens": {"type": "integer"}},
    }))),
    post("/v1/embeddings", "Refused: no model that is served pools", any_object),
    post("/tokenize", "Cut a text or a conversation into tokens", || json_of(json!({
        "type": "object", "required": ["tokens", "count", "max_model_len"],
        "properties": {"tokens": {"type": "array"}, "count": {"type": "integer"}, "max_model_len": {"type": "integer"}},
    }))),
    post("/detokenize", "The text of tokens", || json_of(json!({
        "type": "object", "required": ["content"], "properties": {"content": {"type": "string"}},
    }))),
    get("/v1/models", "The models that answer now", models, &[]),
    get("/v1/models/{model}", "One model: its context, how it calls tools, where it runs", one_model, &[404, 503]),
    get("/health", "Whether every model has computed something through all its stages lately", any_object, &[503]),
    get("/ready", "Whether a model answers now", any_object, &[503]),
    get("/metrics", "Counters, for Prometheus", counters, &[]),
    get("/openapi.json", "This", any_object, &[]),
];

fn models() -> Value {
    let data = json!({"type": "array", "items": {"$ref": "#/components/schemas/Model"}});
    json_of(json!({
        "type": "object", "required": ["object", "data"], "properties": {"object": {"const": "list"}, "data": data},
    }))
}

fn one_model() -> Value {
    json_of(json!({"$ref": "#/components/schemas/Model"}))
}

fn any_object() -> Value {
    json_of(json!({"type": "object"}))
}

fn counters() -> Value {
    json!({"application/openmetrics-text": {"schema": {"type": "string"}}})
}

fn json_of(schema: Value) -> Value {
    json!({"application/json": {"schema": schema}})
}

fn streamed(object: &str) -> Value {
    let schema = json!({
        "type": "object", "required": ["id", "object", "model"],
        "properties": {"id": {"type": "string"}, "object": {"const": object}, "model": {"type": "string"}},
    });
    json!({"application/json": {"schema": schema}, "text/event-stream": {"schema": {"type": "string"}}})
}

fn streamed_message() -> Value {
    let schema = json!({
        "type": "object", "required": ["id", "type", "role", "content", "model", "stop_reason", "usage"],
        "properties": {"id": {"type": "string"}, "type": {"const": "message"}, "role": {"const": "assistant"}},
    });
    json!({"application/json": {"schema": schema}, "text/event-stream": {"schema": {"type": "string"}}})
}

/// The document; `version` is the product's.
pub fn document(version: &str) -> Value {
    let mut paths = Map::new();
    for operation in OPERATIONS {
        let mut item = json!({operation.method: describe(operation)});
        if operation.path.contains("{model}") {
            item["parameters"] =
                json!([{"name": "model", "in": "path", "required": true, "schema": {"type": "string"}}]);
        }
        paths.insert(operation.path.to_owned(), item);
    }
    json!({
        "openapi": "3.1.0",
        "info": {"title": "mesh-node gateway", "version": version, "license": {"name": "Apache-2.0"}},
        "security": [{}, {"bearer": []}, {"key": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
            "schemas": {"Error": error(), "AnthropicError": anthropic_error(), "Model": model()},
        },
    })
}

fn describe(operation: &Operation) -> Value {
    let mut responses = Map::new();
    responses.insert("200".to_owned(), json!({"description": operation.summary, "content": (operation.answer)()}));
    let schema = match operation.path.starts_with("/v1/messages") {
        true => json!({"$ref": "#/components/schemas/AnthropicError"}),
        false if ["/health", "/ready"].contains(&operation.path) => json!({"type": "object"}),
        false => json!({"$ref": "#/components/schemas/Error"}),
    };
    for status in operation.errors.iter().chain(&[401, 403]) {
        let error =
            json!({"description": "An error: see docs/errors.md", "content": {"application/json": {"schema": schema}}});
        responses.insert(status.to_string(), error);
    }
    let mut described = json!({"summary": operation.summary, "responses": responses});
    if operation.method == "post" {
        let body = json!({"required": true, "content": {"application/json": {"schema": body(operation.path)}}});
        described["requestBody"] = body;
    }
    described
}

/// The schema of the request to `path`. A count of tokens is asked for as a message is.
fn body(path: &str) -> Value {
    let path = path.strip_suffix("/count_tokens").unwrap_or(path);
    let table = TABLES.iter().find(|table| table.request.ends_with(&format!(" {path}")) && table.place.is_empty());
    let mut properties = Map::new();
    let mut required = Vec::new();
    for field in table.into_iter().flat_map(|table| table.all()) {
        if let Handling::Read(kind) = field.handling {
            properties.insert(field.name.to_owned(), kind.schema());
            if field.note.starts_with("required") {
                required.push(field.name);
            }
        }
    }
    json!({"type": "object", "properties": properties, "required": required})
}

fn error() -> Value {
    let text = || json!({"type": ["string", "null"]});
    json!({
        "type": "object", "required": ["error"],
        "properties": {"error": {
            "type": "object", "required": ["message", "type", "param", "code"],
            "properties": {"message": {"type": "string"}, "type": {"type": "string"}, "param": text(), "code": text()},
        }},
    })
}

fn anthropic_error() -> Value {
    json!({
        "type": "object", "required": ["type", "error"],
        "properties": {"type": {"const": "error"}, "error": {
            "type": "object", "required": ["type", "message"],
            "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
        }},
    })
}

fn model() -> Value {
    json!({
        "type": "object", "required": ["id", "object", "created", "owned_by"],
        "properties": {
            "id": {"type": "string"}, "object": {"const": "model"}, "created": {"type": "integer"},
            "owned_by": {"type": "string"}, "max_model_len": {"type": "integer"}, "x-mesh": {"type": "object"},
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_has_a_schema_from_its_table() {
        let document = document("0");
        for operation in OPERATIONS.iter().filter(|operation| operation.method == "post") {
            let described = &document["paths"][operation.path]["post"];
            let schema = &described["requestBody"]["content"]["application/json"]["schema"];
            assert!(schema["properties"].as_object().is_some_and(|fields| fields.len() > 1), "{}", operation.path);
        }
        let chat = &document["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"];
        assert_eq!(chat["schema"]["required"], json!(["model", "messages"]));
    }
}
