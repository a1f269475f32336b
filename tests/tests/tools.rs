//! Tools over `/v1` with a real model whose template knows none, split over two nodes.

use mesh_tests::http::{self, Event};
use mesh_tests::models::{SMOLLM2, smollm2};
use mesh_tests::process::{Node, field};
use serde_json::{Value, json};

#[test]
fn a_model_without_tools_takes_part_in_a_tool_conversation() {
    let folder = tempfile::tempdir().unwrap();
    let model = smollm2().display().to_string();
    let args = ["up", "--model", &model, "--split", "0-16,17-29", "--ctx", "2048", "--gateway", "127.0.0.1:0"];
    let alpha = Node::start(folder.path(), "alpha", &args);
    let _beta = Node::start(folder.path(), "beta", &["join", &alpha.token()]);
    let base = field(&alpha.process.line("ready gateway"), "url=");
    alpha.process.line("ready model");

    // A call and its result in the history, in roles and fields that the model's template does not know.
    let tool = json!({"type": "function", "function": {"name": "get_weather", "description": "Weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}});
    let call = json!({"id": "call_1", "type": "function",
        "function": {"name": "get_weather", "arguments": "{\"city\": \"Paris\"}"}});
    let mut body = json!({"model": SMOLLM2, "temperature": 0, "max_tokens": 64, "tools": [tool], "messages": [
        {"role": "user", "content": "What is the weather in Paris?"},
        {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "18 degrees, sunny"}]});
    let (status, whole) = http::post(&base, "/chat/completions", &body).json();
    assert_eq!(status, 200, "{whole}");
    let choice = &whole["choices"][0];
    let calls = choice["message"]["tool_calls"].as_array().cloned().unwrap_or_default();
    assert_eq!(choice["finish_reason"] == "tool_calls", !calls.is_empty(), "{whole}");
    for call in &calls {
        assert_eq!(call["function"]["name"], "get_weather", "{whole}");
        let arguments: Value = serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
        assert!(arguments.is_object(), "{whole}");
    }

    // The same streamed: the pieces add up.
    body["stream"] = json!(true);
    let events = http::post(&base, "/chat/completions", &body).events();
    assert_eq!(events.iter().map(Event::text).collect::<String>(), choice["message"]["content"].as_str().unwrap_or(""));
    let arguments: String = events
        .iter()
        .filter_map(|event| match event {
            Event::Json(chunk) => chunk["choices"][0]["delta"]["tool_calls"][0]["function"]["arguments"].as_str(),
            Event::Done => None,
        })
        .collect();
    let expected: String = calls.iter().filter_map(|call| call["function"]["arguments"].as_str()).collect();
    assert_eq!(arguments, expected);

    // A result that answers no call is refused by name.
    let refused = |body: Value| http::post(&base, "/chat/completions", &body).json();
    body["stream"] = json!(false);
    let mut planted = body.clone();
    planted["messages"][2]["tool_call_id"] = json!("call_2");
    let (status, error) = refused(planted);
    assert_eq!((status, &error["error"]["param"]), (400, &json!("messages[2].tool_call_id")), "{error}");
}
