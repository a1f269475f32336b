//! One conversation, asked in every dialect, whole and streamed, says the same: the same text, reasoning, calls, usage
//! and reason for its end. A completion of the prompt that it makes draws the same tokens.
//!
//! A script answers in place of the weights, so that answers are of every shape; template, vocabulary and parser are
//! the model's own.
#![allow(clippy::unwrap_used)] // every one is a check

mod case;
mod said;

use std::fmt::Write as _;
use std::path::Path;

use case::{Case, Draws};
use mesh_tests::http::{self, Event};
use mesh_tests::models::{SMOLLM2, smollm2};
use mesh_tests::process::{Node, field};
use said::{Said, joined, message, of_chat, of_message, of_response, text};
use serde_json::{Value, json};

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

/// A node that answers from `script`, and its `/v1`.
fn scripted(folder: &Path, script: &str) -> (Node, String) {
    let (path, model) = (folder.join("script.toml"), smollm2().display().to_string());
    std::fs::write(&path, script).unwrap();
    let path = path.display().to_string();
    let args = ["up", "--model", &model, "--scripted", &path, "--ctx", "2048", "--gateway", "127.0.0.1:0"];
    let node = Node::start(folder, "alpha", &args);
    let base = field(&node.process.line("ready gateway"), "url=");
    node.process.line("ready model");
    (node, base)
}

/// Cases, and the script with their answers.
fn drawn(count: usize) -> (Vec<Case>, String) {
    let seed = std::env::var("MESH_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    println!("seed {seed} (MESH_TEST_SEED sets another)");
    let mut draws = Draws(seed);
    let mut script = String::new();
    let case = |index| {
        let marker = format!("Question {index}.");
        let _ = write!(script, "[[rules]]\ncontains = [{}]\nsay = {}\n", json!(marker), json!(draws.answer()));
        Case::draw(marker, &mut draws)
    };
    ((0..count).map(case).collect(), script)
}

#[test]
fn every_dialect_says_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let (cases, script) = drawn(24);
    let (_node, base) = scripted(folder.path(), &script);
    assert_eq!(http::get(&base, "/models").1["data"][0]["x-mesh"]["scripted"], true);
    let mut said = Vec::new();
    for case in &cases {
        // From the second time on, all of the prompt that can be is cached, whoever asks.
        whole(&base, "/chat/completions", &case.chat());
        let answer = whole(&base, "/chat/completions", &case.chat());
        let chat = of_chat(&answer);
        let thought = &answer["usage"]["completion_tokens_details"]["reasoning_tokens"];
        let about = format!("{}: {chat:?}", case.marker);
        assert!(chat.usage.cached > 0 && chat.usage.cached < chat.usage.prompt, "{about}");
        assert_eq!(of_chat(&joined(&streamed(&base, "/chat/completions", &case.chat()))), chat, "chat, {about}");
        assert_eq!(thought.as_u64().unwrap() > 0, !chat.reasoning.is_empty(), "{about}");
        let response = whole(&base, "/responses", &case.responses());
        assert_eq!(of_response(&response), chat, "responses, {about}");
        assert_eq!(&response["usage"]["output_tokens_details"]["reasoning_tokens"], thought, "{about}");
        let events = streamed(&base, "/responses", &case.responses());
        assert_eq!(of_response(&events.last().unwrap()["response"]), chat, "responses streamed, {about}");
        assert_eq!(of_message(&whole(&base, "/messages", &case.messages())), chat, "messages, {about}");
        let events = streamed(&base, "/messages", &case.messages());
        assert_eq!(of_message(&message(&events)), chat, "messages streamed, {about}");
        let counted = whole(&base, "/messages/count_tokens", &case.messages());
        assert_eq!(counted["input_tokens"], chat.usage.prompt, "the count, {about}");
        said.push(chat);
    }
    let some = |is: fn(&Said) -> bool| said.iter().any(is);
    assert!(some(|said| said.calls.len() > 1) && some(|said| said.end == "length"), "cases of every shape: {said:?}");
    assert!(some(|said| !said.reasoning.is_empty()), "cases of every shape: {said:?}");
}

/// The bytes of every token that an answer was drawn of.
fn drawn_tokens(completion: &Value) -> Vec<Value> {
    let tokens = completion["choices"][0]["logprobs"]["content"].as_array().unwrap();
    tokens.iter().map(|token| token["token"].clone()).collect()
}

#[test]
fn a_completion_of_the_rendered_prompt_draws_the_same_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let (cases, script) = drawn(24);
    let (_node, base) = scripted(folder.path(), &script);
    for case in &cases {
        let mut asked = case.chat();
        asked["logprobs"] = json!(true);
        let chat = whole(&base, "/chat/completions", &asked);
        let said = of_chat(&chat);
        let cut = whole(&base, "/tokenize", &json!({"messages": case.conversation(), "tools": case.tools()}));
        assert_eq!(cut["count"], said.usage.prompt, "{said:?}");
        let asked = json!({
            "model": SMOLLM2, "prompt": cut["tokens"], "max_tokens": case.max_tokens, "stop": case.stop, "logprobs": 0,
        });
        let completion = whole(&base, "/completions", &asked);
        let choice = &completion["choices"][0];
        assert_eq!(choice["logprobs"]["tokens"], json!(drawn_tokens(&chat)), "{said:?}");
        assert_eq!(completion["usage"]["prompt_tokens"], said.usage.prompt);
        assert_eq!(completion["usage"]["completion_tokens"], said.usage.completion, "{said:?}");
        let end = if said.end == "tool_calls" { "stop" } else { &said.end };
        assert_eq!(choice["finish_reason"], end, "{said:?}");
        let mut answer = String::new();
        for event in streamed(&base, "/completions", &asked) {
            answer += text(&event["choices"][0]["text"]);
        }
        assert_eq!(answer, text(&choice["text"]), "streamed, {said:?}");
        if said.calls.is_empty() && !answer.contains("<think>") {
            assert_eq!(answer.trim(), said.text.trim());
        }
    }
}

#[test]
fn the_prompts_own_text_makes_the_same_prompt_again() {
    let folder = tempfile::tempdir().unwrap();
    let (_node, base) = scripted(folder.path(), "otherwise = \"A naïve 🌍 answer.\"\n");
    // The text of the tokens, cut again as a prompt is, gives them back where no user's text looks like a token.
    let messages = json!([{"role": "user", "content": "Hi é."}]);
    let cut = whole(&base, "/tokenize", &json!({"messages": messages}));
    let prompt = whole(&base, "/detokenize", &json!({"tokens": cut["tokens"]}))["content"].clone();
    let again = whole(&base, "/tokenize", &json!({"prompt": prompt}));
    assert_eq!(again["tokens"], cut["tokens"]);
    let asked = json!({"model": SMOLLM2, "prompt": prompt, "echo": true, "max_tokens": 99});
    let echoed = whole(&base, "/completions", &asked);
    assert_eq!(echoed["choices"][0]["text"], json!(format!("{}A naïve 🌍 answer.", text(&prompt))));
    // What a user writes that looks like a token is none, and the prompt's tokens say so.
    let messages = json!([{"role": "user", "content": "<|im_end|> is text, and so is é."}]);
    let chat = of_chat(&whole(&base, "/chat/completions", &json!({"model": SMOLLM2, "messages": messages})));
    let cut = whole(&base, "/tokenize", &json!({"messages": messages}));
    assert_eq!(cut["count"], chat.usage.prompt);
    let asked = json!({"model": SMOLLM2, "prompt": cut["tokens"], "max_tokens": 99});
    let completion = whole(&base, "/completions", &asked);
    assert_eq!(completion["choices"][0]["text"], chat.text);
    assert_eq!(completion["usage"]["prompt_tokens"], chat.usage.prompt);
}
