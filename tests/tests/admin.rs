//! The administering commands, from one node about all: how a model would be placed, loading, unloading and draining.
#![allow(clippy::unwrap_used)] // every one is a check

use std::process::Command;
use std::time::Duration;

use mesh_tests::PATIENCE;
use mesh_tests::http::{Event, post};
use mesh_tests::models::{SMOLLM2, gemma3, smollm2};
use mesh_tests::process::{Node, Process, binary, field};
use mesh_tests::until;
use serde_json::{Value, json};

fn models(node: &Node) -> Vec<String> {
    let models = node.ask("models");
    models["models"].as_array().unwrap().iter().map(|model| model["name"].as_str().unwrap().to_owned()).collect()
}

fn about<'a>(plan: &'a Value, node: &str) -> &'a Value {
    plan["nodes"].as_array().unwrap().iter().find(|one| one["node"] == node).unwrap()
}

#[test]
fn models_come_and_go_on_any_node_from_any_node() {
    let folder = tempfile::tempdir().unwrap();
    let alpha = Node::start(folder.path(), "alpha", &["up", "--ctx", "512", "--memory", "2G"]);
    let _beta = Node::start(folder.path(), "beta", &["join", &alpha.token(), "--ctx", "512", "--memory", "1G"]);
    alpha.sees("beta");

    let file = smollm2().display().to_string();
    let plan = alpha.told(&["plan", &file]);
    assert_eq!(plan["candidates"][0]["stages"][0]["layers"], "0-29", "{plan}");
    assert_eq!(plan["candidates"][0]["chosen"], true, "{plan}");
    assert_eq!(about(&plan, "beta")["left_out"], "it is not needed: the model fits on alpha alone");
    assert!(about(&plan, "alpha")["has_bytes"].as_u64() > about(&plan, "alpha")["needs_bytes"].as_u64(), "{plan}");
    assert!(alpha.said(&["plan", &file]).contains("LEFT OUT BECAUSE"));
    assert!(alpha.refuses(&["plan", "nothing"]).contains("no file `nothing`"));

    // Loaded on beta, as alpha is asked; and watched until it is ready.
    let done = alpha.told(&["load", &file, "--node", "beta"]);
    assert_eq!(done, json!({"done": "load", "model": SMOLLM2, "node": "beta"}));
    assert_eq!(field(&alpha.process.line("ready model"), "nodes="), "beta");
    assert!(alpha.refuses(&["load", &file, "--node", "beta"]).contains("already"));
    let nobody = alpha.refuses(&["load", &file, "--node", "gamma"]);
    assert!(nobody.contains("no node is called `gamma`") && nobody.contains("alpha, beta"), "{nobody}");
    let lines = alpha.said(&["load", &gemma3().display().to_string(), "--watch", "--json"]);
    let last: Value = serde_json::from_str(lines.lines().last().unwrap()).unwrap();
    let own = last["models"].as_array().unwrap().iter().find(|model| model["served_by"] == "alpha").unwrap();
    assert_eq!(own["ready"], true, "{lines}");
    let speed =
        until("a measured speed", PATIENCE, || alpha.ask("peers")["peers"][1]["decode_bytes_per_second"].as_u64());
    assert!(speed > 0);
    // A model of another node is planned there, and what runs is marked.
    let plan = alpha.told(&["plan", SMOLLM2]);
    assert_eq!((&plan["holder"], &plan["candidates"][0]["running"]), (&json!("beta"), &json!(true)), "{plan}");
    assert_eq!(alpha.told(&["status", "--node", "beta"])["node"]["name"], "beta");

    assert_eq!(alpha.told(&["unload", SMOLLM2])["node"], "beta");
    until("one model", PATIENCE, || (models(&alpha).len() == 1).then_some(()));
    assert!(alpha.refuses(&["unload", SMOLLM2]).contains("not served"));
    // By its name again, and the other way round.
    let ranges = alpha.refuses(&["load", SMOLLM2, "--node", "beta", "--split", "0-9,11-29"]);
    assert!(ranges.contains("contiguous"), "{ranges}");
    alpha.told(&["load", SMOLLM2, "--node", "beta", "--split", "0-14,15-29"]);
    until("both of its stages", PATIENCE, || {
        let ask = alpha.ask("models");
        let model = ask["models"].as_array()?.iter().find(|model| model["name"] == SMOLLM2)?.clone();
        (model["ready"] == true && model["stages"][1]["node"] == "alpha").then_some(())
    });
}

/// Tokens of the run that goes on while its model moves.
const RUN: usize = 400;

#[test]
fn a_drained_node_gives_its_stages_away_and_its_run_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let file = smollm2().display().to_string();
    let up =
        ["up", "--model", &file, "--ctx", "4096", "--memory", "460M", "--kv-host", "0", "--gateway", "127.0.0.1:0"];
    let alpha = Node::start(folder.path(), "alpha", &up);
    let base = field(&alpha.process.line("ready gateway"), "url=");
    let beta = Node::start(folder.path(), "beta", &["join", &alpha.token(), "--memory", "2G"]);
    assert_eq!(field(&alpha.process.line("ready model"), "nodes="), "alpha,beta");
    let gamma = Node::start(folder.path(), "gamma", &["join", &alpha.token(), "--memory", "2G"]);
    gamma.process.line("ready mesh");
    alpha.sees("gamma");
    let question = json!({"model": SMOLLM2, "temperature": 0, "max_tokens": RUN, "ignore_eos": true, "stream": true,
                          "messages": [{"role": "user", "content": "Tell a long story."}]});
    let mut run = post(&base, "/chat/completions", &question);
    assert!(run.event().is_some());
    let done = alpha.told(&["drain", "--node", "beta"]);
    assert_eq!((&done["node"], &done["draining"], &done["stages"]), (&json!("beta"), &json!(true), &json!(1)));
    // Alpha has no room for two placements beside each other: the run is waited for before the first one goes.
    until("the stage to move", PATIENCE, || {
        let model = &alpha.ask("models")["models"][0];
        (model["stages"][1]["node"] == "gamma" && model["ready"] == true).then_some(())
    });
    let events = run.events();
    assert_eq!(events.last(), Some(&Event::Done), "{events:?}");
    let is_last =
        |event: &Event| matches!(event, Event::Json(value) if value["choices"][0]["finish_reason"] == "length");
    assert!(events.iter().any(is_last), "{events:?}");
    until("beta to be free", PATIENCE, || {
        (beta.ask("stages")["stages"].as_array()?.iter().all(|stage| stage["node"] != "beta")).then_some(())
    });
    assert!(beta.said(&["drain", "--watch"]).contains("nothing runs there any more"));
    let plan = alpha.told(&["plan", SMOLLM2]);
    assert_eq!(about(&plan, "beta")["left_out"], "it is being drained", "{plan}");
    beta.told(&["drain", "--off"]);
    until("beta to count again", PATIENCE, || {
        let plan = alpha.told(&["plan", SMOLLM2]);
        (about(&plan, "beta")["left_out"] != "it is being drained").then_some(())
    });
}

#[test]
fn a_token_that_expires_lets_a_node_in_until_then() {
    let folder = tempfile::tempdir().unwrap();
    let alpha = Node::start(folder.path(), "alpha", &["up", "--memory", "1G"]);
    alpha.process.line("ready mesh");
    let hour = alpha.said(&["token", "--expires", "1h"]);
    let beta = Node::start(folder.path(), "beta", &["join", hour.trim(), "--memory", "1G"]);
    beta.process.line("ready mesh");
    alpha.sees("beta");
    // Who was let in with it has the mesh's own secret, and lets others in.
    let gamma = Node::start(folder.path(), "gamma", &["join", beta.said(&["token"]).trim(), "--memory", "1G"]);
    gamma.process.line("ready mesh");

    let second = alpha.said(&["token", "--expires", "1s"]);
    std::thread::sleep(Duration::from_secs(2));
    let mut late = Node::start(folder.path(), "late", &["join", second.trim(), "--memory", "1G"]);
    assert!(!late.process.exit(PATIENCE).success());
    assert!(late.process.stderr().contains("the join token expired"), "{}", late.process.stderr());
}

#[test]
fn who_is_blocked_goes_and_a_replaced_token_lets_nobody_in() {
    let folder = tempfile::tempdir().unwrap();
    let alpha = Node::start(folder.path(), "alpha", &["up", "--memory", "1G"]);
    let old = alpha.token();
    let beta = Node::start(folder.path(), "beta", &["join", &old, "--memory", "1G"]);
    let gamma = Node::start(folder.path(), "gamma", &["join", &old, "--memory", "1G"]);
    alpha.sees("beta");
    alpha.sees("gamma");
    gamma.sees("beta");
    let id = beta.ask("status")["node"]["id"].as_str().unwrap().to_owned();

    assert!(alpha.refuses(&["peers", "block", "alpha"]).contains("cannot keep itself out"));
    assert!(alpha.refuses(&["peers", "block", "delta"]).contains("no node is called `delta`"));
    let done = alpha.told(&["peers", "block", "beta", "--node", "gamma"]);
    assert_eq!(done, json!({"done": "block", "id": id, "name": "beta", "changed": true}));
    let keeps_out = |node: &Node| {
        let peers = node.ask("peers");
        let is_here = |peer: &Value| peer["id"] == *id && peer["state"] != "gone";
        let here = peers["peers"].as_array()?.iter().any(is_here);
        (peers["blocked"] == json!([id]) && !here).then_some(())
    };
    until("alpha to keep beta out", PATIENCE, || keeps_out(&alpha));
    until("gamma to keep beta out", PATIENCE, || keeps_out(&gamma));
    assert!(alpha.said(&["peers"]).contains(&format!("blocked: {id}")));
    assert!(alpha.said(&["peers", "block", &id]).contains("already"));
    until("beta to hear of it", PATIENCE, || beta.process.stderr().contains("blocked").then_some(()));

    let new = gamma.said(&["token", "--rotate"]);
    until("alpha to have the new secret", PATIENCE, || {
        let token = alpha.said(&["token"]);
        (secret(&token) == secret(&new)).then_some(())
    });
    let mut late = Node::start(folder.path(), "late", &["join", &old, "--memory", "1G"]);
    assert!(!late.process.exit(PATIENCE).success());
    assert!(late.process.stderr().contains("could not join the mesh"), "{}", late.process.stderr());
    let delta = Node::start(folder.path(), "delta", &["join", new.trim(), "--memory", "1G"]);
    delta.process.line("ready mesh");

    // It has the old secret, and its id is known: it is let in again, and told.
    assert_eq!(alpha.told(&["peers", "unblock", &id])["changed"], true);
    alpha.sees("beta");
    assert_eq!(alpha.ask("peers")["blocked"], json!([]));
}

/// What stands in a token before the addresses: mesh, epoch, expiry and secret.
fn secret(token: &str) -> String {
    token.trim().chars().skip("mesh1".len() + 3).take(77).collect()
}

#[test]
fn output_is_for_a_terminal_only_on_one() {
    let folder = tempfile::tempdir().unwrap();
    let node = Node::start(folder.path(), "a-node-with-a-rather-long-name", &["up", "--memory", "1G"]);
    node.process.line("ready mesh");
    let plain = node.said(&["peers"]);
    assert!(plain.contains("VERSION") && !plain.contains('\x1b'), "{plain}");

    let dir = node.data_dir.display().to_string();
    let program = binary("mesh-node").display().to_string();
    let on_terminal = |columns: u32, before: &str| {
        let line = format!("stty cols {columns} rows 24; {before} {program} peers --data-dir {dir}");
        let mut command = Command::new("script");
        command.args(["-qec", &line, "/dev/null"]).env("TERM", "xterm");
        String::from_utf8(mesh_tests::process::run(&mut command).stdout).unwrap().replace('\r', "")
    };
    let wide = on_terminal(160, "");
    assert!(wide.contains("VERSION") && wide.contains("\x1b[32mready"), "{wide}");
    let narrow = on_terminal(70, "NO_COLOR=1");
    assert!(narrow.contains("no room for") && !narrow.contains('\x1b'), "{narrow}");
    assert!(narrow.lines().all(|line| line.chars().count() <= 70), "{narrow}");

    // Watched, not on a terminal: news only, and no failure when the reader has seen enough.
    let mut watch = Process::spawn(Command::new(&program).args(["status", "--json", "--watch", "--data-dir", &dir]));
    let first: Value = serde_json::from_str(&watch.line("{")).unwrap();
    assert_eq!(first["node"]["name"], "a-node-with-a-rather-long-name");
    assert!(watch.is_running());
    drop(node);
    assert_eq!(watch.exit(PATIENCE).code(), Some(3), "{}", watch.stderr());
}
