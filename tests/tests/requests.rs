//! Requests that broke other servers, through a whole node: what is wrong with them is said before the first byte, and
//! a client that goes away frees its slot.
#![allow(clippy::unwrap_used)] // every one is a check

use std::time::{Duration, Instant};

use mesh_tests::http;
use mesh_tests::models::{SMOLLM2, smollm2};
use mesh_tests::process::{Node, field};
use serde_json::{Value, json};

const SCRIPT: &str = r#"
token_ms = 20
otherwise = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
[[rules]]
contains = ["[stop]"]
say = "alpha END beta"
[[rules]]
contains = ["[almost]"]
say = "alpha ENTER"
[[rules]]
contains = ["[echo]", "\"arguments\": {}"]
lacks = ["\"arguments\": {}}"]
say = "The arguments are as they were."
"#;

/// A scripted node with one slot of 512 tokens.
fn node(folder: &std::path::Path) -> (Node, String) {
    let (script, model) = (folder.join("script.toml"), smollm2().display().to_string());
    std::fs::write(&script, SCRIPT).unwrap();
    let script = script.display().to_string();
    let args =
        ["up", "--model", &model, "--scripted", &script, "--ctx", "512", "--parallel", "1", "--gateway", "127.0.0.1:0"];
    let node = Node::start(folder, "alpha", &args);
    let base = field(&node.process.line("ready gateway"), "url=");
    node.process.line("ready model");
    (node, base)
}

fn ask(content: &str, extra: Value) -> Value {
    let mut body = json!({"model": SMOLLM2, "messages": [{"role": "user", "content": content}]});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

fn error(base: &str, body: &Value) -> (u16, Value) {
    let (status, answer) = http::post(base, "/chat/completions", body).json();
    (status, answer["error"].clone())
}

#[test]
fn what_cannot_be_answered_is_refused_before_the_first_byte() {
    let folder = tempfile::tempdir().unwrap();
    let (_node, base) = node(folder.path());
    for stream in [false, true] {
        let (status, error) = error(&base, &ask(&"word ".repeat(600), json!({"stream": stream})));
        assert_eq!((status, &error["code"]), (400, &json!("context_length_exceeded")), "{error}");
    }
    // Far more than frameworks let through by themselves.
    let (status, error) = self::error(&base, &ask(&"word ".repeat(3 << 18), json!({})));
    assert_eq!((status, &error["code"]), (400, &json!("context_length_exceeded")), "{error}");
    for body in [
        json!({"model": SMOLLM2, "messages": []}),
        json!({"model": SMOLLM2, "messages": [], "stream": true}),
        json!({"model": SMOLLM2}),
    ] {
        let (status, error) = self::error(&base, &body);
        assert_eq!(
            (status, &error["param"], &error["type"]),
            (400, &json!("messages"), &json!("invalid_request_error"))
        );
    }
    let (status, error) =
        self::error(&base, &json!({"model": "no-such-model", "messages": [{"role": "user", "content": "Hi"}]}));
    assert_eq!((status, &error["code"]), (404, &json!("model_not_found")));
    assert!(error["message"].as_str().unwrap().contains("no-such-model"));
}

#[test]
fn fields_that_are_null_and_arguments_that_are_no_json_are_taken() {
    let folder = tempfile::tempdir().unwrap();
    let (_node, base) = node(folder.path());
    let nulls = json!({
        "max_tokens": null, "stop": null, "temperature": null, "top_p": null, "n": null, "seed": null, "tools": null,
        "tool_choice": null, "response_format": null, "logit_bias": null, "stream": null, "stream_options": null, "user": "u-1",
    });
    let said = |body: &Value| {
        let (status, answer) = http::post(&base, "/chat/completions", body).json();
        assert_eq!(status, 200, "{answer}");
        (answer["choices"][0]["message"]["content"].clone(), answer["choices"][0]["finish_reason"].clone())
    };
    assert_eq!(said(&ask("Hi", nulls)), said(&ask("Hi", json!({}))));

    let echo = json!({"type": "function", "function": {"name": "echo", "parameters": {"type": "object"}}});
    let call = json!({"id": "call_1", "type": "function", "function": {"name": "echo", "arguments": "{"}});
    let turns = json!([
        {"role": "user", "content": "[echo]"}, {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "?"},
    ]);
    assert_eq!(said(&ask("", json!({"messages": turns, "tools": [echo]}))).0, "The arguments are as they were.");

    for stream in [false, true] {
        for (content, stop, text) in [
            ("[stop]", json!("END"), "alpha "),
            ("[stop]", json!(["zzz", "END"]), "alpha "),
            ("[almost]", json!("END"), "alpha ENTER"),
        ] {
            let body = ask(content, json!({"stop": stop, "stream": stream}));
            if stream {
                let events = http::post(&base, "/chat/completions", &body).events();
                assert_eq!(events.iter().map(http::Event::text).collect::<String>(), text);
                let reason = |event: &http::Event| match event {
                    http::Event::Json(chunk) => chunk["choices"][0]["finish_reason"].as_str().map(str::to_owned),
                    http::Event::Done => None,
                };
                assert_eq!(events.iter().filter_map(reason).collect::<Vec<_>>(), ["stop"]);
            } else {
                assert_eq!(said(&body), (json!(text), json!("stop")));
            }
        }
    }
}

/// Two threads share the work of fused attention at cells that depend on all that the cache holds.
#[test]
fn a_seed_alone_gives_its_text_again_whatever_was_asked_between() {
    let folder = tempfile::tempdir().unwrap();
    let model = smollm2().display().to_string();
    let args = ["up", "--model", &model, "--ctx", "1024", "--threads", "2", "--gateway", "127.0.0.1:0"];
    let node = Node::start(folder.path(), "alpha", &args);
    let base = field(&node.process.line("ready gateway"), "url=");
    node.process.line("ready model");
    let drawn = |content: &str, extra: Value| {
        let (status, answer) = http::post(&base, "/chat/completions", &ask(content, extra)).json();
        assert_eq!(status, 200, "{answer}");
        answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
    };
    let topics: Vec<_> = (0..3).map(|topic| format!("Tell me more of number {topic}. ").repeat(60)).collect();
    let round = |round: usize| -> Vec<_> {
        let seeded = |(seed, topic): (usize, &String)| {
            // What others said meanwhile is kept beside it.
            drawn(&format!("{round}{seed} {}", "And then? ".repeat(20 * (1 + round))), json!({"max_tokens": 4}));
            drawn(topic, json!({"seed": seed, "max_tokens": 32, "temperature": 1}))
        };
        topics.iter().enumerate().map(seeded).collect()
    };
    let first = round(0);
    assert_eq!(first, round(1));
    assert_eq!(first, round(2));
}

#[test]
fn a_client_that_goes_away_frees_the_only_slot() {
    let folder = tempfile::tempdir().unwrap();
    let (_node, base) = node(folder.path());
    let second = || {
        let since = Instant::now();
        let (status, answer) = http::post(&base, "/chat/completions", &ask("Hi", json!({"max_tokens": 1}))).json();
        assert_eq!(status, 200, "{answer}");
        since.elapsed()
    };
    let endless = json!({"max_tokens": 400, "ignore_eos": true, "stream": true});
    let mut streamed = http::post(&base, "/chat/completions", &ask("Hi", endless.clone()));
    while streamed.event().is_some_and(|event| event.text().is_empty()) {}
    drop(streamed);
    // All of its tokens would take 8 s.
    assert!(second() < Duration::from_secs(3));

    let whole = ask("Hi", json!({"max_tokens": 400, "ignore_eos": true}));
    let waiting = http::post_only(&base, "/chat/completions", &whole);
    drop(waiting);
    assert!(second() < Duration::from_secs(3));
}
