//! What hostile headers and very large files take in memory. One test, so that it has the process for itself.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)] // a test that cannot go on says where

use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use mesh_gguf::{Array, GgmlType, Header, Manifest, Metadata, SlicePlan, SliceWriter, Source, TensorInfo, Value};
use mesh_types::LayerRange;
use tempfile::TempDir;

const LIMIT: u64 = 64 << 20;

/// What `work` gives, and the most resident memory that it took beyond what there was.
fn peak<T>(work: impl FnOnce() -> T) -> (T, u64) {
    fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = status("VmRSS:");
    let out = work();
    (out, status("VmHWM:").saturating_sub(before))
}

fn status(key: &str) -> u64 {
    let text = fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(key)).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

fn head(n_tensors: u64, n_keys: u64, rest: &[u8]) -> Vec<u8> {
    [b"GGUF\x03\0\0\0".as_slice(), &n_tensors.to_le_bytes(), &n_keys.to_le_bytes(), rest].concat()
}

fn array(element: u32, len: u64) -> Vec<u8> {
    [&string("k"), 9u32.to_le_bytes().as_slice(), &element.to_le_bytes(), &len.to_le_bytes()].concat()
}

/// A header that claims much, at the start of a terabyte of zeros.
fn absurd(folder: &Path, head: &[u8]) {
    let path = folder.join("absurd.gguf");
    fs::write(&path, head).unwrap();
    File::options().write(true).open(&path).unwrap().set_len(1 << 40).unwrap();
    let (refused, taken) = peak(|| Source::open(&path).map(|_| ()));
    assert!(refused.is_err());
    assert!(taken < LIMIT, "{taken} bytes for {:?}…", &head[8..head.len().min(60)]);
}

/// As much as a header can hold, and wrong at the very end.
fn full(folder: &Path) {
    const TENSORS: u64 = 1 << 17;
    let path = folder.join("full.gguf");
    let mut out = BufWriter::new(File::create(&path).unwrap());
    let filler = 30u64 << 20;
    out.write_all(&head(TENSORS, 1, &array(0, filler))).unwrap();
    (0..filler >> 20).for_each(|_| out.write_all(&[1; 1 << 20]).unwrap());
    for number in 0..TENSORS {
        // The last one has the first one's name.
        out.write_all(&string(&format!("{:0>63}", number % (TENSORS - 1)))).unwrap();
        out.write_all(&4u32.to_le_bytes()).unwrap();
        (0..4).for_each(|_| out.write_all(&1u64.to_le_bytes()).unwrap());
        out.write_all(&[0u32.to_le_bytes().as_slice(), &(32 * number).to_le_bytes()].concat()).unwrap();
    }
    out.flush().unwrap();
    let (refused, taken) = peak(|| Source::open(&path).map(|_| ()));
    assert!(refused.unwrap_err().to_string().contains("appears twice"));
    assert!(taken < LIMIT, "{taken} bytes");
}

/// A model of 400 GB, nearly all of it holes, of which 20 GB become a slice.
fn huge(folder: &Path) {
    const LAYERS: u32 = 60;
    let mut metadata = Metadata::default();
    metadata.set("general.architecture", Value::from("llama"));
    for (key, value) in
        [("block_count", LAYERS), ("context_length", 512), ("embedding_length", 8192), ("attention.head_count", 64)]
    {
        metadata.set(&format!("llama.{key}"), Value::U32(value));
    }
    metadata.set("tokenizer.ggml.tokens", Value::Array(Array::of_strs((0..64).map(|token| token.to_string()))));
    let tensor = |name: &str, dims: &[u64]| TensorInfo::new(name, dims, GgmlType::F32).unwrap();
    let mut tensors = vec![tensor("token_embd.weight", &[8192, 64])];
    tensors.extend((0..LAYERS).map(|layer| tensor(&format!("blk.{layer}.ffn.weight"), &[8192, 204_800])));
    let header = Header::build(metadata, tensors).unwrap();
    let path = folder.join("huge.gguf");
    fs::write(&path, header.to_bytes()).unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    file.set_len(header.data_offset() + header.data_len()).unwrap();
    // A little that is no hole, in the layers that are cut out.
    let (_, layer) = header.tensor("blk.11.ffn.weight").unwrap();
    let data: Vec<u8> = (0..20 << 20).map(|at| (at % 253) as u8).collect();
    std::os::unix::fs::FileExt::write_all_at(&file, &data, header.data_offset() + layer.offset() + 12_345).unwrap();

    let mut on = |_: mesh_gguf::Progress| ControlFlow::Continue(());
    let target = folder.join("slice.partial");
    let (manifest, taken) = peak(|| {
        let source = Source::open(&path).unwrap();
        let manifest = Manifest::compute(&source, &mut on).unwrap();
        let plan = SlicePlan::new(source.header(), LayerRange::new(10, 13).unwrap()).unwrap();
        let writer = SliceWriter::create(&plan, &target).unwrap();
        writer.copy_missing(&source, &mut on).unwrap();
        (manifest, plan)
    });
    assert!(taken < LIMIT, "{taken} bytes to cut");
    let (manifest, plan) = manifest;
    let meta = fs::metadata(&target).unwrap();
    assert!(meta.len() > 18 << 30 && meta.blocks() * 512 < 64 << 20, "{} on the disk", meta.blocks() * 512);
    let (writer, taken) = peak(|| SliceWriter::resume(&plan, &target, &manifest, &mut on).unwrap());
    assert_eq!(writer.missing(), []);
    assert!(taken < LIMIT, "{taken} bytes to verify");
}

#[test]
fn hostile_headers_and_huge_files_take_little_memory() {
    let folder = TempDir::new().unwrap();
    for head in [
        head(u64::MAX, u64::MAX, &[]),
        head(1 << 17, 1 << 13, &[]),
        head(0, 1, &u64::MAX.to_le_bytes()),
        head(0, 2, &[&string("k"), 8u32.to_le_bytes().as_slice(), &(40u64 << 20).to_le_bytes()].concat()),
        head(0, 1, &array(8, 1 << 60)),
        head(0, 2, &array(8, 5 << 20)),
        head(0, 2, &array(10, 5 << 20)),
        head(1 << 17, 0, &[]),
    ] {
        absurd(folder.path(), &head);
    }
    full(folder.path());
    huge(folder.path());
}
