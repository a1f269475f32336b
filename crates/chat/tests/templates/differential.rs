//! The same answers read by llama.cpp's own parser: what the two read otherwise.
//!
//! `just differential` builds that parser and runs this; it does nothing by itself. docs/tool-calling.md says what the
//! disagreements come from.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use mesh_chat::Turn;
use mesh_types::FinishReason;
use serde_json::{Value, json};

use crate::archive;
use crate::calls::{Answer, Native, calls, natives, rounds};
use crate::mutation::mutated;
use crate::random::Random;

#[test]
fn answers_are_compared_with_llama_cpp() {
    let Some(program) = std::env::var_os("MESH_LLAMA_CHAT_PARSE").map(PathBuf::from) else { return };
    let mut found: BTreeMap<String, (usize, String)> = BTreeMap::new();
    for native in natives() {
        for seed in 0..rounds(4) {
            let Some(answer) = native.answer(seed) else { continue };
            let Some(mut theirs) = Theirs::start(&program, &native, &answer) else {
                count(&mut found, &native.name, "they cannot use the template", String::new);
                break;
            };
            for (kind, text) in texts(&native, &answer, seed) {
                let ours = native.read_after_prompt(&answer.tools, &text, FinishReason::Stop);
                let theirs = theirs.read(&text);
                let class = class(&ours, &theirs);
                let sample = || format!("    {text:?}\n    ours:   {}\n    theirs: {theirs}", shown(&ours));
                count(&mut found, &native.name, &format!("{kind}: {class}"), sample);
            }
        }
    }
    for (key, (count, sample)) in found {
        println!("{count:5} {key}\n{sample}");
    }
}

fn count(found: &mut BTreeMap<String, (usize, String)>, name: &str, class: &str, sample: impl FnOnce() -> String) {
    let entry = found.entry(format!("{name}: {class}"));
    entry.or_insert_with(|| (0, if class.ends_with("the same") { String::new() } else { sample() })).0 += 1;
}

/// The answer, cut off, and changed.
fn texts(native: &Native, answer: &Answer, seed: u64) -> Vec<(&'static str, String)> {
    let Some(whole) = answer.texts.first() else { return Vec::new() };
    let mut random = Random::new(seed);
    let mut texts = vec![("good", whole.clone()), ("text", "Just words, and a < b.".to_owned())];
    for _ in 0..5 {
        let end = random.below(whole.chars().count());
        texts.push(("cut", whole.chars().take(end).collect()));
        texts.push(("mutated", mutated(&mut random, whole, native.format)));
    }
    texts
}

fn class(ours: &Turn, theirs: &Value) -> &'static str {
    let Some(their_calls) = theirs["calls"].as_array() else { return "they refuse" };
    let text = |name: &str| theirs[name].as_str().unwrap_or_default().trim().to_owned();
    let read = |call: &Value| {
        let arguments = call["arguments"].as_str().unwrap_or_default();
        let parsed = serde_json::from_str(arguments).unwrap_or_else(|_| Value::from(format!("no JSON: {arguments}")));
        (call["name"].as_str().unwrap_or_default().to_owned(), parsed)
    };
    let theirs: Vec<(String, Value)> = their_calls.iter().map(read).collect();
    let ours_read = calls(ours);
    match (ours_read.len(), theirs.len()) {
        (0, 1..) => "only they read calls",
        (1.., 0) => "only we read calls",
        (a, b) if a > b => "we read more calls",
        (a, b) if a < b => "they read more calls",
        _ if ours_read != theirs => "other arguments",
        _ if ours.reasoning.trim() != text("reasoning") => "other reasoning",
        _ if ours.content.trim() != text("content") => "other text",
        _ => "the same",
    }
}

fn shown(turn: &Turn) -> Value {
    let calls: Vec<Value> =
        turn.calls.iter().map(|call| json!({"name": call.name, "arguments": call.arguments})).collect();
    json!({"content": turn.content, "reasoning": turn.reasoning, "calls": calls})
}

/// llama.cpp's parser at work.
struct Theirs {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Theirs {
    fn start(program: &PathBuf, native: &Native, answer: &Answer) -> Option<Self> {
        let template = archive::folder().join(format!("{}.jinja", native.name));
        let mut command = Command::new(program);
        let command = command.arg(template).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("llama.cpp's parser");
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("its output"));
        let mut theirs = Self { child, input, output };
        let tools: Vec<&Value> = answer.tools.iter().map(|tool| &tool.definition).collect();
        let messages = json!([{"role": "user", "content": "question"}]);
        let request = json!({"messages": messages, "tools": tools, "bos_token": "", "eos_token": ""});
        theirs.ask(&request).get("prompt").is_some().then_some(theirs)
    }

    fn read(&mut self, text: &str) -> Value {
        self.ask(&Value::from(text))
    }

    fn ask(&mut self, question: &Value) -> Value {
        let mut answer = String::new();
        let written = self.input.as_mut().is_some_and(|input| writeln!(input, "{question}").is_ok());
        if written && self.output.read_line(&mut answer).is_ok() {
            serde_json::from_str(&answer).unwrap_or_else(|_| json!({"error": "it died"}))
        } else {
            json!({"error": "it died"})
        }
    }
}

impl Drop for Theirs {
    fn drop(&mut self) {
        self.input = None;
        let _ = self.child.wait();
    }
}
