//! Framing of the weights stream: messages with a varint length before them, bounded before anything is allocated.

use std::io;
use std::time::Duration;

use futures::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use libp2p::StreamProtocol;
use prost::Message;

pub(super) const PROTOCOL: StreamProtocol = StreamProtocol::new("/mesh-node/weights/1");
/// Room for thousands of spans.
pub(super) const MAX_REQUEST: usize = 1 << 20;
/// Room for the header of a model with a large vocabulary, and the digests of a terabyte.
pub(super) const MAX_RESPONSE: usize = 256 << 20;
/// Bytes that one request may ask for.
pub(super) const MAX_BODY: u64 = 64 << 20;
/// A transfer in which nothing moves for so long is given up.
pub(super) const STALL: Duration = Duration::from_secs(30);

/// Reads one message; `None` where the stream ends before it.
///
/// # Errors
/// Where the stream breaks, stalls for longer than `wait`, or carries no such message.
pub(super) async fn receive<M: Message + Default>(
    io: &mut (impl AsyncRead + Unpin),
    limit: usize,
    wait: Duration,
) -> io::Result<Option<M>> {
    let Some(length) = timely(wait, receive_length(io)).await? else { return Ok(None) };
    if length > limit {
        return Err(invalid("a message that is too long"));
    }
    // Grows with what arrives: a length alone reserves nothing.
    let mut bytes = Vec::new();
    while bytes.len() < length {
        let at = bytes.len();
        bytes.resize(length.min(at + (1 << 20)), 0);
        timely(wait, io.read_exact(&mut bytes[at..])).await?;
    }
    M::decode(bytes.as_slice()).map(Some).map_err(|_| invalid("a malformed message"))
}

/// Writes one message, and lets it go out.
pub(super) async fn send(io: &mut (impl AsyncWrite + Unpin), message: &impl Message) -> io::Result<()> {
    let bytes = message.encode_length_delimited_to_vec();
    for piece in bytes.chunks(1 << 20) {
        timely(STALL, io.write_all(piece)).await?;
    }
    timely(STALL, io.flush()).await
}

/// `work`, unless it takes longer than `wait`.
pub(super) async fn timely<T>(wait: Duration, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let stalled = || io::Error::new(io::ErrorKind::TimedOut, "the transfer stalled");
    tokio::time::timeout(wait, work).await.map_err(|_| stalled())?
}

async fn receive_length(io: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<usize>> {
    let mut length = 0u64;
    for shift in [0, 7, 14, 21, 28] {
        let mut byte = [0];
        if io.read(&mut byte).await? == 0 {
            return if shift == 0 { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
        }
        length |= u64::from(byte[0] & 0x7f) << shift;
        if byte[0] & 0x80 == 0 {
            return usize::try_from(length).map(Some).map_err(|_| invalid("a message that is too long"));
        }
    }
    Err(invalid("a message that is too long"))
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use futures::io::Cursor;
    use mesh_proto::v1;

    use super::*;

    #[tokio::test]
    async fn messages_survive_and_are_bounded() {
        let message = v1::ManifestRequest { digest: vec![7; 300] };
        let mut wire = Cursor::new(Vec::new());
        send(&mut wire, &message).await.unwrap();
        send(&mut wire, &message).await.unwrap();
        wire.set_position(0);
        for _ in 0..2 {
            assert_eq!(receive(&mut wire, 400, STALL).await.unwrap(), Some(message.clone()));
        }
        assert_eq!(receive::<v1::ManifestRequest>(&mut wire, 400, STALL).await.unwrap(), None);
        wire.set_position(0);
        let error = receive::<v1::ManifestRequest>(&mut wire, 100, STALL).await.unwrap_err();
        assert_eq!(error.to_string(), "a message that is too long");
        let mut endless = Cursor::new(vec![0xff; 10]);
        assert!(receive::<v1::ManifestRequest>(&mut endless, 100, STALL).await.is_err());
        let mut cut = Cursor::new(vec![5, 0]);
        let error = receive::<v1::ManifestRequest>(&mut cut, 100, STALL).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
