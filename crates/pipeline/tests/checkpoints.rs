//! Models whose sequences cannot be cut back, in two stages of llama.cpp: what is found again gives the text that
//! computing all of it gives.
#![allow(clippy::unwrap_used)] // a test that cannot go on says where

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use kernels_ffi::synth;
use mesh_engine::chain::Chain;
use mesh_engine::llama::{Compute, Limits};
use mesh_engine::testkit::{Split, load_all};
use mesh_engine::{Generator, TokenEvent};
use mesh_gguf::{Array, GgmlType, Header, Metadata, TensorInfo, Value, allowed_cuts};
use mesh_pipeline::{Config, Pipeline};
use mesh_types::{GenerateSpec, RequestId, Sampling, TokenId};

const N_VOCAB: u32 = 160;
const SEED: u64 = 7;
const LIMITS: Limits = Limits { n_ctx: 1024, n_seq: 3, n_batch: 128, n_cells: 3072, n_parked: 3072, n_states: 12 };

/// A small model of `architecture` with random weights.
fn write_model(architecture: &str, path: &Path) {
    let mut metadata = Metadata::default();
    metadata.set("general.architecture", Value::from(architecture));
    let mut set = |key: &str, value: Value| metadata.set(&format!("{architecture}.{key}"), value);
    let numbers = [
        ("vocab_size", N_VOCAB),
        ("context_length", 1024),
        ("embedding_length", 128),
        ("block_count", 8),
        ("feed_forward_length", 192),
        ("attention.head_count", 4),
        ("rope.dimension_count", 32),
        ("shortconv.l_cache", 3),
        ("ssm.conv_kernel", 4),
        ("ssm.inner_size", 256),
        ("ssm.state_size", 32),
        ("ssm.time_step_rank", 8),
        ("ssm.group_count", 2),
    ];
    for (key, value) in numbers {
        set(key, Value::U32(value));
    }
    set("attention.layer_norm_rms_epsilon", Value::F32(1e-5));
    set("attention.head_count_kv", Value::Array(Array::of_u32s([0, 0, 2, 0, 2, 0, 0, 2])));
    let factors = [("embedding_scale", 12.0), ("residual_scale", 0.22), ("logit_scale", 8.0), ("attention.scale", 0.1)];
    for (key, value) in factors.into_iter().filter(|_| architecture == "granitehybrid") {
        set(key, Value::F32(value));
    }
    metadata.set("tokenizer.ggml.model", Value::from("test"));
    let tokens = (0..N_VOCAB).map(|token| format!("token{token}"));
    metadata.set("tokenizer.ggml.tokens", Value::Array(Array::of_strs(tokens)));
    metadata.set("tokenizer.ggml.scores", Value::Array(Array::of_f32s((0..N_VOCAB).map(|_| 0.0))));

    let bare = Header::build(metadata.clone(), Vec::new()).unwrap();
    let weights = synth::weights(&bare.to_bytes(), SEED).unwrap();
    let info = |weight: &synth::Weight| TensorInfo::new(&weight.name, &weight.dims, GgmlType::F32).unwrap();
    let header = Header::build(metadata, weights.iter().map(info).collect()).unwrap();
    let mut file = std::io::BufWriter::new(std::fs::File::create(path).unwrap());
    file.write_all(&header.to_bytes()).unwrap();
    for weight in &weights {
        let bytes: Vec<u8> = weight.values.iter().flat_map(|value| value.to_le_bytes()).collect();
        file.write_all(&bytes).unwrap();
        file.write_all(&vec![0; bytes.len().next_multiple_of(header.alignment() as usize) - bytes.len()]).unwrap();
    }
    file.flush().unwrap();
}

/// The model in two stages.
async fn pipeline(model: &Path, limits: Limits) -> (Pipeline, tempfile::TempDir) {
    let split = Split { path: model.to_owned(), limits, compute: Compute::with_threads(1) };
    let cuts = allowed_cuts(mesh_gguf::Source::open(model).unwrap().header()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let stages = load_all(split.at(&cuts[cuts.len() / 2..=cuts.len() / 2], folder.path()).unwrap()).unwrap();
    let chain = Chain::new(stages).unwrap();
    (Pipeline::start(Arc::new(chain), Config::for_stages(2)).await.unwrap(), folder)
}

/// What is said to a prompt, and how much of that was there already.
async fn ask(pipeline: &Pipeline, prompt: &[TokenId]) -> (Vec<TokenId>, u32) {
    let all = GenerateSpec::new(RequestId::new("r"), prompt.to_vec());
    let spec = GenerateSpec { max_tokens: 12, sampling: Sampling::greedy(), ..all };
    let mut events = pipeline.generate(spec).await.unwrap().events;
    let mut said = Vec::new();
    loop {
        match events.recv().await.unwrap().unwrap() {
            TokenEvent::Token { token, .. } => said.push(token),
            TokenEvent::Finished { usage, .. } => return (said, usage.cached_tokens),
            TokenEvent::Prompt(_) => {}
        }
    }
}

/// Tokens that depend on `seed` and their place alone.
fn tokens(seed: u32, count: u32) -> Vec<TokenId> {
    let mix = |x: u32| (x ^ (x >> 15)).wrapping_mul(0x2c1b_3c6d) >> 8;
    (0..count).map(|i| TokenId((mix(seed.wrapping_mul(0x9e37_79b9) ^ i) % N_VOCAB).cast_signed())).collect()
}

async fn assert_found_again(architecture: &str) {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model.gguf");
    write_model(architecture, &model);
    let (kept, _slices) = pipeline(&model, LIMITS).await;
    // With one slot, which always held something else.
    let (fresh, _slices) = pipeline(&model, Limits { n_seq: 1, n_states: 0, n_parked: 0, ..LIMITS }).await;

    let (system, first) = (tokens(1, 150), [tokens(1, 150), tokens(2, 90)].concat());
    let (said, _) = ask(&kept, &first).await;
    let turns = [
        // The same once more; the next turn, with what was said; the same turn with the answer in other words.
        (first.clone(), 224),
        ([&first[..], &said, &tokens(3, 40)].concat(), 251),
        ([&first[..], &tokens(4, 70)].concat(), 224),
        // Another conversation with the same beginning: where they part is known from now on.
        ([&system[..], &tokens(5, 90)].concat(), 0),
        ([&system[..], &tokens(6, 90)].concat(), 150),
        // More conversations than slots, and back.
        (tokens(7, 200), 0),
        (tokens(8, 200), 0),
        (tokens(9, 200), 0),
        ([&system[..], &tokens(6, 90), &tokens(10, 20)].concat(), 224),
    ];
    for (turn, (prompt, cached)) in turns.iter().enumerate() {
        let (said, found) = ask(&kept, prompt).await;
        assert_eq!(found, *cached, "{architecture}: turn {turn}");
        ask(&fresh, &tokens(100 + turn as u32, 20)).await;
        let (expected, found) = ask(&fresh, prompt).await;
        assert_eq!((said, found), (expected, 0), "{architecture}: turn {turn}");
    }
}

#[tokio::test]
async fn a_hybrid_is_set_back() {
    assert_found_again("lfm2").await;
}

#[tokio::test]
async fn a_hybrid_with_a_larger_state_is_set_back() {
    assert_found_again("granitehybrid").await;
}
