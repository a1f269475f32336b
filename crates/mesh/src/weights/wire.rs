//! Framing of the weights stream: messages with a varint length before them, bounded before anything is allocated.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use futures::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use libp2p::StreamProtocol;
use mesh_gguf::Manifest;
use mesh_gguf::header::MAX_HEADER_BYTES;
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};

pub(super) const PROTOCOL: StreamProtocol = StreamProtocol::new("/mesh-node/weights/1");
/// Room for thousands of spans.
pub(super) const MAX_REQUEST: usize = 1 << 20;
/// Room for the largest header, and the digests of four terabytes.
pub(super) const MAX_RESPONSE: usize = MAX_HEADER_BYTES as usize + (16 << 20);
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
    // Fields of bytes share the message's memory.
    M::decode(Bytes::from(bytes)).map(Some).map_err(|_| invalid("a malformed message"))
}

/// Writes one message, and lets it go out.
pub(super) async fn send(io: &mut (impl AsyncWrite + Unpin), message: &impl Message) -> io::Result<()> {
    send_bytes(io, &message.encode_length_delimited_to_vec()).await
}

/// Writes bytes, and lets them go out.
pub(super) async fn send_bytes(io: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> io::Result<()> {
    for piece in bytes.chunks(1 << 20) {
        timely(STALL, io.write_all(piece)).await?;
    }
    timely(STALL, io.flush()).await
}

/// The message that answers with `manifest`, its length before it: [`v1::WeightsResponse`], without a second copy of
/// what may be tens of megabytes.
pub(super) fn manifest_message(manifest: &Manifest) -> Vec<u8> {
    let header_len = manifest.header().data_offset();
    let chunks = || manifest.chunks().map(|digests| 32 * digests.len());
    let field = |tag, len: usize| key_len(tag) + encoded_len_varint(len as u64) + len;
    let inner = field(1, header_len as usize) + chunks().map(|len| field(2, len)).sum::<usize>();
    let mut out = Vec::with_capacity(field(1, inner) + 10);
    encode_varint(field(1, inner) as u64, &mut out);
    encode_key(1, WireType::LengthDelimited, &mut out);
    encode_varint(inner as u64, &mut out);
    encode_key(1, WireType::LengthDelimited, &mut out);
    encode_varint(header_len, &mut out);
    // Memory takes all that is written to it.
    let _ = manifest.header().write_to(&mut out);
    for digests in manifest.chunks() {
        encode_key(2, WireType::LengthDelimited, &mut out);
        encode_varint(32 * digests.len() as u64, &mut out);
        digests.iter().for_each(|digest| out.extend(digest.0));
    }
    out
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
    use mesh_gguf::{GgmlType, Header, Metadata, Source, TensorInfo, Value};
    use mesh_proto::v1;

    use super::*;

    #[test]
    fn a_manifest_is_written_as_its_message() {
        let dir = tempfile::tempdir().unwrap();
        let metadata = (0..300).fold(Metadata::default(), |mut metadata, number| {
            metadata.set(&format!("key.{number}"), Value::U32(number));
            metadata
        });
        let tensor = |name, values| TensorInfo::new(name, &[values], GgmlType::F32).unwrap();
        let header = Header::build(metadata, vec![tensor("a", 3), tensor("b", 3 << 20)]).unwrap();
        let path = dir.path().join("m.gguf");
        let mut bytes = header.to_bytes();
        bytes.resize((header.data_offset() + header.data_len()) as usize, 1);
        std::fs::write(&path, bytes).unwrap();
        let source = Source::open(&path).unwrap();
        let manifest = Manifest::compute(&source, &mut |_| std::ops::ControlFlow::Continue(())).unwrap();
        let digests = |digests: &[mesh_types::Digest]| digests.iter().flat_map(|digest| digest.0).collect::<Vec<_>>();
        let wire = v1::Manifest {
            header: header.to_bytes().into(),
            tensor_chunks: manifest.chunks().map(|chunks| Bytes::from(digests(chunks))).collect(),
        };
        let response = v1::weights_response::Response::Manifest(wire);
        let expected = v1::WeightsResponse { response: Some(response) }.encode_length_delimited_to_vec();
        assert_eq!(manifest_message(&manifest), expected);
    }

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
