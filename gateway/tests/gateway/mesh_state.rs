//! What the gateway says of the mesh: models and health, and what it announces.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use mesh_gateway::announce::{Announcer, Format};
use mesh_gateway::{Peers as _, announce_models};
use mesh_types::{PeerId, PeerState};
use serde_json::json;
use tokio::task::JoinSet;

use crate::client::{config, get, serve, soon};
use crate::fake::{Mesh, model, peer, whole_answer};

#[tokio::test]
async fn the_models_that_answer_are_listed() {
    let mesh = Mesh::new(vec![("alpha", 0, whole_answer()), ("beta", 0, whole_answer())]);
    mesh.change(|view| {
        view.peers[1].models.push(model("org/other", 0));
        let mut loading = model("loading", 0);
        loading.ready = false;
        loading.detail = "waiting for 1 more node".into();
        view.peers[1].models.push(loading);
    });
    let served = serve(&mesh, config()).await;
    let list = served.ask(get("/v1/models")).await.json();
    assert_eq!(list["object"], "list");
    let ids: Vec<_> = list["data"].as_array().unwrap().iter().map(|model| model["id"].clone()).collect();
    assert_eq!(ids, ["m", "org/other"]);
    let loading = json!([{"id": "loading", "progress": ["beta: waiting for 1 more node"]}]);
    assert_eq!(list["x-mesh"]["loading"], loading);
    let replica = json!({"stages": [{"node": "alpha", "layers": "0-14"}, {"node": "beta", "layers": "15-29"}]});
    let how = json!({
        "context": 2048, "layers": 30, "tools": "native (hermes)", "replicas": [replica, replica], "scripted": true,
    });
    assert_eq!(list["data"][0]["x-mesh"], how);
    assert_eq!(list["data"][0]["max_model_len"], 2048);

    assert_eq!(served.ask(get("/v1/models/m")).await.json(), list["data"][0]);
    assert_eq!(served.ask(get("/v1/models/org%2Fother")).await.json()["id"], "org/other");
    assert_eq!(served.ask(get("/v1/models/nope")).await.error().0, 404);
    let loading = served.ask(get("/v1/models/loading")).await;
    assert_eq!((loading.error().0, loading.header("retry-after")), (503, "5"));
    assert!(loading.body.contains("waiting for 1 more node"));
}

#[tokio::test]
async fn health_is_a_recent_forward_pass_of_every_model() {
    let mesh = Mesh::new(vec![("alpha", 0, whole_answer()), ("beta", 0, whole_answer())]);
    let served = serve(&mesh, config()).await;
    let health = async || {
        let answer = served.ask(get("/health")).await;
        assert_eq!(served.ask(get("/v1/health")).await.status(), answer.status());
        (answer.status().as_u16(), answer.json())
    };
    let age = |name: &str, seconds| {
        mesh.ages.lock().unwrap().insert(PeerId::new(format!("id-{name}")), Duration::from_secs(seconds));
    };
    let (status, body) = health().await;
    assert_eq!((status, &body["status"]), (200, &json!("ok")));
    let entry = json!({"name": "m", "ready": true, "last_forward_ms": 1000, "nodes": ["alpha", "beta"]});
    assert_eq!(body["models"], json!([entry]));

    // One replica that works is enough; the age of its status counts.
    age("alpha", 60);
    assert_eq!(health().await.0, 200);
    age("beta", 28);
    assert_eq!(health().await.1["models"][0]["last_forward_ms"], 29_000);
    age("beta", 30);
    let (status, body) = health().await;
    assert_eq!((status, &body["status"]), (503, &json!("unavailable")));
    assert_eq!(body["reason"], "m: its last complete forward pass was 31 s ago");

    age("beta", 0);
    mesh.change(|view| view.peers[0].models.push(model("second", 0)));
    age("alpha", 0);
    assert_eq!(health().await.0, 200);
    mesh.change(|view| view.peers[0].models[1].last_forward_ms = None);
    assert_eq!(health().await.1["reason"], "second: it has not computed anything yet");
    mesh.change(|view| {
        view.peers[0].models[1].ready = false;
        view.peers[0].models[1].detail = "layers 15-29 on beta were lost".into();
    });
    let (status, body) = health().await;
    assert_eq!((status, &body["reason"]), (503, &json!("second: layers 15-29 on beta were lost")));

    // Whoever sends requests here wants to know another thing.
    let ready = served.ask(get("/ready")).await;
    assert_eq!((ready.status().as_u16(), ready.json()["models"].clone()), (200, json!(["m"])));

    mesh.change(|view| view.peers.iter_mut().for_each(|peer| peer.state = PeerState::Gone));
    for path in ["/ready", "/health"] {
        let answer = served.ask(get(path)).await;
        assert_eq!((answer.status().as_u16(), answer.header("retry-after")), (503, "5"), "{path}");
    }
    let (status, body) = health().await;
    assert_eq!((status, &body["reason"]), (503, &json!("no model is served")));
}

/// What was written, where a test can see it grow.
#[derive(Clone)]
struct Lines(tokio::sync::watch::Sender<String>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.send_modify(|text| text.push_str(std::str::from_utf8(bytes).unwrap()));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn a_model_is_announced_whenever_it_becomes_usable() {
    let mesh = Mesh::new(vec![("alpha", 0, whole_answer())]);
    let lines = Lines(tokio::sync::watch::channel(String::new()).0);
    let announcer = Arc::new(Announcer::new(Format::Text, Box::new(lines.clone())));
    let mut tasks = JoinSet::new();
    let view = mesh.view();
    tasks.spawn(async move { announce_models(view, &announcer).await });
    let expect = async |text: &str| {
        let mut seen = lines.0.subscribe();
        soon(seen.wait_for(|seen| seen == text)).await.unwrap();
    };
    let first = "ready model   name=m stages=2 nodes=alpha,beta\n";
    expect(first).await;
    let ready = |ready: bool| mesh.change(|view| view.peers[0].models[0].ready = ready);
    // A second replica is no news; a return after a loss is.
    mesh.change(|view| view.peers.push(peer("beta", vec![model("m", 0)])));
    mesh.change(|view| {
        view.peers.pop();
    });
    let mut solo = model("solo", 0);
    solo.nodes = vec!["gamma".into()];
    mesh.change(|view| view.peers[0].models.push(solo));
    let second = format!("{first}ready model   name=solo stages=1 nodes=gamma\n");
    expect(&second).await;
    ready(false);
    // The next line shows that the loss was seen.
    mesh.change(|view| view.peers[0].models[1].name = "other".into());
    let third = format!("{second}ready model   name=other stages=1 nodes=gamma\n");
    expect(&third).await;
    ready(true);
    expect(&format!("{third}{first}")).await;
}
