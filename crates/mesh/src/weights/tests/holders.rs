//! Several holders: good ones share the work, bad ones are left out.

use super::*;

#[tokio::test]
async fn a_holder_that_lies_is_named_and_another_is_asked() {
    let model = Model::small();
    let liar = TestNode::up("liar").await;
    liar.mesh.publish(Default::default());
    let source = Unreliable::new(model.holdings());
    // The second tensor of the last layer: much is fetched before the lie.
    let (index, _) = model.manifest.header().tensor("blk.3.attn_q.weight").unwrap();
    source.tampers.lock().unwrap().insert(index);
    liar.mesh.serve_weights(source.clone());
    let worker = TestNode::join("worker", &liar).await;
    worker.sees("liar", PeerState::Ready).await;
    let cache = tempfile::tempdir().unwrap();
    let fetcher = fetcher(&worker, cache.path());

    let error = fetch(&fetcher, model.request(last_half(), &[&liar])).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::PeerProtocol);
    let expected = "no holder could give the weights: liar sent bytes that do not match its manifest";
    assert_eq!(error.to_string(), expected);
    assert_eq!(files(cache.path()), ["partial"], "nothing of it can be loaded");

    let honest = TestNode::join("honest", &liar).await;
    let second = Unreliable::new(model.holdings());
    honest.mesh.serve_weights(second.clone());
    worker.sees("honest", PeerState::Ready).await;
    let (path, _) = fetch(&fetcher, model.request(last_half(), &[&liar, &honest])).await.unwrap();
    assert!(std::fs::read(path).unwrap() == model.cut(last_half()));
    let lied = model.manifest.header().tensors()[index].n_bytes();
    assert!(
        second.bytes() <= lied + model.manifest.header().tensors().last().unwrap().n_bytes(),
        "only what was missing"
    );

    // A manifest that is not the one asked for.
    source.tampers.lock().unwrap().clear();
    *source.other_manifest.lock().unwrap() = Some(model.manifest.clone());
    let request = SliceRequest { digest: Digest([9; 32]), ..model.request(last_half(), &[&liar]) };
    let error = fetch(&fetcher, request).await.unwrap_err().to_string();
    assert_eq!(error, expected);
}

#[tokio::test]
async fn holders_share_the_work_as_fast_as_they_are() {
    let model = Model::large();
    let fast = TestNode::up("fast").await;
    fast.mesh.publish(Default::default());
    let slow = TestNode::join("slow", &fast).await;
    let [fast_source, slow_source] = [&fast, &slow].map(|node| {
        let source = Unreliable::new(model.holdings());
        node.mesh.serve_weights(source.clone());
        source
    });
    *slow_source.slowness.lock().unwrap() = Duration::from_millis(150);
    let worker = TestNode::join("worker", &fast).await;
    worker.sees("slow", PeerState::Ready).await;
    let cache = tempfile::tempdir().unwrap();
    let request = model.request(last_half(), &[&slow, &fast]);
    let (path, _) = fetch(&fetcher(&worker, cache.path()), request).await.unwrap();
    assert!(std::fs::read(path).unwrap() == model.cut(last_half()));
    assert!(slow_source.bytes() > 0 && slow_source.bytes() < fast_source.bytes(), "both, by their speed");
    // By itself the slow one would have needed 12 s: each chunk is 16 pieces.
    assert!(fast_source.bytes() >= 3 * CHUNK_BYTES, "{} from the fast one", fast_source.bytes());
}

#[tokio::test]
async fn one_that_is_gone_does_not_hold_up_the_others() {
    let model = Model::large();
    let good = TestNode::up("good").await;
    good.mesh.publish(Default::default());
    let [stranger, broken] = [TestNode::join("stranger", &good).await, TestNode::join("broken", &good).await];
    stranger.mesh.serve_weights(Arc::new(Holdings::default()));
    let broken_source = Unreliable::new(model.holdings());
    broken_source.breaks_after.store(1 << 20, Ordering::SeqCst);
    broken.mesh.serve_weights(broken_source.clone());
    good.mesh.serve_weights(Arc::new(model.holdings()));
    let worker = TestNode::join("worker", &good).await;
    for name in ["stranger", "broken"] {
        worker.sees(name, PeerState::Ready).await;
    }
    let cache = tempfile::tempdir().unwrap();
    // The worker itself stands for a peer that nobody can reach.
    let request = model.request(last_half(), &[&worker, &stranger, &broken, &good]);
    let (path, _) = fetch(&fetcher(&worker, cache.path()), request).await.unwrap();
    assert!(std::fs::read(path).unwrap() == model.cut(last_half()));
    assert!(broken_source.bytes() <= (1 << 20) + (512 << 10), "left out after its failures");
}

#[tokio::test]
async fn refusals_say_why() {
    let model = Model::small();
    let holder = TestNode::up("holder").await;
    holder.mesh.publish(Default::default());
    holder.mesh.serve_weights(Arc::new(Holdings::default()));
    let worker = TestNode::join("worker", &holder).await;
    worker.sees("holder", PeerState::Ready).await;
    let cache = tempfile::tempdir().unwrap();
    let fetcher = fetcher(&worker, cache.path());
    let error = fetch(&fetcher, model.request(last_half(), &[&holder])).await.unwrap_err().to_string();
    let digest = model.manifest.digest().short();
    let refused = format!("no holder could give the weights: holder refused: no model with digest {digest} is here");
    assert_eq!(error, refused);
    let error = fetch(&fetcher, model.request(last_half(), &[])).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::NotFound);
    let error = fetch(&fetcher, model.request(last_half(), &[&worker])).await.unwrap_err().to_string();
    assert!(error.contains("is not connected"), "{error}");
}
