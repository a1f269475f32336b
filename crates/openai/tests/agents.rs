//! What agent programs send is read: the bodies that `just clients --record` has written, long texts replaced.
#![allow(clippy::unwrap_used)] // every one is a check

use std::path::Path;
use std::sync::Arc;

use mesh_openai::{Context, Dialect, Seal, parse};
use mesh_types::RequestId;
use serde_json::Value;

/// Seals nothing.
struct NoSeal;

impl Seal for NoSeal {
    fn seal(&self, _text: &str) -> String {
        String::new()
    }

    fn open(&self, _sealed: &str) -> Option<String> {
        None
    }
}

fn context() -> Context {
    Context { request: RequestId::new("r"), unique: "1".into(), created: 7, seal: Arc::new(NoSeal) }
}

fn dialect(path: &str) -> Dialect {
    match path {
        "/v1/chat/completions" => Dialect::Chat,
        "/v1/responses" => Dialect::Responses,
        "/v1/messages" => Dialect::Messages,
        other => panic!("no dialect at {other}"),
    }
}

/// The requests of an agent.
fn recorded(agent: &str) -> Vec<(Dialect, Value)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/clients/fixtures").join(format!("{agent}.json"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let sent: Vec<Value> = serde_json::from_str(&text).unwrap();
    sent.into_iter().map(|sent| (dialect(sent["path"].as_str().unwrap()), sent["body"].clone())).collect()
}

#[test]
fn what_agents_send_is_read_whole() {
    for agent in ["opencode", "codex", "claude-code", "qwen-code"] {
        let requests = recorded(agent);
        let mut tools = 0;
        for (index, (dialect, body)) in requests.iter().enumerate() {
            let parsed = parse(*dialect, body.to_string().as_bytes(), &context());
            let parsed = parsed.unwrap_or_else(|fault| panic!("{agent}, request {index}: {fault:?}"));
            let chat = &parsed.runs[0];
            assert!(parsed.stream, "{agent} streams");
            assert!(chat.messages.iter().any(|message| message.role == "user"), "{agent}, request {index}");
            tools = tools.max(chat.tools.len());
            // What has no effect is what is known to have none, and tools that others run.
            for path in &parsed.ignored {
                println!("{agent}, request {index}: {path} has no effect");
            }
        }
        assert!(tools >= 5, "{agent} offers tools: {tools}");
        let results = |body: &Value| {
            let text = body.to_string();
            ["tool_call_id", "call_id", "tool_use_id"].iter().any(|name| text.contains(name))
        };
        assert!(requests.iter().any(|(_, body)| results(body)), "{agent} sends results of tools");
    }
}
