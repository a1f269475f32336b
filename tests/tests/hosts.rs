//! Two hosts, each a network namespace of its own, joined by a cable that can be pulled. Needs root; says so without.

use std::time::{Duration, Instant};

use mesh_tests::models::{SMOLLM2, smollm2};
use mesh_tests::netns::Net;
use mesh_tests::process::{Process, run};
use mesh_tests::until;
use serde_json::{Value, json};

/// A host that falls silent is noticed by QUIC's idle timeout of 5 s.
const SILENCE_TOLD_WITHIN: Duration = Duration::from_secs(9);
/// And by the mesh after 8 s without a byte of it.
const GONE_WITHIN: Duration = Duration::from_secs(10);

fn question() -> Value {
    json!({"model": SMOLLM2, "temperature": 0, "max_tokens": 16,
           "messages": [{"role": "user", "content": "What is the capital of Germany?"}]})
}

#[test]
fn two_hosts_serve_a_model_until_the_cable_is_pulled_and_after_it_is_back() {
    let Some(net) = Net::pair() else { return };
    let folder = tempfile::tempdir().unwrap();
    let model = smollm2().display().to_string();
    let up = ["up", "--model", &model, "--split", "0-16,17-29", "--ctx", "2048"];
    let alpha = net.node("alpha", folder.path(), &up);
    let beta = net.node("beta", folder.path(), &["join", &alpha.token()]);
    beta.process.line("ready model");
    let addresses = beta.ask("peers")["peers"][1]["addresses"].to_string();
    assert_eq!(addresses, r#"["/ip4/10.77.0.1/tcp/9338"]"#, "loopback is nobody else's business");
    for host in ["alpha", "beta"] {
        let answer = run(&mut net.chat(host, &question()));
        let answer: Value = serde_json::from_slice(&answer.stdout).unwrap();
        let text = answer["choices"][0]["message"]["content"].as_str().unwrap_or_default();
        assert!(text.contains("Berlin"), "{answer}");
    }

    let mut body = question();
    body["stream"] = json!(true);
    body["ignore_eos"] = json!(true);
    body["max_tokens"] = json!(1900);
    let mut stream = Process::spawn(&mut net.chat("alpha", &body));
    stream.nth_line("data: {\"id\"", 5);
    net.set_cable("alpha", "down");
    let pulled = Instant::now();
    stream.exit(SILENCE_TOLD_WITHIN);
    let told = stream.line("data: {\"error\"");
    assert!(told.contains("17-29") && told.contains("beta"), "{told}");
    assert!(!stream.stdout().contains("[DONE]"), "{}", stream.stdout());

    for node in [&alpha, &beta] {
        let left = GONE_WITHIN.saturating_sub(pulled.elapsed());
        until("the other host to be gone from the view", left, || {
            (node.ask("peers")["peers"][1]["state"] == "gone").then_some(())
        });
    }

    net.set_cable("alpha", "up");
    until("the model to be served again", mesh_tests::PATIENCE, || {
        let answer = run(&mut net.chat("beta", &question()));
        String::from_utf8_lossy(&answer.stdout).contains("Berlin").then_some(())
    });
}
