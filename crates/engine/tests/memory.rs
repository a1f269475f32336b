//! What is reckoned from the headers of real models is what llama.cpp allocates. The models of all families are compared
//! with their proofs.
#![allow(clippy::unwrap_used)] // a test that cannot go on says where

use kernels_ffi::{FlashAttention, KvType};
use mesh_engine::llama::{Compute, Limits, LlamaStage};
use mesh_engine::testkit::{GEMMA3, SMOLLM2, Split, model_path};
use mesh_gguf::{ModelInfo, Source};

/// Within a tenth in all, and each part for itself within a sixth.
fn compare(name: &str, limits: Limits, compute: Compute) {
    let split = Split { path: model_path(name), limits, compute };
    let info = ModelInfo::of(Source::open(&split.path).unwrap().header()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let whole = split.unsplit().unwrap();
    for config in [vec![whole], split.at(&[4, 11], folder.path()).unwrap()].concat() {
        let layers = config.spec.layers;
        let stage = LlamaStage::load(config).unwrap();
        let reckoned = info.footprint(layers, &limits.room(&split.compute));
        let (found, weights) = (stage.allocated(), stage.weight_bytes());
        let ratio = |reckoned: u64, found: u64| reckoned as f64 / found as f64;
        let what = format!("{name} {layers} {limits:?}: {reckoned:?}, and {found:?} beside weights of {weights}");
        assert!((0.9..1.1).contains(&ratio(reckoned.total(), found.total() + weights)), "{what}");
        assert!((0.98..1.02).contains(&ratio(reckoned.weights, weights)), "{what}");
        assert!((0.99..1.01).contains(&ratio(reckoned.cache, found.cache)), "{what}");
        assert!((0.84..1.16).contains(&ratio(reckoned.compute, found.compute)), "{what}");
    }
}

fn limits(n_ctx: u32, n_seq: u32, n_batch: u32) -> Limits {
    Limits { n_ctx, n_seq, n_batch, n_cells: n_ctx * n_seq, n_parked: 0, n_states: 0 }
}

#[test]
fn long_contexts() {
    let compute = Compute::with_threads(1);
    compare(SMOLLM2, limits(8192, 4, 512), compute.clone());
    compare(GEMMA3, limits(8192, 4, 512), compute);
}

#[test]
fn many_sequences_and_a_small_batch() {
    let compute = Compute::with_threads(1);
    compare(SMOLLM2, limits(512, 16, 64), compute.clone());
    compare(GEMMA3, limits(512, 16, 64), compute);
}

#[test]
fn attention_that_is_not_fused_and_caches_of_another_type() {
    let unfused = Compute { flash_attention: FlashAttention::Off, ..Compute::with_threads(1) };
    compare(SMOLLM2, limits(2048, 1, 512), unfused.clone());
    compare(GEMMA3, limits(2048, 1, 512), unfused);
    compare(GEMMA3, limits(2048, 4, 512), Compute { kv_type: KvType::Q8_0, ..Compute::with_threads(1) });
}
