//! Request bodies that come packed (`Content-Encoding`): gzip, deflate, br and zstd, up to the size that a plain one
//! may have.

use std::io::{self, Read};

use bytes::Bytes;
use flate2::read::{DeflateDecoder, MultiGzDecoder, ZlibDecoder};
use http::header::{self, HeaderMap};
use mesh_openai::ApiError;
use mesh_types::{ErrorClass, Fault};
use ruzstd::decoding::StreamingDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Packing {
    Plain,
    Gzip,
    Deflate,
    Brotli,
    Zstd,
}

/// What each is called in the header.
const NAMES: [(&str, Packing); 6] = [
    ("identity", Packing::Plain),
    ("gzip", Packing::Gzip),
    ("x-gzip", Packing::Gzip),
    ("deflate", Packing::Deflate),
    ("br", Packing::Brotli),
    ("zstd", Packing::Zstd),
];
/// How far back zstd may refer: what its format asks every reader to hold (RFC 8878, 3.1.1.1.2), and no more.
const ZSTD_WINDOW: u64 = 8 << 20;
/// How much of a body brotli reads at a time.
const BROTLI_BUFFER: usize = 4096;

/// The body in `packed` as `headers` say that it is packed, of at most `limit` bytes.
///
/// # Errors
/// 413 for what unpacks to more, 415 for an encoding that is not served, 400 for bytes that are not what they say.
///
/// # Cancel safety
/// May be dropped; the work ends by itself.
pub(crate) async fn unpack(headers: &HeaderMap, packed: Bytes, limit: usize) -> Result<Bytes, ApiError> {
    let packing = match headers.get(header::CONTENT_ENCODING).map(|value| value.to_str().unwrap_or("?")) {
        None | Some("") => Packing::Plain,
        Some(name) => {
            let known = NAMES.iter().find(|known| known.0.eq_ignore_ascii_case(name));
            known.ok_or_else(|| ApiError::unsupported_encoding(name))?.1
        }
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
        Packing::Brotli => read(brotli_decompressor::Decompressor::new(packed, BROTLI_BUFFER), limit),
        Packing::Zstd => zstd(packed, limit),
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

/// All frames of `packed`, or one byte more than `limit`.
fn zstd(mut packed: &[u8], limit: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    while !packed.is_empty() && bytes.len() <= limit {
        let left = (limit - bytes.len()) as u64 + 1;
        match StreamingDecoder::new_with_max_window_size(&mut packed, ZSTD_WINDOW) {
            Ok(frame) => drop(frame.take(left).read_to_end(&mut bytes)?),
            Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                packed = packed.get(length as usize..).ok_or(io::ErrorKind::UnexpectedEof)?;
            }
            Err(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error.to_string())),
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::Compression;
    use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};

    use super::*;

    /// "word " a thousand times, as Node.js and the program `zstd` pack it.
    const BROTLI: &[u8] = b"\x1b\x87\x13\xf8\x8d\x54\xb5\xbf\x7c\x93\xbb\x2b\x10\xb2\x78\x2d\x0a\xe8\x59\x00\x58\x01";
    const ZSTD: &[u8] = b"\x28\xb5\x2f\xfd\x04\x58\x6d\x00\x00\x28\x77\x6f\x72\
        \x64\x20\x01\x00\x80\x83\xbe\x68\x01\x3a\x89\x15\x21";

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
            (Packing::Brotli, BROTLI.to_vec()),
            (Packing::Zstd, ZSTD.to_vec()),
        ];
        for (packing, bytes) in packed {
            assert_eq!(unpacked(packing, &bytes, text.len()).unwrap(), text);
            assert_eq!(unpacked(packing, &bytes, text.len() - 1).unwrap_err().status, 413);
            assert_eq!(unpacked(packing, &bytes[..bytes.len() / 2], text.len()).unwrap_err().status, 400);
            assert_eq!(unpacked(packing, b"hello", 9).unwrap_err().status, 400);
        }
    }

    fn bytes(hex: &str) -> Vec<u8> {
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
    }

    #[test]
    fn zstd_comes_in_frames_and_says_how_much_it_wants() {
        let mut two = ZSTD.to_vec();
        // A frame to be skipped, of three bytes, and the first once more.
        two.extend(bytes("502a4d1803000000aabbcc"));
        two.extend(ZSTD);
        assert_eq!(unpacked(Packing::Zstd, &two, 10_000).unwrap(), "word ".repeat(2000));
        assert_eq!(unpacked(Packing::Zstd, &two, 9_999).unwrap_err().status, 413);
        // A skipped frame that is longer than the body, and a window of 2 GiB, are refused before anything is held.
        for bad in ["502a4d18ffffffff", "28b52ffd00a8010000"] {
            assert_eq!(unpacked(Packing::Zstd, &bytes(bad), 100).unwrap_err().status, 400, "{bad}");
        }
    }
}
