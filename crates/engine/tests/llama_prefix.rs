//! What a slot keeps is what was computed: logits behind a kept, a cut or a copied prefix, with real models.
#![allow(clippy::unwrap_used)] // a test that cannot go on says where

use mesh_engine::llama::{Limits, LlamaStage};
use mesh_engine::testkit::{GEMMA3, SMOLLM2, Split, load_all, run};
use mesh_engine::{Command, Frame, MicroBatch, Open, Segment, SeqId, Stage, StepId, Want, chain::Chain};
use mesh_types::{RequestId, Sampling, TokenId};

const TOKENS: [i32; 9] = [19, 500, 3021, 40_000, 77, 1234, 8, 9, 10];

fn batch(step: u64, seq: u32, start: u32, tokens: &[i32], want: Want) -> Frame {
    let segments = vec![Segment { seq: SeqId(seq), start, len: tokens.len() as u32, want }];
    let tokens = tokens.iter().map(|token| TokenId(*token)).collect();
    Frame::Batch(MicroBatch { step: StepId(step), segments, tokens, rows: None })
}

fn open(seq: u32) -> Frame {
    Frame::Command(Command::Open(Box::new(Open::new(SeqId(seq), RequestId::new("r"), 6, Sampling::greedy()))))
}

fn retain(seq: u32, len: u32) -> Frame {
    Frame::Command(Command::Retain { seq: SeqId(seq), len })
}

fn logits(answer: &Frame) -> &[f32] {
    match answer {
        Frame::Result(result) => result.outputs[0].logits.as_deref().unwrap(),
        other => panic!("{other:?}"),
    }
}

/// The logits of the last batch.
async fn last(stage: &dyn Stage, frames: &[Frame]) -> Vec<f32> {
    logits(run(stage, frames).await.unwrap().last().unwrap()).to_vec()
}

fn apart(one: &[f32], other: &[f32]) -> f32 {
    assert_eq!(one.len(), other.len());
    one.iter().zip(other).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// With the same batches, the same bits: on the slot itself, cut back, and on a copy while the source goes on.
async fn assert_exact(stage: &dyn Stage) {
    let (prefix, tail) = (&TOKENS[..4], &TOKENS[4..6]);
    let fresh = [open(0), batch(0, 0, 0, prefix, Want::Nothing), batch(1, 0, 4, tail, Want::Logits)];
    let fresh = last(stage, &fresh).await;
    let kept =
        [open(0), batch(0, 0, 0, prefix, Want::Nothing), retain(0, 4), open(0), batch(1, 0, 4, tail, Want::Logits)];
    assert_eq!(apart(&last(stage, &kept).await, &fresh), 0.0, "kept");
    let cut = [
        open(0),
        batch(0, 0, 0, prefix, Want::Nothing),
        batch(1, 0, 4, &TOKENS[6..], Want::Nothing),
        retain(0, 7),
        Frame::Command(Command::Truncate { seq: SeqId(0), len: 4 }),
        open(0),
        batch(2, 0, 4, tail, Want::Logits),
    ];
    assert_eq!(apart(&last(stage, &cut).await, &fresh), 0.0, "cut back");
    let copied = [
        open(0),
        batch(0, 0, 0, prefix, Want::Nothing),
        batch(1, 0, 4, &TOKENS[6..], Want::Nothing),
        Frame::Command(Command::Copy { from: SeqId(0), to: SeqId(2), len: 4 }),
        open(2),
        batch(2, 0, 7, &TOKENS[..1], Want::Nothing),
        batch(3, 2, 4, tail, Want::Logits),
    ];
    assert_eq!(apart(&last(stage, &copied).await, &fresh), 0.0, "copied");
}

#[tokio::test]
async fn a_reused_prefix_gives_the_same_logits() {
    for model in [SMOLLM2, GEMMA3] {
        assert_exact(&LlamaStage::load(Split::small(model).unsplit().unwrap()).unwrap()).await;
    }
}

#[tokio::test]
async fn a_reused_prefix_gives_the_same_logits_over_two_stages() {
    let folder = tempfile::tempdir().unwrap();
    let configs = Split::small(SMOLLM2).at(&[13], folder.path()).unwrap();
    assert_exact(&Chain::new(load_all(configs).unwrap()).unwrap()).await;
}

/// With other batches, the same but for rounding: a prefix that is found moves the border between them.
#[tokio::test]
async fn other_borders_between_batches_round_otherwise() {
    let stage = LlamaStage::load(Split::small(SMOLLM2).unsplit().unwrap()).unwrap();
    let tokens = &TOKENS[..6];
    let whole = last(&stage, &[open(0), batch(0, 0, 0, tokens, Want::Logits)]).await;
    let n_vocab = stage.spec().n_vocab as usize;
    let parts = [open(0), batch(0, 0, 0, &tokens[..5], Want::Nothing), batch(1, 0, 5, &tokens[5..], Want::Logits)];
    let apart = apart(&last(&stage, &parts).await, &whole[5 * n_vocab..]);
    assert!(apart < 0.5, "{apart}");
}

/// llama.cpp gives cells that are out of a sequence's window to others. A sequence cut back to where it needs them
/// must not be computed on what is left; one that goes on at its end needs none of them.
#[tokio::test]
async fn a_sequence_whose_window_was_overwritten_is_not_cut_back() {
    let mut split = Split::small(GEMMA3);
    split.limits = Limits { n_ctx: 1024, n_seq: 3, n_batch: 512, n_cells: 2048, n_parked: 0, n_states: 0 };
    split.compute.max_logits_rows = 4;
    let stage = LlamaStage::load(split.unsplit().unwrap()).unwrap();
    let tokens: Vec<i32> = (0..700).map(|i| 1000 + i * 7 % 5000).collect();
    let close = |seq| Frame::Command(Command::Close { seq: SeqId(seq) });
    let mut frames = vec![
        batch(0, 1, 0, &tokens[..100], Want::Nothing),
        batch(1, 0, 0, &tokens[..400], Want::Nothing),
        batch(2, 0, 400, &tokens[400..], Want::Nothing),
        // The freed cells before those of sequence 0 are fewer than what comes now.
        close(1),
        batch(3, 2, 0, &tokens[..300], Want::Nothing),
        batch(4, 0, 700, &tokens[..1], Want::Logits),
    ];
    let onward = run(&stage, &frames).await.unwrap();
    assert!(logits(&onward[4]).iter().all(|value| value.is_finite()));
    frames.push(Frame::Command(Command::Truncate { seq: SeqId(0), len: 600 }));
    frames.push(batch(5, 0, 600, &tokens[..1], Want::Logits));
    let answers = run(&stage, &frames).await.unwrap();
    let Some(Frame::Failure(failure)) = answers.last() else { panic!("computed on a window with holes") };
    assert!(failure.reason.contains("cannot be cut back"), "{}", failure.reason);
    // Emptied, the slot is as good as new.
    frames.truncate(frames.len() - 1);
    frames.extend([close(0), batch(5, 0, 0, &tokens[..1], Want::Logits)]);
    assert!(matches!(run(&stage, &frames).await.unwrap().last(), Some(Frame::Result(_))));
}
