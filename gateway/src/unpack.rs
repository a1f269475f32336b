//! Request bodies that come packed (`Content-Encoding`): gzip and deflate, up to the size that a plain one may have.

use std::io::{self, Read};

use bytes::Bytes;
use flate2::read::{DeflateDecoder, MultiGzDecoder, ZlibDecoder};
use http::header::{self, HeaderMap};
use mesh_openai::ApiError;
use mesh_types::{ErrorClass, Fault};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Packing {
    Plain,
    Gzip,
    Deflate,
}

/// The body in `packed` as `headers` say that it is packed, of at most `limit` bytes.
///
/// # Errors
/// 413 for what unpacks to more, 415 for an encoding that is not served, 400 for bytes that are not what they say.
///
/// # Cancel safety
/// May be dropped; the work ends by itself.
pub(crate) async fn unpack(headers: &HeaderMap, packed: Bytes, limit: usize) -> Result<Bytes, ApiError> {
    let packing = match headers.get(header::CONTENT_ENCODING).map(|value| value.to_str().unwrap_or("?")) {
        None => Packing::Plain,
        Some(name) if name.eq_ignore_ascii_case("identity") || name.is_empty() => Packing::Plain,
        Some(name) if name.eq_ignore_ascii_case("gzip") || name.eq_ignore_ascii_case("x-gzip") => Packing::Gzip,
        Some(name) if name.eq_ignore_ascii_case("deflate") => Packing::Deflate,
        Some(name) => return Err(ApiError::unsupported_encoding(name)),
    };
    if packing == Packing::Plain {
        return Ok(packed);
    }
    let unpacking = tokio::task::spawn_blocking(move || unpacked(packing, &packed, limit));
    let failed = |_| Err(Fault::new(ErrorClass::Internal, "The body could not be unpacked.").into());
    unpacking.await.unwrap_or_else(failed)
}

fn unpacked(packing: Packing, packed: &[u8], limit: usize) -> Result<Bytes, ApiError> {
    let read = match packing {
        Packing::Plain => return Ok(Bytes::copy_from_slice(packed)),
        Packing::Gzip => read(MultiGzDecoder::new(packed), limit),
        // The standard means zlib's format by `deflate`; some clients send the bare one.
        Packing::Deflate if packed.first().is_some_and(|byte| byte & 0x0f == 8) => {
            read(ZlibDecoder::new(packed), limit).or_else(|_| read(DeflateDecoder::new(packed), limit))
        }
        Packing::Deflate => read(DeflateDecoder::new(packed), limit),
    };
    match read {
        Ok(bytes) if bytes.len() > limit => Err(ApiError::too_large(limit)),
        Ok(bytes) => Ok(bytes.into()),
        Err(_) => Err(Fault::invalid("The body is not packed as its Content-Encoding says.").into()),
    }
}

/// All of `source`, or one byte more than `limit`.
fn read(source: impl Read, limit: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    source.take(limit as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::Compression;
    use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};

    use super::*;

    #[test]
    fn every_packing_is_undone_and_bounded() {
        let text = "word ".repeat(1000);
        let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
        let mut zlib = ZlibEncoder::new(Vec::new(), Compression::default());
        let mut bare = DeflateEncoder::new(Vec::new(), Compression::default());
        gzip.write_all(text.as_bytes()).unwrap();
        zlib.write_all(text.as_bytes()).unwrap();
        bare.write_all(text.as_bytes()).unwrap();
        let packed = [
            (Packing::Gzip, gzip.finish().unwrap()),
            (Packing::Deflate, zlib.finish().unwrap()),
            (Packing::Deflate, bare.finish().unwrap()),
        ];
        for (packing, bytes) in packed {
            assert_eq!(unpacked(packing, &bytes, text.len()).unwrap(), text);
            assert_eq!(unpacked(packing, &bytes, text.len() - 1).unwrap_err().status, 413);
            assert_eq!(unpacked(packing, &bytes[..bytes.len() / 2], text.len()).unwrap_err().status, 400);
            assert_eq!(unpacked(packing, b"hello", 9).unwrap_err().status, 400);
        }
    }
}
