//! What a model says, as a client gets it: streamed and not, native and emulated, whatever the tokens are.

use serde_json::{Value, json};

use crate::rig::{MODEL, Rig};

/// A template that calls tools as Hermes does.
const HERMES: &str = "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool|tojson }}\n{% endfor %}<|im_end|>\n\
    {% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for call in m.tool_calls or [] %}\
    <tool_call>\n{\"name\": \"{{ call.function.name }}\", \"arguments\": {{ call.function.arguments|tojson }}}\n\
    </tool_call>{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

struct Case {
    template: Option<&'static str>,
    said: &'static str,
    content: Value,
    reasoning: Option<&'static str>,
    /// Names and arguments.
    calls: &'static [(&'static str, &'static str)],
    finish_reason: &'static str,
}

/// Prose, and nothing else.
fn prose(template: Option<&'static str>, said: &'static str) -> Case {
    Case { template, said, content: said.into(), reasoning: None, calls: &[], finish_reason: "stop" }
}

fn calling(template: Option<&'static str>, said: &'static str, calls: &'static [(&'static str, &'static str)]) -> Case {
    Case { template, said, content: Value::Null, reasoning: None, calls, finish_reason: "tool_calls" }
}

fn cases() -> Vec<Case> {
    let hermes = Some(HERMES);
    vec![
        prose(hermes, "Ok \u{1f600}! a < b, <tool_ca"),
        prose(hermes, "<tool_call>{\"name\": \"unknown\", \"arguments\": {}}</tool_call>"),
        prose(None, "The TOOLBOX is ready: TOOL_CALL {\"name\": \"write\", \"argu"),
        prose(None, "Here:\n```json\n{\"name\": \"write\", \"arguments\": {}}\n```\n"),
        calling(
            hermes,
            "<tool_call>\n{\"name\": \"write\", \"arguments\": {\"path\": \"Zürich.txt\", \"text\": \"} </tool_call> \\\"\\u00e9\"}}\n\
             </tool_call>\n<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>",
            &[("write", "{\"path\": \"Zürich.txt\", \"text\": \"} </tool_call> \\\"\\u00e9\"}"), ("now", "{}")],
        ),
        calling(
            None,
            "TOOL_CALL {\"name\": \"now\", \"arguments\": {}}\nTOOL_CALL {\"name\": \"now\", \"arguments\": {}}\n\nTool result:",
            &[("now", "{}"), ("now", "{}")],
        ),
        Case {
            content: "I look.".into(),
            reasoning: Some("Perhaps <tool_call>{\"name\": \"now\"}</tool_call>?"),
            ..calling(
                hermes,
                "<think>\nPerhaps <tool_call>{\"name\": \"now\"}</tool_call>?\n</think>\n\nI look.\n<tool_call>\n\
                 {\"name\": \"now\", \"arguments\": {}}\n</tool_call>",
                &[("now", "{}")],
            )
        },
        Case {
            content: "Noon.".into(),
            reasoning: Some("Maybe TOOL_CALL {\"name\": \"now\", \"arguments\": {}}."),
            ..prose(None, "<think>Maybe TOOL_CALL {\"name\": \"now\", \"arguments\": {}}.</think>Noon.")
        },
    ]
}

fn request() -> Value {
    let tool = |name: &str, properties: Value| {
        let parameters = json!({"type": "object", "properties": properties});
        json!({"type": "function", "function": {"name": name, "parameters": parameters}})
    };
    let tools =
        [tool("write", json!({"path": {"type": "string"}, "text": {"type": "string"}})), tool("now", json!({}))];
    json!({"model": MODEL, "messages": [{"role": "user", "content": "Go."}], "tools": tools})
}

#[tokio::test]
async fn answers_arrive_whole_streamed_and_not() {
    for template in [None, Some(HERMES)] {
        let rig = Rig::start(template).await;
        for case in cases().into_iter().filter(|case| case.template == template) {
            rig.say([case.said.as_bytes()]);
            for message in [rig.message(&request()).await, rig.streamed(&request()).await] {
                check(&case, &message);
            }
        }
        rig.stop().await;
    }
}

/// Every cut in two, by itself a few of them; `MESH_ROUNDS` for all.
#[tokio::test]
async fn no_cut_of_an_answer_matters() {
    let step = if std::env::var_os("MESH_ROUNDS").is_some() { 1 } else { 11 };
    for template in [None, Some(HERMES)] {
        let rig = Rig::start(template).await;
        for (index, case) in cases().into_iter().enumerate().filter(|(_, case)| case.template == template) {
            let said = case.said.as_bytes();
            for cut in (index % step..said.len()).step_by(step) {
                let (head, tail) = said.split_at(cut);
                rig.say_in_tokens([head, tail]);
                check(&case, &rig.message(&request()).await);
                check(&case, &rig.streamed(&request()).await);
            }
        }
        rig.stop().await;
    }
}

fn check(case: &Case, message: &Value) {
    let said = case.said;
    let silent = message["content"].as_str().unwrap_or_default().is_empty();
    assert!(message["content"] == case.content || (case.content.is_null() && silent), "{said:?} gives {message}");
    assert_eq!(message["reasoning_content"].as_str(), case.reasoning, "{said:?}");
    assert_eq!(message["finish_reason"], case.finish_reason, "{said:?}");
    let calls: Vec<(&str, &str)> = message["tool_calls"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|call| (call["function"]["name"].as_str().unwrap(), call["function"]["arguments"].as_str().unwrap()))
        .collect();
    assert_eq!(calls, case.calls, "{said:?}");
}

#[tokio::test]
async fn an_answer_that_is_cut_off_says_so() {
    let rig = Rig::start(Some(HERMES)).await;
    rig.say([b"<tool_call>{\"name\": \"write\", \"arguments\": {\"path\": \"a".as_slice(), b"bcdef"]);
    let mut request = request();
    request["max_tokens"] = 56.into();
    for message in [rig.message(&request).await, rig.streamed(&request).await] {
        assert_eq!(message["finish_reason"], "length", "{message}");
        assert_eq!(message["tool_calls"][0]["function"]["arguments"], "{\"path\": \"abcd", "{message}");
    }
    rig.stop().await;
}
