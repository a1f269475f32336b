//! What an answer says, read from every dialect's shape, whole or put together from its events.

use serde_json::{Value, json};

/// Counts of tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Usage {
    pub(crate) prompt: u64,
    pub(crate) completion: u64,
    pub(crate) cached: u64,
}

/// What an answer says, whatever its dialect.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Said {
    pub(crate) text: String,
    pub(crate) reasoning: String,
    /// Names and arguments.
    pub(crate) calls: Vec<(String, Value)>,
    pub(crate) end: String,
    pub(crate) usage: Usage,
}

pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("no count: {value}"))
}

fn call(name: &Value, arguments: &str) -> (String, Value) {
    // What an answer's end cut off is no JSON.
    (text(name).to_owned(), serde_json::from_str(arguments).unwrap_or_else(|_| json!({"arguments": arguments})))
}

pub(crate) fn of_chat(answer: &Value) -> Said {
    let choice = &answer["choices"][0];
    let calls = choice["message"]["tool_calls"].as_array().cloned().unwrap_or_default();
    let usage = &answer["usage"];
    Said {
        text: text(&choice["message"]["content"]).to_owned(),
        reasoning: text(&choice["message"]["reasoning_content"]).to_owned(),
        calls: calls.iter().map(|made| call(&made["function"]["name"], text(&made["function"]["arguments"]))).collect(),
        end: text(&choice["finish_reason"]).to_owned(),
        usage: Usage {
            prompt: count(&usage["prompt_tokens"]),
            completion: count(&usage["completion_tokens"]),
            cached: count(&usage["prompt_tokens_details"]["cached_tokens"]),
        },
    }
}

/// The whole completion that chunks add up to.
pub(crate) fn joined(chunks: &[Value]) -> Value {
    let (mut content, mut reasoning, mut end) = (String::new(), String::new(), Value::Null);
    let mut calls: Vec<(Value, String)> = Vec::new();
    for choice in chunks.iter().filter_map(|chunk| chunk["choices"].get(0)) {
        content += text(&choice["delta"]["content"]);
        reasoning += text(&choice["delta"]["reasoning_content"]);
        let function = &choice["delta"]["tool_calls"][0]["function"];
        if function["name"].is_string() {
            calls.push((function["name"].clone(), String::new()));
        }
        if let Some((_, arguments)) = calls.last_mut() {
            *arguments += text(&function["arguments"]);
        }
        if choice["finish_reason"].is_string() {
            end = choice["finish_reason"].clone();
        }
    }
    let calls: Vec<_> =
        calls.iter().map(|(name, text)| json!({"function": {"name": name, "arguments": text}})).collect();
    let message = json!({"content": content, "reasoning_content": reasoning, "tool_calls": calls});
    let usage = chunks.last().map(|chunk| chunk["usage"].clone());
    json!({"choices": [{"message": message, "finish_reason": end}], "usage": usage})
}

pub(crate) fn of_response(response: &Value) -> Said {
    let mut said = Said::default();
    for item in response["output"].as_array().unwrap() {
        let part = text(&item["content"][0]["text"]);
        match text(&item["type"]) {
            "message" => said.text += part,
            "reasoning" => said.reasoning += part,
            _ => said.calls.push(call(&item["name"], text(&item["arguments"]))),
        }
    }
    said.end = match text(&response["status"]) {
        "incomplete" => "length",
        _ if said.calls.is_empty() => "stop",
        _ => "tool_calls",
    }
    .to_owned();
    let usage = &response["usage"];
    said.usage = Usage {
        prompt: count(&usage["input_tokens"]),
        completion: count(&usage["output_tokens"]),
        cached: count(&usage["input_tokens_details"]["cached_tokens"]),
    };
    said
}

pub(crate) fn of_message(message: &Value) -> Said {
    let mut said = Said::default();
    for block in message["content"].as_array().unwrap() {
        said.text += text(&block["text"]);
        said.reasoning += text(&block["thinking"]);
        if block["type"] == "tool_use" {
            said.calls.push((text(&block["name"]).to_owned(), block["input"].clone()));
        }
    }
    said.end = match text(&message["stop_reason"]) {
        "end_turn" | "stop_sequence" => "stop",
        "max_tokens" => "length",
        _ => "tool_calls",
    }
    .to_owned();
    let usage = &message["usage"];
    let cached = count(&usage["cache_read_input_tokens"]);
    said.usage =
        Usage { prompt: count(&usage["input_tokens"]) + cached, completion: count(&usage["output_tokens"]), cached };
    said
}

/// The whole message that events add up to.
pub(crate) fn message(events: &[Value]) -> Value {
    let mut message = events[0]["message"].clone();
    let mut blocks: Vec<Value> = Vec::new();
    let mut inputs: Vec<String> = Vec::new();
    for event in events {
        let delta = &event["delta"];
        match text(&event["type"]) {
            "content_block_start" => {
                blocks.push(event["content_block"].clone());
                inputs.push(String::new());
            }
            "content_block_delta" => {
                let index = event["index"].as_u64().unwrap() as usize;
                for name in ["text", "thinking"] {
                    if delta[name].is_string() {
                        blocks[index][name] = json!(format!("{}{}", text(&blocks[index][name]), text(&delta[name])));
                    }
                }
                inputs[index] += text(&delta["partial_json"]);
            }
            "message_delta" => {
                message["stop_reason"] = delta["stop_reason"].clone();
                message["usage"] = event["usage"].clone();
            }
            _ => {}
        }
    }
    for (block, input) in blocks.iter_mut().zip(inputs).filter(|(block, _)| block["type"] == "tool_use") {
        block["input"] = call(&json!(""), &input).1;
    }
    message["content"] = json!(blocks);
    message
}
