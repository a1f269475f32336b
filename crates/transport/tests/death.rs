//! Nodes that are killed: real processes, this test's own executable started again.
#![allow(clippy::unwrap_used)] // a test that cannot go on says where

mod support;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mesh_engine::{Stage, StageError, StageSpec};
use mesh_transport::{Hop, RemoteChain};
use mesh_types::{PeerId, StageId};
use support::{Node, ask, decode, scripted, spec, within};
use tokio_util::sync::CancellationToken;

const ROLE: &str = "MESH_TRANSPORT_TEST_NODE";

fn shape(first: u32) -> StageSpec {
    spec(first, first + 2, 24)
}

/// Not a test of its own: what the other processes run. Says where it listens, and serves until it is killed.
#[test]
fn node_main() {
    let Some(first) = std::env::var(ROLE).ok().and_then(|first| first.parse().ok()) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let node = Node::start("there");
        node.load("s", scripted(shape(first)));
        println!("\nlistening {} {}", node.endpoint.local_addr().unwrap(), node.id());
        std::future::pending::<()>().await;
    });
}

struct Process(Child, Hop);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(name: &str, first: u32) -> Process {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["node_main", "--exact", "--nocapture"])
        .env(ROLE, first.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let line = lines.map(|line| line.trim().to_owned()).find(|line| line.starts_with("listening ")).unwrap();
    let [_, address, id] = line.split(' ').collect::<Vec<_>>().try_into().unwrap();
    let hop = Hop {
        peer: PeerId::from(id),
        name: name.to_owned(),
        addresses: vec![address.parse().unwrap()],
        stage: StageId::from("s"),
        spec: shape(first),
        lost: CancellationToken::new(),
    };
    Process(child, hop)
}

fn three() -> [Process; 3] {
    [start("one", 0), start("two", 2), start("three", 4)]
}

/// Kills hop `dying` in the middle of a link; returns the error, and how long it took to come.
async fn kill(dying: usize, tell: bool) -> (StageError, Duration) {
    let home = Node::start("home");
    let mut hops = three();
    let chain = RemoteChain::new(home.endpoint.clone(), hops.iter().map(|it| it.1.clone()).collect()).unwrap();
    let mut link = chain.connect().await.unwrap();
    for step in 0..5 {
        assert!(ask(&mut link, decode(step, chain.spec())).await.is_ok());
    }
    hops[dying].0.kill().unwrap();
    hops[dying].0.wait().unwrap();
    let killed = Instant::now();
    if tell {
        hops[dying].1.lost.cancel();
    }
    // Whether it is still taken depends on how fast the news is.
    let _ = link.input.send(decode(5, chain.spec())).await;
    let error = within(Duration::from_secs(8), link.output.recv()).await.unwrap().unwrap_err();
    let took = killed.elapsed();
    // The link is over; a new one fails and says which node is missing.
    assert!(within(Duration::from_secs(1), link.output.recv()).await.is_none());
    let again = within(Duration::from_secs(7), chain.connect()).await.unwrap_err();
    assert!(matches!(&again, StageError::Lost { host, .. } if *host == hops[dying].1.name), "{again}");
    (error, took)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_known_to_be_lost_ends_the_link_at_once() {
    for (dying, name) in ["one", "two", "three"].into_iter().enumerate() {
        let (error, took) = kill(dying, true).await;
        assert!(took < Duration::from_secs(1), "{took:?}");
        assert!(matches!(&error, StageError::Lost { host, .. } if host == name), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_dies_silently_is_missed_within_six_seconds() {
    let kills = (0..3).map(|dying| kill(dying, false));
    for ((error, took), name) in futures::future::join_all(kills).await.into_iter().zip(["one", "two", "three"]) {
        assert!(took < Duration::from_millis(6500), "{name}: {took:?}");
        assert!(matches!(&error, StageError::Lost { host, .. } if host == name), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_node_serves_again() {
    let home = Node::start("home");
    let old = start("there", 0);
    let chain = RemoteChain::new(home.endpoint.clone(), vec![old.1.clone()]).unwrap();
    let mut link = chain.connect().await.unwrap();
    assert!(ask(&mut link, decode(0, chain.spec())).await.is_ok());
    let lost = old.1.lost.clone();
    drop(old);
    lost.cancel();
    assert!(within(Duration::from_secs(1), link.output.recv()).await.unwrap().is_err());
    let new = start("there", 0);
    let chain: Arc<dyn Stage> = Arc::new(RemoteChain::new(home.endpoint.clone(), vec![new.1.clone()]).unwrap());
    let mut link = chain.connect().await.unwrap();
    assert!(ask(&mut link, decode(0, chain.spec())).await.is_ok());
}
