use std::fs;
use std::ops::ControlFlow;
use std::path::PathBuf;

use mesh_types::LayerRange;
use tempfile::TempDir;

use super::*;
use crate::SlicePlan;
use crate::craft::{Craft, model};

fn write(folder: &TempDir, name: &str, craft: &Craft) -> PathBuf {
    let path = folder.path().join(name);
    fs::write(&path, craft.file()).unwrap();
    path
}

fn compute(source: &Source) -> Manifest {
    Manifest::compute(source, &mut |_| ControlFlow::Continue(())).unwrap()
}

/// A tensor of two chunks, the second one short.
fn large() -> Craft {
    model("llama", 3, true).f32s("blk.1.big.weight", &[1024, 2100])
}

#[test]
fn a_manifest_survives_the_wire_and_checks_chunks() {
    let folder = TempDir::new().unwrap();
    let source = Source::open(&write(&folder, "m.gguf", &large())).unwrap();
    let mut progress = Vec::new();
    let manifest = Manifest::compute(&source, &mut |at| {
        progress.push(at);
        ControlFlow::Continue(())
    })
    .unwrap();
    let total: u64 = source.header().tensors().iter().map(|tensor| tensor.n_bytes()).sum();
    assert_eq!(progress.last(), Some(&Progress { done: total, total }));

    let chunks: Vec<Vec<u8>> =
        manifest.chunks().map(|digests| digests.iter().flat_map(|digest| digest.0).collect()).collect();
    let received = Manifest::from_parts(&manifest.header().to_bytes(), &chunks).unwrap();
    assert_eq!(received, manifest);
    assert_eq!(received.digest(), manifest.digest());

    let (big, info) = source.header().tensor("blk.1.big.weight").unwrap();
    let mut bytes = vec![0; info.n_bytes() as usize];
    source.read(big, 0, &mut bytes).unwrap();
    let (first, second) = bytes.split_at_mut(CHUNK_BYTES as usize);
    received.verify_chunk(big, 0, first).unwrap();
    received.verify_chunk(big, 1, second).unwrap();
    assert!(received.verify_chunk(big, 0, second).is_err());
    assert!(received.verify_chunk(big, 2, &[]).is_err());
    assert!(received.verify_chunk(99, 0, &[]).is_err());
    second[17] ^= 1;
    let error = received.verify_chunk(big, 1, second).unwrap_err();
    assert!(error.to_string().contains("chunk 1 of the tensor `blk.1.big.weight`"), "{error}");
    assert_eq!(error.class(), mesh_types::ErrorClass::PeerProtocol);
}

#[test]
fn both_ends_plan_the_same_slice() {
    let folder = TempDir::new().unwrap();
    let source = Source::open(&write(&folder, "m.gguf", &large())).unwrap();
    let manifest = compute(&source);
    let chunks: Vec<Vec<u8>> =
        manifest.chunks().map(|digests| digests.iter().flat_map(|digest| digest.0).collect()).collect();
    let received = Manifest::from_parts(&manifest.header().to_bytes(), &chunks).unwrap();
    for (start, end) in [(0, 1), (1, 2), (1, 3), (0, 3)] {
        let range = LayerRange::new(start, end).unwrap();
        let here = SlicePlan::new(source.header(), range).unwrap();
        let there = SlicePlan::new(received.header(), range).unwrap();
        assert_eq!(here, there);
    }
}

#[test]
fn shards_do_not_change_the_identity() {
    let folder = TempDir::new().unwrap();
    let craft = large();
    let whole = compute(&Source::open(&write(&folder, "m.gguf", &craft)).unwrap());
    let first = write(&folder, "s-00001-of-00002.gguf", &craft.shard(0..4, 0, 2));
    write(&folder, "s-00002-of-00002.gguf", &craft.shard(4..craft.tensors(), 1, 2));
    assert_eq!(compute(&Source::open(&first).unwrap()), whole);

    let other = model("llama", 3, true).f32s("blk.1.big.weight", &[1024, 2101]);
    assert_ne!(compute(&Source::open(&write(&folder, "o.gguf", &other)).unwrap()).digest(), whole.digest());
}

#[test]
fn the_digest_covers_header_and_data() {
    let folder = TempDir::new().unwrap();
    let digest = |craft: &Craft| compute(&Source::open(&write(&folder, "m.gguf", craft)).unwrap()).digest();
    let plain = digest(&model("llama", 2, false));
    // Pinned: a model keeps its identity from one release to the next.
    assert_eq!(plain.to_string(), "cdf78175c8c24501dc267cdb988e328b12663ed8179da9ad2517f65e14110290");
    assert_ne!(digest(&model("llama", 2, false).u32("llama.x", 1)), plain);
    let path = write(&folder, "m.gguf", &model("llama", 2, false));
    let mut bytes = fs::read(&path).unwrap();
    let last_tensor = bytes.len() - 20;
    bytes[last_tensor] ^= 1;
    fs::write(&path, &bytes).unwrap();
    assert_ne!(compute(&Source::open(&path).unwrap()).digest(), plain);
}

#[test]
fn manifests_that_contradict_themselves_are_refused() {
    let folder = TempDir::new().unwrap();
    let manifest = compute(&Source::open(&write(&folder, "m.gguf", &model("llama", 2, false))).unwrap());
    let header = &manifest.header().to_bytes()[..];
    let chunks: Vec<Vec<u8>> =
        manifest.chunks().map(|digests| digests.iter().flat_map(|digest| digest.0).collect()).collect();
    let text = |header: &[u8], chunks: &[Vec<u8>]| Manifest::from_parts(header, chunks).unwrap_err().to_string();
    assert!(text(header, &chunks[1..]).contains("digests for 6 tensors, its header has 7"));
    let mut odd = chunks.clone();
    odd[3].pop();
    assert!(text(header, &odd).contains("do not fit its size"));
    odd[3] = vec![0; 33];
    assert!(text(header, &odd).contains("do not fit its size"));
    odd[3] = vec![0; 64];
    assert!(text(header, &odd).contains("do not fit its size"));
    odd[3].clear();
    assert!(text(header, &odd).contains("do not fit its size"));
    assert!(text(&header[..100], &chunks).contains("middle of its header"));
    let longer = [header, &[0; 32]].concat();
    assert!(text(&longer, &chunks).contains("canonical"));
    let mut old = header.to_vec();
    old[4] = 2;
    assert!(text(&old, &chunks).contains("canonical"));
    let split = model("llama", 2, false).key("split.no", 2, &[0, 0]);
    assert!(text(&split.file()[..header.len()], &chunks).len() > 10);
}

#[test]
fn computing_can_be_cancelled() {
    let folder = TempDir::new().unwrap();
    let source = Source::open(&write(&folder, "m.gguf", &model("llama", 2, false))).unwrap();
    let mut calls = 0;
    let result = Manifest::compute(&source, &mut |_| {
        calls += 1;
        if calls == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert!(matches!(result, Err(Error::Cancelled)));
    assert_eq!(calls, 2);
}

#[test]
fn the_cache_remembers_until_the_file_changes() {
    let folder = TempDir::new().unwrap();
    let path = write(&folder, "m.gguf", &model("llama", 2, false));
    let cache = ManifestCache::new(folder.path().join("cache/manifests"));
    let source = Source::open(&path).unwrap();
    assert_eq!(cache.load(&source), None);
    let manifest = cache.get(&source, &mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(cache.load(&source).as_ref(), Some(&manifest));
    // Remembered: nothing is hashed, so nothing can be cancelled.
    assert_eq!(cache.get(&source, &mut |_| ControlFlow::Break(())).unwrap(), manifest);

    let entry = fs::read_dir(folder.path().join("cache/manifests")).unwrap().next().unwrap().unwrap().path();
    let good = fs::read(&entry).unwrap();
    for (at, len) in [(0, good.len()), (10, good.len()), (50, good.len()), (good.len() - 1, good.len()), (0, 20)] {
        let mut bad = good[..len].to_vec();
        bad[at] ^= 1;
        fs::write(&entry, bad).unwrap();
        assert_eq!(cache.load(&source), None, "byte {at} of {len}");
    }
    fs::write(&entry, good).unwrap();
    assert!(cache.load(&source).is_some());

    // The same length and header, another time.
    let later = source.files()[0].modified() + std::time::Duration::from_nanos(1_000_000_000);
    fs::File::options().write(true).open(&path).unwrap().set_modified(later).unwrap();
    let changed = Source::open(&path).unwrap();
    assert_eq!(cache.load(&changed), None);
    cache.get(&changed, &mut |_| ControlFlow::Continue(())).unwrap();
    // One entry a path.
    assert_eq!(fs::read_dir(folder.path().join("cache/manifests")).unwrap().count(), 1);
}

#[test]
fn a_manifest_from_elsewhere_is_kept_by_its_digest() {
    let folder = TempDir::new().unwrap();
    let manifest = compute(&Source::open(&write(&folder, "m.gguf", &large())).unwrap());
    let cache = ManifestCache::new(folder.path().join("manifests"));
    assert_eq!(cache.kept(&manifest.digest()), None);
    cache.keep(&manifest).unwrap();
    assert_eq!(cache.kept(&manifest.digest()).as_ref(), Some(&manifest));

    let path = cache.whole_path(&manifest.digest());
    let good = fs::read(&path).unwrap();
    for (at, len) in [(0, good.len()), (9, good.len()), (100, good.len()), (good.len() - 1, good.len()), (0, 20)] {
        let mut bad = good[..len].to_vec();
        bad[at] ^= 1;
        fs::write(&path, bad).unwrap();
        assert_eq!(cache.kept(&manifest.digest()), None, "byte {at} of {len}");
    }
    fs::write(&path, [good.as_slice(), &[0; 32]].concat()).unwrap();
    assert_eq!(cache.kept(&manifest.digest()), None, "a digest too many");

    // What nobody asked for in a month goes when another comes.
    fs::write(&path, good).unwrap();
    let long_ago = std::time::SystemTime::now() - FORGET_AFTER_IN_TESTS;
    fs::File::options().write(true).open(&path).unwrap().set_modified(long_ago).unwrap();
    cache.keep(&compute(&Source::open(&write(&folder, "o.gguf", &model("llama", 2, false))).unwrap())).unwrap();
    assert!(!path.exists());
}

const FORGET_AFTER_IN_TESTS: std::time::Duration = std::time::Duration::from_secs(31 * 24 * 3600);
