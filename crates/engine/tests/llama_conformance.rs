//! The llama stage passes the kit that every stage passes, wherever in a model it lies.
#![allow(clippy::unwrap_used)] // a test that cannot go on says where

use mesh_engine::Stage;
use mesh_engine::chain::Chain;
use mesh_engine::conformance::{Kit, check};
use mesh_engine::llama::LlamaStage;
use mesh_engine::testkit::{GEMMA3, SMOLLM2, Split, load_all};

/// Values may differ between micro-batches of different sizes, where the kernels round differently. With the same
/// micro-batches they must not: that is in `equality.rs` and `llama_stage.rs`.
async fn passes(stage: &dyn Stage, tolerance: f32) {
    let kit = Kit::new([19, 500, 3021, 40_000]).with_tolerance(tolerance);
    let found = check(stage, &kit).await;
    assert!(found.is_ok(), "layers {}: {:#?}", stage.spec().layers, found);
}

#[tokio::test]
async fn a_whole_model_passes() {
    passes(&LlamaStage::load(Split::small(SMOLLM2).unsplit().unwrap()).unwrap(), 0.5).await;
}

#[tokio::test]
async fn first_middle_and_last_stage_pass_alone_and_as_a_chain() {
    let folder = tempfile::tempdir().unwrap();
    let stages = load_all(Split::small(SMOLLM2).at(&[4, 17], folder.path()).unwrap()).unwrap();
    for stage in &stages {
        passes(stage, 0.5).await;
    }
    passes(&Chain::new(stages).unwrap(), 0.5).await;
}

/// Sliding-window layers, cut back and copied. This small model amplifies rounding: whole or split, its logits (up to 110)
/// move by 3 when a prompt of six tokens is computed as three and three.
#[tokio::test]
async fn a_model_with_sliding_windows_passes() {
    let folder = tempfile::tempdir().unwrap();
    let stages = load_all(Split::small(GEMMA3).at(&[7], folder.path()).unwrap()).unwrap();
    passes(&Chain::new(stages).unwrap(), 8.0).await;
}
