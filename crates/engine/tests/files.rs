//! Model files as they are in the wild, through llama.cpp's own loader: every type of weights, shards, and holes. A split
//! model computes what the unsplit one computes.
#![allow(clippy::unwrap_used)] // a test that cannot go on says where

use std::fs;
use std::path::{Path, PathBuf};

use kernels_ffi::{quantize, synth};
use mesh_engine::Stage as _;
use mesh_engine::chain::Chain;
use mesh_engine::llama::{Compute, Limits, LlamaStage};
use mesh_engine::testkit::{SMOLLM2, Script, Split, compare, load_all};
use mesh_gguf::{Array, GgmlType, Header, Metadata, TensorInfo, Value};

const LAYERS: u32 = 3;
/// Of the types' blocks, the largest has 256 values.
const N_EMBD: u32 = 256;
const N_VOCAB: u32 = 96;

fn metadata() -> Metadata {
    let mut metadata = Metadata::default();
    metadata.set("general.architecture", Value::from("llama"));
    for (key, value) in [
        ("block_count", LAYERS),
        ("context_length", 256),
        ("embedding_length", N_EMBD),
        ("feed_forward_length", 2 * N_EMBD),
        ("attention.head_count", 4),
        ("attention.head_count_kv", 2),
        ("rope.dimension_count", 64),
        ("vocab_size", N_VOCAB),
    ] {
        metadata.set(&format!("llama.{key}"), Value::U32(value));
    }
    metadata.set("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5));
    metadata.set("tokenizer.ggml.model", Value::from("llama"));
    let tokens = (0..N_VOCAB).map(|token| format!("<{token}>"));
    metadata.set("tokenizer.ggml.tokens", Value::Array(Array::of_strs(tokens)));
    metadata.set("tokenizer.ggml.scores", Value::Array(Array::of_f32s((0..N_VOCAB).map(|_| 0.0))));
    metadata
}

/// Tensors of a model, and their bytes.
type Model = Vec<(TensorInfo, Vec<u8>)>;

/// A llama whose matrices, the token embedding among them, are of this type.
fn model(ggml_type: GgmlType) -> Model {
    let bare = Header::build(metadata(), Vec::new()).unwrap();
    let weights = synth::weights(&bare.to_bytes(), 11).unwrap();
    // All optional tensors are there, and llama.cpp refuses some of them together: such a model has no biases.
    let tensors = weights.into_iter().filter(|weight| !weight.name.ends_with(".bias")).map(|weight| {
        // Vectors stay as they are, as in every real file.
        let ggml_type = if weight.dims.len() > 1 { ggml_type } else { GgmlType::F32 };
        let tensor = TensorInfo::new(&weight.name, &weight.dims, ggml_type).unwrap();
        let bytes = quantize::rows(ggml_type.id(), &weight.values, weight.dims[0] as usize).unwrap();
        assert_eq!(bytes.len() as u64, tensor.n_bytes());
        (tensor, bytes)
    });
    tensors.collect()
}

fn save(path: &Path, metadata: Metadata, model: &[(TensorInfo, Vec<u8>)]) {
    let header = Header::build(metadata, model.iter().map(|(tensor, _)| tensor.clone()).collect()).unwrap();
    let mut file = header.to_bytes();
    for (tensor, (_, bytes)) in header.tensors().iter().zip(model) {
        file.resize((header.data_offset() + tensor.offset()) as usize, 0);
        file.extend(bytes);
    }
    file.resize((header.data_offset() + header.data_len()) as usize, 0);
    fs::write(path, file).unwrap();
}

/// Compares the model in this file with itself cut in two and in three.
async fn assert_splits_exactly(path: PathBuf, cuts: &[&[u32]]) {
    let limits = Limits { n_ctx: 64, ..Split::small(SMOLLM2).limits };
    let compute = Compute { max_logits_rows: limits.n_batch, ..Compute::with_threads(1) };
    let split = Split { path, limits, compute };
    let whole = LlamaStage::load(split.unsplit().unwrap()).unwrap();
    let script = Script::thorough(whole.spec().n_seq, whole.spec().n_vocab);
    for cuts in cuts {
        let folder = tempfile::tempdir().unwrap();
        let stages = load_all(split.at(cuts, folder.path()).unwrap()).unwrap();
        let chain = Chain::new(stages).unwrap();
        let found = compare(&whole, &chain, script.frames()).await.unwrap();
        assert_eq!((&found.mismatch, found.largest_difference.to_bits()), (&None, 0), "{:?}: {found:?}", split.path);
        assert!(found.logits > 0);
    }
}

#[tokio::test]
async fn every_type_of_weights_that_llama_cpp_reads() {
    let folder = tempfile::tempdir().unwrap();
    for type_id in quantize::WEIGHT_TYPES {
        let ggml_type = GgmlType::from_id(*type_id).unwrap_or_else(|| panic!("no type {type_id}"));
        let path = folder.path().join(format!("{}.gguf", ggml_type.name()));
        save(&path, metadata(), &model(ggml_type));
        assert_splits_exactly(path, &[&[2]]).await;
    }
}

#[tokio::test]
async fn shards_whose_first_has_the_metadata_alone_or_tensors_too() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(GgmlType::from_id(8).unwrap());
    for (kind, first) in [("metadata", 0), ("tensors", 5)] {
        let cuts = [0, first, first + 7, model.len()];
        let name = |number: usize| folder.path().join(format!("{kind}-{:05}-of-00003.gguf", number + 1));
        for (number, range) in cuts.windows(2).enumerate() {
            let mut metadata = if number == 0 { metadata() } else { Metadata::default() };
            metadata.set("split.no", Value::U16(number as u16));
            metadata.set("split.count", Value::U16(3));
            metadata.set("split.tensors.count", Value::I32(model.len() as i32));
            save(&name(number), metadata, &model[range[0]..range[1]]);
        }
        assert_splits_exactly(name(0), &[&[1], &[1, 2]]).await;
    }
}

#[tokio::test]
async fn files_with_holes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("holes.gguf");
    let mut model = model(GgmlType::F32);
    for (tensor, bytes) in &mut model {
        if tensor.name().ends_with("attn_v.weight") {
            bytes.fill(0);
        }
    }
    save(&path, metadata(), &model);
    // The same bytes, with holes where zeros were.
    let bytes = fs::read(&path).unwrap();
    let file = fs::File::create(&path).unwrap();
    file.set_len(bytes.len() as u64).unwrap();
    for (number, block) in bytes.chunks(4096).enumerate().filter(|(_, block)| block.iter().any(|byte| *byte != 0)) {
        std::os::unix::fs::FileExt::write_all_at(&file, block, number as u64 * 4096).unwrap();
    }
    assert_eq!(fs::read(&path).unwrap().len(), bytes.len());
    assert_splits_exactly(path, &[&[1], &[1, 2]]).await;
}
