//! What an agent's turn costs stage 0: rendering 20,000 tokens of conversation with 40 tools by a real template of each
//! format, and reading an answer token by token. `just bench chat` runs it in the release profile; `just bench chat
//! FILTER` the ones whose names hold FILTER.
//!
//! The aims are 5 ms a rendering and 1 µs a token.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use mesh_chat::{Capability, ChatTemplate, Conversation, SpecialTokens, Strategy, TurnOptions, TurnParser, prompt};
use mesh_types::{FinishReason, Message, Tool, ToolCall, ToolChoice};
use serde_json::json;

/// These come first; of the other formats, the first template by name.
const TEMPLATES: [&str; 7] = [
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use",
    "Qwen-Qwen3-0.6B",
    "Qwen3-Coder",
    "GLM-4.7-Flash",
    "meta-llama-Llama-3.1-8B-Instruct",
    "mistralai-Ministral-3-14B-Reasoning-2512",
    "openai-gpt-oss-120b",
];
const TOOLS: usize = 40;
/// Rounds of a call, its result and some words: together about 20,000 tokens.
const ROUNDS: usize = 60;

fn agent(criterion: &mut Criterion) {
    // `just bench chat` says where the templates of llama.cpp's source are.
    let Some(folder) = std::env::var_os("MESH_TEMPLATES").map(PathBuf::from) else { return };
    let (tools, messages) = (tools(), messages());
    for (name, template) in natives(&folder) {
        render(criterion, &name, &template, &tools, &messages);
        read(criterion, &name, &template, &tools);
    }
}

/// A template or more of each native format.
fn natives(folder: &Path) -> Vec<(String, ChatTemplate)> {
    let files =
        std::fs::read_dir(folder).expect("a folder").filter_map(|file| file.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> = files.filter_map(|name| Some(name.strip_suffix(".jinja")?.to_owned())).collect();
    names.sort();
    names.sort_by_key(|name| !TEMPLATES.contains(&name.as_str()));
    let mut formats = HashSet::new();
    let mut natives = Vec::new();
    for name in names {
        let source = std::fs::read_to_string(folder.join(format!("{name}.jinja"))).expect("a template");
        let Ok(template) = ChatTemplate::parse(&source, "<s>", "</s>") else { continue };
        let Strategy::Native(format) = Capability::probe(&template).strategy else { continue };
        if formats.insert(format.name) || TEMPLATES.contains(&name.as_str()) {
            natives.push((format!("{}/{name}", format.name), template));
        }
    }
    natives
}

fn render(criterion: &mut Criterion, name: &str, template: &ChatTemplate, tools: &[Tool], messages: &[Message]) {
    let capability = Capability::probe(template);
    let special = SpecialTokens::new(["<|im_start|>", "<|im_end|>"], ["<tool_call>"]).expect("tokens");
    let conversation = Conversation { messages, tools, choice: &ToolChoice::Auto, parallel: true };
    let prepared = conversation.prepare(&capability).expect("a conversation");
    if let Err(refusal) = prompt::render(template, &prepared.input(template, true), &special) {
        println!("render/{name}: {refusal}");
        return;
    }
    criterion.bench_function(&format!("render/{name}"), |bencher| {
        bencher.iter(|| {
            let prepared = conversation.prepare(&capability).expect("a conversation");
            prompt::render(template, &prepared.input(template, true), &special).expect("a prompt")
        });
    });
}

fn read(criterion: &mut Criterion, name: &str, template: &ChatTemplate, tools: &[Tool]) {
    let strategy = Capability::probe(template).strategy;
    let Some(answer) = answer(&strategy, template) else { return };
    let tokens = tokens(&answer);
    let options = TurnOptions {
        strategy,
        tools,
        choice: &ToolChoice::Auto,
        any_tool: false,
        parallel: true,
        prompt: "",
        seed: "bench",
    };
    let mut group = criterion.benchmark_group("read");
    group.throughput(Throughput::Elements(tokens.len() as u64));
    group.bench_function(name, |bencher| {
        bencher.iter(|| {
            let mut parser = TurnParser::new(&options);
            let events: usize = tokens.iter().map(|token| parser.push(token).len()).sum();
            events + parser.finish(FinishReason::Stop).len()
        });
    });
    group.finish();
}

fn tools() -> Vec<Tool> {
    let tool = |index: usize| {
        let text = |what: &str| json!({"type": "string", "description": format!("The {what} to work on")});
        let parameters = json!({
            "type": "object",
            "properties": {"path": text("path"), "text": text("text"), "lines": {"type": "array", "items": {"type": "integer"}}},
            "required": ["path"],
        });
        let description = "Does what its name says to a file of the project, and answers with what came of it";
        let name = format!("tool_{index}");
        Tool::from_definition(json!({"type": "function",
            "function": {"name": name, "description": description, "parameters": parameters}}))
        .expect("a tool")
    };
    (0..TOOLS).map(tool).collect()
}

fn call(index: usize) -> ToolCall {
    ToolCall {
        id: format!("call{index:05}"),
        name: format!("tool_{}", index % TOOLS),
        arguments: json!({"path": "src/main.rs", "text": "fn main() {\n    \"é\";\n}\n".repeat(6), "lines": [1, 2, 3]})
            .to_string(),
    }
}

fn messages() -> Vec<Message> {
    let said = |role: &str, text: String| Message { role: role.to_owned(), content: Some(text), ..Message::default() };
    let mut messages = vec![said("system", "You work on a project.".to_owned()), said("user", "Go on.".to_owned())];
    for index in 0..ROUNDS {
        let call = call(index);
        let id = Some(call.id.clone());
        messages.push(Message { tool_calls: vec![call], ..said("assistant", String::new()) });
        messages.push(Message { tool_call_id: id, ..said("tool", "What came of it, line by line.\n".repeat(20)) });
        messages.push(said("assistant", "That went well; on to the next.".repeat(3)));
        // No two alike: some templates show the tools where a message equals the last question.
        messages.push(said("user", format!("Yes, go on with part {index}.")));
    }
    messages
}

/// Prose, and a call as the template writes it. `None`: it refuses such a short conversation.
fn answer(strategy: &Strategy, template: &ChatTemplate) -> Option<String> {
    let said = |role: &str| Message { role: role.to_owned(), content: Some("Well.".to_owned()), ..Message::default() };
    let calling = Message { tool_calls: vec![call(0)], ..said("assistant") };
    let capability = Capability::probe(template);
    let render = |messages: &[Message]| {
        let conversation = Conversation { messages, tools: &tools(), choice: &ToolChoice::Auto, parallel: true };
        let prepared = conversation.prepare(&capability).expect("a conversation");
        template.render_input(&prepared.input(template, false)).ok()
    };
    let (before, whole) = (render(&[said("user")])?, render(&[said("user"), calling])?);
    let common = before.bytes().zip(whole.bytes()).take_while(|(a, b)| a == b).count();
    assert!(matches!(strategy, Strategy::Native(_)));
    let common = (0..=common).rev().find(|at| whole.is_char_boundary(*at))?;
    Some(format!("{}{}", "Let me look at that: a < b, of course. ".repeat(100), &whole[common..]))
}

/// Words with their blanks, as tokens are about.
fn tokens(text: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let len = rest.char_indices().skip(1).find(|(at, c)| *at >= 4 || *c == ' ').map_or(rest.len(), |(at, _)| at);
        let (token, after) = rest.split_at(len);
        tokens.push(token);
        rest = after;
    }
    tokens
}

/// Differences of a few per cent do not matter here.
fn quick() -> Criterion {
    Criterion::default()
        .sample_size(15)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
}

criterion_group! {
    name = benches;
    config = quick();
    targets = agent
}
criterion_main!(benches);
