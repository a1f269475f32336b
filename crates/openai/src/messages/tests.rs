use mesh_types::{FinishReason, Message, ToolChoice, Usage};
use serde_json::json;

use super::*;
use crate::event::{Answer, Event};
use crate::testkit::{context, events};

fn body(extra: Value) -> Value {
    let mut body = json!({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

fn try_parse(extra: Value) -> Result<Parsed, Fault> {
    parse(body(extra).to_string().as_bytes(), &context())
}

fn ok(extra: Value) -> (ChatRequest, Vec<String>) {
    let mut parsed = try_parse(extra).map_err(|fault| fault.message).unwrap();
    (parsed.runs.remove(0), parsed.ignored)
}

fn refused(extra: Value) -> String {
    try_parse(extra.clone()).err().unwrap_or_else(|| panic!("{extra}")).param.unwrap_or_default()
}

fn said(role: &str, content: &str) -> Message {
    Message { role: role.into(), content: Some(content.into()), ..Message::default() }
}

#[test]
fn a_conversation_of_blocks_becomes_turns() {
    let (chat, ignored) = ok(json!({
        "system": [
            {"type": "text", "text": "You are", "cache_control": {"type": "ephemeral"}},
            {"type": "text", "text": "kind."},
        ],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Read it", "cache_control": {"type": "ephemeral"}}]},
            {"role": "system", "content": "A reminder."},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "shown", "signature": "sealed:hidden"},
                {"type": "text", "text": "Wait."},
                {"type": "tool_use", "id": "t1", "name": "read", "input": {"path": "a", "n": 1.0}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "A"}], "is_error": false},
                {"type": "text", "text": "Go on"},
            ]},
            {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "sealed:deep"}]},
            {"role": "user", "content": []},
        ],
    }));
    let assistant = Message {
        reasoning_content: Some("hidden".into()),
        tool_calls: vec![mesh_types::ToolCall {
            id: "t1".into(),
            name: "read".into(),
            arguments: r#"{"path":"a","n":1.0}"#.into(),
        }],
        ..said("assistant", "Wait.")
    };
    let expected = [
        said("system", "You are\nkind."),
        said("user", "Read it"),
        said("system", "A reminder."),
        assistant,
        Message { tool_call_id: Some("t1".into()), ..said("tool", "A") },
        said("user", "Go on"),
        Message { role: "assistant".into(), reasoning_content: Some("deep".into()), ..Message::default() },
        said("user", ""),
    ];
    assert_eq!(chat.messages, expected);
    assert_eq!(
        ignored,
        ["system[].cache_control", "messages[].content[].cache_control", "messages[].content[].is_error"]
    );
}

#[test]
fn a_foreign_signature_leaves_what_is_shown() {
    let turn = |thought: Value| {
        ok(json!({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": [thought]}]}))
    };
    let (chat, ignored) = turn(json!({"type": "thinking", "thinking": "shown", "signature": "foreign"}));
    assert_eq!(chat.messages[1].reasoning_content.as_deref(), Some("shown"));
    assert_eq!(ignored, ["messages[1].content[0].signature"]);
    let (chat, ignored) = turn(json!({"type": "redacted_thinking", "data": "foreign"}));
    assert_eq!(chat.messages[1].reasoning_content, None);
    assert_eq!(ignored, ["messages[1].content[0].data"]);
}

#[test]
fn settings_arrive_under_their_own_names() {
    let (chat, ignored) = ok(json!({
        "max_tokens": 32000, "temperature": 1, "top_k": 5, "stop_sequences": ["x"], "thinking": {"type": "adaptive"},
        "output_config": {"effort": "high"}, "metadata": {"user_id": "{}"}, "context_management": {"edits": []},
        "tools": [
            {"name": "read", "description": "Reads.", "input_schema": {"type": "object"}, "cache_control": {}},
            {"type": "web_search_20250305", "name": "web_search"},
        ],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": true},
    }));
    assert_eq!((chat.max_tokens, chat.sampling.top_k, chat.stop), (Some(32000), Some(5), vec!["x".to_owned()]));
    assert_eq!(chat.template_kwargs, json!({"reasoning_effort": "high"}).as_object().unwrap().clone());
    assert_eq!((chat.tool_choice, chat.parallel_tool_calls), (ToolChoice::Auto, false));
    let function = json!({"name": "read", "description": "Reads.", "parameters": {"type": "object"}});
    assert_eq!(chat.tools.len(), 1);
    assert_eq!(chat.tools[0].definition, json!({"type": "function", "function": function}));
    assert_eq!(chat.conversation.as_deref(), Some("{}"));
    assert_eq!(ignored, ["context_management", "tools[1] (web_search_20250305)"]);
    for (thinking, kwarg) in [("enabled", json!(true)), ("disabled", json!(false))] {
        let (chat, _) = ok(json!({"thinking": {"type": thinking, "budget_tokens": 1024}}));
        assert_eq!(chat.template_kwargs["enable_thinking"], kwarg);
    }
}

#[test]
fn what_is_wrong_is_named() {
    let content = |block: Value| json!({"messages": [{"role": "user", "content": [block]}]});
    for (extra, param) in [
        (json!({"messages": []}), "messages"),
        (json!({"messages": null}), "messages"),
        (json!({"messages": [{"content": "x"}]}), "messages[0].role"),
        (json!({"messages": [{"role": "tool", "content": "x"}]}), "messages[0].role"),
        (json!({"messages": [{"role": "user"}]}), "messages[0].content"),
        (content(json!({"text": "x"})), "messages[0].content[0].type"),
        (content(json!({"type": "text"})), "messages[0].content[0].text"),
        (content(json!({"type": "image", "source": {}})), "messages[0].content[0].type"),
        (content(json!({"type": "tool_result"})), "messages[0].content[0].tool_use_id"),
        (
            json!({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": 1}]}]}),
            "messages[0].content[0].input",
        ),
        (json!({"system": 3}), "system"),
        (json!({"tools": [{"name": "a b", "input_schema": {}}]}), "tools[0].name"),
        (json!({"tools": [{"name": "a"}]}), "tools[0].input_schema"),
        (json!({"tools": [{"name": "a", "input_schema": {}}, {"name": "a", "input_schema": {}}]}), "tools[1].name"),
        (json!({"tool_choice": {"type": "any"}}), "tool_choice.type"),
        (json!({"tool_choice": {"type": "tool", "name": "x"}}), "tool_choice.name"),
        (json!({"tool_choice": "auto"}), "tool_choice"),
        (json!({"temperature": 1.5}), "temperature"),
        (json!({"thinking": {"type": "maybe"}}), "thinking.type"),
        (json!({"mcp_servers": [{}]}), "mcp_servers"),
        (json!({"stop_sequences": ["a", 1]}), "stop_sequences[1]"),
    ] {
        assert_eq!(refused(extra.clone()), param, "{extra}");
    }
}

/// A thought, a text and two calls.
pub(crate) fn turn() -> Vec<Event> {
    let call = |index, id: &str| Event::Call { index, id: id.into(), name: "f".into() };
    let arguments = |index, text: &str| Event::Arguments { index, text: text.into() };
    vec![
        Event::Reasoning("Hm".into()),
        Event::Reasoning(".".into()),
        Event::Text("Let ".into()),
        Event::Text("me see.".into()),
        call(0, "a"),
        arguments(0, "{\"x\":"),
        arguments(0, " 1}"),
        call(1, "b"),
        arguments(1, "{}"),
        Event::Finished(
            FinishReason::ToolCalls,
            Usage { prompt_tokens: 7, completion_tokens: 5, cached_tokens: 3, ..Usage::default() },
        ),
    ]
}

#[test]
fn a_stream_has_every_event_in_its_order() {
    let mut reply = try_parse(json!({})).map_err(|fault| fault.message).unwrap().reply;
    let mut bytes = reply.begin(7);
    turn().iter().for_each(|event| bytes.extend(reply.event(0, event)));
    bytes.extend(reply.end());
    let events = events(&bytes);
    assert!(events.iter().all(|(name, data)| data["type"] == name.as_str()));
    let names: Vec<_> = events.iter().map(|event| event.0.trim_start_matches("content_block_")).collect();
    let expected = [
        "message_start",
        "ping",
        "start",
        "delta",
        "delta",
        "delta",
        "stop",
        "start",
        "delta",
        "delta",
        "stop",
        "start",
        "delta",
        "delta",
        "stop",
        "start",
        "delta",
        "stop",
        "message_delta",
        "message_stop",
    ];
    assert_eq!(names, expected);
    assert_eq!(events[0].1["message"]["usage"]["input_tokens"], 7);
    assert_eq!(events[5].1["delta"], json!({"type": "signature_delta", "signature": "sealed:Hm."}));
    assert_eq!(events[11].1["content_block"], json!({"type": "tool_use", "id": "a", "name": "f", "input": {}}));
    assert_eq!(
        events[12].1,
        json!({
            "type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": "{\"x\":"},
        })
    );
    let usage = json!({
        "input_tokens": 4, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 3, "output_tokens": 5,
    });
    let end = json!({
        "type": "message_delta", "delta": {"stop_reason": "tool_use", "stop_sequence": null}, "usage": usage,
    });
    assert_eq!(events[18].1, end);
}

#[test]
fn a_whole_message_holds_the_same() {
    let mut answer = Answer::default();
    turn().iter().for_each(|event| {
        answer.push(event);
    });
    let mut reply = try_parse(json!({})).map_err(|fault| fault.message).unwrap().reply;
    let message: Value = serde_json::from_slice(&reply.whole(&[answer])).unwrap();
    let content = json!([
        {"type": "thinking", "thinking": "Hm.", "signature": "sealed:Hm."},
        {"type": "text", "text": "Let me see."},
        {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}},
        {"type": "tool_use", "id": "b", "name": "f", "input": {}},
    ]);
    assert_eq!(message["content"], content);
    assert_eq!((&message["stop_reason"], &message["role"]), (&json!("tool_use"), &json!("assistant")));
    assert_eq!(message["id"], "msg_1");
}

#[test]
fn a_stop_sequence_is_named_whole_and_streamed() {
    let events =
        [Event::Text("a".into()), Event::Stop("END".into()), Event::Finished(FinishReason::Stop, Usage::default())];
    let mut answer = Answer::default();
    let mut reply = try_parse(json!({})).map_err(|fault| fault.message).unwrap().reply;
    for event in &events {
        answer.push(event);
        reply.event(0, event);
    }
    let end = &crate::testkit::events(&reply.end())[0].1["delta"];
    assert_eq!(*end, json!({"stop_reason": "stop_sequence", "stop_sequence": "END"}));
    let message: Value = serde_json::from_slice(&reply.whole(&[answer])).unwrap();
    assert_eq!((&message["stop_reason"], &message["stop_sequence"]), (&end["stop_reason"], &end["stop_sequence"]));
}

#[test]
fn arguments_that_are_no_object_are_kept() {
    let whole = |arguments: &str| {
        let mut answer = Answer::default();
        answer.push(&Event::Call { index: 0, id: "a".into(), name: "f".into() });
        answer.push(&Event::Arguments { index: 0, text: arguments.into() });
        let mut reply = try_parse(json!({})).map_err(|fault| fault.message).unwrap().reply;
        let message: Value = serde_json::from_slice(&reply.whole(&[answer])).unwrap();
        message["content"][0]["input"].clone()
    };
    assert_eq!(whole("{\"a\": 1"), json!({"arguments": "{\"a\": 1"}));
    assert_eq!(whole("[1]"), json!({"arguments": [1]}));
}
