//! The two halves of a QUIC stream as message pipes.

use std::time::Duration;

use mesh_engine::codec::{self, Limits, Message, ReadError};
use mesh_engine::{Frame, StageError};
use quinn::{Connection, ConnectionError, RecvStream, SendStream, VarInt, WriteError};

use crate::wire::{Control, WireHop};

/// A stream was thrown away: its link was dropped, replaced or has failed.
const CANCELLED: VarInt = VarInt::from_u32(1);

/// The sending half. Dropping it before [`Self::finish`] resets the stream, so that the other side never takes half a
/// stream for a whole one.
#[derive(Debug)]
pub(crate) struct Sending {
    stream: SendStream,
    finished: bool,
}

impl Sending {
    /// Hands a message to the connection; rows are not copied.
    pub(crate) async fn send(&mut self, message: Message<Control>) -> Result<(), WriteError> {
        let mut chunks = codec::encode_owned(message, 0).map_err(|error| {
            tracing::error!(%error, "a frame cannot be encoded");
            WriteError::ClosedStream
        })?;
        self.stream.write_all_chunks(&mut chunks).await
    }

    pub(crate) async fn frame(&mut self, frame: Frame) -> Result<(), WriteError> {
        self.send(Message::Frame(frame)).await
    }

    /// Says how the stream ends, and that it does.
    pub(crate) async fn finish(mut self, end: Result<(), StageError>) -> Result<(), WriteError> {
        self.send(Message::End(end)).await?;
        self.stream.finish()?;
        self.finished = true;
        Ok(())
    }

    /// Whatever bytes a hostile peer may send.
    #[cfg(test)]
    pub(crate) async fn raw(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
    }

    /// Resolves when the other side no longer reads. Not tied to the borrow of the stream.
    pub(crate) fn stopped(&self) -> impl Future<Output = ()> + Send + Sync + use<> {
        let stopped = self.stream.stopped();
        async move {
            match stopped.await {
                Ok(Some(_)) | Err(_) => {}
                // All was sent and received: nothing can stop it any more.
                Ok(None) => std::future::pending().await,
            }
        }
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        if !self.finished {
            // Fails only where the stream is over already.
            let _ = self.stream.reset(CANCELLED);
        }
    }
}

/// The receiving half. Dropping it tells the other side to stop.
#[derive(Debug)]
pub(crate) struct Receiving(RecvStream);

/// Why nothing more comes from a stream.
#[derive(Debug)]
pub(crate) enum Broken {
    /// The other side threw the stream away.
    Cancelled,
    /// What came breaks the protocol.
    Invalid(String),
    /// The connection is lost.
    Lost(String),
}

impl Broken {
    /// As the end of a link whose stream from `hop` broke.
    pub(crate) fn into_error(self, hop: &WireHop) -> StageError {
        match self {
            Self::Cancelled => hop.lost("it gave the link up"),
            Self::Invalid(what) => StageError::InvalidFrame(format!("from {}: {what}", hop.name)),
            Self::Lost(reason) => hop.lost(reason),
        }
    }
}

impl Receiving {
    /// The next message. May not be dropped and called again.
    pub(crate) async fn next(&mut self, limits: Limits) -> Result<Message<Control>, Broken> {
        match codec::read(&mut self.0, limits).await {
            Ok(Some((_, message))) => Ok(message),
            // A stream that is meant to end says so first.
            Ok(None) => Err(Broken::Cancelled),
            Err(ReadError::Invalid(what)) => Err(Broken::Invalid(what)),
            Err(ReadError::Io(error)) => match error.get_ref().and_then(|inner| inner.downcast_ref()) {
                Some(quinn::ReadError::ConnectionLost(error)) => Err(Broken::Lost(describe(error))),
                _ => Err(Broken::Cancelled),
            },
        }
    }

    /// Resolves when the other side has thrown the stream away, however much of it is unread. May be dropped.
    pub(crate) async fn cancelled(&mut self) -> Broken {
        match self.0.received_reset().await {
            Ok(Some(_)) => Broken::Cancelled,
            Ok(None) => std::future::pending().await,
            Err(quinn::ResetError::ConnectionLost(error)) => Broken::Lost(describe(&error)),
            Err(_) => Broken::Cancelled,
        }
    }
}

/// Opens a stream and says what it is for.
pub(crate) async fn open(connection: &Connection, first: Control) -> Result<(Sending, Receiving), String> {
    let (send, recv) = connection.open_bi().await.map_err(|error| describe(&error))?;
    let (mut send, recv) = both(send, recv);
    send.send(Message::Control(first)).await.map_err(|error| error.to_string())?;
    Ok((send, recv))
}

pub(crate) fn both(send: SendStream, recv: RecvStream) -> (Sending, Receiving) {
    (Sending { stream: send, finished: false }, Receiving(recv))
}

/// How a connection ended, for people.
pub(crate) fn describe(error: &ConnectionError) -> String {
    match error {
        ConnectionError::TimedOut => "it has not answered for 5 s".to_owned(),
        ConnectionError::ApplicationClosed(close) if !close.reason.is_empty() => {
            let reason: String = String::from_utf8_lossy(&close.reason).chars().take(200).collect();
            format!("it closed the connection: {reason}")
        }
        ConnectionError::ApplicationClosed(_) => "it closed the connection".to_owned(),
        ConnectionError::Reset => "it was restarted".to_owned(),
        ConnectionError::LocallyClosed => "its connection was given up here".to_owned(),
        other => other.to_string(),
    }
}

/// How long a failed link may take to tell its other ends why.
pub(crate) const LINGER: Duration = Duration::from_secs(1);
