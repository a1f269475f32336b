//! The `mesh-gateway` program in a real mesh of two, on loopback.

use std::path::Path;
use std::process::Stdio;

use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use mesh_mesh::{DataDir, Identity, LocalStatus, Membership, Mesh};
use mesh_types::FinishReason;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::net::TcpStream;
use tokio::process::{Child, ChildStdout, Command};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::client::{Answer, Served, chat, frame, get, post, soon};
use crate::fake::{Node, Script, Step, model, whole_answer};

/// A node of a real mesh that serves the model `m`, and the folder it lives in.
async fn node(script: Script) -> (Mesh, std::sync::Arc<Node>, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let dir = DataDir::open(folder.path().join("alpha")).unwrap();
    let config = mesh_mesh::Config {
        identity: Identity::open(&dir).unwrap(),
        membership: Membership::create_or_resume(&dir).unwrap(),
        listen: ([127, 0, 0, 1], 0).into(),
        name: "alpha".into(),
        version: "0.1.0".into(),
        mdns: false,
    };
    let mesh = Mesh::start(config).await.unwrap();
    let (node, routes) = Node::routes(script);
    mesh.serve_grpc(routes);
    mesh.publish(LocalStatus { models: vec![model("m", 0)], ..LocalStatus::default() });
    (mesh, node, folder)
}

/// Starts the program with its data in `folder`.
fn start(folder: &Path, args: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_mesh-gateway"))
        .args(["--gateway", "127.0.0.1:0", "--listen", "127.0.0.1:0", "--name", "gate", "--data-dir"])
        .arg(folder.join("gate"))
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

async fn line(lines: &mut Lines<BufReader<ChildStdout>>) -> String {
    soon(lines.next_line()).await.unwrap().expect("a line on standard output")
}

async fn terminate(child: &mut Child) -> Option<i32> {
    let pid = child.id().unwrap().to_string();
    assert!(soon(Command::new("kill").args(["-TERM", &pid]).status()).await.unwrap().success());
    soon(child.wait()).await.unwrap().code()
}

/// The program as a member of `mesh`, and what it serves.
async fn joined(mesh: &Mesh, folder: &Path) -> (Child, Served) {
    let mut child = start(folder, &["--join", "-"]);
    child.stdin.take().unwrap().write_all(mesh.token().encode().as_bytes()).await.unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let joined = line(&mut lines).await;
    assert!(joined.starts_with(&format!("ready mesh    id={} node=", mesh.id())), "{joined}");
    assert!(!joined.contains("token"), "{joined}");
    let gateway = line(&mut lines).await;
    let addr = gateway.strip_prefix("ready gateway url=http://").and_then(|rest| rest.strip_suffix("/v1"));
    let addr = addr.expect("the url").parse().unwrap();
    assert_eq!(line(&mut lines).await, "ready model   name=m stages=2 nodes=alpha,beta");
    (child, Served { addr, stop: CancellationToken::new(), tasks: JoinSet::new() })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_read_harms_no_other() {
    // As many as a call may have unread, and far more than h2 lets a connection of its own windows have.
    const WORDS: usize = 2000;
    let (mesh, node, folder) = node(whole_answer()).await;
    let (mut child, served) = joined(&mesh, folder.path()).await;
    let words = std::iter::repeat_n([Step::Text("x"), Step::Apart], WORDS).flatten();
    let end = [Step::Mark, Step::Finished(FinishReason::Stop)];
    let steps = [Step::Started].into_iter().chain(words).chain(end);
    node.set(Script::Steps(steps.collect()));
    // It takes little at a time, so that the gateway has to leave most of the node's events unread.
    let stream = TcpStream::connect(served.addr).await.unwrap();
    let handshake = http2::Builder::new(TokioExecutor::new()).initial_stream_window_size(16 << 10).clone();
    let (mut sender, connection) = handshake.handshake(TokioIo::new(stream)).await.unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let _ = connection.await;
    });
    let body: Full<Bytes> = Full::from(chat(json!({"stream": true})).to_string());
    let request = http::Request::post("http://gateway/v1/chat/completions").body(body).unwrap();
    let unread = soon(sender.send_request(request)).await.unwrap();
    // All of them are on their way, and nobody reads.
    node.marked(1).await;
    node.set(whole_answer());
    for _ in 0..20 {
        let answer = served.chat(&chat(json!({}))).await;
        assert_eq!(answer.json()["choices"][0]["message"]["content"], "Hello 🌍");
    }
    let events = Answer::read(unread).await.events();
    assert_eq!(events.last().map(String::as_str), Some("[DONE]"), "{:?}", &events[events.len() - 2..]);
    assert_eq!(events.iter().filter(|event| event.contains(r#""content":"x""#)).count(), WORDS);
    assert_eq!(terminate(&mut child).await, Some(0));
    mesh.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_program_joins_serves_and_leaves() {
    let (mesh, node, folder) = node(whole_answer()).await;
    let (mut child, served) = joined(&mesh, folder.path()).await;
    assert_eq!(served.ask(get("/health")).await.status(), 200);
    assert_eq!(served.chat(&chat(json!({}))).await.json()["choices"][0]["message"]["content"], "Hello 🌍");

    node.set(Script::Steps(vec![Step::Started, Step::Text("Hel"), Step::Hang]));
    let mut client = served.client().await;
    let mut response = client.send(post(&chat(json!({"stream": true})))).await;
    while !frame(&mut response).await.contains("Hel") {}
    drop((response, client));
    node.cancelled(1).await;

    let mut client = served.client().await;
    let response = client.send(post(&chat(json!({"stream": true})))).await;
    node.begun(3).await;
    mesh.shutdown().await;
    let broken = Answer::read(response).await;
    let last: Value = serde_json::from_str(broken.events().last().unwrap()).unwrap();
    assert_eq!(last["error"]["message"], "the connection to alpha was lost");
    assert_eq!(served.ask(get("/health")).await.status(), 503);
    assert_eq!(terminate(&mut child).await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_program_comes_back_to_its_mesh_without_a_token() {
    let (mesh, _node, folder) = node(whole_answer()).await;
    let file = folder.path().join("token");
    std::fs::write(&file, mesh.token().encode()).unwrap();
    for args in [&["--token-file", file.to_str().unwrap(), "--log-format", "json"][..], &["--log-format", "json"]] {
        let mut child = start(folder.path(), args);
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        for (kind, name) in [("mesh", Value::Null), ("gateway", Value::Null), ("model", json!("m"))] {
            let line: Value = serde_json::from_str(&line(&mut lines).await).unwrap();
            assert_eq!((&line["ready"], &line["name"]), (&json!(kind), &name));
        }
        assert_eq!(terminate(&mut child).await, Some(0));
    }
    mesh.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_usage_exits_2_and_failures_exit_1() {
    let (mesh, _node, folder) = node(whole_answer()).await;
    let token = mesh.token().encode();
    mesh.shutdown().await;
    for (args, code, says) in [
        (vec![], 2, "--join"),
        (vec!["--join", "hello"], 2, "not a join token"),
        (vec!["--join", &token, "--log-format", "xml"], 2, "xml"),
        (vec!["--join", &token], 1, "127.0.0.1"),
    ] {
        let output = start(folder.path(), &args).wait_with_output();
        let output = tokio::time::timeout(std::time::Duration::from_secs(30), output).await.unwrap().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
        assert!(said.lines().any(|line| line.contains(says)), "{args:?}: {said}");
        assert!(output.stdout.is_empty(), "{args:?}");
    }
}
