//! Slices cut from a file of this machine.

use super::*;

fn cache(folder: &Path) -> SliceCache {
    SliceCache::open(folder.join("slices"), Some(ByteSize(1 << 30))).unwrap()
}

async fn cut(cache: &SliceCache, model: &Model, progress: impl Fn(Progress) + Send + Sync + 'static) -> PathBuf {
    let cutting = cache.cut(model.source.clone(), model.manifest.clone(), last_half(), progress);
    tokio::time::timeout(PATIENCE, cutting).await.expect("in time").unwrap().path().to_owned()
}

#[tokio::test]
async fn a_slice_is_cut_once_and_becomes_durable() {
    let model = Model::small();
    let folder = tempfile::tempdir().unwrap();
    let cache = cache(folder.path());
    let path = cut(&cache, &model, |_| ()).await;
    assert!(std::fs::read(&path).unwrap() == model.cut(last_half()));
    assert_eq!(path, cache.path(SliceId::new(model.manifest.digest(), last_half())));
    cut(&cache, &model, |_| panic!("it is there")).await;
    cache.close().await;
    assert_eq!(files(folder.path()), ["gguf"], "on the disk, and so it has one name");
}

#[tokio::test]
async fn a_cut_that_was_given_up_goes_on_where_it_was() {
    let model = Model::large();
    let folder = tempfile::tempdir().unwrap();
    let (reached, mut seen) = tokio::sync::watch::channel(0);
    let (go_on, held) = std::sync::mpsc::sync_channel::<()>(0);
    let held = Mutex::new(held);
    let progress = move |progress: Progress| {
        reached.send_replace(progress.done);
        if progress.done > 2 * CHUNK_BYTES {
            // Until it is given up.
            let _ = held.lock().unwrap().recv();
        }
    };
    let slices = cache(folder.path());
    let cutting = slices.cut(model.source.clone(), model.manifest.clone(), last_half(), progress);
    tokio::select! {
        _ = cutting => panic!("it was held up"),
        waited = seen.wait_for(|done| *done > 2 * CHUNK_BYTES) => drop(waited.unwrap()),
    }
    drop(go_on);
    let first = Arc::new(Mutex::new(None));
    let seen = first.clone();
    let path = cut(&slices, &model, move |progress| {
        seen.lock().unwrap().get_or_insert(progress.done);
    })
    .await;
    assert!(std::fs::read(&path).unwrap() == model.cut(last_half()));
    assert!(first.lock().unwrap().unwrap() > 2 * CHUNK_BYTES, "what was there was not copied again");
}

#[tokio::test]
async fn what_was_not_on_the_disk_is_verified_at_the_next_start() {
    let model = Model::small();
    let folder = tempfile::tempdir().unwrap();
    let slices = cache(folder.path());
    let path = cut(&slices, &model, |_| ()).await;
    slices.close().await;
    let expected = std::fs::read(&path).unwrap();
    // As a power cut may leave it: named, and not written.
    let mut bytes = expected.clone();
    let half = bytes.len() / 2;
    bytes[half..].fill(0);
    std::fs::write(&path, bytes).unwrap();
    std::fs::hard_link(&path, path.with_extension("partial")).unwrap();
    let again = cut(&cache(folder.path()), &model, |_| ()).await;
    assert_eq!(again, path);
    assert!(std::fs::read(&path).unwrap() == expected);
}
