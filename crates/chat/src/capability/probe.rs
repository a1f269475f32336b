//! The conversations that a template is tried with. None of them holds anything of a request.

use mesh_types::{FinishReason, Message, Tool, ToolCall, ToolChoice};
use serde_json::{Value, json};

use super::{Capability, Reason, Strategy, Turns};
use crate::error::ChatError;
use crate::format::Format;
use crate::parse::{Turn, TurnOptions};
use crate::template::{Arguments, ChatTemplate};

const TOOL: &str = "probe_lookup";
const PARAMETER: &str = "probe_city";
const QUESTION: &str = "probe question";
const RESULT: &str = "probe result";
const ANSWER: &str = "probe answer";
/// Ids that the strictest templates accept.
const IDS: [&str; 2] = ["probe0001", "probe0002"];
const CITIES: [&str; 2] = ["Bergen", "Tromso"];

pub(super) fn capability(template: &ChatTemplate) -> Capability {
    let shows = |messages: &[Message], texts: &[&str]| {
        template.render(messages, true).is_ok_and(|prompt| texts.iter().all(|text| prompt.contains(text)))
    };
    let mut turns = Turns {
        system: shows(&[said("system", "probe system"), said("user", QUESTION)], &["probe system", QUESTION]),
        late_system: shows(
            &[said("user", QUESTION), said("assistant", ANSWER), said("system", "probe system"), said("user", "more")],
            &["probe system"],
        ),
        repeated: shows(
            &[said("user", QUESTION), said("user", "second"), said("assistant", ANSWER), said("assistant", "again")],
            &[QUESTION, "second", ANSWER, "again"],
        ),
        parallel_calls: false,
        arguments: arguments(template),
    };
    let strategy = match strategy(template, turns.arguments) {
        Ok(format) => {
            turns.parallel_calls = reads_back(template, format, turns.arguments, 2);
            Strategy::Native(format)
        }
        Err(reason) => {
            turns.parallel_calls = renders_both(template, turns.arguments);
            Strategy::Emulated(reason)
        }
    };
    Capability { strategy, turns }
}

fn said(role: &str, content: &str) -> Message {
    Message { role: role.to_owned(), content: Some(content.to_owned()), ..Message::default() }
}

fn tool() -> Value {
    json!({"type": "function", "function": {
        "name": TOOL,
        "description": "probe description",
        "parameters": {
            "type": "object",
            "properties": {
                PARAMETER: {"type": "string", "description": "probe parameter"},
                "probe_count": {"type": "integer", "description": "probe count"},
            },
            "required": [PARAMETER, "probe_count"],
        },
    }})
}

fn arguments_of(call: usize) -> Value {
    json!({PARAMETER: CITIES[call], "probe_count": 7 + call})
}

/// A question, and `calls` calls with their results.
fn conversation(calls: usize) -> Vec<Message> {
    let call = |index: usize| ToolCall {
        id: IDS[index].to_owned(),
        name: TOOL.to_owned(),
        arguments: arguments_of(index).to_string(),
    };
    let turn = Message { tool_calls: (0..calls).map(call).collect(), ..said("assistant", "") };
    let result = |index: usize| Message {
        name: Some(TOOL.to_owned()),
        tool_call_id: Some(IDS[index].to_owned()),
        ..said("tool", RESULT)
    };
    [said("user", QUESTION), turn].into_iter().chain((0..calls).map(result)).collect()
}

fn render(
    template: &ChatTemplate,
    messages: &[Message],
    arguments: Arguments,
    open: bool,
) -> Result<String, ChatError> {
    let mut input = template.input(messages, open);
    input.tools = vec![tool()];
    input.arguments = arguments;
    template.render_input(&input)
}

/// An object, but for templates that cannot do anything with one, or print it as Python would.
fn arguments(template: &ChatTemplate) -> Arguments {
    let calls = conversation(1);
    let Ok(text) = render(template, &calls, Arguments::Text, false) else { return Arguments::Object };
    let as_sent = arguments_of(0).to_string();
    match render(template, &calls, Arguments::Object, false) {
        Err(_) => Arguments::Text,
        Ok(object) if text.contains(&as_sent) && object.contains(&format!("'{PARAMETER}': '")) => Arguments::Text,
        Ok(_) => Arguments::Object,
    }
}

fn strategy(template: &ChatTemplate, arguments: Arguments) -> Result<&'static Format, Reason> {
    let question = [said("user", QUESTION)];
    let shown = render(template, &question, arguments, true).map_err(Reason::Fails)?;
    if ![TOOL, PARAMETER, "probe description"].iter().all(|text| shown.contains(text)) {
        return Err(Reason::NoTools);
    }
    let called = render(template, &conversation(1), arguments, false).map_err(Reason::Fails)?;
    let answer = after(&called, QUESTION);
    if !answer.contains(CITIES[0]) {
        return Err(Reason::NoCalls);
    }
    if !answer.contains(RESULT) {
        return Err(Reason::NoResults);
    }
    Format::all().find(|format| reads_back(template, format, arguments, 1)).ok_or(Reason::UnknownFormat)
}

/// Whether `format` reads the calls that `template` renders.
fn reads_back(template: &ChatTemplate, format: &'static Format, arguments: Arguments, calls: usize) -> bool {
    let question = [said("user", QUESTION)];
    let tools = [Tool::from_definition(tool()).unwrap_or_else(|_| unreachable!("the probe's own tool"))];
    let Ok(called) = render(template, &conversation(calls), arguments, false) else { return false };
    // The answer begins where the prompt ends; a template may open that prompt in another way than it goes on.
    [true, false].into_iter().filter_map(|open| render(template, &question, arguments, open).ok()).any(|prompt| {
        let answer = &called[common(&prompt, &called)..];
        let options = TurnOptions {
            strategy: Strategy::Native(format),
            tools: &tools,
            choice: &ToolChoice::Auto,
            any_tool: false,
            parallel: true,
            prompt: "",
            seed: "",
        };
        let turn = Turn::parse(&options, answer, FinishReason::Stop);
        turn.calls.len() == calls
            && turn.calls.iter().enumerate().all(|(index, call)| {
                let read = serde_json::from_str::<Value>(&call.arguments);
                call.name == TOOL && read.is_ok_and(|read| read == arguments_of(index))
            })
    })
}

fn renders_both(template: &ChatTemplate, arguments: Arguments) -> bool {
    render(template, &conversation(2), arguments, false)
        .is_ok_and(|prompt| CITIES.iter().all(|city| after(&prompt, QUESTION).contains(city)))
}

fn after<'a>(text: &'a str, mark: &str) -> &'a str {
    text.split_once(mark).map_or(text, |(_, after)| after)
}

/// Bytes with which both texts begin, whole characters.
fn common(a: &str, b: &str) -> usize {
    a.chars().zip(b.chars()).take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8()).sum()
}
