//! Slices fetched over real streams, from holders good and bad.

use std::collections::HashSet;
use std::fs::File;
use std::io::Write as _;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use mesh_gguf::SlicePlan;
use mesh_types::{ErrorClass, LayerRange, PeerState};

use super::*;
use crate::mesh::tests::TestNode;

const PATIENCE: Duration = Duration::from_secs(60);
const N_EMBD: u64 = 8192;
const N_VOCAB: u64 = 320;
const N_LAYER: u32 = 4;

fn text(value: &str) -> Vec<u8> {
    [&(value.len() as u64).to_le_bytes(), value.as_bytes()].concat()
}

/// A llama of four layers whose embedding is two chunks long.
fn write_model(path: &Path) {
    let mut keys = Vec::new();
    let mut key = |name: &str, kind: u32, value: &[u8]| {
        keys.push([&text(name), kind.to_le_bytes().as_slice(), value].concat());
    };
    key("general.architecture", 8, &text("llama"));
    key("tokenizer.ggml.model", 8, &text("llama"));
    let words: Vec<u8> = (0..N_VOCAB).flat_map(|word| text(&format!("w{word}"))).collect();
    key("tokenizer.ggml.tokens", 9, &[&8u32.to_le_bytes()[..], &N_VOCAB.to_le_bytes(), &words].concat());
    for (name, value) in [
        ("block_count", N_LAYER),
        ("context_length", 512),
        ("embedding_length", N_EMBD as u32),
        ("feed_forward_length", 64),
        ("attention.head_count", 64),
    ] {
        key(&format!("llama.{name}"), 4, &value.to_le_bytes());
    }
    let mut tensors = vec![("token_embd.weight".to_owned(), vec![N_EMBD, N_VOCAB])];
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
    /// Reads after which it breaks off, if any.
    breaks_after: AtomicUsize,
    /// Gives another manifest than the one asked for.
    other_manifest: Mutex<Option<Arc<Manifest>>>,
    reads: AtomicUsize,
}

impl Unreliable {
    fn new(inner: Holdings) -> Arc<Self> {
        Arc::new(Self {
            inner,
            tampers: Mutex::default(),
            breaks_after: AtomicUsize::new(usize::MAX),
            other_manifest: Mutex::default(),
            reads: AtomicUsize::new(0),
        })
    }
}

impl WeightSource for Unreliable {
    fn manifest(&self, digest: &Digest) -> io::Result<Option<Arc<Manifest>>> {
        match self.other_manifest.lock().unwrap().clone() {
            Some(other) => Ok(Some(other)),
            None => self.inner.manifest(digest),
        }
    }

    fn read(&self, digest: &Digest, tensor: usize, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let count = self.reads.fetch_add(1, Ordering::SeqCst);
        if count >= self.breaks_after.load(Ordering::SeqCst) {
            return Err(io::Error::other("the disk is on fire"));
        }
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
    fn make() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.gguf");
        write_model(&path);
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

    fn request(&self, layers: LayerRange, holders: &[&TestNode]) -> SliceRequest {
        let holders = holders.iter().map(|node| node.id()).collect();
        SliceRequest { digest: self.manifest.digest(), layers, holders }
    }
}

fn last_half() -> LayerRange {
    LayerRange::new(N_LAYER / 2, N_LAYER).unwrap()
}

/// Fetches, and says what was reported on the way.
async fn fetch(
    fetcher: &SliceFetcher,
    request: SliceRequest,
) -> Result<(std::path::PathBuf, Vec<Progress>), FetchError> {
    let reports = Arc::new(Mutex::new(Vec::new()));
    let seen = reports.clone();
    let fetched = fetcher.fetch(request, move |progress| seen.lock().unwrap().push(progress));
    let path = tokio::time::timeout(PATIENCE, fetched).await.expect("fetched in time")?;
    let reports = reports.lock().unwrap().clone();
    Ok((path, reports))
}

fn files(cache: &Path) -> usize {
    std::fs::read_dir(cache.join("slices")).map_or(0, Iterator::count)
}

#[tokio::test]
async fn a_slice_is_fetched_once_and_equals_one_cut_at_home() {
    let model = Model::make();
    let holder = TestNode::up("holder").await;
    let source = Unreliable::new(model.holdings());
    holder.mesh.serve_weights(source.clone());
    let worker = TestNode::join("worker", &holder).await;
    let cache = tempfile::tempdir().unwrap();
    let fetcher = SliceFetcher::new(worker.mesh.clone(), cache.path());

    let (path, reports) = fetch(&fetcher, model.request(last_half(), &[&holder])).await.unwrap();
    assert!(std::fs::read(&path).unwrap() == model.cut(last_half()));
    let plan = SlicePlan::new(model.manifest.header(), last_half()).unwrap();
    assert_eq!(reports.last(), Some(&Progress { done: plan.weight_bytes(), total: plan.weight_bytes() }));
    assert_eq!(reports.len(), 2 + 2 * 2 + 1, "the embedding's two chunks, two tensors a layer, the norm");

    let reads = source.reads.load(Ordering::SeqCst);
    let (again, reports) = fetch(&fetcher, model.request(last_half(), &[])).await.unwrap();
    assert_eq!((again, reports.len(), source.reads.load(Ordering::SeqCst)), (path, 0, reads), "nobody was asked");
    assert_eq!(files(cache.path()), 1);

    // A stage in the middle takes its layers only.
    let first = LayerRange::new(0, 1).unwrap();
    let (path, _) = fetch(&fetcher, model.request(first, &[&holder])).await.unwrap();
    assert!(std::fs::read(&path).unwrap() == model.cut(first));
    assert_eq!(source.reads.load(Ordering::SeqCst), reads + 3, "two tensors and the norm");
}

#[tokio::test]
async fn a_holder_that_lies_is_named_and_another_is_asked() {
    let model = Model::make();
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
    let fetcher = SliceFetcher::new(worker.mesh.clone(), cache.path());

    let error = fetch(&fetcher, model.request(last_half(), &[&liar])).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::PeerProtocol);
    let expected = "no holder could give the weights: liar sent bytes that do not match its manifest";
    assert_eq!(error.to_string(), expected);
    assert_eq!(files(cache.path()), 0, "nothing of it stays");

    let honest = TestNode::join("honest", &liar).await;
    let second = Unreliable::new(model.holdings());
    honest.mesh.serve_weights(second.clone());
    worker.sees("honest", PeerState::Ready).await;
    let (path, _) = fetch(&fetcher, model.request(last_half(), &[&liar, &honest])).await.unwrap();
    assert!(std::fs::read(path).unwrap() == model.cut(last_half()));
    assert!(second.reads.load(Ordering::SeqCst) <= 2, "only what the liar did not give was asked again");

    // A manifest that is not the one asked for.
    source.tampers.lock().unwrap().clear();
    *source.other_manifest.lock().unwrap() = Some(model.manifest.clone());
    let request = SliceRequest { digest: Digest([9; 32]), ..model.request(last_half(), &[&liar]) };
    let error = fetch(&fetcher, request).await.unwrap_err().to_string();
    assert_eq!(error, expected);
}

#[tokio::test]
async fn a_transfer_that_breaks_goes_on_where_it_was() {
    let model = Model::make();
    let holder = TestNode::up("holder").await;
    holder.mesh.publish(Default::default());
    let source = Unreliable::new(model.holdings());
    source.breaks_after.store(3, Ordering::SeqCst);
    holder.mesh.serve_weights(source.clone());
    let worker = TestNode::join("worker", &holder).await;
    worker.sees("holder", PeerState::Ready).await;
    let cache = tempfile::tempdir().unwrap();
    let fetcher = SliceFetcher::new(worker.mesh.clone(), cache.path());

    let error = fetch(&fetcher, model.request(last_half(), &[&holder])).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Unavailable);
    assert!(error.to_string().starts_with("no holder could give the weights: holder cannot be read from"), "{error}");

    // It recovers while it is being asked again.
    source.reads.store(0, Ordering::SeqCst);
    let recovering = source.clone();
    let progress = move |progress: Progress| {
        if progress.done > 0 {
            recovering.breaks_after.store(usize::MAX, Ordering::SeqCst);
        }
    };
    let fetched = fetcher.fetch(model.request(last_half(), &[&holder]), progress);
    let path = tokio::time::timeout(PATIENCE, fetched).await.expect("in time").unwrap();
    assert!(std::fs::read(path).unwrap() == model.cut(last_half()));
}

#[tokio::test]
async fn refusals_say_why() {
    let model = Model::make();
    let holder = TestNode::up("holder").await;
    holder.mesh.publish(Default::default());
    holder.mesh.serve_weights(Arc::new(Holdings::default()));
    let worker = TestNode::join("worker", &holder).await;
    worker.sees("holder", PeerState::Ready).await;
    let cache = tempfile::tempdir().unwrap();
    let fetcher = SliceFetcher::new(worker.mesh.clone(), cache.path());
    let error = fetch(&fetcher, model.request(last_half(), &[&holder])).await.unwrap_err().to_string();
    let digest = model.manifest.digest().short();
    let refused = format!("no holder could give the weights: holder refused: no model with digest {digest} is here");
    assert_eq!(error, refused);
    let error = fetch(&fetcher, model.request(last_half(), &[])).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::NotFound);
    let error = fetch(&fetcher, model.request(last_half(), &[&worker])).await.unwrap_err().to_string();
    assert!(error.contains("is not connected"), "{error}");
}
