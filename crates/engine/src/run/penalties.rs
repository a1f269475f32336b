//! What a run asks to change in the logits: biases, and penalties on what was said already.
//!
//! The repeat penalty looks at the last tokens, the prompt's included, as in llama.cpp; presence and frequency count what
//! the run itself has generated, as the OpenAI API defines them.

use std::collections::{HashMap, HashSet};

use mesh_types::{Sampling, TokenId};

use crate::frame::Open;

/// Whether there is any penalty.
pub(super) fn has_any(sampling: &Sampling) -> bool {
    repeats(sampling) || counts(sampling)
}

fn repeats(sampling: &Sampling) -> bool {
    let penalty = sampling.repeat_penalty;
    sampling.repeat_last_n > 0 && penalty != 1.0 && penalty > 0.0 && penalty.is_finite()
}

fn counts(sampling: &Sampling) -> bool {
    sampling.presence_penalty != 0.0 || sampling.frequency_penalty != 0.0
}

/// Applies all of them, biases first. `generated` is what the run has generated before.
pub(super) fn apply(logits: &mut [f32], open: &Open, generated: &[TokenId]) {
    for (token, bias) in &open.logit_bias {
        change(logits, *token, |logit| logit + bias);
    }
    let sampling = &open.sampling;
    if repeats(sampling) {
        let last = last_tokens(open, generated);
        last.for_each(|token| change(logits, token, |logit| punish(logit, sampling.repeat_penalty)));
    }
    if counts(sampling) {
        let mut times: HashMap<TokenId, f32> = HashMap::new();
        generated.iter().for_each(|token| *times.entry(*token).or_default() += 1.0);
        for (token, times) in times {
            let penalty = sampling.presence_penalty + times * sampling.frequency_penalty;
            change(logits, token, |logit| logit - penalty);
        }
    }
}

/// The distinct ones among the last tokens.
fn last_tokens<'a>(open: &'a Open, generated: &'a [TokenId]) -> impl Iterator<Item = TokenId> + use<'a> {
    let n = open.sampling.repeat_last_n.min(Sampling::MAX_LAST_N) as usize;
    let backwards = generated.iter().rev().chain(open.prompt_tail.iter().rev());
    backwards.take(n).copied().collect::<HashSet<_>>().into_iter()
}

fn punish(logit: f32, penalty: f32) -> f32 {
    if logit > 0.0 { logit / penalty } else { logit * penalty }
}

/// An impossible token stays so, and a bias or penalty that is no number changes nothing.
fn change(logits: &mut [f32], token: TokenId, to: impl FnOnce(f32) -> f32) {
    if let Some(logit) = usize::try_from(token.0).ok().and_then(|at| logits.get_mut(at)) {
        let changed = to(*logit);
        if !changed.is_nan() && changed != f32::INFINITY && *logit > f32::NEG_INFINITY {
            *logit = changed;
        }
    }
}
