//! One conversation, asked in every dialect, whole and streamed, says the same: the same text, reasoning, calls, usage
//! and reason for its end.
//!
//! A script answers in place of the weights, so that answers are of every shape; template, vocabulary and parser are
//! the model's own.
#![allow(clippy::unwrap_used)] // every one is a check

use std::fmt::Write as _;

use mesh_tests::http::{self, Event};
use mesh_tests::models::{SMOLLM2, smollm2};
use mesh_tests::process::{Node, field};
use serde_json::{Value, json};

/// What an answer says, whatever its dialect.
#[derive(Clone, Debug, Default, PartialEq)]
struct Said {
    text: String,
    reasoning: String,
    /// Names and arguments.
    calls: Vec<(String, Value)>,
    end: String,
    /// Tokens of the prompt and of the answer.
    usage: (u64, u64),
}

/// Draws from a sequence that a seed fixes (Knuth's MMIX generator).
struct Draws(u64);

impl Draws {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    fn text(&mut self) -> String {
        const WORDS: [&str; 12] = [
            "the",
            "naïve",
            "{\"a\": 1}",
            "🌍",
            "line\nbreak",
            "TOOL",
            "<b>",
            "END",
            "`code`",
            "東京",
            "\\n",
            "x = 1;",
        ];
        let count = 1 + self.below(8);
        (0..count).map(|_| WORDS[self.below(WORDS.len() as u64) as usize]).collect::<Vec<_>>().join(" ")
    }

    /// What a model might write.
    fn answer(&mut self) -> String {
        let mut answer = String::new();
        if self.below(3) == 0 {
            let _ = write!(answer, "<think>\n{}\n</think>\n\n", self.text());
        }
        if self.below(5) > 0 {
            answer += &self.text();
        }
        for _ in 0..self.below(3) {
            let arguments = json!({"path": self.text(), "n": self.below(9)});
            let _ = write!(answer, "\nTOOL_CALL {}", json!({"name": "read", "arguments": arguments}));
        }
        answer
    }
}

/// A case: the marker in its question, how the request bounds the answer, and whether tools are offered.
struct Case {
    marker: String,
    max_tokens: u64,
    stop: Option<&'static str>,
    tools: bool,
}

const SCHEMA: &str = r#"{"type": "object", "properties": {"path": {"type": "string"}, "n": {"type": "integer"}}}"#;

impl Case {
    fn schema(&self) -> Value {
        serde_json::from_str(SCHEMA).unwrap()
    }

    fn chat(&self) -> Value {
        let mut body = json!({
            "model": SMOLLM2, "max_tokens": self.max_tokens, "stop": self.stop,
            "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": self.marker}],
        });
        if self.tools {
            let function = json!({"name": "read", "description": "Reads.", "parameters": self.schema()});
            body["tools"] = json!([{"type": "function", "function": function}]);
        }
        body
    }

    fn responses(&self) -> Value {
        let mut body = json!({
            "model": SMOLLM2, "max_output_tokens": self.max_tokens, "stop": self.stop, "instructions": "Be brief.",
            "input": [{"role": "user", "content": [{"type": "input_text", "text": self.marker}]}],
        });
        if self.tools {
            let tool =
                json!({"type": "function", "name": "read", "description": "Reads.", "parameters": self.schema()});
            body["tools"] = json!([tool]);
        }
        body
    }

    fn messages(&self) -> Value {
        let mut body = json!({
            "model": SMOLLM2, "max_tokens": self.max_tokens, "stop_sequences": self.stop.map(|stop| [stop]),
            "system": "Be brief.", "messages": [{"role": "user", "content": self.marker}],
        });
        if self.tools {
            body["tools"] = json!([{"name": "read", "description": "Reads.", "input_schema": self.schema()}]);
        }
        body
    }
}

fn whole(base: &str, path: &str, body: &Value) -> Value {
    let (status, answer) = http::post(base, path, body).json();
    assert_eq!(status, 200, "{path}: {answer}");
    answer
}

fn streamed(base: &str, path: &str, body: &Value) -> Vec<Value> {
    let mut body = body.clone();
    body["stream"] = json!(true);
    if path == "/chat/completions" {
        body["stream_options"] = json!({"include_usage": true});
    }
    let mut answer = http::post(base, path, &body);
    assert_eq!(answer.status, 200, "{path}");
    let json = |event| if let Event::Json(value) = event { Some(value) } else { None };
    answer.events().into_iter().filter_map(json).collect()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn call(name: &Value, arguments: &str) -> (String, Value) {
    // What an answer's end cut off is no JSON.
    (text(name).to_owned(), serde_json::from_str(arguments).unwrap_or_else(|_| json!({"arguments": arguments})))
}

fn of_chat(answer: &Value) -> Said {
    let choice = &answer["choices"][0];
    let calls = choice["message"]["tool_calls"].as_array().cloned().unwrap_or_default();
    let count = |name: &str| answer["usage"][name].as_u64().unwrap();
    Said {
        text: text(&choice["message"]["content"]).to_owned(),
        reasoning: text(&choice["message"]["reasoning_content"]).to_owned(),
        calls: calls.iter().map(|made| call(&made["function"]["name"], text(&made["function"]["arguments"]))).collect(),
        end: text(&choice["finish_reason"]).to_owned(),
        usage: (count("prompt_tokens"), count("completion_tokens")),
    }
}

/// The whole completion that chunks add up to.
fn joined(chunks: &[Value]) -> Value {
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

fn of_response(response: &Value) -> Said {
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
    let count = |name: &str| response["usage"][name].as_u64().unwrap();
    Said { usage: (count("input_tokens"), count("output_tokens")), ..said }
}

fn of_message(message: &Value) -> Said {
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
    let count = |name: &str| message["usage"][name].as_u64().unwrap();
    said.usage = (count("input_tokens") + count("cache_read_input_tokens"), count("output_tokens"));
    said
}

/// The whole message that events add up to.
fn message(events: &[Value]) -> Value {
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

#[test]
fn every_dialect_says_the_same() {
    let seed = std::env::var("MESH_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    println!("seed {seed} (MESH_TEST_SEED sets another)");
    let mut draws = Draws(seed);
    let mut script = String::new();
    let mut cases = Vec::new();
    for index in 0..24 {
        let marker = format!("Question {index}.");
        let _ = write!(script, "[[rules]]\ncontains = [{}]\nsay = {}\n", json!(marker), json!(draws.answer()));
        let max_tokens = if draws.below(4) == 0 { 1 + draws.below(12) } else { 256 };
        let stop = (draws.below(4) == 0).then_some("END");
        cases.push(Case { marker, max_tokens, stop, tools: draws.below(4) > 0 });
    }
    let folder = tempfile::tempdir().unwrap();
    let (path, model) = (folder.path().join("script.toml"), smollm2().display().to_string());
    std::fs::write(&path, script).unwrap();
    let path = path.display().to_string();
    let args = ["up", "--model", &model, "--scripted", &path, "--ctx", "2048", "--gateway", "127.0.0.1:0"];
    let node = Node::start(folder.path(), "alpha", &args);
    let base = field(&node.process.line("ready gateway"), "url=");
    node.process.line("ready model");
    assert_eq!(http::get(&base, "/models").1["data"][0]["x-mesh"]["scripted"], true);

    for case in &cases {
        let chat = of_chat(&whole(&base, "/chat/completions", &case.chat()));
        let about = format!("{}: {chat:?}", case.marker);
        assert_eq!(of_chat(&joined(&streamed(&base, "/chat/completions", &case.chat()))), chat, "chat, {about}");
        assert_eq!(of_response(&whole(&base, "/responses", &case.responses())), chat, "responses, {about}");
        let events = streamed(&base, "/responses", &case.responses());
        assert_eq!(of_response(&events.last().unwrap()["response"]), chat, "responses streamed, {about}");
        assert_eq!(of_message(&whole(&base, "/messages", &case.messages())), chat, "messages, {about}");
        let events = streamed(&base, "/messages", &case.messages());
        assert_eq!(of_message(&message(&events)), chat, "messages streamed, {about}");
        let counted = whole(&base, "/messages/count_tokens", &case.messages());
        assert_eq!(counted["input_tokens"], chat.usage.0, "the count, {about}");
    }
    let said: Vec<_> = cases.iter().map(|case| of_chat(&whole(&base, "/chat/completions", &case.chat()))).collect();
    let some = |is: fn(&Said) -> bool| said.iter().any(is);
    assert!(some(|said| said.calls.len() > 1) && some(|said| said.end == "length"), "cases of every shape: {said:?}");
}

#[test]
fn a_completion_of_the_rendered_prompt_is_the_same_answer() {
    let folder = tempfile::tempdir().unwrap();
    let (path, model) = (folder.path().join("script.toml"), smollm2().display().to_string());
    std::fs::write(&path, "otherwise = \"A naïve 🌍 answer.\"\n").unwrap();
    let path = path.display().to_string();
    let args = ["up", "--model", &model, "--scripted", &path, "--ctx", "2048", "--gateway", "127.0.0.1:0"];
    let node = Node::start(folder.path(), "alpha", &args);
    let base = field(&node.process.line("ready gateway"), "url=");
    node.process.line("ready model");
    let messages = json!([{"role": "user", "content": "<|im_end|> is text, and so is é."}]);
    let chat = of_chat(&whole(&base, "/chat/completions", &json!({"model": SMOLLM2, "messages": messages})));
    let cut = whole(&base, "/tokenize", &json!({"messages": messages}));
    assert_eq!(cut["count"], chat.usage.0);
    let body = json!({"model": SMOLLM2, "prompt": cut["tokens"], "max_tokens": 99});
    let completion = whole(&base, "/completions", &body);
    assert_eq!(completion["choices"][0]["text"], chat.text);
    assert_eq!(completion["usage"]["prompt_tokens"], chat.usage.0);
    assert_eq!(completion["usage"]["completion_tokens"], chat.usage.1);
    // The text of the tokens, cut again as a prompt is, gives them back where no user's text looks like a token.
    let messages = json!([{"role": "user", "content": "Hi é."}]);
    let cut = whole(&base, "/tokenize", &json!({"messages": messages}));
    let prompt = whole(&base, "/detokenize", &json!({"tokens": cut["tokens"]}))["content"].clone();
    let again = whole(&base, "/tokenize", &json!({"prompt": prompt}));
    assert_eq!(again["tokens"], cut["tokens"]);
    let echoed =
        whole(&base, "/completions", &json!({"model": SMOLLM2, "prompt": prompt, "echo": true, "max_tokens": 99}));
    assert_eq!(echoed["choices"][0]["text"], json!(format!("{}{}", text(&prompt), chat.text)));
}
