//! Two local networks that one host joins: members of one network find each other by mDNS, and a member of the other
//! network joins through the host that is on both. Needs root; says so without.
//!
//! ```text
//! alpha (model) ─┐
//! bravo ─────────┼─ near ─ zulu ─ away ─ far (model)
//! ```
#![allow(clippy::unwrap_used)] // every one is a check

use mesh_mesh::JoinToken;
use mesh_tests::PATIENCE;
use mesh_tests::models::{SMOLLM2, gemma3, smollm2};
use mesh_tests::netns::Net;
use mesh_tests::process::{Node, field, run};
use mesh_tests::until;
use serde_json::{Value, json};

/// Networks and hosts, nobody running there yet.
fn networks() -> Option<Net> {
    let mut net = Net::new(&["alpha", "bravo", "zulu", "far"])?;
    net.lan("near", "10.81.0", &["alpha", "bravo", "zulu"]);
    net.lan("away", "10.82.0", &["zulu", "far"]);
    Some(net)
}

/// The token without the addresses in it: who has it can only look around.
fn without_addresses(token: &str) -> String {
    let token: JoinToken = token.parse().unwrap();
    JoinToken { bootstrap: Vec::new(), ..token }.encode()
}

/// The row of a peer as a node sees it, once it is ready and `is_it`.
fn peer(node: &Node, name: &str, what: &str, is_it: impl Fn(&Value) -> bool) -> Value {
    until(&format!("{name} {what}"), PATIENCE, || {
        let peers = node.ask("peers");
        let ready = |peer: &&Value| peer["name"] == name && peer["state"] == "ready" && is_it(peer);
        peers["peers"].as_array()?.iter().find(ready).cloned()
    })
}

/// What the model answers at the gateway of a host.
fn answer(net: &Net, host: &str, model: &str) -> String {
    let question = json!({"model": model, "temperature": 0, "max_tokens": 16,
                          "messages": [{"role": "user", "content": "What is the capital of Germany?"}]});
    until(&format!("an answer of {model} at {host}"), PATIENCE, || {
        let told = run(&mut net.chat(host, &question)).stdout;
        let told: Value = serde_json::from_slice(&told).ok()?;
        told["choices"][0]["message"]["content"].as_str().map(str::to_owned)
    })
}

#[test]
fn neighbours_find_each_other_and_who_is_far_is_reached_through_a_member() {
    let Some(net) = networks() else { return };
    let folder = tempfile::tempdir().unwrap();
    let (smollm2, gemma3) = (smollm2().display().to_string(), gemma3().display().to_string());
    let alpha = net.node("alpha", folder.path(), &["up", "--model", &smollm2, "--ctx", "512", "--memory", "2G"]);
    let bravo = net.node("bravo", folder.path(), &["join", &without_addresses(&alpha.token()), "--memory", "1G"]);
    bravo.process.line("ready mesh");
    let zulu = net.node("zulu", folder.path(), &["join", &without_addresses(&alpha.token()), "--memory", "1G"]);
    zulu.process.line("ready mesh");

    // Zulu's token leads to it on both of its networks.
    let far =
        ["join", zulu.said(&["token"]).trim(), "--model", &gemma3, "--ctx", "512", "--memory", "2G"].map(str::to_owned);
    let far = net.node("far", folder.path(), &far.each_ref().map(String::as_str));
    far.process.line("ready mesh");
    let relay = zulu.ask("status")["node"]["id"].clone();
    for node in [&alpha, &bravo] {
        peer(node, "far", "to be reached through zulu", |peer| peer["relayed_by"] == relay);
    }
    peer(&far, "alpha", "to be reached through zulu", |peer| peer["relayed_by"] == relay);
    peer(&far, "zulu", "to be reached directly", |peer| peer["relayed_by"].is_null());

    // Each network's gateways serve the models of both.
    let model = until("far's model", PATIENCE, || {
        let ask = alpha.ask("models");
        let of_far = |model: &&Value| model["served_by"] == "far" && model["ready"] == true;
        Some(ask["models"].as_array()?.iter().find(of_far)?["name"].as_str()?.to_owned())
    });
    assert!(answer(&net, "far", SMOLLM2).contains("Berlin"));
    answer(&net, "bravo", &model);

    // Layers are no work for a host behind a relay, and the plan says so.
    let plan = alpha.told(&["plan", SMOLLM2]);
    let of_far = plan["nodes"].as_array().unwrap().iter().find(|node| node["node"] == "far").unwrap();
    assert!(of_far["left_out"].as_str().is_some_and(|why| why.contains("relayed path")), "{plan}");
}

#[test]
fn who_is_far_serves_a_stage_where_packets_find_the_way() {
    let Some(net) = networks() else { return };
    net.forward("zulu");
    for host in ["alpha", "bravo"] {
        assert!(net.ip(host, &["route", "add", "10.82.0.0/24", "via", "10.81.0.3"]), "no route");
    }
    assert!(net.ip("far", &["route", "add", "10.81.0.0/24", "via", "10.82.0.1"]), "no route");
    let folder = tempfile::tempdir().unwrap();
    let smollm2 = smollm2().display().to_string();
    let up = ["up", "--model", &smollm2, "--split", "0-9,10-19,20-29", "--ctx", "512", "--memory", "2G"];
    let alpha = net.node("alpha", folder.path(), &up);
    let bravo = net.node("bravo", folder.path(), &["join", &without_addresses(&alpha.token()), "--memory", "1G"]);
    bravo.process.line("ready mesh");
    // Alpha is on another network: its address leads there, and nothing is heard of it otherwise.
    let far = net.node("far", folder.path(), &["join", &alpha.token(), "--memory", "1G"]);
    assert_eq!(field(&alpha.process.line("ready model"), "nodes="), "alpha,bravo,far");
    peer(&alpha, "far", "to be reached directly", |peer| peer["relayed_by"].is_null());
    for host in ["bravo", "far"] {
        assert!(answer(&net, host, SMOLLM2).contains("Berlin"));
    }
    drop(far);
}
