//! Ranges of files, copied the cheapest way that the file system offers: blocks shared where both ends are aligned, else
//! inside the kernel, else through a small buffer; holes stay holes.

use std::fs::File;
use std::io;

/// What file systems that share blocks between files share; a multiple of smaller blocks.
pub(crate) const BLOCK_BYTES: u64 = 4096;
/// Bytes copied at a time where the kernel cannot do it.
const BUFFER: usize = 256 << 10;

/// Copies `len` bytes from `from` at `from_offset` to `to` at `to_offset`, where `to` has a hole.
///
/// # Errors
/// Where the source ends early, or reading or writing fails.
pub(crate) fn copy(from: &File, from_offset: u64, to: &File, to_offset: u64, len: u64) -> io::Result<()> {
    let mut done = 0;
    while let Some((start, end)) = next_data(from, from_offset + done, from_offset + len) {
        let at = to_offset + (start - from_offset);
        let (head, body) = shareable(start, at, end - start);
        copy_by_hand(from, start, to, at, head)?;
        let copied = head + copy_in_kernel(from, start + head, to, at + head, body)?;
        copy_by_hand(from, start + copied, to, at + copied, end - start - copied)?;
        done = end - from_offset;
    }
    Ok(())
}

/// Whether `file` has a hole from `offset` to `offset + len`: zeros that nobody wrote. `false` where that is not known.
pub(crate) fn is_hole(file: &File, offset: u64, len: u64) -> bool {
    next_data(file, offset, offset + len).is_none()
}

/// Makes zeros of a range that lies within `file`, a hole if possible.
pub(crate) fn clear(file: &File, offset: u64, len: u64) -> io::Result<()> {
    if punch(file, offset, len) {
        return Ok(());
    }
    let zeros = vec![0; BUFFER.min(len as usize)];
    let mut done = 0;
    while done < len {
        let n = (zeros.len() as u64).min(len - done);
        write_all_at(file, &zeros[..n as usize], offset + done)?;
        done += n;
    }
    Ok(())
}

/// Bytes before the first block that both ends can share, and bytes of whole blocks from there on. Where the ends lie
/// differently in their blocks, nothing can be shared, and all of it goes together.
fn shareable(from: u64, to: u64, len: u64) -> (u64, u64) {
    if from % BLOCK_BYTES != to % BLOCK_BYTES {
        return (0, len);
    }
    let head = (from.next_multiple_of(BLOCK_BYTES) - from).min(len);
    (head, (len - head) / BLOCK_BYTES * BLOCK_BYTES)
}

fn copy_by_hand(from: &File, from_offset: u64, to: &File, to_offset: u64, len: u64) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER.min(len as usize)];
    let mut done = 0;
    while done < len {
        let n = (buffer.len() as u64).min(len - done) as usize;
        read_exact_at(from, &mut buffer[..n], from_offset + done)?;
        write_all_at(to, &buffer[..n], to_offset + done)?;
        done += n as u64;
    }
    Ok(())
}

/// The first range of data between `start` and `end`; all of it where the file system does not say.
#[cfg(target_os = "linux")]
fn next_data(file: &File, start: u64, end: u64) -> Option<(u64, u64)> {
    use rustix::fs::{SeekFrom, seek};
    use rustix::io::Errno;

    if start >= end {
        return None;
    }
    // The file's position moves; all reading and writing here names its own.
    match seek(file, SeekFrom::Data(start)) {
        Ok(data) if data >= end => None,
        Ok(data) => {
            let hole = seek(file, SeekFrom::Hole(data)).unwrap_or(end);
            Some((data, hole.min(end)))
        }
        // A hole up to the end of the file, which has to reach as far as the range.
        Err(Errno::NXIO) if file.metadata().is_ok_and(|meta| meta.len() >= end) => None,
        Err(_) => Some((start, end)),
    }
}

/// How many bytes the kernel copied by itself: all, or those before the first that it could not.
#[cfg(target_os = "linux")]
fn copy_in_kernel(from: &File, from_offset: u64, to: &File, to_offset: u64, len: u64) -> io::Result<u64> {
    use rustix::io::Errno;

    let mut done = 0;
    while done < len {
        let (mut start, mut at) = (from_offset + done, to_offset + done);
        let wanted = usize::try_from(len - done).unwrap_or(1 << 30).min(1 << 30);
        match rustix::fs::copy_file_range(from, Some(&mut start), to, Some(&mut at), wanted) {
            Ok(0) => break,
            Ok(n) => done += n as u64,
            Err(Errno::INTR) => {}
            Err(error @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG)) => return Err(error.into()),
            // Other file systems, old kernels: reading and writing says what is really wrong, if anything is.
            Err(_) => break,
        }
    }
    Ok(done)
}

#[cfg(target_os = "linux")]
fn punch(file: &File, offset: u64, len: u64) -> bool {
    use rustix::fs::FallocateFlags;
    rustix::fs::fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, len).is_ok()
}

#[cfg(not(target_os = "linux"))]
fn next_data(_: &File, start: u64, end: u64) -> Option<(u64, u64)> {
    (start < end).then_some((start, end))
}

#[cfg(not(target_os = "linux"))]
fn copy_in_kernel(_: &File, _: u64, _: &File, _: u64, _: u64) -> io::Result<u64> {
    Ok(0)
}

#[cfg(not(target_os = "linux"))]
fn punch(_: &File, _: u64, _: u64) -> bool {
    false
}

/// Bytes that `meta`'s file takes on the disk: less than its length where it has holes.
#[cfg(unix)]
pub fn allocated_bytes(meta: &std::fs::Metadata) -> u64 {
    use std::os::unix::fs::MetadataExt;
    meta.blocks() * 512
}

#[cfg(not(unix))]
pub fn allocated_bytes(meta: &std::fs::Metadata) -> u64 {
    meta.len()
}

#[cfg(unix)]
pub(crate) fn read_exact_at(file: &File, out: &mut [u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, out, offset)
}

#[cfg(unix)]
pub(crate) fn write_all_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, offset)
}

#[cfg(windows)]
pub(crate) fn read_exact_at(file: &File, mut out: &mut [u8], mut offset: u64) -> io::Result<()> {
    use std::os::windows::fs::FileExt;
    while !out.is_empty() {
        match file.seek_read(out, offset)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => {
                out = &mut out[n..];
                offset += n as u64;
            }
        }
    }
    Ok(())
}

#[cfg(windows)]
pub(crate) fn write_all_at(file: &File, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
    use std::os::windows::fs::FileExt;
    while !bytes.is_empty() {
        match file.seek_write(bytes, offset)? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            n => {
                bytes = &bytes[n..];
                offset += n as u64;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(file: &File, offset: u64, len: usize) -> Vec<u8> {
        let mut out = vec![1; len];
        read_exact_at(file, &mut out, offset).unwrap();
        out
    }

    /// Data, 1 MiB of hole, data; and the bytes of all of it.
    fn holed() -> (File, Vec<u8>) {
        let file = tempfile::tempfile().unwrap();
        file.set_len(2 << 20).unwrap();
        let data: Vec<u8> = (0..100_000u32).map(|i| (i % 251) as u8 | 1).collect();
        write_all_at(&file, &data, 0).unwrap();
        write_all_at(&file, &data, (2 << 20) - 100_000).unwrap();
        let bytes = read(&file, 0, 2 << 20);
        (file, bytes)
    }

    #[test]
    fn ranges_arrive_wherever_they_begin() {
        let (from, bytes) = holed();
        for (offset, at, len) in
            [(0, 0, 2 << 20), (4096, 8192, 1 << 20), (7, 4099, 1_900_001), (150_000, 3, 10), (0, 0, 0)]
        {
            let to = tempfile::tempfile().unwrap();
            to.set_len(at + len).unwrap();
            copy(&from, offset, &to, at, len).unwrap();
            let expected = &bytes[offset as usize..(offset + len) as usize];
            assert!(read(&to, at, len as usize) == expected, "{offset} {at} {len}");
            copy_by_hand(&from, offset, &to, at, len).unwrap();
            assert!(read(&to, at, len as usize) == expected, "by hand: {offset} {at} {len}");
        }
    }

    #[test]
    fn whole_blocks_are_shared() {
        assert_eq!(shareable(0, 4096, 10_000), (0, 8192));
        assert_eq!(shareable(96, 4192, 10_000), (4000, 4096));
        assert_eq!(shareable(96, 4192, 100), (100, 0));
        assert_eq!(shareable(96, 97, 10_000), (0, 10_000));
    }

    #[test]
    fn a_source_that_ends_early_is_an_error() {
        let (from, _) = holed();
        let to = tempfile::tempfile().unwrap();
        to.set_len(4 << 20).unwrap();
        let error = copy(&from, (2 << 20) - 10, &to, 0, 11).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn what_is_cleared_is_zeros() {
        let (file, _) = holed();
        clear(&file, 50, 90_000).unwrap();
        assert!(read(&file, 50, 90_000).iter().all(|byte| *byte == 0));
        assert_eq!(read(&file, 49, 1), [49]);
        assert_ne!(read(&file, 90_050, 1), [0]);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn holes_are_seen_and_kept() {
        let (from, _) = holed();
        assert!(is_hole(&from, 400_000, 500_000));
        assert!(!is_hole(&from, 0, 10) && !is_hole(&from, 400_000, 2_000_000));
        // Up to the end of the file, but not past it.
        from.set_len(3 << 20).unwrap();
        assert!(is_hole(&from, 5 << 19, 1 << 19) && !is_hole(&from, 5 << 19, (1 << 19) + 1));
        let to = tempfile::tempfile().unwrap();
        to.set_len(2 << 20).unwrap();
        copy(&from, 0, &to, 0, 2 << 20).unwrap();
        let taken = allocated_bytes(&to.metadata().unwrap());
        assert!(taken < 1 << 20, "{taken}");
    }
}
