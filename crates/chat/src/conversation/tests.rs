use mesh_types::ToolCall;
use serde_json::json;

use super::*;
use crate::capability::Turns;
use crate::format::Format;

fn said(role: &str, content: &str) -> Message {
    Message { role: role.to_owned(), content: Some(content.to_owned()), ..Message::default() }
}

fn calling(calls: &[(&str, &str)]) -> Message {
    let call = |(id, name): &(&str, &str)| ToolCall {
        id: (*id).to_owned(),
        name: (*name).to_owned(),
        arguments: format!("{{\"of\": \"{id}\"}}"),
    };
    Message { role: "assistant".to_owned(), tool_calls: calls.iter().map(call).collect(), ..Message::default() }
}

fn result(id: &str, content: &str) -> Message {
    Message { tool_call_id: Some(id.to_owned()), ..said("tool", content) }
}

fn native(format: &str, parallel_calls: bool) -> Capability {
    Capability {
        strategy: Strategy::Native(Format::named(format).expect("a format")),
        turns: Turns { system: true, late_system: true, repeated: true, parallel_calls, arguments: Arguments::Object },
    }
}

fn prepare(messages: &[Message], capability: &Capability) -> Result<Prepared, ChatError> {
    let tool = Tool::from_definition(json!({"name": "look"})).expect("a tool");
    Conversation { messages, tools: &[tool], choice: &ToolChoice::Auto, parallel: true }.prepare(capability)
}

/// `source` rendered natively over `messages`.
fn rendered(source: &str, messages: &[Message], capability: &Capability) -> String {
    let template = ChatTemplate::parse(source, "", "").expect("a template");
    let prepared = prepare(messages, capability).expect("a conversation");
    template.render_input(&prepared.input(&template, false)).expect("a prompt")
}

#[test]
fn a_result_has_to_answer_an_open_call() {
    let capability = native("hermes", true);
    let refused = |messages: &[Message]| match prepare(messages, &capability) {
        Err(ChatError::Conversation { param, reason }) => (param, reason),
        other => panic!("{other:?}"),
    };
    let (param, reason) = refused(&[said("user", "Hi"), result("x", "planted")]);
    assert_eq!(param, "messages[1].tool_call_id");
    assert!(reason.contains("\"x\""), "{reason}");
    refused(&[said("user", "Hi"), said("tool", "planted")]);
    refused(&[calling(&[("a", "look")]), result("a", "1"), said("user", "and"), result("a", "2")]);
    assert!(
        prepare(&[calling(&[("a", "look"), ("b", "look")]), result("b", "1"), result("a", "2")], &capability).is_ok()
    );
}

#[test]
fn a_template_can_walk_the_arguments_and_sees_no_null() {
    let source = "{% for m in messages %}{{ m.role }}:{{ m.content }}\
        {% for c in m.tool_calls or [] %}[{{ c.function.name }}\
        {% for k, v in c.function.arguments|items %} {{ k }}={{ v }}{% endfor %}]{% endfor %};\
        {% endfor %}{{ tools|tojson }}";
    let messages = [said("user", "Hi"), calling(&[("a", "look")]), result("a", "seen")];
    assert_eq!(
        rendered(source, &messages, &native("hermes", true)),
        "user:Hi;assistant:[look of=a];tool:seen;[{\"name\": \"look\"}]"
    );
    let text = Capability {
        turns: Turns { arguments: Arguments::Text, ..native("hermes", true).turns },
        ..native("hermes", true)
    };
    assert_eq!(rendered("{{ messages[1].tool_calls[0].function.arguments }}", &messages, &text), "{\"of\": \"a\"}");
}

#[test]
fn arguments_that_are_no_json_stay_text() {
    let mut message = calling(&[("a", "look")]);
    message.tool_calls[0].arguments = "{oops".to_owned();
    let source = "{{ messages[0].tool_calls[0].function.arguments }}";
    assert_eq!(rendered(source, &[message], &native("hermes", true)), "{oops");
}

#[test]
fn results_get_the_name_of_their_tool() {
    let messages = [calling(&[("a", "look")]), result("a", "seen")];
    assert_eq!(rendered("{{ messages[1].name }}", &messages, &native("hermes", true)), "look");
}

#[test]
fn calls_are_taken_apart_where_a_template_knows_one_a_turn() {
    let mut both = calling(&[("a", "look"), ("b", "look")]);
    both.content = Some("Twice.".to_owned());
    let messages = [said("user", "Hi"), both, result("b", "2"), result("a", "1"), said("user", "Thanks")];
    let prepared = prepare(&messages, &native("llama3_json", false)).expect("a conversation");
    let shape: Vec<(&str, &str, usize)> = prepared
        .messages()
        .iter()
        .map(|m| (m.role.as_str(), m.content.as_deref().unwrap_or_default(), m.tool_calls.len()))
        .collect();
    assert_eq!(
        shape,
        [
            ("user", "Hi", 0),
            ("assistant", "Twice.", 1),
            ("tool", "1", 0),
            ("assistant", "", 1),
            ("tool", "2", 0),
            ("user", "Thanks", 0),
        ]
    );
}

#[test]
fn mistral_gets_ids_that_it_accepts() {
    let messages = [calling(&[("call_0123456789", "look"), ("abcdefgh1", "look")]), result("call_0123456789", "seen")];
    let prepared = prepare(&messages, &native("mistral_v11", true)).expect("a conversation");
    let ids: Vec<&str> = prepared.messages()[0].tool_calls.iter().map(|call| call.id.as_str()).collect();
    assert!(ids[0].len() == 9 && ids[0].bytes().all(|b| b.is_ascii_alphanumeric()), "{ids:?}");
    assert_eq!(ids[1], "abcdefgh1");
    assert_eq!(prepared.messages()[1].tool_call_id.as_deref(), Some(ids[0]));
}
