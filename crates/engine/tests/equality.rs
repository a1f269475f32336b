//! A split model computes what the unsplit one computes: every logit, bit by bit.
#![allow(clippy::unwrap_used)] // a test that cannot go on says where

use std::sync::Arc;

use mesh_engine::chain::Chain;
use mesh_engine::llama::{Compute, LlamaStage};
use mesh_engine::testkit::{Comparison, GEMMA3, SMOLLM2, Script, Split, compare, load_all};
use mesh_engine::{Stage, Want};

/// Compares the model cut at `cuts` with the model in one piece.
async fn compare_split(split: &Split, cuts: &[u32]) -> Comparison {
    let folder = tempfile::tempdir().unwrap();
    let stages = load_all(split.at(cuts, folder.path()).unwrap()).unwrap();
    assert_eq!(stages.len(), cuts.len() + 1);
    let chain = Chain::new(stages).unwrap();
    let whole = LlamaStage::load(split.unsplit().unwrap()).unwrap();
    assert_eq!(chain.spec(), whole.spec());
    let script = Script::thorough(whole.spec().n_seq, whole.spec().n_vocab);
    compare(&whole, &chain, script.frames()).await.unwrap()
}

fn assert_exact(found: &Comparison, n_vocab: usize) {
    assert_eq!(found.mismatch, None, "{found:?}");
    assert_eq!(found.largest_difference.to_bits(), 0, "{found:?}");
    // As many as the script asks for: nothing was skipped.
    assert_eq!((found.steps, found.tokens, found.logits / n_vocab), (14, 14, 25), "{found:?}");
}

#[tokio::test]
async fn smollm2_in_two_stages() {
    assert_exact(&compare_split(&Split::small(SMOLLM2), &[11]).await, 49152);
}

#[tokio::test]
async fn smollm2_in_three_stages() {
    assert_exact(&compare_split(&Split::small(SMOLLM2), &[4, 17]).await, 49152);
}

/// The sliding-window layers have to stay where they were.
#[tokio::test]
async fn gemma3_in_two_stages() {
    assert_exact(&compare_split(&Split::small(GEMMA3), &[5]).await, 262_144);
}

#[tokio::test]
async fn gemma3_in_three_uneven_stages() {
    assert_exact(&compare_split(&Split::small(GEMMA3), &[4, 11]).await, 262_144);
}

/// The comparison sees a single layer that is missing, and a stage that computes otherwise.
#[tokio::test]
async fn a_difference_is_found() {
    let split = Split::small(SMOLLM2);
    let folder = tempfile::tempdir().unwrap();
    let mut configs = split.at(&[10, 20], folder.path()).unwrap();
    // The layers of the middle stage are read from the first stage's file.
    configs[1].model_path = configs[0].model_path.clone();
    let chain = Chain::new(load_all(configs).unwrap()).unwrap();
    let whole = LlamaStage::load(split.unsplit().unwrap()).unwrap();
    let mut script = Script::new(4, whole.spec().n_vocab);
    script.batch(&[(0, 4, Want::Logits)]);
    let found = compare(&whole, &chain, script.frames()).await.unwrap();
    assert!(found.mismatch.is_some() && found.largest_difference > 0.1, "{found:?}");
}

/// One thread or two, more cells or fewer: the same configuration on both sides is what is compared, whatever it is.
#[tokio::test]
async fn other_settings_are_exact_as_well() {
    let mut split = Split::small(SMOLLM2);
    (split.limits.n_ctx, split.limits.n_cells) = (160, 640);
    split.compute =
        Compute { kv_type: "q8_0".parse().unwrap(), max_logits_rows: split.limits.n_batch, ..Compute::with_threads(1) };
    assert_exact(&compare_split(&split, &[15]).await, 49152);
}

#[tokio::test]
async fn one_stage_after_another_link_starts_empty() {
    let whole: Arc<dyn Stage> = Arc::new(LlamaStage::load(Split::small(SMOLLM2).unsplit().unwrap()).unwrap());
    let script = Script::thorough(4, whole.spec().n_vocab);
    // The second run of the comparison uses slots that the first one filled.
    assert_exact(&compare(&whole, &whole, script.frames()).await.unwrap(), 49152);
}
