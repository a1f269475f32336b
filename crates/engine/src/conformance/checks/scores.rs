//! Scores: of a prompt's tokens, what a softmax over the logits before them says.

use mesh_types::{Logprobs, RequestId, Sampling, TokenId};

use super::extra_rows;
use crate::conformance::probe::{Bench, Probe, check_answer, name};
use crate::frame::{Command, Frame, Open, Output, SeqId, Want};
use crate::run::log_probabilities;

/// Most likely tokens that are asked for.
const TOP: u8 = 3;

pub(super) async fn score(bench: &Bench<'_>) -> Result<(), String> {
    let prompt = bench.tokens(0, 6);
    if !bench.spec().is_last() {
        return extra_rows::pass_on(bench, &prompt, Want::Scored(Some(prompt[0])), "scored tokens").await;
    }
    let mut probe = bench.connect().await?;
    probe.open(0, 6).await?;
    let mut logits = probe.values(&[(0, 0, &prompt[..4], Want::Logits)]).await?;
    logits.extend(probe.values(&[(0, 4, &prompt[4..], Want::Logits)]).await?);

    let mut probe = bench.connect().await?;
    let open = Open::new(SeqId(0), RequestId::new("conformance"), 6, Sampling::greedy());
    probe.command(Command::Open(Box::new(Open { logprobs: Some(TOP), ..open }))).await?;
    let mut scored = outputs(&mut probe, 0, &prompt[..4], Some(prompt[4])).await?;
    scored.extend(outputs(&mut probe, 4, &prompt[4..], None).await?);
    let n_vocab = bench.spec().n_vocab as usize;
    for (place, (output, logits)) in scored.iter().zip(logits.chunks_exact(n_vocab)).enumerate() {
        let token = match prompt.get(place + 1) {
            None => output.token.ok_or("no token was drawn behind the prompt")?,
            Some(token) if output.token == Some(*token) => *token,
            Some(token) => return Err(format!("{:?} was scored where {token:?} stands", output.token)),
        };
        let expected = log_probabilities(logits, token, usize::from(TOP));
        let found = output.logprobs.as_ref().ok_or("a score without log probabilities")?;
        same(bench, place, found, &expected)?;
    }
    extra_rows::are_limited(bench, Want::Scored(None), "scored tokens").await
}

fn same(bench: &Bench<'_>, place: usize, found: &Logprobs, expected: &Logprobs) -> Result<(), String> {
    bench.same(&format!("the score behind token {place}"), &[found.chosen], &[expected.chosen])?;
    let values = |of: &Logprobs| of.top.iter().map(|(_, value)| *value).collect::<Vec<_>>();
    bench.same(&format!("the likeliest behind token {place}"), &values(found), &values(expected))
}

/// Computes one segment on slot 0, and returns what is said of it.
async fn outputs(
    probe: &mut Probe,
    start: u32,
    tokens: &[TokenId],
    next: Option<TokenId>,
) -> Result<Vec<Output>, String> {
    let batch = probe.batch(&[(0, start, tokens, Want::Scored(next))]);
    probe.send(Frame::Batch(batch.clone())).await?;
    let answer = probe.frame().await?;
    check_answer(&probe.spec, &batch, &answer)?;
    match answer {
        Frame::Result(result) => Ok(result.outputs),
        other => Err(format!("scores wanted, and {} came", name(&other))),
    }
}
