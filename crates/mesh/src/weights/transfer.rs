//! The holder's side of a weights stream: answers requests one after the other.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::{AsyncWriteExt as _, StreamExt as _};
use libp2p::Stream;
use mesh_gguf::Manifest;
use mesh_proto::v1;
use mesh_proto::v1::weights_request::Request;
use mesh_proto::v1::weights_response::Response;
use mesh_types::Digest;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::WeightSource;
use super::wire::{self, timely};
use crate::mesh::links::{self, Links};

/// Streams served at a time; further ones wait. Each has two pieces in memory at most.
const MAX_STREAMS: usize = 32;
/// Manifests sent at a time: each may have the size of a large vocabulary.
const MAX_MANIFESTS: usize = 2;
/// Bytes read from the disk at a time.
const PIECE: u64 = 512 << 10;
/// A worker that asks for nothing for so long is let go.
const IDLE: Duration = Duration::from_secs(60);

/// What bounds the memory of serving.
struct Room {
    streams: Semaphore,
    manifests: Semaphore,
}

/// Serves `source` until dropped. One a mesh: a second one serves nothing.
pub(crate) async fn serve(links: Arc<Links>, source: Arc<dyn WeightSource>) {
    let Some(mut incoming) = links.accept(wire::PROTOCOL) else {
        tracing::error!("weights are served already");
        return;
    };
    let room = Arc::new(Room { streams: Semaphore::new(MAX_STREAMS), manifests: Semaphore::new(MAX_MANIFESTS) });
    let mut streams = JoinSet::new();
    loop {
        tokio::select! {
            stream = incoming.next() => {
                let Some((peer, stream)) = stream else { return };
                let (source, room) = (source.clone(), room.clone());
                streams.spawn(async move {
                    let Ok(_permit) = room.streams.acquire().await else { return };
                    if let Err(error) = serve_stream(source, stream, &room).await {
                        tracing::debug!(%peer, %error, "a weights stream ended");
                    }
                });
            }
            Some(ended) = streams.join_next() => {
                if let Err(error) = ended {
                    tracing::error!(%error, "serving weights failed");
                }
            }
        }
    }
}

async fn serve_stream(source: Arc<dyn WeightSource>, mut stream: Stream, room: &Room) -> io::Result<()> {
    links::take(&mut stream).await?;
    let mut known: Option<Arc<Manifest>> = None;
    while let Some(request) = wire::receive::<v1::WeightsRequest>(&mut stream, wire::MAX_REQUEST, IDLE).await? {
        match prepare(&source, request, &mut known).await {
            Ok(Answer::Manifest(manifest)) => {
                let Ok(_permit) = room.manifests.acquire().await else { return Ok(()) };
                wire::send_bytes(&mut stream, &wire::manifest_message(&manifest)).await?;
            }
            Ok(Answer::Bytes(digest, spans)) => {
                respond(&mut stream, Response::BodyBytes(spans.iter().map(|span| span.length).sum())).await?;
                send_spans(&mut stream, &source, digest, spans).await?;
            }
            Err(refused) => respond(&mut stream, Response::Refused(refused)).await?,
        }
    }
    timely(wire::STALL, stream.close()).await
}

enum Answer {
    Manifest(Arc<Manifest>),
    Bytes(Digest, Vec<v1::TensorSpan>),
}

/// Looks at a request. `known` is the manifest that the last one was about.
///
/// # Errors
/// Why it is refused, for the worker.
async fn prepare(
    source: &Arc<dyn WeightSource>,
    request: v1::WeightsRequest,
    known: &mut Option<Arc<Manifest>>,
) -> Result<Answer, String> {
    let (digest, spans) = match request.request {
        Some(Request::Manifest(request)) => (request.digest, None),
        Some(Request::Tensors(request)) => (request.digest, Some(request.spans)),
        None => return Err("an empty request".to_owned()),
    };
    let digest = Digest::try_from(digest.as_slice()).map_err(|error| error.to_string())?;
    let manifest = match known.take().filter(|manifest| manifest.digest() == digest) {
        Some(manifest) => manifest,
        None => find(source.clone(), digest).await?,
    };
    *known = Some(manifest.clone());
    match spans {
        None => Ok(Answer::Manifest(manifest)),
        Some(spans) => check_spans(&manifest, &spans).map(|()| Answer::Bytes(digest, spans)),
    }
}

async fn find(source: Arc<dyn WeightSource>, digest: Digest) -> Result<Arc<Manifest>, String> {
    match tokio::task::spawn_blocking(move || source.manifest(&digest)).await {
        Ok(Ok(Some(manifest))) => Ok(manifest),
        Ok(Ok(None)) => Err(format!("no model with digest {} is here", digest.short())),
        Ok(Err(error)) => {
            tracing::warn!(%digest, %error, "a manifest cannot be had");
            Err("the model cannot be read".to_owned())
        }
        Err(_) => Err("the model cannot be read".to_owned()),
    }
}

fn check_spans(manifest: &Manifest, spans: &[v1::TensorSpan]) -> Result<(), String> {
    let mut total = 0u64;
    for span in spans {
        let tensor = manifest.header().tensors().get(span.tensor as usize);
        let end = span.offset.checked_add(span.length);
        if tensor.zip(end).is_none_or(|(tensor, end)| end > tensor.n_bytes()) {
            return Err(format!("tensor {} has no {} bytes at {}", span.tensor, span.length, span.offset));
        }
        total = total.saturating_add(span.length);
    }
    if total > wire::MAX_BODY { Err(format!("{total} bytes at once are too many")) } else { Ok(()) }
}

async fn respond(stream: &mut Stream, response: Response) -> io::Result<()> {
    wire::send(stream, &v1::WeightsResponse { response: Some(response) }).await
}

/// Sends the bytes of `spans`. What cannot be read ends the stream: its length is promised already.
async fn send_spans(
    stream: &mut Stream,
    source: &Arc<dyn WeightSource>,
    digest: Digest,
    spans: Vec<v1::TensorSpan>,
) -> io::Result<()> {
    let mut pieces = spans.into_iter().flat_map(pieces);
    let Some(first) = pieces.next() else { return Ok(()) };
    let mut ready = read(source, digest, first).await?;
    for piece in pieces {
        // The disk reads the next one while this one travels.
        let ((), next) = futures::try_join!(send_piece(stream, &ready), read(source, digest, piece))?;
        ready = next;
    }
    send_piece(stream, &ready).await?;
    timely(wire::STALL, stream.flush()).await
}

/// A tensor's number, and bytes of it.
type Piece = (usize, u64, u64);

/// A span in pieces of [`PIECE`] bytes.
fn pieces(span: v1::TensorSpan) -> impl Iterator<Item = Piece> {
    let end = span.offset + span.length;
    let starts = (span.offset..end).step_by(PIECE as usize);
    starts.map(move |start| (span.tensor as usize, start, PIECE.min(end - start)))
}

async fn read(source: &Arc<dyn WeightSource>, digest: Digest, (tensor, offset, len): Piece) -> io::Result<Vec<u8>> {
    let source = Arc::clone(source);
    let reading = tokio::task::spawn_blocking(move || {
        let mut bytes = vec![0; len as usize];
        source.read(&digest, tensor, offset, &mut bytes).map(|()| bytes)
    });
    reading.await.map_err(io::Error::other)?
}

async fn send_piece(stream: &mut Stream, bytes: &[u8]) -> io::Result<()> {
    for part in bytes.chunks(256 << 10) {
        timely(wire::STALL, stream.write_all(part)).await?;
    }
    Ok(())
}
