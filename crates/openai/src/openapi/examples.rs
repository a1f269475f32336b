//! Requests that show what a path is for. Tools that try out what they read about begin with these, so that they are
//! whole and right; `smollm2` stands for the name of a model that is served.

use serde_json::{Map, Value, json};

const MODEL: &str = "smollm2";

/// The examples of the request to `path`, by name.
pub(super) fn of(path: &str) -> Value {
    let named: Vec<(&str, Value)> = match path {
        "/v1/chat/completions" => chat(),
        "/v1/completions" => vec![
            ("text", json!({"model": MODEL, "prompt": "Once upon a time", "max_tokens": 8})),
            ("tokens", json!({"model": MODEL, "prompt": [[1, 2], [3]], "max_tokens": 4, "logprobs": 1})),
            (
                "scores",
                json!({"model": MODEL, "prompt": "The sea is blue.", "max_tokens": 0, "echo": true, "logprobs": 2}),
            ),
            ("streamed", json!({"model": MODEL, "prompt": "Once", "max_tokens": 4, "stream": true})),
        ],
        "/v1/responses" => vec![
            ("question", json!({"model": MODEL, "input": "Name a colour.", "max_output_tokens": 8})),
            ("streamed", json!({"model": MODEL, "input": question(), "max_output_tokens": 8, "stream": true})),
        ],
        "/v1/messages" => vec![
            ("question", json!({"model": MODEL, "max_tokens": 8, "messages": question()})),
            ("streamed", json!({"model": MODEL, "max_tokens": 8, "messages": question(), "stream": true})),
        ],
        "/v1/messages/count_tokens" => vec![("question", json!({"model": MODEL, "messages": question()}))],
        "/v1/embeddings" => vec![("texts", json!({"model": MODEL, "input": ["A text.", "Another."]}))],
        "/tokenize" => vec![
            ("text", json!({"model": MODEL, "content": "Once upon a time", "with_pieces": true})),
            ("conversation", json!({"model": MODEL, "messages": question()})),
        ],
        "/detokenize" => vec![("tokens", json!({"model": MODEL, "tokens": [1, 2, 3]}))],
        _ => Vec::new(),
    };
    let examples: Map<_, _> =
        named.into_iter().map(|(name, value)| (name.to_owned(), json!({"value": value}))).collect();
    Value::Object(examples)
}

fn question() -> Value {
    json!([{"role": "user", "content": "Name a colour."}])
}

fn chat() -> Vec<(&'static str, Value)> {
    let parameters = json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]});
    let function = json!({"name": "weather", "description": "The weather in a city.", "parameters": parameters});
    let tools = json!([{"type": "function", "function": function}]);
    let schema = json!({"type": "object", "properties": {"colour": {"type": "string"}}, "required": ["colour"]});
    let format = json!({"type": "json_schema", "json_schema": {"name": "colour", "schema": schema}});
    let with = |extra: Value| {
        let mut request = json!({"model": MODEL, "messages": question(), "max_tokens": 8});
        if let (Value::Object(request), Value::Object(extra)) = (&mut request, extra) {
            request.extend(extra);
        }
        request
    };
    vec![
        ("question", with(json!({"temperature": 0.2, "seed": 7}))),
        ("streamed", with(json!({"stream": true, "stream_options": {"include_usage": true}}))),
        ("tools", with(json!({"tools": tools}))),
        ("schema", with(json!({"response_format": format}))),
        ("choices", with(json!({"n": 2, "logprobs": true, "top_logprobs": 2}))),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::embeddings::Embeddings;
    use crate::reply::{Dialect, parse};
    use crate::testkit::context;
    use crate::tokens::{Detokenize, Tokenize};

    #[test]
    fn examples_are_right() {
        let bodies = |path: &str| -> Vec<Vec<u8>> {
            let examples = of(path);
            let examples = examples.as_object().unwrap();
            assert!(!examples.is_empty(), "{path}");
            examples.values().map(|example| example["value"].to_string().into_bytes()).collect()
        };
        for (path, dialect) in [
            ("/v1/chat/completions", Dialect::Chat),
            ("/v1/completions", Dialect::Completions),
            ("/v1/responses", Dialect::Responses),
            ("/v1/messages", Dialect::Messages),
        ] {
            for body in bodies(path) {
                let parsed = parse(dialect, &body, &context()).unwrap_or_else(|fault| panic!("{path}: {fault}"));
                assert!(parsed.ignored.is_empty(), "{path}: {:?}", parsed.ignored);
            }
        }
        for body in bodies("/v1/messages/count_tokens") {
            crate::count_tokens(&body, &context()).unwrap();
        }
        for body in bodies("/tokenize") {
            Tokenize::parse(&body, &context()).unwrap();
        }
        for body in bodies("/detokenize") {
            Detokenize::parse(&body).unwrap();
        }
        for body in bodies("/v1/embeddings") {
            Embeddings::parse(&body).unwrap();
        }
    }
}
