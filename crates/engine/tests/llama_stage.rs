//! How a llama stage behaves on its links, with a real model.
#![allow(clippy::unwrap_used)] // a test that cannot go on says where

use std::time::{Duration, Instant};

use mesh_engine::llama::{Compute, Limits, LlamaStage, LlamaStageConfig};
use mesh_engine::testkit::{GEMMA3, SMOLLM2, Script, Split, run};
use mesh_engine::{
    Command, Frame, MAX_EXTRA_ROWS, MicroBatch, Open, Segment, SeqId, Stage, StageError, StageLink, StepFailure,
    StepId, StepResult, Want,
};
use mesh_types::{LayerRange, RequestId, Sampling, TokenId};
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(30);
/// An abort takes an operation of the graph; whole decodes here take much longer than this.
const SOON: Duration = Duration::from_secs(5);

fn whole() -> LlamaStage {
    LlamaStage::load(Split::small(SMOLLM2).unsplit().unwrap()).unwrap()
}

/// A stage whose micro-batch takes seconds.
fn slow() -> LlamaStage {
    let mut split = Split::small(SMOLLM2);
    split.limits = Limits { n_ctx: 4096, n_seq: 2, n_batch: 4096, n_cells: 8192, n_parked: 0, n_states: 0 };
    split.compute = Compute::with_threads(1);
    LlamaStage::load(split.unsplit().unwrap()).unwrap()
}

fn batch(step: u64, seq: u32, start: u32, tokens: &[i32], want: Want) -> Frame {
    let segments = vec![Segment { seq: SeqId(seq), start, len: tokens.len() as u32, want }];
    let tokens = tokens.iter().map(|token| TokenId(*token)).collect();
    Frame::Batch(MicroBatch { step: StepId(step), segments, tokens, rows: None })
}

fn open(seq: u32, prompt_len: u32, sampling: Sampling) -> Frame {
    Frame::Command(Command::Open(Box::new(Open::new(SeqId(seq), RequestId::new("r"), prompt_len, sampling))))
}

fn token(frame: &Frame) -> TokenId {
    match frame {
        Frame::Result(result) => result.outputs[0].token.unwrap(),
        other => panic!("{other:?}"),
    }
}

async fn next(link: &mut StageLink) -> Option<Result<Frame, StageError>> {
    timeout(PATIENCE, link.output.recv()).await.expect("an answer in time")
}

#[tokio::test]
async fn it_continues_a_text() {
    let vocab = kernels_ffi::Vocab::load(&mesh_engine::testkit::model_path(SMOLLM2)).unwrap();
    let prompt = vocab.tokenize("The capital of France is", false, false).unwrap();
    let stage = whole();
    let mut link = stage.connect().await.unwrap();
    let n = prompt.len() as u32;
    link.input.send(open(0, n, Sampling::greedy())).await.unwrap();
    link.input.send(batch(0, 0, 0, &prompt, Want::Token)).await.unwrap();
    let first = token(&next(&mut link).await.unwrap().unwrap());
    assert_eq!(vocab.piece(first.0, false), b" Paris");
}

#[tokio::test]
async fn a_replayed_run_draws_the_same_tokens() {
    let stage = whole();
    let sampling = Sampling { seed: 99, temperature: 1.2, ..Sampling::default() };
    // Token by token, in a slot of its own...
    let mut link = stage.connect().await.unwrap();
    let mut text = vec![100, 200, 300, 400];
    link.input.send(open(0, 4, sampling)).await.unwrap();
    link.input.send(batch(0, 0, 0, &text, Want::Token)).await.unwrap();
    for step in 1..9 {
        let drawn = token(&next(&mut link).await.unwrap().unwrap()).0;
        text.push(drawn);
        link.input.send(batch(step, 0, text.len() as u32 - 1, &[drawn], Want::Token)).await.unwrap();
    }
    let ninth = token(&next(&mut link).await.unwrap().unwrap());
    // ... and on another link, in another slot, with all but the last token replayed at once.
    let replay =
        [open(3, 4, sampling), batch(0, 3, 0, &text[..11], Want::Token), batch(1, 3, 11, &text[11..], Want::Token)];
    let answers = timeout(PATIENCE, run(&stage, &replay)).await.unwrap().unwrap();
    assert_eq!((token(&answers[0]).0, token(&answers[1])), (text[11], ninth));
}

#[tokio::test]
async fn dropping_the_link_aborts_the_decode_and_empties_the_slots() {
    let stage = slow();
    let tokens: Vec<i32> = (0..4096).map(|i| i % 1000).collect();
    let link = stage.connect().await.unwrap();
    for step in 0..4 {
        link.input.send(batch(step, (step % 2) as u32, 0, &tokens, Want::Nothing)).await.unwrap();
    }
    tokio::time::sleep(Duration::from_millis(200)).await; // well into the decode
    let dropped = Instant::now();
    drop(link);
    let mut link = stage.connect().await.unwrap();
    link.input.send(open(1, 1, Sampling::greedy())).await.unwrap();
    link.input.send(batch(0, 1, 0, &[5], Want::Token)).await.unwrap();
    assert!(matches!(next(&mut link).await, Some(Ok(Frame::Result(_)))), "slot 1 is empty again");
    assert!(dropped.elapsed() < SOON, "{:?}", dropped.elapsed());
}

#[tokio::test]
async fn a_new_link_ends_the_one_before_even_within_a_decode() {
    let stage = slow();
    let tokens: Vec<i32> = (0..4096).map(|i| i % 1000).collect();
    let mut first = stage.connect().await.unwrap();
    first.input.send(batch(0, 0, 0, &tokens, Want::Nothing)).await.unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    let replaced = Instant::now();
    let mut second = stage.connect().await.unwrap();
    assert_eq!(next(&mut first).await, Some(Err(StageError::Closed)));
    assert_eq!(next(&mut first).await, None);
    second.input.send(batch(0, 0, 0, &[1], Want::Nothing)).await.unwrap();
    assert!(matches!(next(&mut second).await, Some(Ok(Frame::Result(_)))));
    assert!(replaced.elapsed() < SOON, "{:?}", replaced.elapsed());
    // Dropping the stage in the middle of a decode does not wait for its end either.
    second.input.send(batch(1, 1, 0, &tokens, Want::Nothing)).await.unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    let dropped = Instant::now();
    drop(stage);
    assert!(dropped.elapsed() < SOON, "{:?}", dropped.elapsed());
    assert_eq!(next(&mut second).await, Some(Err(StageError::Closed)));
}

#[tokio::test]
async fn closing_the_input_alone_computes_what_was_sent() {
    let stage = whole();
    let mut link = stage.connect().await.unwrap();
    for step in 0..4 {
        link.input.send(batch(step, 0, step as u32, &[7], Want::Nothing)).await.unwrap();
    }
    let StageLink { input, .. } = &mut link;
    let (closed, _) = tokio::sync::mpsc::channel(1);
    drop(std::mem::replace(input, closed));
    for step in 0..4 {
        match next(&mut link).await {
            Some(Ok(Frame::Result(result))) => assert_eq!(result.step, StepId(step)),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(next(&mut link).await, None);
}

#[tokio::test]
async fn what_does_not_follow_on_fails_and_the_link_lives() {
    let stage = whole();
    let frames = [
        batch(0, 0, 0, &[1, 2, 3], Want::Nothing),
        batch(1, 0, 5, &[4], Want::Logits),  // a gap
        batch(2, 0, 1, &[4], Want::Nothing), // a position that is taken
        batch(3, 0, 3, &[4], Want::Logits),  // as it should be
    ];
    let answers = timeout(PATIENCE, run(&stage, &frames)).await.unwrap().unwrap();
    let failed: Vec<bool> = answers.iter().map(|answer| matches!(answer, Frame::Failure(_))).collect();
    assert_eq!(failed, [false, true, true, false]);
    let Frame::Failure(failure) = &answers[1] else { panic!() };
    assert_eq!(failure.step, StepId(1));
    assert!(failure.reason.contains("slot 0 holds 3 positions, and got 5"), "{}", failure.reason);
}

#[tokio::test]
async fn invalid_frames_end_the_link() {
    let stage = whole();
    let invalid = [
        batch(0, 4, 0, &[1], Want::Nothing),
        batch(0, 0, 0, &[-1], Want::Nothing),
        batch(0, 0, 0, &[49152], Want::Nothing),
        batch(0, 0, 64, &[1], Want::Nothing),
        batch(0, 0, 0, &[1; 33], Want::Nothing),
        batch(0, 0, 0, &[1], Want::Token), // no run is open
        Frame::Command(Command::Close { seq: SeqId(4) }),
        Frame::Failure(StepFailure { step: StepId(0), reason: String::new() }),
    ];
    for frame in invalid {
        let frames = [frame.clone(), batch(1, 0, 0, &[1], Want::Nothing)];
        let end = timeout(PATIENCE, run(&stage, &frames)).await.unwrap();
        assert!(matches!(end, Err(StageError::InvalidFrame(_))), "{frame:?}: {end:?}");
    }
    let twice = [open(0, 1, Sampling::default()), open(0, 1, Sampling::default())];
    assert!(matches!(run(&stage, &twice).await, Err(StageError::InvalidFrame(_))));
}

#[tokio::test]
async fn a_middle_stage_hands_failures_and_commands_on() {
    let folder = tempfile::tempdir().unwrap();
    let configs = Split::small(SMOLLM2).at(&[2, 4], folder.path()).unwrap();
    let stage = LlamaStage::load(configs[1].clone()).unwrap();
    let failure = Frame::Failure(StepFailure { step: StepId(3), reason: "elsewhere".to_owned() });
    let frames = [open(0, 1, Sampling::default()), failure, Frame::Command(Command::Close { seq: SeqId(0) })];
    assert_eq!(run(&stage, &frames).await.unwrap(), frames);
    // Rows are missing: not a frame for a middle stage.
    let end = run(&stage, &[batch(0, 0, 0, &[1], Want::Nothing)]).await;
    assert!(matches!(end, Err(StageError::InvalidFrame(_))), "{end:?}");
}

#[tokio::test]
async fn logits_beyond_the_limit_fail() {
    let mut split = Split::small(SMOLLM2);
    split.compute.max_logits_rows = 0;
    split.limits.n_batch = 64;
    let stage = LlamaStage::load(split.unsplit().unwrap()).unwrap();
    // A row a slot, and one a draft.
    let most = stage.spec().n_seq + MAX_EXTRA_ROWS;
    let mut script = Script::new(4, stage.spec().n_vocab);
    script.batch(&[(0, most, Want::Logits)]);
    assert!(matches!(run(&stage, script.frames()).await.unwrap()[0], Frame::Result(_)));
    let mut script = Script::new(4, stage.spec().n_vocab);
    script.batch(&[(0, most + 1, Want::Logits)]);
    let answers = run(&stage, script.frames()).await.unwrap();
    assert!(matches!(&answers[0], Frame::Failure(f) if f.reason.contains("output rows")));
}

#[test]
fn a_file_that_is_not_the_stage_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let split = Split::small(SMOLLM2);
    let [first, last] = <[LlamaStageConfig; 2]>::try_from(split.at(&[2], folder.path()).unwrap()).unwrap();
    let refused = |config: LlamaStageConfig, what: &str| match LlamaStage::load(config) {
        Err(StageError::Load(reason)) => assert!(reason.contains(what), "{reason}"),
        other => panic!("{other:?}"),
    };
    refused(LlamaStageConfig { model_path: last.model_path.clone(), ..first.clone() }, "has 28 layers where 2 belong");
    refused(LlamaStageConfig { model_path: folder.path().join("none.gguf"), ..first.clone() }, "cannot read");
    refused(LlamaStageConfig { tap: None, ..first.clone() }, "needs the name of the tensor");
    refused(LlamaStageConfig { embedding: first.embedding.clone(), ..last.clone() }, "only the first stage");
    refused(LlamaStageConfig { embedding: None, ..first.clone() }, "tokens in its vocabulary");
    let mut many = first.clone();
    many.spec.n_seq = 257;
    refused(many, "257 sequences where 1 to 256");
    let mut wide = last.clone();
    (wide.spec.n_embd, wide.spec.layers) = (577, LayerRange::new(2, 30).unwrap());
    refused(wide, "576 values in a row where 577 belong");
    let device = Compute { device: Some("Abacus0".to_owned()), ..first.compute.clone() };
    refused(LlamaStageConfig { compute: device, ..first }, "no device Abacus0");
}

#[test]
fn a_configuration_survives_json() {
    let folder = tempfile::tempdir().unwrap();
    for config in Split::small(SMOLLM2).at(&[2, 9], folder.path()).unwrap() {
        let json = serde_json::to_string(&config).unwrap();
        assert_eq!(serde_json::from_str::<LlamaStageConfig>(&json).unwrap(), config);
    }
}

/// What was cut off, or belongs to other slots, has no weight at all: with the same micro-batches, the logits are the
/// same bits as in an empty cache.
#[tokio::test]
async fn what_is_cut_off_leaves_no_trace() {
    for model in [SMOLLM2, GEMMA3] {
        let stage = LlamaStage::load(Split::small(model).unsplit().unwrap()).unwrap();
        let tokens = [19, 500, 3021, 40_000, 77, 1234];
        let (prefix, tail) = (batch(0, 0, 0, &tokens[..3], Want::Nothing), batch(1, 0, 3, &tokens[3..], Want::Logits));
        let fresh = run(&stage, &[prefix.clone(), tail.clone()]).await.unwrap();
        let cut = Frame::Command(Command::Truncate { seq: SeqId(0), len: 3 });
        let more = batch(2, 0, 3, &[9, 8, 7, 6, 5], Want::Nothing);
        let other = batch(3, 1, 0, &[4, 3, 2, 1], Want::Nothing);
        let after = run(&stage, &[prefix, more, other, cut, tail]).await.unwrap();
        assert!(fresh[1] == after[3], "{model}: {}", apart(&fresh[1], &after[3]));
    }
}

fn apart(one: &Frame, other: &Frame) -> f32 {
    let (Frame::Result(one), Frame::Result(other)) = (one, other) else { panic!("{one:?} {other:?}") };
    let logits = |result: &StepResult| result.outputs[0].logits.clone().unwrap();
    logits(one).iter().zip(logits(other)).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}
