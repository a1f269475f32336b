//! How likely tokens are to the model itself.

use mesh_types::{Logprobs, TokenId};

/// The natural logarithms of the softmax of raw `logits`: of `chosen`, and of the `top` most likely tokens (the most
/// likely first, equal ones by id). Computed in double precision.
pub fn log_probabilities(logits: &[f32], chosen: TokenId, top: usize) -> Logprobs {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| (f64::from(*logit) - f64::from(max)).exp()).sum();
    let normaliser = f64::from(max) + sum.ln();
    let log = |logit: f32| (f64::from(logit) - normaliser) as f32;
    let chosen = usize::try_from(chosen.0).ok().and_then(|at| logits.get(at)).map_or(f32::NEG_INFINITY, |l| log(*l));
    let top = most_likely(logits, top).into_iter().map(|(token, logit)| (token, log(logit))).collect();
    Logprobs { chosen, top }
}

fn most_likely(logits: &[f32], n: usize) -> Vec<(TokenId, f32)> {
    let mut best: Vec<(TokenId, f32)> = Vec::with_capacity(n + 1);
    for (token, logit) in (0..).map(TokenId).zip(logits.iter().copied()) {
        if n == 0 || best.len() == n && best.last().is_some_and(|(_, last)| logit <= *last) {
            continue;
        }
        let at = best.partition_point(|(_, other)| *other >= logit);
        best.insert(at, (token, logit));
        best.truncate(n);
    }
    best
}
