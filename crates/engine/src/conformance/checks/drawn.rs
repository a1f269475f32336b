//! A token that the stage has drawn itself: it stands for what it is, and ends where the run does.

use mesh_types::{RequestId, Sampling, TokenId};

use crate::conformance::probe::{Bench, Probe, name};
use crate::error::StageError;
use crate::frame::{Command, DRAWN, DrawFailure, Frame, Open, Output, SeqId, Want};

/// Tokens of the prompt, and tokens drawn.
const PROMPT: u32 = 5;
const TOKENS: u32 = 4;

pub(super) async fn drawn(bench: &Bench<'_>) -> Result<(), String> {
    let prompt = bench.tokens(0, PROMPT as usize);
    if !(bench.spec().is_first() && bench.spec().is_last()) {
        return refused(bench, (&[DRAWN], Want::Token), "what another stage has drawn").await;
    }
    refused(bench, (&[DRAWN], Want::Logits), "a drawn token of which no token is wanted").await?;
    refused(bench, (&[prompt[0], DRAWN], Want::Token), "a drawn token beside another").await?;
    // The first of several stages has drawn nothing, as it says; one that fails at it in another way is found below.
    if refused(bench, (&[DRAWN], Want::Token), "what another stage has drawn").await.is_ok() {
        return Ok(());
    }
    let told = run(bench, &prompt, &[], true).await?;
    let told: Vec<TokenId> = told.into_iter().filter_map(|output| output.token).collect();
    let found = run(bench, &prompt, &[], false).await?;
    let found: Vec<TokenId> = found.into_iter().filter_map(|output| output.token).collect();
    if found != told || told.len() != TOKENS as usize {
        return Err(format!("{found:?} came without being told what was drawn, and {told:?} with it"));
    }
    over(bench, &prompt, &told).await
}

/// Behind the token that ends a run nothing is computed.
async fn over(bench: &Bench<'_>, prompt: &[TokenId], told: &[TokenId]) -> Result<(), String> {
    let last = told[TOKENS as usize - 2];
    let first = told.iter().position(|token| *token == last).unwrap_or_default();
    let outputs = run(bench, prompt, &[last], false).await?;
    for (index, output) in outputs.iter().enumerate() {
        let is_over = output.failure == Some(DrawFailure::Over) && output.token.is_none();
        if is_over != (index > first) || output.position != PROMPT + index as u32 {
            return Err(format!("behind a token that ends the run at {first}: {output:?}"));
        }
    }
    Ok(())
}

/// What comes of a prompt and of the tokens behind it, which are told or not.
async fn run(bench: &Bench<'_>, prompt: &[TokenId], stop: &[TokenId], tells: bool) -> Result<Vec<Output>, String> {
    let mut probe = bench.connect().await?;
    let open = Open::new(SeqId(0), RequestId::new("conformance"), PROMPT, Sampling::greedy());
    probe.command(Command::Open(Box::new(Open { stop_tokens: stop.to_vec(), ..open }))).await?;
    let mut outputs = outputs_of(&mut probe, (0, prompt, Want::Token)).await?;
    for position in PROMPT..PROMPT + TOKENS - 1 {
        let before = outputs.last().and_then(|output| output.token);
        let token = if tells { before.ok_or("no token was drawn")? } else { DRAWN };
        outputs.extend(outputs_of(&mut probe, (position, &[token], Want::Token)).await?);
    }
    Ok(outputs)
}

async fn outputs_of(probe: &mut Probe, (start, tokens, want): (u32, &[TokenId], Want)) -> Result<Vec<Output>, String> {
    let batch = probe.batch(&[(0, start, tokens, want)]);
    probe.send(Frame::Batch(batch)).await?;
    match probe.frame().await? {
        Frame::Result(result) => Ok(result.outputs),
        other => Err(format!("tokens wanted, and {} came", name(&other))),
    }
}

async fn refused(bench: &Bench<'_>, (tokens, want): (&[TokenId], Want), what: &str) -> Result<(), String> {
    let mut probe = bench.connect().await?;
    probe.open(0, 1).await?;
    let batch = probe.batch(&[(0, 0, tokens, want)]);
    probe.send(Frame::Batch(batch)).await?;
    match probe.next().await? {
        Some(Err(StageError::InvalidFrame(_))) => Ok(()),
        Some(Ok(frame)) => Err(format!("{what} was answered with {}", name(&frame))),
        Some(Err(error)) => Err(format!("{what} ended the link as: {error}")),
        None => Err(format!("{what} ended the link without a word")),
    }
}
