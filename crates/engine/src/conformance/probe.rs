//! A link as a check uses it: frames made to measure, and every wait with a deadline.

use std::time::Duration;

use mesh_types::{RequestId, Sampling, TokenId};
use tokio::time::timeout;

use super::Kit;
use crate::error::StageError;
use crate::frame::{Command, Frame, MicroBatch, Open, Rows, Segment, SeqId, StepId, Want};
use crate::stage::{Stage, StageLink, StageSpec};

/// What is checked, and how.
pub(super) struct Bench<'a> {
    pub(super) stage: &'a dyn Stage,
    pub(super) kit: &'a Kit,
}

impl Bench<'_> {
    pub(super) fn spec(&self) -> &StageSpec {
        self.stage.spec()
    }

    pub(super) async fn connect(&self) -> Result<Probe, String> {
        let link = timeout(self.kit.deadline, self.stage.connect()).await;
        let link = link.map_err(|_| "no link in time".to_owned())?.map_err(|error| format!("no link: {error}"))?;
        Ok(Probe { link, spec: self.spec().clone(), deadline: self.kit.deadline, steps: 0 })
    }

    /// `len` tokens of the kit, from the `at`-th on.
    pub(super) fn tokens(&self, at: usize, len: usize) -> Vec<TokenId> {
        let tokens = &self.kit.tokens;
        (at..at + len).filter_map(|i| tokens.get(i % tokens.len().max(1)).copied()).collect()
    }

    /// What asks the stage for all it computes.
    pub(super) fn all(&self) -> Want {
        if self.spec().is_last() { Want::Logits } else { Want::Token }
    }

    pub(super) fn same(&self, what: &str, one: &[f32], other: &[f32]) -> Result<(), String> {
        if one.len() != other.len() {
            return Err(format!("{what}: {} values, and {} when nothing came before", one.len(), other.len()));
        }
        let apart = one.iter().zip(other).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        if apart <= self.kit.tolerance && one.iter().all(|value| value.is_finite()) {
            return Ok(());
        }
        Err(format!("{what}: values differ by {apart} from those when nothing came before"))
    }
}

/// Part of a batch: the slot, where it starts, its tokens, and what is wanted.
pub(super) type Part<'a> = (u32, u32, &'a [TokenId], Want);

pub(super) struct Probe {
    pub(super) link: StageLink,
    pub(super) spec: StageSpec,
    deadline: Duration,
    steps: u64,
}

impl Probe {
    pub(super) async fn send(&self, frame: Frame) -> Result<(), String> {
        match timeout(self.deadline, self.link.input.send(frame)).await {
            Err(_) => Err("it does not take a frame in time".to_owned()),
            Ok(Err(_)) => Err("its link ended early".to_owned()),
            Ok(Ok(())) => Ok(()),
        }
    }

    /// What comes next; `None`: the link has ended.
    pub(super) async fn next(&mut self) -> Result<Option<Result<Frame, StageError>>, String> {
        timeout(self.deadline, self.link.output.recv()).await.map_err(|_| "no answer in time".to_owned())
    }

    pub(super) async fn frame(&mut self) -> Result<Frame, String> {
        match self.next().await? {
            Some(Ok(frame)) => Ok(frame),
            Some(Err(error)) => Err(format!("the link ended: {error}")),
            None => Err("the link ended without a word".to_owned()),
        }
    }

    pub(super) fn batch(&mut self, parts: &[Part<'_>]) -> MicroBatch {
        self.steps += 1;
        let segment =
            |part: &Part<'_>| Segment { seq: SeqId(part.0), start: part.1, len: part.2.len() as u32, want: part.3 };
        let tokens: Vec<TokenId> = parts.iter().flat_map(|part| part.2).copied().collect();
        let rows = (!self.spec.is_first()).then(|| rows(&tokens, self.spec.n_embd));
        MicroBatch { step: StepId(self.steps - 1), segments: parts.iter().map(segment).collect(), tokens, rows }
    }

    /// Sends a command, and takes it back where it is handed on.
    pub(super) async fn command(&mut self, command: Command) -> Result<(), String> {
        self.send(Frame::Command(command.clone())).await?;
        if self.spec.is_last() {
            return Ok(());
        }
        match self.frame().await? {
            Frame::Command(same) if same == command => Ok(()),
            other => Err(format!("{command:?} was handed on as {}", name(&other))),
        }
    }

    pub(super) async fn open(&mut self, seq: u32, prompt_len: u32) -> Result<(), String> {
        self.command(open(seq, prompt_len)).await
    }

    /// Computes one batch, and returns all values that came of it.
    pub(super) async fn values(&mut self, parts: &[Part<'_>]) -> Result<Vec<f32>, String> {
        let batch = self.batch(parts);
        self.send(Frame::Batch(batch.clone())).await?;
        let answer = self.frame().await?;
        check_answer(&self.spec, &batch, &answer)?;
        Ok(match answer {
            Frame::Batch(batch) => batch.rows.map(|rows| rows.data).unwrap_or_default(),
            Frame::Result(result) => result.outputs.into_iter().filter_map(|output| output.logits).flatten().collect(),
            _ => Vec::new(),
        })
    }
}

pub(super) fn open(seq: u32, prompt_len: u32) -> Command {
    Command::Open(Box::new(Open::new(SeqId(seq), RequestId::new("conformance"), prompt_len, Sampling::greedy())))
}

/// Rows that are as good as any: they depend on the token alone.
fn rows(tokens: &[TokenId], n_embd: u32) -> Rows {
    let value = |token: u32, i: u32| {
        let x = token.wrapping_mul(0x9e37_79b9).wrapping_add(i.wrapping_mul(0x85eb_ca6b));
        let x = (x ^ (x >> 15)).wrapping_mul(0x2c1b_3c6d);
        ((x ^ (x >> 12)) >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    let row = |token: &TokenId| {
        let token = token.0.cast_unsigned();
        (0..n_embd).map(move |i| value(token, i))
    };
    Rows { n_embd, data: tokens.iter().flat_map(row).collect() }
}

/// Whether `answer` is what a stage of `spec` may make of `batch`.
pub(super) fn check_answer(spec: &StageSpec, batch: &MicroBatch, answer: &Frame) -> Result<(), String> {
    let step = batch.step.0;
    match answer {
        Frame::Batch(out) if !spec.is_last() => {
            if (out.step, &out.segments, &out.tokens) != (batch.step, &batch.segments, &batch.tokens) {
                return Err(format!("step {step} came out as step {} or with other tokens", out.step.0));
            }
            let values = out.rows.as_ref().map_or(0, |rows| rows.data.len());
            let expected = batch.tokens.len() * spec.n_embd as usize;
            if values == expected { Ok(()) } else { Err(format!("step {step} has {values} values, not {expected}")) }
        }
        Frame::Result(result) if spec.is_last() => {
            if result.step != batch.step {
                return Err(format!("step {step} was answered with step {}", result.step.0));
            }
            result.check(spec).map_err(|error| error.to_string())?;
            let wanted = batch.segments.iter().filter(|segment| segment.want != Want::Nothing);
            let expected: Vec<_> = wanted
                .flat_map(|segment| {
                    let logits = if segment.want == Want::Logits { segment.len * spec.n_vocab } else { 0 };
                    let token = segment.want != Want::Logits;
                    let of_segment = result.outputs.iter().filter(|output| output.seq == segment.seq).count();
                    let positions = match segment.want {
                        Want::Verified => segment.start + 1..=segment.start + of_segment.max(1) as u32,
                        Want::Scored(_) => segment.start + 1..=segment.start + segment.len,
                        _ => segment.start + segment.len..=segment.start + segment.len,
                    };
                    positions.map(move |position| (segment.seq, position, token, logits as usize))
                })
                .collect();
            let outputs = result.outputs.iter().map(|output| {
                let logits = output.logits.as_ref().map_or(0, Vec::len);
                (output.seq, output.position, output.token.is_some(), logits)
            });
            let outputs: Vec<_> = outputs.collect();
            if outputs == expected { Ok(()) } else { Err(format!("step {step} gave {outputs:?}, not {expected:?}")) }
        }
        other => Err(format!("step {step} was answered with {}", name(other))),
    }
}

pub(super) fn name(frame: &Frame) -> String {
    match frame {
        Frame::Batch(batch) => format!("batch {}", batch.step.0),
        Frame::Command(command) => format!("{command:?}"),
        Frame::Result(result) => format!("the result of step {}", result.step.0),
        Frame::Failure(failure) => format!("a failure of step {}: {}", failure.step.0, failure.reason),
    }
}
