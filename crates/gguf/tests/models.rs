//! Slices of two real models: their structure, their bytes, and that both ends of a transfer make the same ones.
#![allow(clippy::unwrap_used)] // also in the helpers of tests

use std::fs::{self, File};
use std::io::{Read, copy};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use mesh_gguf::{
    Bytes, EmbeddingSource, Header, LayerCache, Manifest, ModelInfo, SliceKind, SlicePlan, Source, Value, Watch,
    allowed_cuts,
};
use mesh_types::LayerRange;
use tempfile::TempDir;

const SMOLLM2: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
const GEMMA3: &str = "gemma-3-270m-q4_k_m.gguf";

fn model(name: &str) -> PathBuf {
    let folder = std::env::var_os("MESH_TEST_MODELS").map(PathBuf::from).unwrap_or_else(|| {
        let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
        let home = || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cache");
        cache.unwrap_or_else(home).join("mesh-node/models")
    });
    let path = folder.join(name);
    assert!(path.exists(), "{} is missing: `./dev models` fetches it", path.display());
    path
}

fn open(name: &str) -> Source {
    Source::open(&model(name)).unwrap()
}

fn range(start: u32, end: u32) -> LayerRange {
    LayerRange::new(start, end).unwrap()
}

fn on(_: mesh_gguf::Progress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// Writes the slice, and compares every byte of it with the source.
fn write_and_compare(source: &Source, plan: &SlicePlan, folder: &Path) -> Source {
    let target = folder.join(format!("{}.gguf", plan.range()));
    let watch: Watch<'_> = &mut on;
    plan.write(source, &target, watch).unwrap();
    let slice = Source::open(&target).unwrap();
    assert_eq!(fs::metadata(&target).unwrap().len(), plan.file_len());
    assert_eq!(slice.header().to_bytes(), plan.header());
    for (index, part) in plan.parts().iter().enumerate() {
        let mut written = vec![1; part.len as usize];
        slice.read(index, 0, &mut written).unwrap();
        match part.bytes {
            Bytes::Hole => assert!(written.iter().all(|byte| *byte == 0), "{}", part.name),
            Bytes::Source { tensor } => {
                let mut expected = vec![0; part.len as usize];
                source.read(tensor, 0, &mut expected).unwrap();
                assert!(written == expected, "{}", part.name);
            }
            Bytes::Columns { .. } => panic!("{} has a share for every layer", part.name),
        }
    }
    slice
}

/// Every tensor of a layer is in exactly one slice.
fn check_layers(source: &Source, plans: &[SlicePlan]) {
    let mut taken = vec![0; source.header().tensors().len()];
    for part in plans.iter().flat_map(SlicePlan::parts) {
        if let (Bytes::Source { tensor }, true) = (part.bytes, part.name.starts_with("blk.")) {
            taken[tensor] += 1;
        }
    }
    for (tensor, taken) in source.header().tensors().iter().zip(taken) {
        let expected = usize::from(tensor.name().starts_with("blk."));
        assert_eq!(taken, expected, "{}", tensor.name());
    }
}

#[test]
fn smollm2_is_read_and_cut_unevenly() {
    let source = open(SMOLLM2);
    let info = ModelInfo::of(source.header()).unwrap();
    assert_eq!((info.architecture.as_str(), info.n_layer, info.n_embd), ("llama", 30, 576));
    assert_eq!((info.n_vocab, info.context_length), (49152, 8192));
    assert!(info.chat_template.as_deref().is_some_and(|template| template.contains("<|im_start|>")));
    assert_eq!(info.layer_cache, [LayerCache { keys: 192, values: 192, ..LayerCache::default() }; 30]);
    assert_eq!(allowed_cuts(source.header()).unwrap().len(), 29);

    let folder = TempDir::new().unwrap();
    let plans: Vec<SlicePlan> = [range(0, 7), range(7, 8), range(8, 30)]
        .into_iter()
        .map(|range| SlicePlan::new(source.header(), range).unwrap())
        .collect();
    check_layers(&source, &plans);
    assert_eq!(
        plans.iter().map(SlicePlan::kind).collect::<Vec<_>>(),
        [SliceKind::Rows, SliceKind::Rows, SliceKind::Last]
    );
    for plan in &plans {
        let slice = write_and_compare(&source, plan, folder.path());
        let metadata = slice.header().metadata();
        assert_eq!(metadata.u32("llama.block_count"), Ok(Some(plan.range().len())));
        let (_, embedding) = slice.header().tensor("token_embd.weight").unwrap();
        let vocabulary = if plan.kind() == SliceKind::Last { 49152 } else { 32 };
        assert_eq!(embedding.dims(), [576, vocabulary]);
        // The source's file holds nothing twice.
        assert!(plan.weight_bytes() < info.total_bytes);
    }
}

#[test]
fn gemma3_is_read_and_cut_unevenly() {
    let source = open(GEMMA3);
    let info = ModelInfo::of(source.header()).unwrap();
    assert_eq!((info.architecture.as_str(), info.n_layer, info.n_embd, info.n_vocab), ("gemma3", 18, 640, 262_144));
    let folder = TempDir::new().unwrap();
    let plans: Vec<SlicePlan> = [range(0, 4), range(4, 11), range(11, 18)]
        .into_iter()
        .map(|range| SlicePlan::new(source.header(), range).unwrap())
        .collect();
    check_layers(&source, &plans);
    for plan in &plans {
        let slice = write_and_compare(&source, plan, folder.path());
        let pattern = slice.header().metadata().array("gemma3.attention.sliding_window_pattern").unwrap().unwrap();
        let expected: Vec<i128> =
            (plan.range().start()..plan.range().end()).map(|layer| i128::from(layer % 6 < 5)).collect();
        assert_eq!(pattern.ints().unwrap().collect::<Vec<_>>(), expected);
    }
}

#[test]
fn rows_of_the_embedding_are_where_they_are_said_to_be() {
    for (name, factor) in [(SMOLLM2, 1.0), (GEMMA3, 640f32.sqrt())] {
        let source = open(name);
        let embedding = EmbeddingSource::of(&source).unwrap().unwrap();
        assert_eq!(embedding.factor, factor);
        let (index, tensor) = source.header().tensor("token_embd.weight").unwrap();
        assert_eq!(embedding.row_bytes * u64::from(embedding.n_vocab), tensor.n_bytes());
        let mut through_source = vec![0; embedding.row_bytes as usize];
        source.read(index, 1000 * embedding.row_bytes, &mut through_source).unwrap();
        let file = fs::read(&embedding.path).unwrap();
        let start = (embedding.offset + 1000 * embedding.row_bytes) as usize;
        assert_eq!(file[start..start + through_source.len()], through_source);
    }
}

#[test]
fn a_worker_makes_the_same_slice_from_the_holders_manifest() {
    let source = open(SMOLLM2);
    let manifest = Manifest::compute(&source, &mut on).unwrap();
    let chunks: Vec<Vec<u8>> =
        manifest.chunks().map(|digests| digests.iter().flat_map(|digest| digest.0).collect()).collect();
    let received = Manifest::from_parts(&manifest.header().to_bytes(), &chunks).unwrap();
    assert_eq!(received.digest(), manifest.digest());
    for range in [range(0, 7), range(7, 8), range(8, 30)] {
        let here = SlicePlan::new(source.header(), range).unwrap();
        assert_eq!(here, SlicePlan::new(received.header(), range).unwrap());
    }
    let (index, tensor) = source.header().tensor("token_embd.weight").unwrap();
    let mut bytes = vec![0; (tensor.n_bytes() - mesh_gguf::CHUNK_BYTES) as usize];
    source.read(index, mesh_gguf::CHUNK_BYTES, &mut bytes).unwrap();
    received.verify_chunk(index, 1, &bytes[..bytes.len().min(mesh_gguf::CHUNK_BYTES as usize)]).unwrap();
}

#[cfg(target_os = "linux")]
#[test]
fn what_a_slice_does_not_need_takes_no_space() {
    use std::os::unix::fs::MetadataExt;

    // A head of its own, so that the last stage's embedding is a hole.
    let folder = TempDir::new().unwrap();
    let source = open(SMOLLM2);
    let mut tensors = source.header().tensors().to_vec();
    let (_, embedding) = source.header().tensor("token_embd.weight").unwrap();
    tensors.push(mesh_gguf::TensorInfo::new("output.weight", embedding.dims(), embedding.ggml_type()).unwrap());
    let header = Header::build(source.header().metadata().clone(), tensors).unwrap();
    let path = folder.path().join("untied.gguf");
    fs::write(&path, header.to_bytes()).unwrap();
    File::options().write(true).open(&path).unwrap().set_len(header.data_offset() + header.data_len()).unwrap();
    let source = Source::open(&path).unwrap();

    let plan = SlicePlan::new(source.header(), range(29, 30)).unwrap();
    let target = folder.path().join("last.gguf");
    plan.write(&source, &target, &mut on).unwrap();
    let meta = fs::metadata(&target).unwrap();
    let hole = plan.parts().iter().find(|part| part.bytes == Bytes::Hole).unwrap();
    assert_eq!(hole.name, "token_embd.weight");
    let slack = plan.header().len() as u64 + (1 << 20);
    assert!(meta.blocks() * 512 <= plan.weight_bytes() + slack, "{} blocks", meta.blocks());
    assert!(meta.len() > plan.weight_bytes() + hole.len);
}

#[test]
fn a_download_that_broke_off_is_named() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("part.gguf");
    let whole = fs::metadata(model(SMOLLM2)).unwrap().len();
    let mut file = File::create(&path).unwrap();
    copy(&mut File::open(model(SMOLLM2)).unwrap().take(whole / 2), &mut file).unwrap();
    let error = Source::open(&path).unwrap_err().to_string();
    let expected = format!("the file ends at byte {}, its header promises {whole}", whole / 2);
    assert!(error.contains(&expected), "{error}");

    file.set_len(5000).unwrap();
    let error = Source::open(&path).unwrap_err().to_string();
    assert!(error.contains("the file ends at byte 5000, in the middle of its header"), "{error}");
}

#[test]
fn a_real_header_is_canonical_but_for_its_offsets() {
    for name in [SMOLLM2, GEMMA3] {
        let source = open(name);
        let bytes = source.header().to_bytes();
        let again = Header::parse(&bytes).unwrap();
        assert_eq!(&again, source.header());
        assert_eq!(again.canonical().unwrap().to_bytes(), bytes);
        assert!(matches!(again.metadata().get("general.architecture"), Some(Value::String(_))));
    }
}
