//! Streams to connected peers, and the word on who is connected.
//!
//! libp2p-stream drops an inbound stream when its acceptor is behind, and the dialler only notices when it reads. So
//! the acceptor of a stream says one byte first, and a stream on which that byte does not come is opened again.

use std::collections::HashMap;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::{AsyncReadExt as _, AsyncWriteExt as _};
use libp2p::{Stream, StreamProtocol};
use libp2p_stream::{Control, OpenStreamError};
use mesh_types::PeerId;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::identity;

const ACCEPTED: u8 = b'+';
/// How long opening a stream may take in all.
const OPEN_DEADLINE: Duration = Duration::from_secs(10);
/// How long one attempt may take before the stream counts as dropped.
const ATTEMPT_DEADLINE: Duration = Duration::from_secs(4);
const FIRST_PAUSE: Duration = Duration::from_millis(10);

/// Why a stream could not be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StreamError {
    /// No connection to the peer.
    #[error("{0} is not connected")]
    NotConnected(PeerId),
    /// The peer does not serve what was asked for.
    #[error("{peer} does not offer {protocol}")]
    Unsupported {
        /// The peer.
        peer: PeerId,
        /// The protocol.
        protocol: StreamProtocol,
    },
    /// It did not take the stream in time.
    #[error("{0} did not take a new stream in time")]
    Timeout(PeerId),
}

/// Opens streams. One a mesh.
pub(crate) struct Links {
    control: Control,
    present: Mutex<HashMap<PeerId, CancellationToken>>,
}

impl Links {
    pub(crate) fn new(control: Control) -> Self {
        Self { control, present: Mutex::default() }
    }

    /// Takes inbound streams of `protocol`; `None` where somebody does already.
    pub(crate) fn accept(&self, protocol: StreamProtocol) -> Option<libp2p_stream::IncomingStreams> {
        self.control.clone().accept(protocol).ok()
    }

    /// The first connection to `peer` stands. Returns its presence.
    pub(super) fn connected(&self, peer: &PeerId) -> CancellationToken {
        let presence = CancellationToken::new();
        if let Some(before) = self.lock().insert(peer.clone(), presence.clone()) {
            before.cancel();
        }
        presence
    }

    /// The last connection to `peer` is gone.
    pub(super) fn disconnected(&self, peer: &PeerId) {
        if let Some(presence) = self.lock().remove(peer) {
            presence.cancel();
        }
    }

    /// Cancelled when the last connection to `peer` closes; `None` where there is none.
    pub(crate) fn presence(&self, peer: &PeerId) -> Option<CancellationToken> {
        self.lock().get(peer).cloned()
    }

    /// Opens a stream to `peer` that its acceptor has taken.
    ///
    /// # Cancel safety
    /// May be dropped; a stream that was opened meanwhile is reset.
    pub(crate) async fn open(&self, peer: &PeerId, protocol: StreamProtocol) -> Result<Stream, StreamError> {
        let gone = || StreamError::NotConnected(peer.clone());
        let presence = self.presence(peer).ok_or_else(gone)?;
        let id = identity::to_libp2p(peer).ok_or_else(gone)?;
        tokio::select! {
            () = presence.cancelled() => Err(gone()),
            opened = self.open_until(id, protocol, Instant::now() + OPEN_DEADLINE) => match opened {
                Ok(stream) => Ok(stream),
                Err(Some(protocol)) => Err(StreamError::Unsupported { peer: peer.clone(), protocol }),
                Err(None) => Err(StreamError::Timeout(peer.clone())),
            },
        }
    }

    /// Tries until `deadline`.
    ///
    /// # Errors
    /// The protocol, where the peer does not speak it; `None` at the deadline.
    async fn open_until(
        &self,
        peer: libp2p::PeerId,
        protocol: StreamProtocol,
        deadline: Instant,
    ) -> Result<Stream, Option<StreamProtocol>> {
        let mut pause = FIRST_PAUSE;
        loop {
            let until = deadline.min(Instant::now() + ATTEMPT_DEADLINE);
            match tokio::time::timeout_at(until, self.attempt(peer, protocol.clone())).await {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(OpenStreamError::UnsupportedProtocol(protocol))) => return Err(Some(protocol)),
                Ok(Err(error)) => tracing::debug!(%peer, %protocol, %error, "a stream was not taken"),
                Err(_) => tracing::debug!(%peer, %protocol, "a stream was not taken in time"),
            }
            if tokio::time::timeout_at(deadline, tokio::time::sleep(pause)).await.is_err() {
                return Err(None);
            }
            pause *= 2;
        }
    }

    async fn attempt(&self, peer: libp2p::PeerId, protocol: StreamProtocol) -> Result<Stream, OpenStreamError> {
        let mut stream = self.control.clone().open_stream(peer, protocol).await?;
        let mut answer = [0];
        stream.read_exact(&mut answer).await?;
        if answer != [ACCEPTED] {
            return Err(io::Error::from(io::ErrorKind::InvalidData).into());
        }
        Ok(stream)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<PeerId, CancellationToken>> {
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tells the peer that its stream was taken: the acceptor's first act.
pub(crate) async fn take(stream: &mut Stream) -> io::Result<()> {
    stream.write_all(&[ACCEPTED]).await?;
    stream.flush().await
}
