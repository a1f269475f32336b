//! A client's own grammar holds over the answers of a real model, in every dialect.
#![allow(clippy::unwrap_used)] // every one is a check

use mesh_tests::http;
use mesh_tests::models::{SMOLLM2, smollm2};
use mesh_tests::process::{Node, field};
use serde_json::{Value, json};

const GRAMMAR: &str = r#"
root ::= "The sum is " sum "."
sum ::= number " + " number | "(" sum ") - " number   # contains itself
number ::= [1-9] [0-9]{0,2}
"#;

/// Whether the grammar holds `text`.
fn holds(text: &str) -> bool {
    fn number(text: &str) -> bool {
        (1..=3).contains(&text.len()) && !text.starts_with('0') && text.bytes().all(|byte| byte.is_ascii_digit())
    }
    fn sum(text: &str) -> bool {
        let inner = text.strip_prefix('(').and_then(|rest| rest.rsplit_once(") - "));
        inner.is_some_and(|(inner, last)| sum(inner) && number(last))
            || text.split_once(" + ").is_some_and(|(one, other)| number(one) && number(other))
    }
    text.strip_prefix("The sum is ").and_then(|rest| rest.strip_suffix('.')).is_some_and(sum)
}

#[test]
fn an_answer_keeps_to_the_clients_grammar() {
    assert!(holds("The sum is ((1 + 999) - 3) - 10.") && !holds("The sum is 0 + 1.") && !holds("The sum is (1 + 2)."));
    let folder = tempfile::tempdir().unwrap();
    let model = smollm2().display().to_string();
    let args = ["up", "--model", &model, "--split", "never", "--ctx", "1024", "--gateway", "127.0.0.1:0"];
    let node = Node::start(folder.path(), "alpha", &args);
    let base = field(&node.process.line("ready gateway"), "url=");
    node.process.line("ready model");
    let ask = |path: &str, body: Value| {
        let mut body = body;
        (body["model"], body["grammar"], body["temperature"]) = (json!(SMOLLM2), json!(GRAMMAR), json!(1.0));
        http::post(&base, path, &body)
    };
    let question = json!([{"role": "user", "content": "What is the sum of all things?"}]);
    for seed in 0..4 {
        let chat = json!({"messages": question, "seed": seed, "max_tokens": 64});
        let (status, whole) = ask("/chat/completions", chat.clone()).json();
        assert_eq!(status, 200, "{whole}");
        let text = whole["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
        assert!(holds(&text) && whole["choices"][0]["finish_reason"] == "stop", "{whole}");
        let mut streamed = chat;
        streamed["stream"] = json!(true);
        let events = ask("/chat/completions", streamed).events();
        assert_eq!(events.iter().map(http::Event::text).collect::<String>(), text);
    }
    let (_, completion) = ask("/completions", json!({"prompt": "Sums:", "max_tokens": 64, "seed": 1})).json();
    assert!(holds(completion["choices"][0]["text"].as_str().unwrap()), "{completion}");
    let (_, response) = ask("/responses", json!({"input": "A sum?", "max_output_tokens": 64, "seed": 1})).json();
    assert!(holds(response["output"][0]["content"][0]["text"].as_str().unwrap()), "{response}");
    let (_, message) = ask("/messages", json!({"messages": question, "max_tokens": 64, "seed": 1})).json();
    assert!(holds(message["content"][0]["text"].as_str().unwrap()), "{message}");

    let refused = |body: Value| {
        let (status, answer) = http::post(&base, "/chat/completions", &body).json();
        (status, answer["error"]["param"].clone(), answer["error"]["message"].as_str().unwrap().to_owned())
    };
    let (status, param, message) =
        refused(json!({"model": SMOLLM2, "messages": question, "grammar": "root ::= missing"}));
    assert_eq!((status, param), (400, json!("grammar")));
    assert!(message.contains("`missing`"), "{message}");
}
