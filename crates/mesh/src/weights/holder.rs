//! One holder, as the worker sees it: a stream on which manifests and chunks are asked for.

use std::collections::VecDeque;
use std::fmt;

use futures::AsyncReadExt as _;
use libp2p::Stream;
use mesh_gguf::{CHUNK_BYTES, Manifest, MissingChunk};
use mesh_proto::v1;
use mesh_proto::v1::weights_request::Request;
use mesh_proto::v1::weights_response::Response;
use mesh_types::{Digest, PeerId};

use super::wire::{self, timely};
use crate::Mesh;

/// Requests under way on a stream: the holder reads the next while the last travels.
const PIPELINE: usize = 3;

/// A holder that did not do its part.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name} {fault}")]
pub struct HolderError {
    /// Which.
    pub holder: PeerId,
    /// Its name, for people; its id where it has none.
    pub name: String,
    /// What went wrong.
    pub fault: HolderFault,
}

/// What can go wrong with a holder. Reads on from its name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HolderFault {
    /// Its bytes are not what was asked for by digest.
    #[error("sent bytes that do not match its manifest")]
    Mismatch,
    /// It said no.
    #[error("refused: {0}")]
    Refused(String),
    /// It cannot be reached, or the transfer broke.
    #[error("cannot be read from: {0}")]
    Broken(String),
}

/// An open stream to a holder.
pub(super) struct Holder {
    stream: Stream,
    digest: Digest,
    /// Chunks asked for, in order, of each request under way; none of them empty.
    asked: VecDeque<VecDeque<MissingChunk>>,
    /// Whether the answer to the first of them has begun.
    begun: bool,
}

impl Holder {
    /// Opens a stream to `peer`, about the source with digest `digest`.
    pub(super) async fn open(mesh: &Mesh, peer: &PeerId, digest: Digest) -> Result<Self, HolderFault> {
        let stream = mesh.links().open(peer, wire::PROTOCOL).await.map_err(broken)?;
        Ok(Self { stream, digest, asked: VecDeque::new(), begun: false })
    }

    /// Its manifest, checked against the digest.
    pub(super) async fn manifest(&mut self) -> Result<Manifest, HolderFault> {
        self.ask(Request::Manifest(v1::ManifestRequest { digest: self.digest.0.to_vec() })).await?;
        let Response::Manifest(wire) = self.answer().await? else { return Err(out_of_turn()) };
        let parse = move || Manifest::from_parts(&wire.header, &wire.tensor_chunks);
        match tokio::task::spawn_blocking(parse).await {
            Ok(Ok(manifest)) if manifest.digest() == self.digest => Ok(manifest),
            Ok(Ok(_)) => Err(HolderFault::Mismatch),
            Ok(Err(error)) => {
                tracing::debug!(%error, "a holder's manifest is unusable");
                Err(HolderFault::Mismatch)
            }
            Err(error) => Err(broken(error)),
        }
    }

    /// Whether it may be asked for more already.
    pub(super) fn has_room(&self) -> bool {
        self.asked.len() < PIPELINE
    }

    /// Whether all that it was asked for has come.
    pub(super) fn is_idle(&self) -> bool {
        self.asked.is_empty()
    }

    /// Asks for `batch`, about a chunk's bytes of chunks.
    pub(super) async fn request(&mut self, batch: VecDeque<MissingChunk>) -> Result<(), HolderFault> {
        if batch.is_empty() {
            return Ok(());
        }
        let spans = batch.iter().map(span).collect();
        self.asked.push_back(batch);
        self.ask(Request::Tensors(v1::TensorsRequest { digest: self.digest.0.to_vec(), spans })).await
    }

    /// The next chunk that was asked for, and its bytes, unverified; `None` when it is idle.
    pub(super) async fn receive(&mut self) -> Result<Option<(MissingChunk, Vec<u8>)>, HolderFault> {
        let Some(batch) = self.asked.front() else { return Ok(None) };
        if !self.begun {
            let expected: u64 = batch.iter().map(|job| job.len).sum();
            match self.answer().await? {
                Response::BodyBytes(bytes) if bytes == expected => self.begun = true,
                _ => return Err(out_of_turn()),
            }
        }
        let Some(job) = self.asked.front_mut().and_then(VecDeque::pop_front) else { return Ok(None) };
        if self.asked.front().is_some_and(VecDeque::is_empty) {
            self.asked.pop_front();
            self.begun = false;
        }
        let mut bytes = vec![0; job.len as usize];
        for piece in bytes.chunks_mut(256 << 10) {
            timely(wire::STALL, self.stream.read_exact(piece)).await.map_err(broken)?;
        }
        Ok(Some((job, bytes)))
    }

    async fn ask(&mut self, request: Request) -> Result<(), HolderFault> {
        wire::send(&mut self.stream, &v1::WeightsRequest { request: Some(request) }).await.map_err(broken)
    }

    async fn answer(&mut self) -> Result<Response, HolderFault> {
        let received = wire::receive::<v1::WeightsResponse>(&mut self.stream, wire::MAX_RESPONSE, wire::STALL).await;
        match received.map_err(broken)?.and_then(|message| message.response) {
            Some(Response::Refused(why)) => Err(HolderFault::Refused(why.chars().take(200).collect())),
            Some(response) => Ok(response),
            None => Err(HolderFault::Broken("it closed the stream".to_owned())),
        }
    }
}

fn span(job: &MissingChunk) -> v1::TensorSpan {
    v1::TensorSpan { tensor: job.tensor as u32, offset: job.chunk * CHUNK_BYTES, length: job.len }
}

fn broken(error: impl fmt::Display) -> HolderFault {
    HolderFault::Broken(error.to_string())
}

fn out_of_turn() -> HolderFault {
    HolderFault::Broken("it answered out of turn".to_owned())
}
