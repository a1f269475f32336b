//! Links over QUIC on loopback: the kit, who may open one, and how they end.
#![allow(clippy::unwrap_used)] // a test that cannot go on says where

mod support;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use libp2p::identity::Keypair;
use mesh_engine::conformance::{Kit, check};
use mesh_engine::scripted::{Faults, ScriptedStage};
use mesh_engine::{Frame, Stage, StageError, StageSpec};
use mesh_transport::{ALPN, Endpoint, Hop, RemoteChain, TransportError};
use mesh_types::{StageId, TokenId};
use quinn::crypto::rustls::QuicClientConfig;
use support::{Node, Strangers, ask, decode, scripted, spec, within};

const SECOND: Duration = Duration::from_secs(1);

fn small(start: u32, end: u32) -> StageSpec {
    StageSpec { n_ctx: 128, ..spec(start, end, 24) }
}

/// One node a stage, and the chain through them as another node sees it.
fn chain(cuts: &[u32], stage: impl Fn(StageSpec) -> ScriptedStage) -> (Node, Vec<Node>, RemoteChain) {
    let home = Node::start("home");
    let nodes: Vec<Node> = (1..cuts.len()).map(|i| Node::start(&format!("node-{i}"))).collect();
    let hops = nodes.iter().zip(cuts.windows(2)).map(|(node, ends)| node.load("s", stage(small(ends[0], ends[1]))));
    let chain = RemoteChain::new(home.endpoint.clone(), hops.collect()).unwrap();
    (home, nodes, chain)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chains_of_one_two_and_three_hops_pass_the_kit() {
    for cuts in [vec![0, 6], vec![3, 6], vec![0, 3, 6], vec![2, 3, 6], vec![0, 1, 4, 6], vec![1, 2, 3, 5]] {
        let (_home, _nodes, chain) = chain(&cuts, scripted);
        assert_eq!(check(&chain, &Kit::new(3..40)).await, Ok(()), "cut at {cuts:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_chains_pass_the_kit() {
    let slow = |spec| scripted(spec).with_service_time(Duration::from_millis(20));
    let (_home, _nodes, chain) = chain(&[2, 4, 6], slow);
    assert_eq!(check(&chain, &Kit::new(3..40)).await, Ok(()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn results_come_back_along_the_chain_where_the_last_hop_cannot_be_dialled() {
    let (home, one, two, three) = (Node::start("home"), Node::start("one"), Node::start("two"), Node::start("three"));
    let hops = [(&one, 0, 2), (&two, 2, 4), (&three, 4, 6)];
    let mut hops: Vec<_> = hops.map(|(node, start, end)| node.load("s", scripted(small(start, end)))).into();
    // Nobody can dial the last hop; it has connected to the hop before.
    hops[2].addresses.clear();
    three.endpoint.connect(&two.id(), &hops[1].addresses).await.unwrap();
    let chain = RemoteChain::new(home.endpoint.clone(), hops).unwrap();
    filed(&chain).await;
    assert_eq!(check(&chain, &Kit::new(3..40)).await, Ok(()));
}

/// Waits until a node that was dialled has filed the connection: the dialling side is done a moment before.
async fn filed(chain: &RemoteChain) {
    let linked = async {
        while chain.connect().await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    within(SECOND * 5, linked).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_cannot_be_dialled_serves_over_the_connection_it_opened() {
    let (home, worker) = (Node::start("home"), Node::start("worker"));
    let mut hop = worker.load("s", scripted(small(3, 6)));
    hop.addresses.clear();
    let chain = RemoteChain::new(home.endpoint.clone(), vec![hop]).unwrap();
    let Err(StageError::Lost { host, reason, .. }) = chain.connect().await else { panic!("nobody is there") };
    assert!(host == "worker" && reason.contains("no address"), "{host}: {reason}");
    worker.endpoint.connect(&home.id(), &[home.endpoint.local_addr().unwrap()]).await.unwrap();
    filed(&chain).await;
    assert_eq!(check(&chain, &Kit::new(3..40)).await, Ok(()));
}

#[tokio::test]
async fn a_stranger_gets_no_stage_byte() {
    let (home, node) = (Node::start("home"), Node::start("node"));
    node.gate.0.lock().unwrap().insert(home.id());
    let chain = RemoteChain::new(home.endpoint.clone(), vec![node.load("s", scripted(small(0, 6)))]).unwrap();
    let Err(StageError::Lost { host, reason, .. }) = within(6 * SECOND, chain.connect()).await else {
        panic!("a stranger was let in")
    };
    assert!(host == "node" && reason.contains("not admitted"), "{host}: {reason}");
    assert_eq!(node.directory.asked.load(Ordering::Relaxed), 0);

    // And a node does not dial one either.
    node.gate.0.lock().unwrap().clear();
    home.gate.0.lock().unwrap().insert(node.id());
    let dialled = home.endpoint.connect(&node.id(), &[node.endpoint.local_addr().unwrap()]).await;
    assert!(matches!(dialled, Err(TransportError::NotAdmitted(_))));
}

#[tokio::test]
async fn a_peer_that_is_put_out_gets_no_further_link() {
    let (home, node) = (Node::start("home"), Node::start("node"));
    let chain = RemoteChain::new(home.endpoint.clone(), vec![node.load("s", scripted(small(0, 6)))]).unwrap();
    let mut link = chain.connect().await.unwrap();
    assert!(ask(&mut link, decode(0, chain.spec())).await.is_ok());
    node.gate.0.lock().unwrap().insert(home.id());
    node.endpoint.disconnect(&home.id());
    assert!(matches!(within(SECOND * 2, link.output.recv()).await, Some(Err(StageError::Lost { .. }))));
    assert!(within(6 * SECOND, chain.connect()).await.is_err());
}

#[tokio::test]
async fn another_node_at_the_address_is_not_taken_for_the_peer() {
    let (home, node, other) = (Node::start("home"), Node::start("node"), Node::start("other"));
    let dialled = home.endpoint.connect(&node.id(), &[other.endpoint.local_addr().unwrap()]).await;
    assert!(matches!(dialled, Err(TransportError::Unreachable(_))), "{dialled:?}");
}

#[tokio::test]
async fn another_protocol_version_fails_in_the_handshake() {
    let node = Node::start("node");
    let client = quinn::Endpoint::client(([127, 0, 0, 1], 0).into()).unwrap();
    let dial = async |alpn: &[u8]| {
        let mut tls = libp2p_tls::make_client_config(&Keypair::generate_ed25519(), None).unwrap();
        tls.alpn_protocols = vec![alpn.to_vec()];
        let config = quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).unwrap()));
        client.connect_with(config, node.endpoint.local_addr().unwrap(), "x").unwrap().await
    };
    assert!(dial(b"mesh-stage/0").await.is_err());
    assert!(dial(b"libp2p").await.is_err());
    assert!(dial(ALPN).await.is_ok());
}

#[tokio::test]
async fn a_hop_says_what_is_wrong_with_a_link() {
    let (home, node) = (Node::start("home"), Node::start("node"));
    let hop = node.load("s", scripted(small(0, 6)));
    let refused = async |hop| {
        let chain = RemoteChain::new(home.endpoint.clone(), vec![hop]).unwrap();
        match chain.connect().await {
            Err(StageError::Lost { host, reason, .. }) if host == "node" => reason,
            other => panic!("{other:?}"),
        }
    };
    let unknown = Hop { stage: StageId::from("other"), ..hop.clone() };
    assert!(refused(unknown).await.contains("has not loaded"));
    let mut other = hop.clone();
    other.spec.n_ctx += 1;
    assert!(refused(other).await.contains("another stage"));
    let mut gone = hop;
    gone.addresses = vec![([127, 0, 0, 1], 9).into()];
    home.endpoint.disconnect(&node.id());
    let started = Instant::now();
    let reason = refused(gone).await;
    assert!(started.elapsed() < 6 * SECOND, "{reason}");
}

#[tokio::test]
async fn the_second_hop_is_named_when_it_is_the_one_that_is_missing() {
    let (home, one, two) = (Node::start("home"), Node::start("one"), Node::start("two"));
    let hops = vec![one.load("s", scripted(small(0, 3))), two.load("s", scripted(small(3, 6)))];
    two.endpoint.shutdown().await;
    let chain = RemoteChain::new(home.endpoint.clone(), hops).unwrap();
    let started = Instant::now();
    let error = chain.connect().await.unwrap_err();
    assert!(started.elapsed() < 6 * SECOND, "{:?}", started.elapsed());
    assert!(matches!(&error, StageError::Lost { host, .. } if host == "two"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stage_error_reaches_home_as_it_is_from_every_hop() {
    for dying in 0..3 {
        let (home, nodes) = (Node::start("home"), ["one", "two", "three"].map(Node::start));
        let load = |(i, node): (usize, &Node)| {
            let die_at = (i == dying).then_some(1);
            let spec = small(i as u32 * 2, i as u32 * 2 + 2);
            node.load("s", scripted(spec).with_faults(Faults { die_at, ..Faults::default() }))
        };
        let chain = RemoteChain::new(home.endpoint.clone(), nodes.iter().enumerate().map(load).collect()).unwrap();
        let mut link = chain.connect().await.unwrap();
        assert!(ask(&mut link, decode(0, chain.spec())).await.is_ok());
        let started = Instant::now();
        let error = ask(&mut link, decode(1, chain.spec())).await.unwrap_err();
        assert!(started.elapsed() < SECOND, "{:?}", started.elapsed());
        let StageError::Lost { host, layers, reason, .. } = &error else { panic!("{error}") };
        assert_eq!((host, layers.start()), (&nodes[dying].name, dying as u32 * 2));
        assert!(reason.contains("script"), "{reason}");
        assert!(within(SECOND, link.output.recv()).await.is_none());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_links_share_one_connection() {
    const LINKS: usize = 48;
    let (home, node) = (Node::start("home"), Node::start("node"));
    let chains: Vec<_> = (0..LINKS)
        .map(|i| node.load(&format!("s{i}"), scripted(small(3, 6))))
        .map(|hop| RemoteChain::new(home.endpoint.clone(), vec![hop]).unwrap())
        .collect();
    let work = chains.iter().map(async |chain| {
        let mut link = chain.connect().await.unwrap();
        for step in 0..20 {
            match ask(&mut link, decode(step, chain.spec())).await {
                Ok(Frame::Result(result)) => assert_eq!(result.step.0, step),
                other => panic!("{other:?}"),
            }
        }
        link
    });
    let links = futures::future::join_all(work).await;
    assert_eq!((home.endpoint.connections(), node.endpoint.connections()), (1, 1));
    drop(links);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_dial_each_other_at_once_agree() {
    for _ in 0..10 {
        let (one, two) = (Node::start("one"), Node::start("two"));
        let (to_two, to_one) = (two.load("s", scripted(small(3, 6))), one.load("s", scripted(small(3, 6))));
        let chains = (
            RemoteChain::new(one.endpoint.clone(), vec![to_two]).unwrap(),
            RemoteChain::new(two.endpoint.clone(), vec![to_one]).unwrap(),
        );
        let (first, second) = tokio::join!(chains.0.connect(), chains.1.connect());
        for mut link in [first.unwrap(), second.unwrap()] {
            assert!(ask(&mut link, decode(0, chains.0.spec())).await.is_ok());
        }
    }
}

#[test]
fn shutdown_leaves_no_task() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let (home, nodes, chain) = chain(&[0, 2, 4, 6], scripted);
        let mut link = chain.connect().await.unwrap();
        assert!(ask(&mut link, decode(0, chain.spec())).await.is_ok());
        let busy = tokio::runtime::Handle::current().metrics().num_alive_tasks();
        assert!(busy > 10, "{busy}");
        for node in &nodes {
            within(2 * SECOND, node.endpoint.shutdown()).await;
        }
        assert!(matches!(within(SECOND * 3, link.output.recv()).await, Some(Err(StageError::Lost { .. }))));
        drop(link);
        within(2 * SECOND, home.endpoint.shutdown()).await;
        assert!(chain.connect().await.is_err());
        let gone = async {
            while tokio::runtime::Handle::current().metrics().num_alive_tasks() > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        // quinn's drivers end just after the endpoint's last handle.
        drop((home, nodes, chain));
        within(2 * SECOND, gone).await;
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_rows_cross_whole() {
    let wide = StageSpec { n_batch: 512, n_embd: 8192, n_layer: 3, ..spec(1, 2, 8192) };
    let direct = scripted(wide.clone());
    let (home, node) = (Node::start("home"), Node::start("node"));
    let remote = RemoteChain::new(home.endpoint.clone(), vec![node.load("s", scripted(wide.clone()))]).unwrap();
    let mut answers = Vec::new();
    for stage in [&direct as &dyn Stage, &remote] {
        let mut link = stage.connect().await.unwrap();
        let started = Instant::now();
        for step in 0..3 {
            let Frame::Batch(mut batch) = decode(step, &wide) else { unreachable!() };
            batch.tokens = (0..512).map(|i| TokenId(i % 60)).collect();
            batch.segments[0].len = 512;
            batch.segments[0].start = step as u32 * 512;
            if let Some(rows) = &mut batch.rows {
                rows.data = (0..512 * 8192).map(|i| i as f32).collect();
            }
            link.input.send(Frame::Batch(batch)).await.unwrap();
        }
        for _ in 0..3 {
            answers.push(within(60 * SECOND, link.output.recv()).await.unwrap().unwrap());
        }
        eprintln!("three frames of 16 MiB there and back: {:?}", started.elapsed());
    }
    let (one, other) = answers.split_at(3);
    assert!(one == other);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_costs_little() {
    const STEPS: u64 = 2000;
    let shape = spec(2, 3, 576);
    let direct = scripted(shape.clone());
    let (home, node) = (Node::start("home"), Node::start("node"));
    let remote = RemoteChain::new(home.endpoint.clone(), vec![node.load("s", scripted(shape))]).unwrap();
    let mut means = Vec::new();
    for stage in [&direct as &dyn Stage, &remote] {
        let mut link = stage.connect().await.unwrap();
        let mut started = Instant::now();
        for step in 0..STEPS + 100 {
            if step == 100 {
                started = Instant::now();
            }
            assert!(ask(&mut link, decode(step, stage.spec())).await.is_ok());
        }
        means.push(started.elapsed() / STEPS as u32);
    }
    eprintln!("a decode step, 576 values a row: {:?} in this process, {:?} over QUIC", means[0], means[1]);
    assert!(means[1] < Duration::from_millis(20), "{means:?}");
}

#[tokio::test]
async fn endpoints_of_a_taken_address_say_so() {
    let node = Node::start("node");
    let taken = Endpoint::bind(
        node.endpoint.local_addr().unwrap(),
        &Keypair::generate_ed25519(),
        Arc::new(Strangers::default()),
    );
    assert!(matches!(taken, Err(TransportError::Bind(_))));
}
