use mesh_types::{FinishReason, Message, ToolCall, ToolChoice, Usage};
use serde_json::json;

use super::*;
use crate::event::{Answer, Event};
use crate::testkit::{context, events};

fn try_parse(extra: Value) -> Result<Parsed, Fault> {
    let mut body = json!({"model": "m", "input": "hi"});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    parse(body.to_string().as_bytes(), &context())
}

fn parsed(extra: Value) -> Parsed {
    try_parse(extra).map_err(|fault| fault.message).unwrap()
}

fn ok(extra: Value) -> (ChatRequest, Vec<String>) {
    let mut parsed = parsed(extra);
    (parsed.runs.remove(0), parsed.ignored)
}

fn said(role: &str, content: &str) -> Message {
    Message { role: role.into(), content: Some(content.into()), ..Message::default() }
}

#[test]
fn items_become_turns() {
    let call = |id: &str, name: &str| json!({"type": "function_call", "id": "fc_x", "call_id": id, "name": name, "arguments": "{}", "status": "completed"});
    let (chat, ignored) = ok(json!({
        "instructions": "Be brief.",
        "input": [
            {"role": "developer", "content": [{"type": "input_text", "text": "one"}, {"type": "input_text", "text": "two"}]},
            {"type": "message", "role": "user", "content": "Read"},
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "sealed:deep"},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Wait."}]},
            call("c1", "read"),
            call("c2", "list"),
            {"type": "function_call_output", "call_id": "c1", "output": "A"},
            {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "B"}]},
            {"type": "web_search_call", "id": "ws_1", "status": "completed"},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "shown"}]},
            call("c3", "list"),
            {"type": "message", "role": "assistant", "content": "Done."},
            {"type": "message", "role": "assistant", "content": "Really."},
        ],
    }));
    let calls = |ids: &[(&str, &str)]| -> Vec<ToolCall> {
        let call = |&(id, name): &(&str, &str)| ToolCall { id: id.into(), name: name.into(), arguments: "{}".into() };
        ids.iter().map(call).collect()
    };
    let result = |id: &str, text: &str| Message { tool_call_id: Some(id.into()), ..said("tool", text) };
    let expected = [
        said("system", "Be brief."),
        said("system", "one\ntwo"),
        said("user", "Read"),
        Message {
            reasoning_content: Some("deep".into()),
            tool_calls: calls(&[("c1", "read"), ("c2", "list")]),
            ..said("assistant", "Wait.")
        },
        result("c1", "A"),
        result("c2", "B"),
        Message {
            role: "assistant".into(),
            reasoning_content: Some("shown".into()),
            tool_calls: calls(&[("c3", "list")]),
            ..Message::default()
        },
        said("assistant", "Done."),
        said("assistant", "Really."),
    ];
    assert_eq!(chat.messages, expected);
    assert_eq!(ignored, ["input[].id", "input[].status", "input[8] (web_search_call)"]);
}

#[test]
fn settings_arrive_under_their_own_names() {
    let (chat, ignored) = ok(json!({
        "max_output_tokens": 5, "temperature": 0, "parallel_tool_calls": false, "store": false, "stream": true,
        "reasoning": {"effort": "low", "summary": "auto"}, "include": ["reasoning.encrypted_content", "other"],
        "prompt_cache_key": "k", "client_metadata": {}, "text": {"format": {"type": "text"}, "verbosity": "medium"},
    }));
    assert_eq!((chat.max_tokens, chat.sampling.temperature, chat.parallel_tool_calls), (Some(5), Some(0.0), false));
    assert_eq!(chat.template_kwargs, json!({"reasoning_effort": "low"}).as_object().unwrap().clone());
    assert_eq!(chat.conversation.as_deref(), Some("k"));
    let expected = ["store", "client_metadata", "reasoning.summary", "include[1] (other)"];
    assert_eq!(ignored, expected);
}

fn spaces() -> Value {
    json!([
        {"type": "function", "name": "read", "description": "Reads.", "parameters": {"type": "object"}, "strict": false},
        {"type": "namespace", "name": "agents", "tools": [{"type": "function", "name": "spawn"}, {"type": "custom", "name": "x"}]},
        {"type": "web_search"},
    ])
}

#[test]
fn namespaces_are_flattened_and_hosted_tools_left_out() {
    let (chat, ignored) = ok(json!({"tools": spaces()}));
    let names: Vec<_> = chat.tools.iter().map(|tool| tool.name.as_str()).collect();
    assert_eq!(names, ["read", "agents__spawn"]);
    let read = json!({"name": "read", "description": "Reads.", "parameters": {"type": "object"}});
    assert_eq!(chat.tools[0].definition, json!({"type": "function", "function": read}));
    assert_eq!(ignored, ["tools[1].tools[1] (custom)", "tools[2] (web_search)"]);

    // A call is named as its function was given, and read again in either way.
    let mut reply = parsed(json!({"tools": spaces()})).reply;
    let mut answer = Answer::default();
    answer.push(&Event::Call { index: 0, id: "c1".into(), name: "agents__spawn".into() });
    answer.push(&Event::Finished(FinishReason::ToolCalls, Usage::default()));
    let response: Value = serde_json::from_slice(&reply.whole(&[answer])).unwrap();
    let mut item = response["output"][0].clone();
    assert_eq!(
        (&item["name"], &item["namespace"], &item["call_id"]),
        (&json!("spawn"), &json!("agents"), &json!("c1"))
    );
    assert_ne!(item["id"], item["call_id"]);
    for _ in 0..2 {
        let (chat, _) = ok(json!({"tools": spaces(), "input": [item]}));
        assert_eq!(chat.messages[0].tool_calls[0].name, "agents__spawn");
        item.as_object_mut().unwrap().remove("namespace");
    }
}

#[test]
fn a_format_stands_in_text() {
    let schema = json!({"type": "object", "properties": {}, "required": [], "additionalProperties": false});
    let format = json!({"type": "json_schema", "name": "n", "schema": schema, "strict": true});
    let (chat, _) = ok(json!({"text": {"format": format}}));
    let ResponseFormat::JsonSchema(read) = chat.response_format else { panic!("a schema") };
    assert_eq!((read.name.as_str(), &read.schema, read.strict), ("n", &schema, true));
    for (format, param) in [
        (json!({"type": "yaml"}), "text.format.type"),
        (json!({"type": "json_schema", "schema": schema}), "text.format.name"),
        (json!({"type": "json_schema", "name": "n", "schema": 1}), "text.format.schema"),
        (
            json!({"type": "json_schema", "name": "n", "schema": {"type": "object", "properties": {"a": {}}}, "strict": true}),
            "text.format",
        ),
    ] {
        let fault = try_parse(json!({"text": {"format": format}})).err().unwrap();
        assert_eq!(fault.param.as_deref(), Some(param));
        assert!(!fault.message.contains("response_format"), "{}", fault.message);
    }
}

#[test]
fn what_is_wrong_is_named() {
    for (extra, param) in [
        (json!({"input": null}), "input"),
        (json!({"input": []}), "input"),
        (json!({"input": 1}), "input"),
        (json!({"input": [1]}), "input[0]"),
        (json!({"input": [{"role": "user"}]}), "input[0].content"),
        (json!({"input": [{"role": "robot", "content": "x"}]}), "input[0].role"),
        (json!({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}), "input[0].content[0].type"),
        (json!({"input": [{"type": "item_reference", "id": "x"}]}), "input[0].type"),
        (json!({"input": [{"type": "function_call", "name": "f", "arguments": ""}]}), "input[0].call_id"),
        (json!({"input": [{"type": "function_call_output", "call_id": "c"}]}), "input[0].output"),
        (json!({"previous_response_id": "resp_1"}), "previous_response_id"),
        (json!({"conversation": "c"}), "conversation"),
        (json!({"background": true}), "background"),
        (json!({"truncation": "auto"}), "truncation"),
        (json!({"text": {"verbosity": "low"}}), "text.verbosity"),
        (json!({"tools": [{"type": "function", "name": "a b"}]}), "tools[0].name"),
        (json!({"tools": [{"type": "function", "name": "a"}, {"type": "function", "name": "a"}]}), "tools"),
        (json!({"tools": [{}]}), "tools[0].type"),
        (json!({"tool_choice": "required"}), "tool_choice"),
        (json!({"tool_choice": {"type": "web_search"}}), "tool_choice.type"),
        (json!({"tool_choice": {"type": "function", "name": "x"}}), "tool_choice.name"),
        (json!({"reasoning": {"effort": "huge"}}), "reasoning.effort"),
        (json!({"include": [1]}), "include[0]"),
    ] {
        assert_eq!(try_parse(extra.clone()).err().unwrap().param.as_deref(), Some(param), "{extra}");
    }
    let chosen = |choice: Value| ok(json!({"tools": spaces(), "tool_choice": choice})).0.tool_choice;
    let function = json!({"type": "function", "name": "read"});
    assert_eq!(chosen(function.clone()), ToolChoice::Named("read".into()));
    let allowed = json!({"type": "allowed_tools", "mode": "required", "tools": [function, {"type": "web_search"}]});
    assert_eq!(chosen(allowed), ToolChoice::Allowed { names: vec!["read".into()], required: true });
    let unforced = ok(json!({"tools": spaces(), "tool_choice": "auto"})).0;
    assert_eq!(unforced.tool_choice, ToolChoice::Auto);
}

#[test]
fn a_stream_has_every_event_in_its_order() {
    let turn = crate::messages::tests::turn();
    let request = || json!({"include": ["reasoning.encrypted_content"]});
    let mut reply = parsed(request()).reply;
    let mut bytes = reply.begin(7);
    turn.iter().for_each(|event| bytes.extend(reply.event(0, event)));
    bytes.extend(reply.end());
    let events = events(&bytes);
    for (number, (name, data)) in events.iter().enumerate() {
        assert_eq!((&data["type"], &data["sequence_number"]), (&json!(name), &json!(number)));
    }
    let names: Vec<_> = events.iter().map(|event| event.0.trim_start_matches("response.")).collect();
    let expected = [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ];
    assert_eq!(names, expected);
    assert_eq!(events[0].1["response"]["status"], "in_progress");
    let item = json!({"id": "fc_1_2", "type": "function_call", "status": "in_progress", "call_id": "a", "name": "f", "arguments": ""});
    assert_eq!(events[16].1["item"], item);
    assert_eq!(events[17].1["item_id"], "fc_1_2");

    // The whole response is the last event's.
    let mut answer = Answer::default();
    turn.iter().for_each(|event| {
        answer.push(event);
    });
    let whole: Value = serde_json::from_slice(&parsed(request()).reply.whole(&[answer])).unwrap();
    assert_eq!(events[25].1["response"], whole);
    assert_eq!(whole["output"][0]["encrypted_content"], "sealed:Hm.");
    assert_eq!(whole["output"][1]["content"][0]["text"], "Let me see.");
    assert_eq!(whole["output"][2]["arguments"], "{\"x\": 1}");
    assert_eq!(whole["usage"]["input_tokens_details"]["cached_tokens"], 3);
    assert_eq!(whole["usage"]["total_tokens"], 12);
}

#[test]
fn an_answer_that_is_cut_off_is_incomplete_and_one_that_fails_is_failed() {
    let mut reply = parsed(json!({})).reply;
    reply.begin(1);
    reply.event(0, &Event::Text("a".into()));
    let mut failing = parsed(json!({})).reply;
    let failed = events(&failing.error(&Fault::unavailable("beta was lost").into()));
    assert_eq!(failed[0].0, "response.failed");
    assert_eq!(failed[0].1["response"]["error"]["message"], "beta was lost");
    reply.event(0, &Event::Finished(FinishReason::Length, Usage::default()));
    let end = events(&reply.end());
    assert_eq!(end[0].0, "response.incomplete");
    assert_eq!(end[0].1["response"]["incomplete_details"]["reason"], "max_output_tokens");
}
