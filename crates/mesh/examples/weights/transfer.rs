//! A node that holds a model file, or one that fetches a slice of it: each says how much memory that took, the latter how
//! long as well.

use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mesh_gguf::{Manifest, ManifestCache, Source};
use mesh_mesh::weights::{Holdings, SliceCache, SliceFetcher, SliceRequest};
use mesh_mesh::{DataDir, Identity, JoinToken, LocalStatus, Membership, Mesh};
use mesh_types::{ByteSize, LayerRange, PeerState};

pub(crate) type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Does what a command line says: `hold FILE DIR LISTEN [TOKEN]` or `fetch FILE DIR LISTEN TOKEN HOLDERS`.
pub(crate) async fn run(words: &[&str]) -> Result<()> {
    match words {
        ["hold", file, dir, listen] => hold(file, dir, listen, None).await,
        ["hold", file, dir, listen, token] => hold(file, dir, listen, Some(token)).await,
        ["fetch", file, dir, listen, token, holders] => fetch(file, (dir, listen, token), holders.parse()?).await,
        _ => Err("usage: weights hold FILE DIR LISTEN [TOKEN] | weights fetch FILE DIR LISTEN TOKEN HOLDERS".into()),
    }
}

async fn start(name: &str, dir: &str, listen: &str, token: Option<&str>) -> Result<Mesh> {
    let data_dir = DataDir::open(Path::new(dir))?;
    let identity = Identity::open(&data_dir)?;
    let membership = match token {
        Some(token) => Membership::join(&data_dir, &token.parse::<JoinToken>()?)?,
        None => Membership::create_or_resume(&data_dir)?,
    };
    let listen: SocketAddr = listen.parse()?;
    let (name, version) = (name.to_owned(), "0.0.0".to_owned());
    let mesh = Mesh::start(mesh_mesh::Config { identity, membership, listen, name, version, mdns: false }).await?;
    if token.is_some() {
        mesh.joined(Duration::from_secs(30)).await?;
    }
    mesh.publish(LocalStatus::default());
    Ok(mesh)
}

/// Serves the file until standard input ends; then prints its own peak memory.
async fn hold(file: &str, dir: &str, listen: &str, token: Option<&str>) -> Result<()> {
    let source = Arc::new(Source::open(Path::new(file))?);
    let manifest = Arc::new(Manifest::compute(&source, &mut |_| ControlFlow::Continue(()))?);
    let before = resident("VmRSS:")?;
    let mesh = start("holder", dir, listen, token).await?;
    let holdings = Holdings::default();
    holdings.add(manifest, source);
    mesh.serve_weights(Arc::new(holdings));
    println!("{}", mesh.token().encode());
    tokio::task::spawn_blocking(|| std::io::read_to_string(std::io::stdin())).await??;
    println!("{}", resident("VmHWM:")?.saturating_sub(before));
    mesh.shutdown().await;
    Ok(())
}

/// Fetches all layers but the first from `holders` peers. Prints the bytes, the seconds, and its own peak memory.
async fn fetch(file: &str, (dir, listen, token): (&str, &str, &str), holders: usize) -> Result<()> {
    let source = Source::open(Path::new(file))?;
    let manifest = Manifest::compute(&source, &mut |_| ControlFlow::Continue(()))?;
    let layers = LayerRange::new(1, mesh_gguf::ModelInfo::of(source.header())?.n_layer).ok_or("one layer only")?;
    let mesh = start("worker", dir, listen, Some(token)).await?;
    let mut view = mesh.view();
    let there = |peer: &&mesh_types::PeerView| !peer.local && peer.state == PeerState::Ready;
    let all = view.wait_for(|view| view.peers.iter().filter(there).count() == holders);
    let peers = tokio::time::timeout(Duration::from_secs(30), all).await??.clone();
    let holders = peers.peers.iter().filter(there).map(|peer| peer.id.clone()).collect();
    let cache = SliceCache::open(Path::new(dir).join("slices"), Some(ByteSize(1 << 40)))?;
    let manifests = Arc::new(ManifestCache::new(Path::new(dir).join("manifests")));
    let fetcher = SliceFetcher::new(mesh.clone(), cache, manifests);
    let request = SliceRequest { digest: manifest.digest(), layers, holders };
    drop((source, manifest));
    let (before, started) = (resident("VmRSS:")?, Instant::now());
    let manifest = fetcher.manifest(&request).await?;
    let bytes = mesh_gguf::SlicePlan::new(manifest.header(), layers)?.weight_bytes();
    fetcher.fetch(request, manifest, |_| ()).await?;
    let seconds = started.elapsed().as_secs_f64();
    println!("{bytes} {seconds:.3} {}", resident("VmHWM:")?.saturating_sub(before));
    mesh.shutdown().await;
    Ok(())
}

/// Bytes of resident memory; 0 where the system does not say.
fn resident(key: &str) -> Result<u64> {
    let Ok(text) = std::fs::read_to_string("/proc/self/status") else { return Ok(0) };
    let line = text.lines().find_map(|line| line.strip_prefix(key)).ok_or("no such line")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? << 10)
}
