//! Drafts: what is drawn behind them is what would have been drawn one token at a time.

use mesh_types::TokenId;

use super::extra_rows;
use crate::conformance::probe::{Bench, Probe, check_answer, name};
use crate::frame::{Command, Frame, SeqId, Want};

/// Tokens that are drawn one at a time, for the drafts to be compared with.
const DRAWN: usize = 5;

pub(super) async fn verify(bench: &Bench<'_>) -> Result<(), String> {
    let prompt = bench.tokens(0, 6);
    if !bench.spec().rolls_back {
        return Ok(());
    }
    if !bench.spec().is_last() {
        return extra_rows::pass_on(bench, &prompt, Want::Verified, "drafts").await;
    }
    let mut probe = bench.connect().await?;
    probe.open(0, 6).await?;
    let mut drawn = tokens(&mut probe, 0, &prompt, Want::Token).await?;
    while drawn.len() < DRAWN {
        let at = 5 + drawn.len() as u32;
        let next = tokens(&mut probe, at, &drawn[drawn.len() - 1..], Want::Token).await?;
        drawn.extend(next);
    }
    let wrong = |token: TokenId| TokenId((token.0 + 1) % bench.spec().n_vocab.cast_signed());

    let mut probe = bench.connect().await?;
    probe.open(0, 6).await?;
    tokens(&mut probe, 0, &prompt, Want::Token).await?;
    // The third is no draft that holds: what was drawn in its place is told, and nothing behind it.
    let some_hold = [drawn[0], drawn[1], wrong(drawn[2]), drawn[3]];
    same("behind a wrong draft", &tokens(&mut probe, 6, &some_hold, Want::Verified).await?, &drawn[1..3])?;
    probe.command(Command::Truncate { seq: SeqId(0), len: 8 }).await?;
    let all_hold = [drawn[2], drawn[3]];
    same("behind right drafts", &tokens(&mut probe, 8, &all_hold, Want::Verified).await?, &drawn[3..5])?;
    extra_rows::are_limited(bench, Want::Verified, "drafts").await
}

/// Computes one segment on slot 0, and returns the tokens drawn.
async fn tokens(probe: &mut Probe, start: u32, tokens: &[TokenId], want: Want) -> Result<Vec<TokenId>, String> {
    let batch = probe.batch(&[(0, start, tokens, want)]);
    probe.send(Frame::Batch(batch.clone())).await?;
    let answer = probe.frame().await?;
    check_answer(&probe.spec, &batch, &answer)?;
    match answer {
        Frame::Result(result) => Ok(result.outputs.into_iter().filter_map(|output| output.token).collect()),
        other => Err(format!("tokens wanted, and {} came", name(&other))),
    }
}

fn same(what: &str, one: &[TokenId], other: &[TokenId]) -> Result<(), String> {
    if one == other { Ok(()) } else { Err(format!("{what}: {one:?} were drawn, and {other:?} one at a time")) }
}
