//! A GGUF on disk, in one file or in shards, as one logical model: one header, and a place for every tensor.

use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::copy::{self, read_exact_at};
use crate::error::Error;
use crate::header::{Header, TensorInfo};

/// A model on disk. Its files stay open, so that what is read later is what was checked.
#[derive(Debug)]
pub struct Source {
    files: Vec<SourceFile>,
    header: Header,
    places: Vec<Place>,
}

/// One file of a source.
#[derive(Debug)]
pub struct SourceFile {
    path: PathBuf,
    file: File,
    len: u64,
    modified: SystemTime,
}

/// Where a tensor's bytes begin.
#[derive(Clone, Copy, Debug)]
struct Place {
    file: usize,
    offset: u64,
}

impl SourceFile {
    /// Its path, as it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its length in bytes when it was opened.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it held nothing; never so for an opened source.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// When it was last changed before it was opened.
    pub fn modified(&self) -> SystemTime {
        self.modified
    }

    fn open(path: &Path) -> Result<(Self, Header), Error> {
        let io = |error| Error::io("open", path, error);
        // Before it is opened: opening a pipe would wait for a writer.
        if !std::fs::metadata(path).map_err(io)?.is_file() {
            return Err(io(io::Error::other("it is no regular file")));
        }
        let file = File::open(path).map_err(io)?;
        let meta = file.metadata().map_err(io)?;
        let len = meta.len();
        let header = Header::read_file(BufReader::with_capacity(1 << 16, &file), len)
            .map_err(|why| Error::File { path: path.to_owned(), why })?;
        let modified = meta.modified().map_err(io)?;
        Ok((Self { path: path.to_owned(), file, len, modified }, header))
    }

    /// Whether the open file still has the length and time of change that it had.
    fn unchanged(&self) -> bool {
        let meta = self.file.metadata();
        meta.is_ok_and(|meta| meta.len() == self.len && meta.modified().is_ok_and(|time| time == self.modified))
    }
}

impl Source {
    /// Opens the model at `path`; for a sharded one (`…-00001-of-00003.gguf`) the first file, the others lie beside it.
    ///
    /// # Errors
    /// Where a file cannot be read or is no sound GGUF, or the shards do not fit together.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let (first, header) = SourceFile::open(path)?;
        let count = split_key(&header, "split.count", path)?.unwrap_or(1).max(1);
        let number = split_key(&header, "split.no", path)?.unwrap_or(0);
        if number != 0 {
            return Err(Error::NotFirstShard { path: path.to_owned(), number: number + 1, count });
        }
        let promised = split_key(&header, "split.tensors.count", path)?;
        let mut places = places(&header, 0);
        let (metadata, mut tensors) = header.into_parts();
        let mut files = vec![first];
        for index in 1..count {
            let (file, shard) = open_shard(path, index, count)?;
            places.extend(self::places(&shard, files.len()));
            tensors.extend(shard.into_parts().1);
            files.push(file);
        }
        if let Some(promised) = promised
            && count > 1
            && promised != tensors.len() as u64
        {
            let why = format!("the shards hold {} tensors where {promised} are promised", tensors.len());
            return Err(Error::Shards { path: path.to_owned(), why });
        }
        let header = Header::build(metadata, tensors)
            .and_then(Header::into_canonical)
            .map_err(|why| Error::File { path: path.to_owned(), why })?;
        Ok(Self { files, header, places })
    }

    /// The logical model's header: the canonical one ([`Header::canonical`]), whose offsets are not those of the files.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The files, in the order of the shards.
    pub fn files(&self) -> &[SourceFile] {
        &self.files
    }

    /// The path it was opened by: its first file's.
    pub fn path(&self) -> &Path {
        self.files.first().map_or(Path::new(""), |file| file.path.as_path())
    }

    /// The file that holds tensor number `tensor` of the header, and the absolute offset of its bytes in it.
    pub fn place(&self, tensor: usize) -> Option<(&Path, u64)> {
        let place = self.places.get(tensor)?;
        self.files.get(place.file).map(|file| (file.path.as_path(), place.offset))
    }

    /// Fills `out` with the bytes of tensor number `tensor` from `offset` on. May be called from several threads.
    ///
    /// # Errors
    /// Where the tensor does not have these bytes, or reading fails.
    pub fn read(&self, tensor: usize, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        let (file, start) = self.span(tensor, offset, out.len() as u64)?;
        read_exact_at(&file.file, out, start).map_err(|error| Error::io("read", &file.path, error))
    }

    /// Whether these bytes of a tensor are a hole in its file, zeros that nobody wrote. `false` where that is not known.
    pub(crate) fn is_hole(&self, tensor: usize, offset: u64, len: u64) -> bool {
        self.span(tensor, offset, len).is_ok_and(|(file, start)| copy::is_hole(&file.file, start, len))
    }

    /// Copies bytes of a tensor to `to` at `at`, where `to` has a hole.
    pub(crate) fn copy(&self, tensor: usize, offset: u64, len: u64, to: (&File, u64)) -> Result<(), Error> {
        let (file, start) = self.span(tensor, offset, len)?;
        copy::copy(&file.file, start, to.0, to.1, len).map_err(|error| Error::io("copy", &file.path, error))
    }

    /// The file that has these bytes of a tensor, and where.
    fn span(&self, tensor: usize, offset: u64, len: u64) -> Result<(&SourceFile, u64), Error> {
        let info = self.header.tensors().get(tensor);
        let place = self.places.get(tensor).and_then(|place| Some((self.files.get(place.file)?, place.offset)));
        let (Some(info), Some((file, start))) = (info, place) else {
            return Err(Error::io("read", self.path(), io::Error::other(format!("there is no tensor {tensor}"))));
        };
        if offset.checked_add(len).is_none_or(|end| end > info.n_bytes()) {
            let what = format!("the tensor `{}` has no {len} bytes at {offset}", info.name());
            return Err(Error::io("read", &file.path, io::Error::other(what)));
        }
        Ok((file, start + offset))
    }

    /// Checks that no file was changed in place since it was opened.
    ///
    /// # Errors
    /// [`Error::Changed`].
    pub fn check_unchanged(&self) -> Result<(), Error> {
        match self.files.iter().find(|file| !file.unchanged()) {
            Some(file) => Err(Error::Changed { path: file.path.clone() }),
            None => Ok(()),
        }
    }
}

fn places(header: &Header, file: usize) -> Vec<Place> {
    let start = header.data_offset();
    header.tensors().iter().map(|tensor: &TensorInfo| Place { file, offset: start + tensor.offset() }).collect()
}

fn split_key(header: &Header, key: &str, path: &Path) -> Result<Option<u64>, Error> {
    let value = header.metadata().u32(key).map_err(|why| Error::File { path: path.to_owned(), why })?;
    Ok(value.map(u64::from))
}

fn open_shard(first: &Path, index: u64, count: u64) -> Result<(SourceFile, Header), Error> {
    let path = shard_path(first, index, count).ok_or_else(|| {
        let why = format!("its header says that it is the first of {count} files, its name does not");
        Error::Shards { path: first.to_owned(), why }
    })?;
    let (file, header) = SourceFile::open(&path)?;
    let number = split_key(&header, "split.no", &path)?;
    if number != Some(index) || split_key(&header, "split.count", &path)?.is_some_and(|claimed| claimed != count) {
        let why = format!("its header does not say that it is file {} of {count}", index + 1);
        return Err(Error::Shards { path, why });
    }
    Ok((file, header))
}

/// `…-00003-of-00007.gguf` from `…-00001-of-00007.gguf`.
fn shard_path(first: &Path, index: u64, count: u64) -> Option<PathBuf> {
    let name = first.file_name()?.to_str()?;
    let base = name.strip_suffix(&format!("-00001-of-{count:05}.gguf"))?;
    Some(first.with_file_name(format!("{base}-{:05}-of-{count:05}.gguf", index + 1)))
}

#[cfg(test)]
mod tests;
