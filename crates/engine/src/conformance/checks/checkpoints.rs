//! Checkpoints: a sequence that cannot be cut back is set back to what was kept, and to nothing else.

use mesh_types::TokenId;

use crate::conformance::probe::{Bench, Probe, name};
use crate::frame::{Command, Frame, SeqId, Want};

const SLOT: SeqId = SeqId(0);

pub(super) async fn set_back(bench: &Bench<'_>) -> Result<(), String> {
    let n_states = bench.spec().n_states;
    if bench.spec().cuts_back || n_states < 2 {
        return Ok(());
    }
    let (prompt, tail) = (bench.tokens(0, 8), bench.tokens(9, 2));
    let mut probe = kept(bench, &prompt).await?;
    let mut found = Vec::new();
    for len in [5, 3] {
        probe.command(Command::Truncate { seq: SLOT, len }).await?;
        found.push((len, probe.values(&[(0, len, &tail, bench.all())]).await?));
    }
    for (len, found) in found {
        let mut fresh = bench.connect().await?;
        fresh.open(0, 8).await?;
        fresh.values(&[(0, 0, &prompt[..3], Want::Nothing)]).await?;
        if len > 3 {
            fresh.values(&[(0, 3, &prompt[3..len as usize], Want::Nothing)]).await?;
        }
        let fresh = fresh.values(&[(0, len, &tail, bench.all())]).await?;
        bench.same("set back to a checkpoint", &found, &fresh)?;
    }
    // Only what is there is kept, and what was given up is not.
    let mut probe = kept(bench, &prompt).await?;
    probe.command(Command::Checkpoint { seq: SLOT, len: 6 }).await?;
    probe.command(Command::Truncate { seq: SLOT, len: 6 }).await?;
    fails(&mut probe, 6, &tail, "a checkpoint of another length was taken").await?;
    let mut probe = kept(bench, &prompt).await?;
    probe.command(Command::Forget { seq: SLOT, len: 3 }).await?;
    probe.command(Command::Truncate { seq: SLOT, len: 3 }).await?;
    fails(&mut probe, 3, &tail, "a checkpoint was there that was given up").await?;
    bounded(bench, n_states).await
}

/// One more than there may be is not taken.
async fn bounded(bench: &Bench<'_>, n_states: u32) -> Result<(), String> {
    if n_states > 32 || n_states + 4 > bench.spec().n_ctx {
        return Ok(());
    }
    let tokens = bench.tokens(0, n_states as usize + 4);
    let mut probe = bench.connect().await?;
    probe.open(0, n_states + 4).await?;
    for at in 0..=n_states {
        let one = &tokens[at as usize..=at as usize];
        probe.values(&[(0, at, one, Want::Nothing)]).await?;
        probe.command(Command::Checkpoint { seq: SLOT, len: at + 1 }).await?;
    }
    probe.values(&[(0, n_states + 1, &tokens[..1], Want::Nothing)]).await?;
    probe.command(Command::Truncate { seq: SLOT, len: n_states + 1 }).await?;
    fails(&mut probe, n_states + 1, &tokens[..1], "more states were kept than may be").await
}

/// Slot 0 holds eight tokens, with checkpoints at three and five.
async fn kept(bench: &Bench<'_>, prompt: &[TokenId]) -> Result<Probe, String> {
    let mut probe = bench.connect().await?;
    probe.open(0, 8).await?;
    let mut at = 0;
    for len in [3, 5] {
        probe.values(&[(0, at, &prompt[at as usize..len as usize], Want::Nothing)]).await?;
        probe.command(Command::Checkpoint { seq: SLOT, len }).await?;
        at = len;
    }
    probe.values(&[(0, 5, &prompt[5..], Want::Nothing)]).await?;
    Ok(probe)
}

async fn fails(probe: &mut Probe, start: u32, tokens: &[TokenId], what: &str) -> Result<(), String> {
    let batch = probe.batch(&[(0, start, tokens, Want::Nothing)]);
    probe.send(Frame::Batch(batch)).await?;
    match probe.frame().await? {
        Frame::Failure(_) => Ok(()),
        other => Err(format!("{what}: {}", name(&other))),
    }
}
