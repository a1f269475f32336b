//! Fetches that break off, and go on where they were.

use super::*;

#[tokio::test]
async fn a_transfer_that_breaks_goes_on_where_it_was() {
    let model = Model::large();
    let holder = TestNode::up("holder").await;
    holder.mesh.publish(Default::default());
    let source = Unreliable::new(model.holdings());
    let half = 5 * CHUNK_BYTES / 2;
    source.breaks_after.store(half, Ordering::SeqCst);
    holder.mesh.serve_weights(source.clone());
    let worker = TestNode::join("worker", &holder).await;
    worker.sees("holder", PeerState::Ready).await;
    let cache = tempfile::tempdir().unwrap();

    let error = fetch(&fetcher(&worker, cache.path()), model.request(last_half(), &[&holder])).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Unavailable);
    assert!(error.to_string().starts_with("no holder could give the weights: holder cannot be read from"), "{error}");
    assert_eq!(files(cache.path()), ["partial"]);

    // After a restart: what came is kept, and said at once.
    source.breaks_after.store(u64::MAX, Ordering::SeqCst);
    let manifests = source.manifests();
    let before = source.bytes();
    let (path, reports) = fetch(&fetcher(&worker, cache.path()), model.request(last_half(), &[&holder])).await.unwrap();
    assert!(std::fs::read(path).unwrap() == model.cut(last_half()));
    let total = model.bytes(last_half());
    let kept = reports.first().unwrap().done;
    assert!(kept >= CHUNK_BYTES && kept < total, "{kept} of {total}");
    assert_eq!(source.bytes() - before, total - kept, "only what was missing");
    assert_eq!(source.manifests() - manifests, 1, "for its own lookup: the worker knows it");
    assert_eq!(files(cache.path()), ["gguf"]);
}

#[tokio::test]
async fn a_holder_that_recovers_is_asked_again() {
    let model = Model::small();
    let holder = TestNode::up("holder").await;
    let source = Unreliable::new(model.holdings());
    source.breaks_after.store(CHUNK_BYTES, Ordering::SeqCst);
    holder.mesh.serve_weights(source.clone());
    let worker = TestNode::join("worker", &holder).await;
    let cache = tempfile::tempdir().unwrap();
    let recovering = source.clone();
    let progress = move |progress: Progress| {
        if progress.done > 0 {
            recovering.breaks_after.store(u64::MAX, Ordering::SeqCst);
        }
    };
    let fetcher = fetcher(&worker, cache.path());
    let fetched = fetcher.fetch(model.request(last_half(), &[&holder]), model.manifest.clone(), progress);
    let slice = tokio::time::timeout(PATIENCE, fetched).await.expect("in time").unwrap();
    assert!(std::fs::read(slice.path()).unwrap() == model.cut(last_half()));
}

#[tokio::test]
async fn what_was_damaged_meanwhile_is_fetched_again() {
    let model = Model::large();
    let holder = TestNode::up("holder").await;
    let source = Unreliable::new(model.holdings());
    holder.mesh.serve_weights(source.clone());
    let worker = TestNode::join("worker", &holder).await;
    let cache = tempfile::tempdir().unwrap();
    let (path, _) = fetch(&fetcher(&worker, cache.path()), model.request(last_half(), &[&holder])).await.unwrap();

    // As if the machine had lost power before all of it was written: one chunk is gone, one is wrong.
    let mut bytes = std::fs::read(&path).unwrap();
    let plan = SlicePlan::new(model.manifest.header(), last_half()).unwrap();
    let embedding = plan.parts().iter().find(|part| part.name == "token_embd.weight").unwrap();
    let chunk = |number: u64| (embedding.offset + number * CHUNK_BYTES) as usize;
    bytes[chunk(1)..chunk(2)].fill(0);
    bytes[chunk(3) + 5] ^= 0x40;
    std::fs::remove_file(&path).unwrap();
    std::fs::write(path.with_extension("partial"), &bytes).unwrap();
    let before = source.bytes();
    let (path, reports) = fetch(&fetcher(&worker, cache.path()), model.request(last_half(), &[&holder])).await.unwrap();
    assert!(std::fs::read(path).unwrap() == model.cut(last_half()));
    let missing = 2 * CHUNK_BYTES;
    assert_eq!(reports.first().unwrap().done, model.bytes(last_half()) - missing);
    assert_eq!(source.bytes() - before, missing);
}

#[tokio::test]
async fn a_cache_without_room_says_so_before_anything_is_fetched() {
    let model = Model::small();
    let holder = TestNode::up("holder").await;
    let source = Unreliable::new(model.holdings());
    holder.mesh.serve_weights(source.clone());
    let worker = TestNode::join("worker", &holder).await;
    let cache = tempfile::tempdir().unwrap();
    let slices = SliceCache::open(cache.path().join("slices"), Some(ByteSize(1 << 20))).unwrap();
    let manifests = Arc::new(ManifestCache::new(cache.path().join("manifests")));
    let fetcher = SliceFetcher::new(worker.mesh.clone(), slices, manifests);
    let error = fetch(&fetcher, model.request(last_half(), &[&holder])).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Overloaded);
    assert!(error.to_string().contains("the cache may hold 1.0 MiB (--cache), of which 0 B are in use"), "{error}");
    assert_eq!((source.bytes(), files(cache.path()).len()), (0, 0));
}
