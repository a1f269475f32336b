//! What drafts and scored tokens have in common: rows that are wanted of tokens before the last of a segment.

use mesh_types::TokenId;

use crate::conformance::probe::Bench;
use crate::frame::{Frame, MAX_EXTRA_ROWS, Want};

/// A stage that is not the last makes rows of such tokens, `what` for people, as of others.
pub(super) async fn pass_on(bench: &Bench<'_>, prompt: &[TokenId], want: Want, what: &str) -> Result<(), String> {
    let mut rows = Vec::new();
    for want in [Want::Nothing, want] {
        let mut probe = bench.connect().await?;
        probe.open(0, 6).await?;
        rows.push(probe.values(&[(0, 0, prompt, want)]).await?);
    }
    bench.same(&format!("rows of {what}"), &rows[1], &rows[0])
}

/// A stage refuses one more of them than it has room for.
pub(super) async fn are_limited(bench: &Bench<'_>, want: Want, what: &str) -> Result<(), String> {
    let len = MAX_EXTRA_ROWS + 2;
    if bench.spec().n_batch < len || bench.spec().n_ctx < len {
        return Ok(());
    }
    let mut probe = bench.connect().await?;
    probe.open(0, len).await?;
    let batch = probe.batch(&[(0, 0, &bench.tokens(0, len as usize), want)]);
    probe.send(Frame::Batch(batch)).await?;
    match probe.next().await? {
        Some(Err(_)) => Ok(()),
        other => Err(format!("more {what} than there is room for gave {other:?}")),
    }
}
