//! Slices fetched over real streams, from holders good and bad.

use std::collections::HashSet;
use std::fs::File;
use std::io::Write as _;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use mesh_gguf::{CHUNK_BYTES, ManifestCache, SliceId, SlicePlan};
use mesh_types::{ByteSize, ErrorClass, LayerRange, PeerState};

use super::*;
use crate::mesh::tests::TestNode;

mod cutting;
mod holders;
mod resuming;

const PATIENCE: Duration = Duration::from_secs(60);
const N_EMBD: u64 = 8192;
/// An embedding of two chunks.
const SMALL_VOCAB: u64 = 320;
/// One of five.
const LARGE_VOCAB: u64 = 1200;
const N_LAYER: u32 = 4;

fn text(value: &str) -> Vec<u8> {
    [&(value.len() as u64).to_le_bytes(), value.as_bytes()].concat()
}

/// A llama of four layers.
fn write_model(path: &Path, n_vocab: u64) {
    let mut keys = Vec::new();
    let mut key = |name: &str, kind: u32, value: &[u8]| {
        keys.push([&text(name), kind.to_le_bytes().as_slice(), value].concat());
    };
    key("general.architecture", 8, &text("llama"));
    key("tokenizer.ggml.model", 8, &text("llama"));
    let words: Vec<u8> = (0..n_vocab).flat_map(|word| text(&format!("w{word}"))).collect();
    key("tokenizer.ggml.tokens", 9, &[&8u32.to_le_bytes()[..], &n_vocab.to_le_bytes(), &words].concat());
    for (name, value) in [
        ("block_count", N_LAYER),
        ("context_length", 512),
        ("embedding_length", N_EMBD as u32),
        ("feed_forward_length", 64),
        ("attention.head_count", 64),
    ] {
        key(&format!("llama.{name}"), 4, &value.to_le_bytes());
    }
    let mut tensors = vec![("token_embd.weight".to_owned(), vec![N_EMBD, n_vocab])];
    for layer in 0..N_LAYER {
        tensors.push((format!("blk.{layer}.attn_norm.weight"), vec![N_EMBD]));
        tensors.push((format!("blk.{layer}.attn_q.weight"), vec![N_EMBD, 16]));
    }
    tensors.push(("output_norm.weight".to_owned(), vec![N_EMBD]));

    let mut head = [b"GGUF".as_slice(), &3u32.to_le_bytes()].concat();
    head.extend((tensors.len() as u64).to_le_bytes());
    head.extend((keys.len() as u64).to_le_bytes());
    head.extend(keys.concat());
    let mut offset = 0u64;
    for (name, dims) in &tensors {
        head.extend(text(name));
        head.extend((dims.len() as u32).to_le_bytes());
        dims.iter().for_each(|dim| head.extend(dim.to_le_bytes()));
        head.extend(0u32.to_le_bytes());
        head.extend(offset.to_le_bytes());
        offset += dims.iter().product::<u64>() * 4;
    }
    head.resize(head.len().next_multiple_of(32), 0);
    let data: Vec<u8> = (0..offset / 4).flat_map(|value| (value as f32).to_le_bytes()).collect();
    File::create(path).unwrap().write_all(&[head, data].concat()).unwrap();
}

/// A holder that can be made to misbehave, and counts what it is asked.
struct Unreliable {
    inner: Holdings,
    /// Tensors whose bytes it changes.
    tampers: Mutex<HashSet<usize>>,
    /// Bytes after which it breaks off, if any.
    breaks_after: AtomicU64,
    /// How long each read takes.
    slowness: Mutex<Duration>,
    /// Gives another manifest than the one asked for.
    other_manifest: Mutex<Option<Arc<Manifest>>>,
    manifests: AtomicUsize,
    bytes: AtomicU64,
}

impl Unreliable {
    fn new(inner: Holdings) -> Arc<Self> {
        Arc::new(Self {
            inner,
            tampers: Mutex::default(),
            breaks_after: AtomicU64::new(u64::MAX),
            slowness: Mutex::default(),
            other_manifest: Mutex::default(),
            manifests: AtomicUsize::new(0),
            bytes: AtomicU64::new(0),
        })
    }

    fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::SeqCst)
    }

    fn manifests(&self) -> usize {
        self.manifests.load(Ordering::SeqCst)
    }
}

impl WeightSource for Unreliable {
    fn manifest(&self, digest: &Digest) -> io::Result<Option<Arc<Manifest>>> {
        self.manifests.fetch_add(1, Ordering::SeqCst);
        match self.other_manifest.lock().unwrap().clone() {
            Some(other) => Ok(Some(other)),
            None => self.inner.manifest(digest),
        }
    }

    fn read(&self, digest: &Digest, tensor: usize, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let slowness = *self.slowness.lock().unwrap();
        std::thread::sleep(slowness);
        if self.bytes() >= self.breaks_after.load(Ordering::SeqCst) {
            return Err(io::Error::other("the disk is on fire"));
        }
        self.bytes.fetch_add(into.len() as u64, Ordering::SeqCst);
        self.inner.read(digest, tensor, offset, into)?;
        if self.tampers.lock().unwrap().contains(&tensor) {
            into[0] ^= 1;
        }
        Ok(())
    }
}

struct Model {
    dir: tempfile::TempDir,
    source: Arc<Source>,
    manifest: Arc<Manifest>,
}

impl Model {
    fn small() -> Self {
        Self::make(SMALL_VOCAB)
    }

    fn large() -> Self {
        Self::make(LARGE_VOCAB)
    }

    fn make(n_vocab: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.gguf");
        write_model(&path, n_vocab);
        let source = Source::open(&path).unwrap();
        let manifest = Manifest::compute(&source, &mut |_| ControlFlow::Continue(())).unwrap();
        Self { dir, source: Arc::new(source), manifest: Arc::new(manifest) }
    }

    fn holdings(&self) -> Holdings {
        let holdings = Holdings::default();
        holdings.add(self.manifest.clone(), self.source.clone());
        holdings
    }

    /// The slice as its owner would cut it.
    fn cut(&self, layers: LayerRange) -> Vec<u8> {
        let path = self.dir.path().join("cut.gguf");
        let plan = SlicePlan::new(self.manifest.header(), layers).unwrap();
        plan.write(&self.source, &path, &mut |_| ControlFlow::Continue(())).unwrap();
        std::fs::read(path).unwrap()
    }

    /// Bytes that a worker fetches for a slice.
    fn bytes(&self, layers: LayerRange) -> u64 {
        SlicePlan::new(self.manifest.header(), layers).unwrap().weight_bytes()
    }

    fn request(&self, layers: LayerRange, holders: &[&TestNode]) -> SliceRequest {
        let holders = holders.iter().map(|node| node.id()).collect();
        SliceRequest { digest: self.manifest.digest(), layers, holders }
    }
}

fn last_half() -> LayerRange {
    LayerRange::new(N_LAYER / 2, N_LAYER).unwrap()
}

/// A worker's cache and fetcher over `folder`, as after a start.
fn fetcher(worker: &TestNode, folder: &Path) -> SliceFetcher {
    let cache = SliceCache::open(folder.join("slices"), Some(ByteSize(1 << 30))).unwrap();
    SliceFetcher::new(worker.mesh.clone(), cache, Arc::new(ManifestCache::new(folder.join("manifests"))))
}

/// Fetches, and says what was reported on the way.
async fn fetch(fetcher: &SliceFetcher, request: SliceRequest) -> Result<(PathBuf, Vec<Progress>), FetchError> {
    let reports = Arc::new(Mutex::new(Vec::new()));
    let seen = reports.clone();
    let fetched = async {
        let manifest = fetcher.manifest(&request).await?;
        fetcher.fetch(request, manifest, move |progress| seen.lock().unwrap().push(progress)).await
    };
    let slice = tokio::time::timeout(PATIENCE, fetched).await.expect("fetched in time")?;
    let reports = reports.lock().unwrap().clone();
    Ok((slice.path().to_owned(), reports))
}

/// The names of the files in the cache, ids left out.
fn files(cache: &Path) -> Vec<String> {
    let name = |file: io::Result<std::fs::DirEntry>| file.unwrap().file_name().into_string().unwrap();
    let kind = |name: String| name.split_once('.').unwrap().1.to_owned();
    let mut kinds: Vec<_> = std::fs::read_dir(cache.join("slices")).unwrap().map(|file| kind(name(file))).collect();
    kinds.sort();
    kinds
}

#[tokio::test]
async fn a_slice_is_fetched_once_and_equals_one_cut_at_home() {
    let model = Model::small();
    let holder = TestNode::up("holder").await;
    let source = Unreliable::new(model.holdings());
    holder.mesh.serve_weights(source.clone());
    let worker = TestNode::join("worker", &holder).await;
    let cache = tempfile::tempdir().unwrap();
    let fetcher = fetcher(&worker, cache.path());

    let (path, reports) = fetch(&fetcher, model.request(last_half(), &[&holder])).await.unwrap();
    assert!(std::fs::read(&path).unwrap() == model.cut(last_half()));
    let total = model.bytes(last_half());
    assert_eq!(reports.first(), Some(&Progress { done: 0, total }));
    assert!(reports.is_sorted_by_key(|report| report.done));
    assert_eq!(reports.last(), Some(&Progress { done: total, total }));
    assert_eq!(reports.len(), 1 + 2 + 2 * 2 + 1, "none yet, the embedding's two chunks, two tensors a layer, the norm");
    assert_eq!((source.bytes(), source.manifests()), (total, 1 + 1), "each byte once; for itself, and for the bytes");

    // A stage in the middle takes its layers only, and its holder's manifest is known.
    let first = LayerRange::new(0, 1).unwrap();
    let (path, _) = fetch(&fetcher, model.request(first, &[&holder])).await.unwrap();
    assert!(std::fs::read(&path).unwrap() == model.cut(first));
    assert_eq!(source.bytes(), total + model.bytes(first));
    assert_eq!(files(cache.path()), ["gguf", "gguf"]);
}

#[tokio::test]
async fn the_same_slice_again_costs_nothing() {
    let model = Model::small();
    let holder = TestNode::up("holder").await;
    let source = Unreliable::new(model.holdings());
    holder.mesh.serve_weights(source.clone());
    let worker = TestNode::join("worker", &holder).await;
    let cache = tempfile::tempdir().unwrap();
    let (path, _) = fetch(&fetcher(&worker, cache.path()), model.request(last_half(), &[&holder])).await.unwrap();
    let written = std::fs::metadata(&path).unwrap().created().ok();
    // What is not read cannot be hashed or copied; what is in another place is not what is used.
    let (bytes, manifests) = (source.bytes(), source.manifests());
    for holders in [&[&holder][..], &[]] {
        let fetcher = fetcher(&worker, cache.path());
        let (again, reports) = fetch(&fetcher, model.request(last_half(), holders)).await.unwrap();
        assert_eq!((&again, reports), (&path, Vec::new()));
    }
    assert_eq!((source.bytes(), source.manifests()), (bytes, manifests), "nobody was asked");
    assert_eq!(std::fs::metadata(&path).unwrap().created().ok(), written);
    let manifest = fetcher(&worker, cache.path()).manifest(&model.request(last_half(), &[])).await.unwrap();
    assert_eq!(manifest.header(), model.manifest.header());
}
