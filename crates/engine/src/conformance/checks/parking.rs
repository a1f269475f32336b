//! Places on the host: what comes back from there is what was parked.

use crate::conformance::probe::{Bench, Probe};
use crate::frame::{Command, SeqId, Want};

pub(super) async fn park(bench: &Bench<'_>) -> Result<(), String> {
    if bench.spec().n_parked < 8 {
        return Ok(());
    }
    let (prompt, other, tail) = (bench.tokens(0, 6), bench.tokens(4, 3), bench.tokens(9, 2));
    let len = if bench.spec().cuts_back { 4 } else { 6 };
    let mut probe = bench.connect().await?;
    held(&mut probe, bench).await?;
    probe.command(Command::Park { seq: SeqId(0), place: 1 }).await?;
    // The slot is empty, and takes something else meanwhile.
    probe.open(0, 3).await?;
    probe.values(&[(0, 0, &other, Want::Nothing)]).await?;
    probe.command(Command::Close { seq: SeqId(0) }).await?;
    probe.command(Command::Fetch { place: 1, seq: SeqId(0), len }).await?;
    probe.open(0, 8).await?;
    let fetched = probe.values(&[(0, len, &tail, bench.all())]).await?;
    probe.command(Command::Close { seq: SeqId(0) }).await?;
    probe.command(Command::Fetch { place: 1, seq: SeqId(0), len: 6 }).await?;
    probe.command(Command::Drop { place: 1 }).await?;
    probe.open(0, 8).await?;
    let again = probe.values(&[(0, 6, &tail, bench.all())]).await?;

    for (what, values, len) in [("what was fetched", &fetched, len), ("what was fetched again", &again, 6)] {
        let mut probe = bench.connect().await?;
        probe.open(0, 8).await?;
        probe.values(&[(0, 0, &prompt[..len as usize], Want::Nothing)]).await?;
        let fresh = probe.values(&[(0, len, &tail, bench.all())]).await?;
        bench.same(what, values, &fresh)?;
    }
    Ok(())
}

/// Slot 0 holds six tokens of a run that is over.
async fn held(probe: &mut Probe, bench: &Bench<'_>) -> Result<(), String> {
    probe.open(0, 6).await?;
    probe.values(&[(0, 0, &bench.tokens(0, 6), Want::Nothing)]).await?;
    probe.command(Command::Retain { seq: SeqId(0), len: 6 }).await
}
