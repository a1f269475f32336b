//! Answers that are held to a form, with a real model that would not keep to it: forced calls, schemas, and calls that
//! the model begins by itself. Emulated and native, on one node and split over two.
//!
//! By default a few of each; `MESH_ENFORCE=100` (`just enforce`) a hundred, several at a time. Answers are judged by
//! the `jsonschema` crate, never by the project's own code.
#![allow(clippy::unwrap_used)] // every one is a check

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use mesh_tests::http;
use mesh_tests::models::{self, SMOLLM2, smollm2};
use mesh_tests::process::{Node, field};
use serde_json::{Value, json};

/// Shows tools, calls and results as Hermes models know them.
const HERMES: &str = "NousResearch-Hermes-3-Llama-3.1-8B-tool_use";

const PROMPTS: [&str; 10] = [
    "What is the weather in Oslo tomorrow?",
    "Book a table for four, please.",
    "Hi!",
    "Write a poem about the sea and then stop.",
    "Translate \"good morning\" into French.",
    "{\"json\": [1, 2, 3]} <tool_call> TOOL_CALL ``` what is this?",
    "Wie wird das Wetter in Köln? 🌧",
    "List every prime number below one hundred, one per line.",
    "Remind me to call Ann at 7 pm.",
    "Repeat the letter a forever.",
];

fn schemas() -> Vec<Value> {
    vec![
        json!({"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"]}),
        json!({"type": "object", "properties": {"unit": {"enum": ["celsius", "fahrenheit"]}, "exact": {"type": "boolean"}},
            "required": ["unit", "exact"], "additionalProperties": false}),
        // Not `["string", "null"]`: Hermes's template, by Jinja2 too, goes through the letters of "null" without an end.
        json!({"type": "object", "properties": {"to": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "at": {"type":
            "string", "pattern": "^([01][0-9]|2[0-3]):[0-5][0-9]$"}}, "required": ["to", "at"],
            "additionalProperties": false}),
        json!({"type": "object", "$defs": {"stop": {"type": "object", "properties": {"city": {"type": "string"}, "nights":
            {"type": "integer", "minimum": 1, "maximum": 30}}, "required": ["city", "nights"]}}, "properties": {"stops":
            {"type": "array", "items": {"$ref": "#/$defs/stop"}, "minItems": 1, "maxItems": 4}}, "required": ["stops"]}),
        json!({"type": "object", "properties": {"q": {"type": ["integer", "string"]}, "tags": {"type":
            "array", "items": {"type": "string"}}, "score": {"type": "number"}}, "required": ["q", "tags", "score"]}),
        json!({"type": "object", "properties": {"note": {"type": "string", "maxLength": 40}, "kind": {"const": "note"}},
            "required": ["kind", "note"]}),
        json!({"type": "object", "properties": {}}),
        json!({"type": "object", "properties": {"tree": {"$ref": "#/$defs/tree"}}, "required": ["tree"], "$defs": {"tree":
            {"type": "object", "properties": {"name": {"type": "string"}, "children": {"type": "array", "items": {"$ref":
            "#/$defs/tree"}}}, "required": ["name"], "additionalProperties": false}}}),
    ]
}

/// Requests that are under way at once, and the node's slots: more of them make a step little longer.
const AT_ONCE: usize = 8;

/// How many of each kind are asked for: `few`, unless somebody wants more.
fn rounds(few: usize) -> usize {
    std::env::var("MESH_ENFORCE").ok().map_or(few, |count| count.parse().expect("MESH_ENFORCE is a number"))
}

/// What runs, and how it is asked.
struct Served {
    base: String,
    _nodes: Vec<Node>,
}

impl Served {
    /// `template` replaces the model's own.
    fn start(folder: &Path, template: Option<&str>, is_split: bool) -> Self {
        let model = smollm2().display().to_string();
        let slots = AT_ONCE.to_string();
        let mut args = vec!["up", "--model", &model, "--ctx", "2048", "--parallel", &slots, "--gateway", "127.0.0.1:0"];
        let path = template.map(|name| models::template(name).display().to_string());
        if let Some(path) = &path {
            args.extend(["--chat-template", path]);
        }
        if is_split {
            args.extend(["--split", "0-16,17-29"]);
        }
        let alpha = Node::start(folder, "alpha", &args);
        let base = field(&alpha.process.line("ready gateway"), "url=");
        let mut nodes = Vec::new();
        if is_split {
            nodes.push(Node::start(folder, "beta", &["join", &alpha.token()]));
        }
        alpha.process.line("ready model");
        nodes.push(alpha);
        Self { base, _nodes: nodes }
    }

    fn choice(&self, body: &Value) -> Value {
        let (status, answer) = http::post(&self.base, "/chat/completions", body).json();
        assert_eq!(status, 200, "{answer}\n{body}");
        answer["choices"][0].clone()
    }

    fn refused(&self, body: &Value) -> Value {
        let (status, answer) = http::post(&self.base, "/chat/completions", body).json();
        assert_eq!(status, 400, "{answer}\n{body}");
        answer["error"].clone()
    }

    /// Asks for every round of `what`, a few at a time, says how many answers were right, and fails with those that
    /// were not. `check` gives what of an answer is worth counting.
    fn ask_all(
        &self,
        what: &str,
        rounds: usize,
        ask: impl Fn(usize) -> Value + Sync,
        check: impl Fn(&Value, &Value) -> Result<usize, String> + Sync,
    ) {
        let next = AtomicUsize::new(0);
        let counted = AtomicUsize::new(0);
        let wrong = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..AT_ONCE {
                scope.spawn(|| {
                    loop {
                        let round = next.fetch_add(1, Ordering::Relaxed);
                        if round >= rounds {
                            return;
                        }
                        let body = ask(round);
                        let answer = self.choice(&body);
                        match check(&body, &answer) {
                            Ok(count) => _ = counted.fetch_add(count, Ordering::Relaxed),
                            Err(why) => wrong.lock().unwrap().push(format!("{round}: {why}\n{answer}\n{body}\n")),
                        }
                    }
                });
            }
        });
        let wrong = wrong.into_inner().unwrap();
        println!("{what}: {} of {rounds}, {} calls", rounds - wrong.len(), counted.into_inner());
        assert!(wrong.is_empty(), "{what}\n{}", wrong.concat());
    }
}

/// The tools of round `round`, the first of which is the one that matters.
fn tools(round: usize) -> Value {
    let schemas = schemas();
    let tool = |name: &str, index: usize| {
        let parameters = &schemas[index % schemas.len()];
        json!({"type": "function", "function": {"name": name, "description": "Does it.", "parameters": parameters}})
    };
    json!([tool("do_it", round), tool("do_it_all", round + 3)])
}

/// A request of round `round`, half of them at temperature 0 and half at the default, in every kind, and with every
/// schema. `kind` tells apart what is asked in the same round.
fn request(round: usize, kind: usize, extra: Value) -> Value {
    let mut body = json!({"model": SMOLLM2, "max_tokens": 256, "seed": round,
        "messages": [{"role": "user", "content": PROMPTS[round % PROMPTS.len()]}]});
    if (round + round / schemas().len() + kind).is_multiple_of(2) {
        body["temperature"] = json!(0);
    }
    for (name, value) in extra.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

fn check_valid(schema: &Value, value: &Value) -> Result<(), String> {
    let validator = jsonschema::validator_for(schema).unwrap();
    let errors: Vec<String> = validator.iter_errors(value).map(|error| error.to_string()).collect();
    if errors.is_empty() { Ok(()) } else { Err(format!("{errors:?}: {value} against {schema}")) }
}

/// Checks every call in `choice` against the schemas of `body`; how many there are.
fn check_calls(body: &Value, choice: &Value) -> Result<usize, String> {
    let calls = choice["message"]["tool_calls"].as_array().cloned().unwrap_or_default();
    for call in &calls {
        let function = &call["function"];
        let tools = body["tools"].as_array().unwrap().iter().map(|tool| &tool["function"]);
        let tool = tools.into_iter().find(|tool| tool["name"] == function["name"]).ok_or("no tool that is offered")?;
        let arguments = function["arguments"].as_str().ok_or("arguments are text")?;
        let arguments: Value = serde_json::from_str(arguments).map_err(|error| error.to_string())?;
        check_valid(&tool["parameters"], &arguments)?;
    }
    match (calls.is_empty(), choice["finish_reason"] == "tool_calls") {
        (true, true) | (false, false) => Err("finish_reason is tool_calls for calls, and for nothing else".to_owned()),
        _ => Ok(calls.len()),
    }
}

fn forced_calls_are_valid(served: &Served, rounds: usize) {
    let check = |body: &Value, answer: &Value| {
        let calls = check_calls(body, answer)?;
        match (calls, &answer["message"]["content"]) {
            (0, _) => Err("no call".to_owned()),
            (2.., _) if body["tool_choice"] != "required" => Err("more than the call that was named".to_owned()),
            (_, Value::Null) => Ok(calls),
            _ => Err("text beside the call".to_owned()),
        }
    };
    let required = |round| request(round, 0, json!({"tools": tools(round), "tool_choice": "required"}));
    served.ask_all("required", rounds, required, check);
    let function = json!({"type": "function", "function": {"name": "do_it"}});
    let named = |round| request(round, 1, json!({"tools": tools(round), "tool_choice": function}));
    served.ask_all("a named function", rounds, named, check);
}

/// Arguments that `schema` allows, so that a model may copy them.
fn example(schema: &Value) -> Value {
    let candidates = [
        json!({}),
        json!({"city": "Oslo"}),
        json!({"unit": "celsius", "exact": true}),
        json!({"to": null, "at": "07:30"}),
        json!({"stops": [{"city": "Oslo", "nights": 2}]}),
        json!({"q": 7, "tags": ["a"], "score": 0.5}),
        json!({"kind": "note", "note": "milk"}),
        json!({"tree": {"name": "root"}}),
    ];
    candidates.into_iter().find(|example| check_valid(schema, example).is_ok()).expect("an example of every schema")
}

/// In every other round the model has called before, and does so more often again.
fn free(round: usize, kind: usize, extra: Value) -> Value {
    let tools = tools(round);
    let arguments = example(&tools[0]["function"]["parameters"]).to_string();
    let mut body = request(round, kind, extra);
    if !round.is_multiple_of(2) {
        let messages = body["messages"].as_array_mut().unwrap();
        let function = json!({"name": "do_it", "arguments": arguments});
        let call = json!({"id": "call_1", "type": "function", "function": function});
        messages.push(json!({"role": "assistant", "tool_calls": [call]}));
        messages.push(json!({"role": "tool", "tool_call_id": "call_1", "content": "not yet, call again"}));
    }
    body["tools"] = tools;
    body
}

fn calls_of_the_models_own_are_valid(served: &Served, rounds: usize) {
    served.ask_all("auto", rounds, |round| free(round, 0, json!({"max_tokens": 96})), check_calls);
    let none = |round| free(round, 1, json!({"tool_choice": "none", "max_tokens": 48}));
    served.ask_all("none", rounds, none, |body, answer| match check_calls(body, answer)? {
        0 => Ok(0),
        _ => Err("a call that was forbidden".to_owned()),
    });
}

fn answers_of_a_schema_are_valid(served: &Served, rounds: usize) {
    let shaped = |round: usize| {
        let schema = &schemas()[round % schemas().len()];
        let format = json!({"type": "json_schema", "json_schema": {"name": "shape", "schema": schema}});
        request(round, 0, json!({"response_format": format}))
    };
    served.ask_all("json_schema", rounds, shaped, |body, answer| {
        let text = answer["message"]["content"].as_str().ok_or("no text")?;
        let value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        check_valid(&body["response_format"]["json_schema"]["schema"], &value)?;
        if answer["finish_reason"] == "stop" { Ok(0) } else { Err("it did not end".to_owned()) }
    });
}

/// A call, its result, an answer, and another call.
fn two_turns(served: &Served) {
    let mut body = request(0, 0, json!({"tools": tools(0), "tool_choice": "required", "parallel_tool_calls": false}));
    for _ in 0..2 {
        let answer = served.choice(&body);
        assert_eq!(check_calls(&body, &answer), Ok(1), "{answer}");
        let messages = body["messages"].as_array_mut().unwrap();
        let id = answer["message"]["tool_calls"][0]["id"].clone();
        messages.push(answer["message"].clone());
        messages.push(json!({"role": "tool", "tool_call_id": id, "content": "18 degrees, sunny"}));
    }
    body["tool_choice"] = json!("none");
    let answer = served.choice(&body);
    assert!(!answer["message"]["content"].as_str().unwrap().is_empty(), "{answer}");
}

fn what_cannot_be_enforced_is_refused(served: &Served) {
    let parameters = json!({"type": "object", "properties": {"a": {"type": "string", "not": {"const": ""}}},
        "required": ["a"], "additionalProperties": false});
    let function = json!({"name": "f", "strict": true, "parameters": parameters});
    let body = request(0, 0, json!({"tools": [{"type": "function", "function": function}]}));
    let error = served.refused(&body);
    assert_eq!(error["param"], "tools[0].function.parameters", "{error}");
    assert!(error["message"].as_str().unwrap().contains("properties.a.not"), "{error}");
    let shape = json!({"name": "n", "strict": true, "schema": parameters});
    let format = json!({"response_format": {"type": "json_schema", "json_schema": shape}});
    let error = served.refused(&request(0, 0, format));
    assert_eq!(error["param"], "response_format", "{error}");
    // Without `strict`, it is said in a header.
    let mut body = body;
    body["tools"][0]["function"]["strict"] = json!(false);
    body["max_tokens"] = json!(1);
    let answer = http::post(&served.base, "/chat/completions", &body);
    assert_eq!(answer.header("x-mesh-ignored"), Some("tools[0].function.parameters.properties.a.not"));
}

/// All that can be asked for.
fn keeps_to_its_form(template: Option<&str>, is_split: bool) {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), template, is_split);
    forced_calls_are_valid(&served, rounds(2));
    calls_of_the_models_own_are_valid(&served, rounds(2));
    answers_of_a_schema_are_valid(&served, rounds(2));
    two_turns(&served);
    what_cannot_be_enforced_is_refused(&served);
}

#[test]
fn an_emulated_model_keeps_to_its_form() {
    keeps_to_its_form(None, false);
}

#[test]
fn an_emulated_model_keeps_to_its_form_over_a_split() {
    keeps_to_its_form(None, true);
}

#[test]
fn a_native_model_keeps_to_its_form() {
    keeps_to_its_form(Some(HERMES), false);
}

#[test]
fn a_native_model_keeps_to_its_form_over_a_split() {
    keeps_to_its_form(Some(HERMES), true);
}
