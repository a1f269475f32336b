//! `/openapi.json`: what the gateway serves, for tools that read it. Request bodies are made from the tables that
//! decide about their fields.

mod answers;
mod examples;

use serde_json::{Map, Value, json};

use crate::fields::{Handling, TABLES};

use answers::json_of;

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
    post("/v1/chat/completions", "Answer a conversation", answers::chat),
    post("/v1/completions", "Go on with a text", answers::completion),
    post("/v1/responses", "Answer a conversation, in the shapes of the Responses API", answers::response),
    post("/v1/messages", "Answer a conversation, in Anthropic's shapes", answers::message),
    post("/v1/messages/count_tokens", "Count the tokens of a conversation", answers::count_of_tokens),
    post("/v1/embeddings", "Vectors of texts, of a model that pools", answers::embeddings),
    post("/tokenize", "Cut a text or a conversation into tokens", answers::tokens),
    post("/detokenize", "The text of tokens", answers::text),
    get("/v1/models", "The models that answer now", answers::models, &[]),
    get("/v1/models/{model}", "One model: its context, how it calls tools, where it runs", answers::model, &[404, 503]),
    get("/health", "Whether every model has computed something through all its stages lately", answers::health, &[503]),
    get("/ready", "Whether a model answers now", answers::ready, &[503]),
    get("/metrics", "Counters, for Prometheus", answers::counters, &[]),
    get("/openapi.json", "This", || json_of(json!({"type": "object", "required": ["openapi", "paths"]})), &[]),
];

/// Paths that need no key.
const OPEN: [&str; 2] = ["/health", "/ready"];

/// The document; `version` is the product's, and `keyed` says whether the gateway has a key.
pub fn document(version: &str, keyed: bool) -> Value {
    let mut paths = Map::new();
    for operation in OPERATIONS {
        let mut item = json!({operation.method: describe(operation)});
        if operation.path.contains("{model}") {
            let name = json!({"type": "string", "minLength": 1});
            let model = json!({"name": "model", "in": "path", "required": true, "schema": name, "example": "smollm2"});
            item["parameters"] = json!([model]);
        }
        paths.insert(operation.path.to_owned(), item);
    }
    json!({
        "openapi": "3.1.0",
        "info": {"title": "mesh-node gateway", "version": version, "license": {"name": "Apache-2.0"}},
        "security": if keyed { json!([{"bearer": []}, {"key": []}]) } else { json!([]) },
        "paths": paths,
        "components": {
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
            "schemas": {"Error": error(), "AnthropicError": anthropic_error(), "Model": answers::model_entry()},
        },
    })
}

fn describe(operation: &Operation) -> Value {
    let mut responses = Map::new();
    responses.insert("200".to_owned(), json!({"description": operation.summary, "content": (operation.answer)()}));
    let schema = match operation.path.starts_with("/v1/messages") {
        true => json!({"$ref": "#/components/schemas/AnthropicError"}),
        false => json!({"$ref": "#/components/schemas/Error"}),
    };
    for status in operation.errors.iter().chain(&[401, 403, 405]) {
        let is_report = *status == 503 && OPEN.contains(&operation.path);
        let content = if is_report { (operation.answer)() } else { json_of(schema.clone()) };
        let mut error = json!({"description": "An error: see docs/errors.md", "content": content});
        if let Some(name) = match status {
            429 | 503 if operation.method == "post" => Some("Retry-After"),
            405 => Some("Allow"),
            401 => Some("WWW-Authenticate"),
            _ => None,
        } {
            error["headers"] = json!({name: {"required": true, "schema": {"type": "string"}}});
        }
        responses.insert(status.to_string(), error);
    }
    let mut described = json!({"summary": operation.summary, "responses": responses});
    if OPEN.contains(&operation.path) {
        described["security"] = json!([]);
    }
    if operation.method == "post" {
        let content = json!({"schema": body(operation.path), "examples": examples::of(operation.path)});
        described["requestBody"] = json!({"required": true, "content": {"application/json": content}});
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_has_a_schema_from_its_table() {
        let document = document("0", true);
        assert_eq!(document["paths"]["/health"]["get"]["security"], json!([]));
        for operation in OPERATIONS.iter().filter(|operation| operation.method == "post") {
            let described = &document["paths"][operation.path]["post"];
            let schema = &described["requestBody"]["content"]["application/json"]["schema"];
            assert!(schema["properties"].as_object().is_some_and(|fields| fields.len() > 1), "{}", operation.path);
        }
        let chat = &document["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"];
        assert_eq!(chat["schema"]["required"], json!(["model", "messages"]));
    }
}
