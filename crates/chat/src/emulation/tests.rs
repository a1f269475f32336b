use mesh_types::{Tool, ToolCall, ToolChoice};
use serde_json::json;

use super::*;
use crate::template::Arguments;

const STRICT: Turns =
    Turns { system: false, late_system: false, repeated: false, parallel_calls: false, arguments: Arguments::Object };
const FREE: Turns =
    Turns { system: true, late_system: true, repeated: true, parallel_calls: true, arguments: Arguments::Object };

fn said(role: &str, content: &str) -> Message {
    Message { role: role.to_owned(), content: Some(content.to_owned()), ..Message::default() }
}

fn call(id: &str, city: &str) -> ToolCall {
    let arguments = format!("{{\"city\": \"{city}\"}}");
    ToolCall { id: id.to_owned(), name: "weather".to_owned(), arguments }
}

fn result(id: &str, content: &str) -> Message {
    Message { tool_call_id: Some(id.to_owned()), ..said("tool", content) }
}

fn weather() -> Tool {
    let parameters = json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]});
    let definition = json!({"name": "weather", "description": "Weather in a city", "parameters": parameters});
    Tool::from_definition(definition).expect("a tool")
}

fn emulated(history: &[Message], tools: &[Tool], turns: &Turns) -> Vec<(String, String)> {
    let conversation = Conversation { messages: history, tools, choice: &ToolChoice::Auto, parallel: true };
    let said = messages(&conversation, turns);
    assert!(said.iter().all(|m| m.tool_calls.is_empty() && m.tool_call_id.is_none()));
    said.into_iter().map(|m| (m.role, m.content.unwrap_or_default())).collect()
}

#[test]
fn the_instruction_leads_and_the_task_is_below() {
    let turns = emulated(&[said("developer", "Be brief."), said("user", "Hi")], &[weather()], &FREE);
    let (role, text) = &turns[0];
    assert_eq!(role, "system");
    assert!(text.starts_with("# Tools\n") && text.contains("\n- weather(city: string): Weather in a city"), "{text}");
    assert!(text.ends_with("\n\n# Task context\n\nBe brief."), "{text}");
    assert_eq!(turns[1], ("user".to_owned(), "Hi".to_owned()));
}

#[test]
fn without_tools_nothing_is_added() {
    let history = [said("system", "Be brief."), said("user", "Hi")];
    let turns = emulated(&history, &[], &FREE);
    assert_eq!(turns, [("system".to_owned(), "Be brief.".to_owned()), ("user".to_owned(), "Hi".to_owned())]);
    assert_eq!(emulated(&history, &[], &STRICT), [("user".to_owned(), "Be brief.\n\nHi".to_owned())]);
}

#[test]
fn all_calls_and_results_stay_each_with_its_own() {
    let made = Message { tool_calls: vec![call("a", "Bergen"), call("b", "Quito")], ..said("assistant", "Both.") };
    let history = [said("user", "Compare."), made, result("b", "15"), result("a", "7"), said("user", "So?")];
    let turns = emulated(&history, &[], &STRICT);
    let expected = [
        ("user", "Compare."),
        (
            "assistant",
            "Both.\nTOOL_CALL {\"name\": \"weather\", \"arguments\": {\"city\": \"Bergen\"}}\n\
             TOOL_CALL {\"name\": \"weather\", \"arguments\": {\"city\": \"Quito\"}}",
        ),
        (
            "user",
            "Tool result: weather {\"city\": \"Bergen\"} (id a)\n7\n\n\
             Tool result: weather {\"city\": \"Quito\"} (id b)\n15\n\nSo?",
        ),
    ];
    let turns: Vec<(&str, &str)> = turns.iter().map(|(role, text)| (role.as_str(), text.as_str())).collect();
    assert_eq!(turns, expected);
}

#[test]
fn one_result_is_headed_by_its_tool() {
    let made = Message { tool_calls: vec![call("a", "Bergen")], ..said("assistant", "") };
    let turns = emulated(&[said("user", "Hm"), made, result("a", "7"), said("user", "So?")], &[], &FREE);
    assert_eq!(turns[2], ("user".to_owned(), "Tool result: weather\n7".to_owned()));
    assert_eq!(turns[3], ("user".to_owned(), "So?".to_owned()));
}

#[test]
fn roles_that_a_template_does_not_know_are_folded() {
    let history = [
        said("system", "One."),
        said("system", "Two."),
        said("user", "Hi"),
        said("assistant", "Hello"),
        said("system", "Three."),
        said("narrator", "And?"),
    ];
    let turns = emulated(&history, &[], &STRICT);
    let turns: Vec<(&str, &str)> = turns.iter().map(|(role, text)| (role.as_str(), text.as_str())).collect();
    assert_eq!(turns, [("user", "One.\n\nTwo.\n\nHi"), ("assistant", "Hello"), ("user", "Three.\n\nAnd?")]);
    assert_eq!(emulated(&[said("system", "Only.")], &[], &STRICT), [("user".to_owned(), "Only.".to_owned())]);
}

#[test]
fn schemas_are_told_in_short() {
    let parameters = json!({
        "$defs": {
            "Stop": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "at": {"$ref": "#/$defs/Stop"}},
                "required": ["city"],
            },
        },
        "properties": {
            "stops": {"type": "array", "items": {"$ref": "#/$defs/Stop"}},
            "grid": {"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
            "unit": {"enum": ["c", "f", null]},
            "limit": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            "kind": {"type": ["string", "null"]},
            "extra": {},
        },
        "required": ["stops", "extra"],
    });
    let plan = Tool::from_definition(json!({"name": "plan", "parameters": parameters})).expect("a tool");
    let bare = Tool::from_definition(json!({"name": "bare", "parameters": null})).expect("a tool");
    let text = instruction::text(&[plan, bare], &ToolChoice::Auto, false);
    let expected = "- plan(stops: [{city: string, at?: object}], grid?: [[number]], unit?: \"c\" | \"f\" | null, \
         limit?: integer | null, kind?: string | null, extra: any)\n- bare()";
    assert!(text.ends_with(expected), "{text}");
}
