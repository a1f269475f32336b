//! Bytes from anyone, taken for a model file and put to every use that a model file has: its header is read, its family
//! looked up, slices are planned, written and taken up again, its manifest travels.
//!
//! Whatever the bytes are, an answer comes: no panic, no overflow, no loop, no more memory than the limit that the
//! recipe sets.
#![no_main]

use std::fs::{self, File};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use libfuzzer_sys::{Corpus, fuzz_target};
use mesh_gguf::{
    Bytes, EmbeddingSource, GgmlType, Header, Manifest, Metadata, ModelInfo, Part, Progress, SlicePlan, SliceWriter,
    Source, TensorInfo, Value, allowed_cuts, check_range,
};
use mesh_types::LayerRange;

/// Files with more data are looked at by their header alone.
const MAX_DATA: u64 = 1 << 20;
/// Stages that are planned of one model, at most.
const MAX_STAGES: usize = 4;

fuzz_target!(|data: &[u8]| -> Corpus {
    let Ok(header) = Header::parse(data) else { return Corpus::Keep };
    let Ok(canonical) = header.canonical() else { return Corpus::Keep };
    assert!(canonical.is_canonical());
    let bytes = canonical.to_bytes();
    assert!(canonical.is_written_as(&bytes));
    // By bytes: a value may be no number, which equals nothing.
    assert_eq!(Header::parse(&bytes).map(|header| header.to_bytes()).as_ref(), Ok(&bytes));
    plan(&canonical);
    travel(&canonical, &bytes);
    // Slow, and so not for every input; which ones is a matter of their bytes, so that what is found is found again.
    let sum = data.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
    if header.data_len() <= MAX_DATA && sum % 8 == 0 {
        on_disk(data);
    }
    Corpus::Keep
});

/// Every range that the family allows, and some that it may not.
fn ranges(header: &Header) -> Vec<LayerRange> {
    let Ok(info) = ModelInfo::of(header) else { return Vec::new() };
    let mut cuts = vec![0];
    cuts.extend(allowed_cuts(header).unwrap_or_default().into_iter().take(MAX_STAGES));
    cuts.push(info.n_layer);
    let stages = cuts.windows(2).filter_map(|pair| LayerRange::new(pair[0], pair[1]));
    let others = [(0, 1), (1, 3), (0, info.n_layer), (1, u32::MAX)];
    stages.chain(others.iter().filter_map(|(start, end)| LayerRange::new(*start, *end))).collect()
}

fn plan(header: &Header) {
    for range in ranges(header) {
        let allowed = check_range(header, range);
        let Ok(plan) = SlicePlan::new(header, range) else { continue };
        assert!(allowed.is_ok(), "a plan for {range}, which is refused");
        let sliced = Header::parse(plan.header()).expect("a slice has a sound header");
        assert_eq!(plan.file_len(), sliced.data_offset() + sliced.data_len());
        let copied = plan.parts().iter().filter(|part| part.bytes != Bytes::Hole).map(|part| part.len);
        assert!(copied.sum::<u64>() <= plan.file_len());
        for (part, tensor) in plan.parts().iter().zip(sliced.tensors()) {
            assert_eq!((part.offset, part.len), (sliced.data_offset() + tensor.offset(), tensor.n_bytes()));
            if let Bytes::Source { tensor } = part.bytes {
                assert_eq!(header.tensors()[tensor].n_bytes(), part.len);
            }
        }
        ModelInfo::of(&sliced).expect("a slice is a model");
    }
}

/// As a peer sends it, where the digests are not more than a file of some size has.
fn travel(header: &Header, bytes: &[u8]) {
    let chunks = |tensor: &TensorInfo| tensor.n_bytes().div_ceil(mesh_gguf::CHUNK_BYTES);
    let all = header.tensors().iter().try_fold(0u64, |sum, tensor| sum.checked_add(chunks(tensor)));
    if all.is_some_and(|all| all < 10_000) {
        let digests: Vec<Vec<u8>> =
            header.tensors().iter().map(|tensor| vec![7; 32 * chunks(tensor) as usize]).collect();
        let manifest = Manifest::from_parts(bytes, &digests).expect("it is what a holder sends");
        assert!(manifest.header().is_written_as(bytes));
        assert!(
            Manifest::from_parts(bytes, &digests[..digests.len().saturating_sub(1)]).is_err() || digests.is_empty()
        );
    }
}

/// A folder for all runs, which the recipe lays into memory and removes.
fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = tempfile::Builder::new().prefix("mesh-fuzz-").tempdir().expect("a folder");
        folder.keep()
    })
}

/// As a file, the first of as many as it says, all others the same small one.
fn on_disk(data: &[u8]) {
    let count = Header::parse(data).ok().and_then(|header| header.metadata().u32("split.count").ok().flatten());
    let count = count.unwrap_or(1).clamp(1, 3);
    let name = |number: u32| folder().join(format!("m-{number:05}-of-{count:05}.gguf"));
    fs::write(name(1), data).expect("written");
    for number in 2..=count {
        fs::write(name(number), shard(number - 1, count)).expect("written");
    }
    let Ok(source) = Source::open(&name(1)) else { return };
    let _ = EmbeddingSource::of(&source);
    let mut on = |_: Progress| ControlFlow::Continue(());
    let manifest = Manifest::compute(&source, &mut on).expect("a file that was checked can be read");
    for range in ranges(source.header()).into_iter().take(3) {
        let Ok(plan) = SlicePlan::new(source.header(), range) else { continue };
        if plan.file_len() > 4 * MAX_DATA {
            continue;
        }
        let (target, partial) = (folder().join("slice.gguf"), folder().join("slice.partial"));
        plan.write(&source, &target, &mut on).expect("a slice that was planned can be written");
        fs::rename(&target, &partial).expect("renamed");
        let writer = SliceWriter::resume(&plan, &partial, &manifest, &mut on).expect("read again");
        let made_again = |part: &Part| matches!(part.bytes, Bytes::Columns { .. });
        let right = writer.missing().iter().all(|job| made_again(&plan.parts()[job.part]));
        assert!(right, "what was written is right");
        assert!(Header::read_file(File::open(&partial).expect("open"), plan.file_len()).is_ok());
    }
}

/// A shard with one tensor, where 0 is the first.
fn shard(number: u32, count: u32) -> Vec<u8> {
    let mut metadata = Metadata::default();
    metadata.set("split.no", Value::U16(number as u16));
    metadata.set("split.count", Value::U16(count as u16));
    let tensor = TensorInfo::new(&format!("blk.{number}.shard.weight"), &[8], GgmlType::F32).expect("a tensor");
    let header = Header::build(metadata, vec![tensor]).expect("a header");
    let mut bytes = header.to_bytes();
    bytes.resize((header.data_offset() + header.data_len()) as usize, 1);
    bytes
}
