//! What people get wrong, and the one sentence that each mistake is answered with.

use std::path::Path;
use std::process::{Command, Output};

use mesh_tests::http;
use mesh_tests::models::{SMOLLM2, gemma3, smollm2};
use mesh_tests::process::{Node, binary, field, mesh_node, run};
use mesh_tests::until;
use serde_json::json;

/// Checks an exit code and that stderr is one sentence that contains each of `says`.
#[track_caller]
fn fails(output: &Output, code: i32, says: &[&str]) {
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{err}");
    let sentence = err.lines().rfind(|line| line.starts_with("mesh-")).unwrap_or_else(|| panic!("no sentence: {err}"));
    for part in says {
        assert!(sentence.contains(part), "`{part}` is not in: {sentence}");
    }
    for internal in ["panicked", "backtrace", "ggml", "llama.cpp", "Os {", "Error {", "kind:"] {
        assert!(!err.contains(internal), "`{internal}` in: {err}");
    }
    assert!(output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stdout));
}

fn up(folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(binary("mesh-node"));
    command.args(["up", "--listen", "127.0.0.1:0", "--gateway", "off", "--data-dir"]).arg(folder.join("up")).args(args);
    run(&mut command)
}

fn join(folder: &Path, token: &str) -> Output {
    let dir = folder.join("join").display().to_string();
    mesh_node(&["join", token, "--listen", "127.0.0.1:0", "--gateway", "off", "--data-dir", &dir])
}

#[test]
fn tokens() {
    let folder = tempfile::tempdir().unwrap();
    let holder = Node::start(folder.path(), "alpha", &["up"]);
    let token = holder.token();
    fails(&join(folder.path(), "hello"), 2, &["token"]);
    fails(&join(folder.path(), &token[..token.len() - 7]), 2, &["token", "copy"]);
    let file = folder.path().join("missing").display().to_string();
    fails(&mesh_node(&["join", "--token-file", &file]), 2, &[&file]);
    // The mesh is gone: nobody listens at the token's address.
    drop(holder);
    fails(&join(folder.path(), &token), 1, &["127.0.0.1"]);
}

#[test]
fn busy_ports() {
    let folder = tempfile::tempdir().unwrap();
    let busy = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = busy.local_addr().unwrap().to_string();
    let dir = folder.path().join("n").display().to_string();
    let listen = mesh_node(&["up", "--gateway", "off", "--listen", &address, "--data-dir", &dir]);
    fails(&listen, 1, &[&address, "using that port"]);
    let gateway = mesh_node(&["up", "--gateway", &address, "--listen", "127.0.0.1:0", "--data-dir", &dir]);
    fails(&gateway, 1, &[&address, "using that port"]);
    let routed = run(Command::new(binary("mesh-gateway")).args(["--join", "x", "--data-dir", &dir]));
    assert_eq!(routed.status.code(), Some(2));
}

#[test]
fn a_data_directory_has_one_node() {
    let folder = tempfile::tempdir().unwrap();
    let node = Node::start(folder.path(), "alpha", &["up"]);
    node.token();
    let dir = node.data_dir.display().to_string();
    let second = mesh_node(&["up", "--listen", "127.0.0.1:0", "--gateway", "off", "--data-dir", &dir]);
    fails(&second, 1, &["another", &dir]);
}

#[test]
fn model_files() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path.display().to_string()
    };
    let missing = folder.path().join("missing.gguf").display().to_string();
    fails(&up(folder.path(), &["--model", &missing]), 1, &[&missing]);
    let text = file("text.gguf", b"this is no model, however long the text may be");
    fails(&up(folder.path(), &["--model", &text]), 1, &[&text, "GGUF"]);
    let empty = file("empty.gguf", b"");
    fails(&up(folder.path(), &["--model", &empty]), 1, &[&empty]);
    let whole = std::fs::read(smollm2()).unwrap();
    let cut = file("cut.gguf", &whole[..50_000_000]);
    fails(&up(folder.path(), &["--model", &cut]), 1, &[&cut, "ends"]);
    let head = file("head.gguf", &whole[..1000]);
    fails(&up(folder.path(), &["--model", &head]), 1, &[&head]);
    // The same file under the name of a family that nobody knows.
    let mut unknown = whole;
    let key = unknown.windows(20).position(|w| w == b"general.architecture").unwrap();
    unknown[key + 32..key + 37].copy_from_slice(b"zebra");
    let unknown = file("unknown.gguf", &unknown);
    fails(&up(folder.path(), &["--model", &unknown, "--split", "0-9,10-29"]), 1, &["zebra"]);
}

#[test]
fn splits_and_settings() {
    let folder = tempfile::tempdir().unwrap();
    let model = smollm2().display().to_string();
    fails(&up(folder.path(), &["--model", &model, "--split", "0-9,11-29"]), 1, &["--split", "10"]);
    fails(&up(folder.path(), &["--model", &model, "--split", "0-9,10-40"]), 1, &["29"]);
    fails(&up(folder.path(), &["--model", &model, "--split", "9-0"]), 2, &["9-0"]);
    let other = gemma3().display().to_string();
    fails(&up(folder.path(), &["--model", &model, "--draft", &other]), 1, &[&other, "vocabulary"]);
    fails(&up(folder.path(), &["--model", &model, "--draft", &model, "--speculate", "off"]), 2, &["--draft"]);
    let dir = folder.path().join("up").display().to_string();
    let open = mesh_node(&["up", "--gateway", "0.0.0.0:0", "--data-dir", &dir]);
    fails(&open, 2, &["--api-key"]);
    assert_eq!(mesh_node(&["up", "--no-such-flag"]).status.code(), Some(2));
    fails(&mesh_node(&["status", "--data-dir", &dir]), 3, &["no node is running", "mesh-node up"]);
}

#[test]
fn a_model_that_does_not_fit_waits_for_others() {
    let folder = tempfile::tempdir().unwrap();
    let model = smollm2().display().to_string();
    let holder = Node::start(folder.path(), "alpha", &["up", "--model", &model, "--ctx", "512", "--memory", "120M"]);
    let token = holder.token();
    let detail = until("the reason to be shown", mesh_tests::PATIENCE, || {
        let models = holder.ask("models");
        models["models"][0]["detail"].as_str().filter(|detail| detail.contains("--memory")).map(str::to_owned)
    });
    assert!(detail.contains("alpha: it has 120.0 MiB"), "{detail}");
    let _other = Node::start(folder.path(), "beta", &["join", &token]);
    assert_eq!(field(&holder.process.line("ready model"), "nodes="), "alpha,beta");
}

#[test]
fn requests() {
    let folder = tempfile::tempdir().unwrap();
    let model = smollm2().display().to_string();
    let args = ["up", "--model", &model, "--ctx", "256", "--gateway", "127.0.0.1:0"];
    let node = Node::start(folder.path(), "alpha", &args);
    let base = field(&node.process.line("ready gateway"), "url=");
    node.process.line("ready model");
    let ask = |body: serde_json::Value| http::post(&base, "/chat/completions", &body).json();
    let user = |text: &str| json!([{"role": "user", "content": text}]);

    let (status, answer) = ask(json!({"model": "nobody", "messages": user("hi")}));
    assert_eq!((status, &answer["error"]["code"]), (404, &json!("model_not_found")), "{answer}");
    assert!(answer["error"]["message"].as_str().unwrap().contains("nobody"), "{answer}");
    let (status, answer) = http::send("POST", &base, "/chat/completions", Some(b"{\"model\": ")).json();
    assert_eq!((status, &answer["error"]["type"]), (400, &json!("invalid_request_error")), "{answer}");
    let (status, answer) = ask(json!({"model": SMOLLM2, "messages": []}));
    assert_eq!((status, &answer["error"]["param"]), (400, &json!("messages")), "{answer}");
    for stream in [false, true] {
        let long = "word ".repeat(600);
        let (status, answer) = ask(json!({"model": SMOLLM2, "messages": user(&long), "stream": stream}));
        assert_eq!((status, &answer["error"]["code"]), (400, &json!("context_length_exceeded")), "{answer}");
        assert!(answer["error"]["message"].as_str().unwrap().contains("256"), "{answer}");
    }
    // An answer up to the context's end is a proper one that was cut.
    let (status, answer) = ask(json!({"model": SMOLLM2, "messages": user("Count."), "ignore_eos": true, "seed": 1}));
    assert_eq!((status, &answer["choices"][0]["finish_reason"]), (200, &json!("length")), "{answer}");
    assert_eq!(answer["usage"]["total_tokens"], 256, "{answer}");
    // A seed gives the same text again; a stop string cuts it.
    let drawn = |more: serde_json::Value| {
        let mut body = json!({"model": SMOLLM2, "messages": user("Tell a story."), "max_tokens": 24});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        ask(body).1
    };
    let seeded = |seed: u32| drawn(json!({"seed": seed}));
    let text = |answer: &serde_json::Value| answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    let cached =
        |answer: &serde_json::Value| answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    let (first, again) = (seeded(7), seeded(7));
    let first = text(&first);
    assert_eq!(first, text(&again));
    assert_ne!(first, text(&seeded(8)));
    // It would not with a part of the prompt taken over, which is a matter of asking.
    assert_eq!(cached(&again), 0, "{again}");
    assert!(cached(&drawn(json!({"seed": 7, "cache_prompt": true}))) > 0);
    assert!(cached(&drawn(json!({}))) > 0);
    assert_eq!(cached(&drawn(json!({"cache_prompt": false}))), 0);
    let stop: String = first.chars().skip(5).take(4).collect();
    let body = json!({"model": SMOLLM2, "messages": user("Tell a story."), "seed": 7, "max_tokens": 24, "stop": stop});
    let (_, stopped) = ask(body);
    assert_eq!(text(&stopped), first[..first.find(&stop).unwrap()]);
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
}
