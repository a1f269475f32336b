//! The checks, one for each clause of the contract.

mod checkpoints;
mod drafts;
mod drawn;
mod extra_rows;
mod parking;
mod scores;

use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use mesh_types::{Constraint, Logprobs, RequestId, Sampling, TokenId};
use tokio::time::Instant;

use super::probe::{Bench, Probe, check_answer, name, open};
use crate::error::StageError;
use crate::frame::{Command, Frame, MicroBatch, Open, Rows, SeqId, StepFailure, StepId, StepResult, Want};

type Check = for<'a> fn(&'a Bench<'a>) -> BoxFuture<'a, Result<(), String>>;

/// By name, in the order in which they run.
pub(super) const ALL: [(&str, Check); 16] = [
    ("answers every batch once and in order", |bench| order(bench).boxed()),
    ("computes what was sent before the input closed", |bench| graceful(bench).boxed()),
    ("ends the link on an invalid frame", |bench| invalid(bench).boxed()),
    ("replaces a link and empties its slots", |bench| reconnect(bench).boxed()),
    ("drops queued work with the link", |bench| cancel(bench).boxed()),
    ("hands on failures", |bench| failures(bench).boxed()),
    ("fails a step with a gap, and lives", |bench| gap(bench).boxed()),
    ("forgets what is truncated", |bench| truncate(bench).boxed()),
    ("sets back to a checkpoint", |bench| checkpoints::set_back(bench).boxed()),
    ("copies a prefix", |bench| copy(bench).boxed()),
    ("forgets a closed slot", |bench| close(bench).boxed()),
    ("keeps what is retained", |bench| retain(bench).boxed()),
    ("verifies drafts", |bench| drafts::verify(bench).boxed()),
    ("knows what it has drawn", |bench| drawn::drawn(bench).boxed()),
    ("scores prompts", |bench| scores::score(bench).boxed()),
    ("parks and fetches", |bench| parking::park(bench).boxed()),
];

/// Beyond two steps' time, what a new link may take to answer.
const MARGIN: Duration = Duration::from_secs(1);

/// Batches on two slots with commands in between: `(what is sent, whether it is answered)`.
fn script(bench: &Bench<'_>, probe: &mut Probe) -> Vec<Frame> {
    let other = 1.min(bench.spec().n_seq - 1);
    let prompt = bench.tokens(0, 8);
    // What cannot be cut back is told of the length that it has.
    let kept = if bench.spec().cuts_back { 2 } else { 3 };
    let mut frames = vec![Frame::Command(open(0, 3))];
    if other != 0 {
        frames.push(Frame::Command(open(other, 2)));
    }
    frames.push(Frame::Batch(probe.batch(&[(0, 0, &prompt[..3], Want::Nothing)])));
    if other != 0 {
        frames.push(Frame::Batch(probe.batch(&[(other, 0, &prompt[3..5], Want::Token)])));
    }
    frames.push(Frame::Command(Command::Truncate { seq: SeqId(0), len: kept }));
    frames.push(Frame::Batch(probe.batch(&[(0, kept, &prompt[5..6], Want::Token)])));
    let tail = [(0, kept + 1, &prompt[6..7], Want::Token), (other, 2, &prompt[7..8], Want::Token)];
    frames.push(Frame::Batch(probe.batch(if other != 0 { &tail } else { &tail[..1] })));
    frames.push(Frame::Command(Command::Close { seq: SeqId(0) }));
    frames
}

/// Compares what came out with what must come of `sent`.
fn compare(bench: &Bench<'_>, sent: &[Frame], came: &[Frame]) -> Result<(), String> {
    let last = bench.spec().is_last();
    let expected = sent.iter().filter(|frame| !last || matches!(frame, Frame::Batch(_)));
    let mut came = came.iter();
    for frame in expected {
        let answer = came.next().ok_or_else(|| format!("no answer to {}", name(frame)))?;
        match frame {
            Frame::Batch(batch) => check_answer(bench.spec(), batch, answer)?,
            frame if frame == answer => {}
            frame => return Err(format!("{} came out as {}", name(frame), name(answer))),
        }
    }
    came.next().map_or(Ok(()), |more| Err(format!("one answer too many: {}", name(more))))
}

async fn order(bench: &Bench<'_>) -> Result<(), String> {
    let mut probe = bench.connect().await?;
    let sent = script(bench, &mut probe);
    let answers = sent.iter().filter(|frame| !bench.spec().is_last() || matches!(frame, Frame::Batch(_))).count();
    for frame in &sent {
        probe.send(frame.clone()).await?;
    }
    let mut came = Vec::new();
    while came.len() < answers {
        came.push(probe.frame().await?);
    }
    compare(bench, &sent, &came)?;
    // Whatever else there is would come before what follows.
    let mut probe = probe;
    let end = probe.batch(&[(0, 0, &bench.tokens(0, 1), Want::Nothing)]);
    probe.send(Frame::Batch(end.clone())).await?;
    check_answer(bench.spec(), &end, &probe.frame().await?)
}

async fn graceful(bench: &Bench<'_>) -> Result<(), String> {
    let mut probe = bench.connect().await?;
    let sent = script(bench, &mut probe);
    for frame in &sent {
        probe.send(frame.clone()).await?;
    }
    let (closed, _) = tokio::sync::mpsc::channel(1);
    drop(std::mem::replace(&mut probe.link.input, closed));
    let mut came = Vec::new();
    loop {
        match probe.next().await? {
            Some(Ok(frame)) => came.push(frame),
            Some(Err(error)) => return Err(format!("a closed input ended as: {error}")),
            None => return compare(bench, &sent, &came),
        }
    }
}

async fn invalid(bench: &Bench<'_>) -> Result<(), String> {
    let valid = {
        let mut probe = bench.connect().await?;
        probe.batch(&[(0, 0, &bench.tokens(0, 2), Want::Nothing)])
    };
    for (what, frame) in invalid_frames(bench, &valid) {
        let mut probe = bench.connect().await?;
        probe.open(0, 2).await?;
        probe.send(frame).await?;
        match probe.next().await? {
            Some(Err(StageError::InvalidFrame(_))) => {}
            Some(Err(error)) => return Err(format!("{what} ended the link as: {error}")),
            Some(Ok(frame)) => return Err(format!("{what} was answered with {}", name(&frame))),
            None => return Err(format!("{what} ended the link without a word")),
        }
        if let Some(Ok(frame)) = probe.next().await? {
            return Err(format!("after {what} ended the link came {}", name(&frame)));
        }
    }
    Ok(())
}

fn invalid_frames(bench: &Bench<'_>, valid: &MicroBatch) -> Vec<(&'static str, Frame)> {
    let spec = bench.spec();
    let change = |change: &dyn Fn(&mut MicroBatch)| {
        let mut batch = valid.clone();
        change(&mut batch);
        Frame::Batch(batch)
    };
    let command = |seq, len| Frame::Command(Command::Truncate { seq: SeqId(seq), len });
    let beyond = TokenId(spec.n_vocab.cast_signed());
    let opened = |change: &dyn Fn(&mut Open)| {
        let sampling = Sampling::greedy();
        let mut open = Open::new(SeqId(spec.n_seq - 1), RequestId::new("conformance"), 1, sampling);
        change(&mut open);
        Frame::Command(Command::Open(Box::new(open)))
    };
    let mut frames = vec![
        ("a batch without tokens", change(&|batch| batch.tokens.clear())),
        ("a slot that is not there", change(&|batch| batch.segments[0].seq = SeqId(spec.n_seq))),
        ("a position beyond the context", change(&|batch| batch.segments[0].start = spec.n_ctx - 1)),
        ("a segment too long for its tokens", change(&|batch| batch.segments[0].len += 1)),
        ("a token beyond the vocabulary", change(&|batch| batch.tokens[1] = TokenId(spec.n_vocab.cast_signed()))),
        ("a negative token", change(&|batch| batch.tokens[1] = TokenId(-1))),
        (
            "a slot used twice",
            change(&|batch| {
                batch.segments[0].len = 1;
                let mut again = batch.segments[0];
                again.start = 1;
                batch.segments.push(again);
            }),
        ),
        ("a command to a slot that is not there", command(spec.n_seq, 0)),
        ("a length beyond the context", command(0, spec.n_ctx + 1)),
        ("a run with a token beyond the vocabulary", opened(&|open| open.prompt_tail = vec![TokenId(-1)])),
        ("a run with a bias for no token", opened(&|open| open.logit_bias = vec![(beyond, 1.0)])),
        ("a run with a bias that is no number", opened(&|open| open.logit_bias = vec![(TokenId(0), f32::NAN)])),
        ("a run that wants too many log probabilities", opened(&|open| open.logprobs = Some(Logprobs::MAX_TOP + 1))),
        ("a run longer than the context", opened(&|open| open.generated = vec![TokenId(0); spec.n_ctx as usize])),
        (
            "a run with an empty marker",
            opened(&|open| open.constraint = Some(Constraint::forbidding(vec![String::new()]))),
        ),
        ("a result on the way down", Frame::Result(StepResult { step: StepId(0), outputs: Vec::new() })),
    ];
    if spec.is_first() {
        let rows = Rows { n_embd: spec.n_embd, data: vec![0.0; 2 * spec.n_embd as usize] };
        frames.push(("rows into the first stage", change(&|batch| batch.rows = Some(rows.clone()))));
    } else {
        frames.push(("a batch without rows", change(&|batch| batch.rows = None)));
        frames.push((
            "rows too short",
            change(&|batch| {
                if let Some(rows) = &mut batch.rows {
                    rows.n_embd -= 1;
                    rows.data.truncate(2 * rows.n_embd as usize);
                }
            }),
        ));
    }
    frames
}

async fn reconnect(bench: &Bench<'_>) -> Result<(), String> {
    let prompt = bench.tokens(0, 4);
    let mut first = bench.connect().await?;
    first.open(0, 4).await?;
    let fresh = first.values(&[(0, 0, &prompt, bench.all())]).await?;
    let mut second = bench.connect().await?;
    match first.next().await {
        Err(_) => return Err("the earlier link did not end".to_owned()),
        Ok(Some(Ok(frame))) => return Err(format!("the earlier link gave {}", name(&frame))),
        Ok(Some(Err(StageError::Closed)) | None) => {}
        Ok(Some(Err(error))) => return Err(format!("the earlier link ended as: {error}")),
    }
    second.open(0, 4).await?;
    let again = second.values(&[(0, 0, &prompt, bench.all())]).await?;
    bench.same("after a reconnect", &again, &fresh)
}

async fn cancel(bench: &Bench<'_>) -> Result<(), String> {
    let spec = bench.spec();
    let len = spec.n_batch.min(spec.n_ctx / 16).max(1) as usize;
    let tokens = bench.tokens(0, len);
    let mut probe = bench.connect().await?;
    let started = Instant::now();
    probe.values(&[(0, 0, &tokens, Want::Nothing)]).await?;
    let step = started.elapsed();
    let mut start = len as u32;
    while start + len as u32 <= spec.n_ctx {
        let batch = probe.batch(&[(0, start, &tokens, Want::Nothing)]);
        if probe.link.input.try_send(Frame::Batch(batch)).is_err() {
            break;
        }
        start += len as u32;
        tokio::task::yield_now().await;
    }
    drop(probe);
    let dropped = Instant::now();
    let mut probe = bench.connect().await?;
    probe.values(&[(0, 0, &tokens[..1], Want::Nothing)]).await?;
    let took = dropped.elapsed();
    if took <= 2 * step + MARGIN {
        return Ok(());
    }
    Err(format!("a new link took {took:?} to answer, where a step takes {step:?}"))
}

async fn failures(bench: &Bench<'_>) -> Result<(), String> {
    if bench.spec().is_first() {
        return Ok(());
    }
    let mut probe = bench.connect().await?;
    let failure = StepFailure { step: StepId(0), reason: "a stage before could not".to_owned() };
    probe.send(Frame::Failure(failure.clone())).await?;
    match probe.frame().await? {
        Frame::Failure(same) if same == failure => {}
        other => return Err(format!("a failure came out as {}", name(&other))),
    }
    probe.values(&[(0, 0, &bench.tokens(0, 2), Want::Nothing)]).await.map(drop)
}

async fn gap(bench: &Bench<'_>) -> Result<(), String> {
    let mut probe = bench.connect().await?;
    let tokens = bench.tokens(0, 4);
    probe.open(0, 2).await?;
    probe.values(&[(0, 0, &tokens[..2], Want::Nothing)]).await?;
    let batch = probe.batch(&[(0, 5, &tokens[2..3], Want::Token)]);
    probe.send(Frame::Batch(batch.clone())).await?;
    match probe.frame().await? {
        Frame::Failure(failure) if failure.step == batch.step => {}
        other => return Err(format!("positions with a gap gave {}", name(&other))),
    }
    probe.command(Command::Close { seq: SeqId(0) }).await?;
    probe.open(0, 2).await?;
    probe.values(&[(0, 0, &tokens[..2], Want::Token)]).await.map(drop)
}

async fn truncate(bench: &Bench<'_>) -> Result<(), String> {
    let (prompt, tail) = (bench.tokens(0, 6), bench.tokens(9, 3));
    let mut probe = bench.connect().await?;
    probe.open(0, 6).await?;
    probe.values(&[(0, 0, &prompt[..3], Want::Nothing)]).await?;
    // Of use only to a stage that could not be cut back otherwise.
    probe.command(Command::Checkpoint { seq: SeqId(0), len: 3 }).await?;
    probe.values(&[(0, 3, &prompt[3..], Want::Nothing)]).await?;
    probe.command(Command::Truncate { seq: SeqId(0), len: 3 }).await?;
    let cut = probe.values(&[(0, 3, &tail, bench.all())]).await?;
    let mut probe = bench.connect().await?;
    probe.open(0, 6).await?;
    probe.values(&[(0, 0, &prompt[..3], Want::Nothing)]).await?;
    let fresh = probe.values(&[(0, 3, &tail, bench.all())]).await?;
    bench.same("after a truncation", &cut, &fresh)
}

async fn copy(bench: &Bench<'_>) -> Result<(), String> {
    if bench.spec().n_seq < 2 {
        return Ok(());
    }
    let (prompt, other, tail) = (bench.tokens(0, 6), bench.tokens(4, 3), bench.tokens(9, 2));
    let len = if bench.spec().cuts_back { 4 } else { 6 };
    let mut probe = bench.connect().await?;
    probe.open(0, 6).await?;
    probe.values(&[(0, 0, &prompt, Want::Nothing)]).await?;
    // The target is emptied first.
    probe.open(1, 3).await?;
    probe.values(&[(1, 0, &other, Want::Nothing)]).await?;
    probe.command(Command::Close { seq: SeqId(1) }).await?;
    probe.command(Command::Copy { from: SeqId(0), to: SeqId(1), len }).await?;
    probe.open(1, 6).await?;
    let copied = probe.values(&[(1, len, &tail, bench.all())]).await?;
    let source = probe.values(&[(0, 6, &tail, bench.all())]).await?;

    let mut probe = bench.connect().await?;
    probe.open(1, 6).await?;
    probe.values(&[(1, 0, &prompt[..len as usize], Want::Nothing)]).await?;
    let fresh = probe.values(&[(1, len, &tail, bench.all())]).await?;
    bench.same("on a copied prefix", &copied, &fresh)?;
    let mut probe = bench.connect().await?;
    probe.open(0, 6).await?;
    probe.values(&[(0, 0, &prompt, Want::Nothing)]).await?;
    let fresh = probe.values(&[(0, 6, &tail, bench.all())]).await?;
    bench.same("on the slot that was copied from", &source, &fresh)
}

async fn close(bench: &Bench<'_>) -> Result<(), String> {
    let (prompt, other) = (bench.tokens(0, 4), bench.tokens(5, 3));
    let mut probe = bench.connect().await?;
    probe.open(0, 4).await?;
    probe.values(&[(0, 0, &prompt, Want::Nothing)]).await?;
    probe.command(Command::Close { seq: SeqId(0) }).await?;
    probe.open(0, 3).await?;
    let again = probe.values(&[(0, 0, &other, bench.all())]).await?;
    let mut probe = bench.connect().await?;
    probe.open(0, 3).await?;
    let fresh = probe.values(&[(0, 0, &other, bench.all())]).await?;
    bench.same("on a closed slot", &again, &fresh)
}

async fn retain(bench: &Bench<'_>) -> Result<(), String> {
    let (prompt, tail) = (bench.tokens(0, 6), bench.tokens(9, 3));
    let len = if bench.spec().cuts_back { 4 } else { 6 };
    let mut probe = bench.connect().await?;
    probe.open(0, 6).await?;
    probe.values(&[(0, 0, &prompt, Want::Nothing)]).await?;
    probe.command(Command::Retain { seq: SeqId(0), len }).await?;
    // Its run is over: the slot takes another.
    probe.open(0, len + 3).await?;
    let kept = probe.values(&[(0, len, &tail, bench.all())]).await?;
    let mut probe = bench.connect().await?;
    probe.open(0, len + 3).await?;
    probe.values(&[(0, 0, &prompt[..len as usize], Want::Nothing)]).await?;
    let fresh = probe.values(&[(0, len, &tail, bench.all())]).await?;
    bench.same("behind what was retained", &kept, &fresh)
}
