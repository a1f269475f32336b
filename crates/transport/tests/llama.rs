//! Real slices behind QUIC compute what the whole model computes, every logit bit by bit.
#![allow(clippy::unwrap_used)] // a test that cannot go on says where

mod support;

use std::sync::Arc;

use mesh_engine::Stage;
use mesh_engine::chain::Chain;
use mesh_engine::conformance::{Kit, check};
use mesh_engine::llama::LlamaStage;
use mesh_engine::testkit::{GEMMA3, SMOLLM2, Script, Split, compare};
use mesh_transport::RemoteChain;
use support::Node;

/// The model cut at `cuts`: the first slice here, the others on nodes of their own.
async fn over_quic(model: &str, cuts: &[u32]) {
    let split = Split::small(model);
    let folder = tempfile::tempdir().unwrap();
    let mut configs = split.at(cuts, folder.path()).unwrap().into_iter();
    let first = LlamaStage::load(configs.next().unwrap()).unwrap();
    let home = Node::start("home");
    let nodes: Vec<Node> = cuts.iter().map(|cut| Node::start(&format!("from-{cut}"))).collect();
    let hops = nodes.iter().zip(configs).map(|(node, config)| node.load("s", LlamaStage::load(config).unwrap()));
    let remote = RemoteChain::new(home.endpoint.clone(), hops.collect()).unwrap();
    let chain = Chain::new(vec![Arc::new(first), Arc::new(remote)]).unwrap();

    let whole = LlamaStage::load(split.unsplit().unwrap()).unwrap();
    let n_vocab = whole.spec().n_vocab;
    let found = compare(&whole, &chain, Script::thorough(4, n_vocab).frames()).await.unwrap();
    assert_eq!(found.mismatch, None, "{found:?}");
    assert_eq!(found.largest_difference.to_bits(), 0, "{found:?}");
    // As many as the script asks for.
    assert_eq!((found.steps, found.tokens, found.logits / n_vocab as usize), (14, 14, 25), "{found:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn smollm2_over_one_and_two_links() {
    over_quic(SMOLLM2, &[12]).await;
    over_quic(SMOLLM2, &[10, 20]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gemma3_over_one_and_three_links() {
    over_quic(GEMMA3, &[6]).await;
    over_quic(GEMMA3, &[4, 8, 13]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn remote_slices_pass_the_kit() {
    let folder = tempfile::tempdir().unwrap();
    let configs = Split::small(SMOLLM2).at(&[10, 20], folder.path()).unwrap();
    let home = Node::start("home");
    let nodes = ["one", "two", "three"].map(Node::start);
    let hops = nodes.iter().zip(configs).map(|(node, config)| node.load("s", LlamaStage::load(config).unwrap()));
    let chain = RemoteChain::new(home.endpoint.clone(), hops.collect()).unwrap();
    // Prompts that are cut into batches differently are summed up in another order.
    let kit = Kit::new((0..40).map(|i| 1000 + i * 37)).with_tolerance(0.05);
    assert_eq!(check(&chain, &kit).await, Ok(()));
}
