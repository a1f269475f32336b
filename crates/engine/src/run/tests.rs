use mesh_types::{Constraint, LayerRange, ModelId, RequestId};

use super::*;
use crate::constraint::{Lexicon, Piece};

fn spec() -> StageSpec {
    StageSpec {
        model: ModelId::new("m"),
        layers: LayerRange::new(0, 1).expect("a layer"),
        n_layer: 1,
        n_embd: 1,
        n_vocab: 6,
        n_ctx: 64,
        n_seq: 1,
        n_batch: 8,
        n_cells: 64,
        cuts_back: true,
        rolls_back: true,
        n_parked: 0,
        n_states: 0,
    }
}

fn open(sampling: Sampling) -> Open {
    Open::new(SeqId(0), RequestId::new("r"), 3, sampling)
}

fn tokens(ids: &[i32]) -> Vec<TokenId> {
    ids.iter().copied().map(TokenId).collect()
}

fn adjusted(open: &Open, generated: &[i32]) -> Vec<f32> {
    let mut logits = vec![2.0, -1.0, 0.5, 4.0, 0.0, f32::NEG_INFINITY];
    penalties::apply(&mut logits, open, &tokens(generated));
    logits
}

#[test]
fn penalties_are_what_they_are_by_hand() {
    const GONE: f32 = f32::NEG_INFINITY;
    let sampling = Sampling::greedy();
    assert_eq!(adjusted(&open(sampling), &[0, 0, 1]), [2.0, -1.0, 0.5, 4.0, 0.0, GONE]);
    // Of what the run has generated; what the prompt holds does not count.
    let present = Open { prompt_tail: tokens(&[3]), ..open(Sampling { presence_penalty: 0.5, ..sampling }) };
    assert_eq!(adjusted(&present, &[0, 0, 1, 5]), [1.5, -1.5, 0.5, 4.0, 0.0, GONE]);
    let frequent = open(Sampling { presence_penalty: 0.5, frequency_penalty: 0.25, ..sampling });
    assert_eq!(adjusted(&frequent, &[0, 0, 1]), [1.0, -1.75, 0.5, 4.0, 0.0, GONE]);
    // Of the last tokens, the prompt's included; what is negative becomes more so.
    let repeat = Sampling { repeat_penalty: 2.0, repeat_last_n: 3, ..sampling };
    let repeat = Open { prompt_tail: tokens(&[2, 3, 4]), ..open(repeat) };
    assert_eq!(adjusted(&repeat, &[1, 0]), [1.0, -2.0, 0.5, 4.0, 0.0, GONE]);
    assert_eq!(adjusted(&repeat, &[1]), [2.0, -2.0, 0.5, 2.0, 0.0, GONE]);
    assert_eq!(adjusted(&repeat, &[]), [2.0, -1.0, 0.25, 2.0, 0.0, GONE]);
    let off = Open { sampling: Sampling { repeat_last_n: 0, ..repeat.sampling }, ..repeat.clone() };
    assert_eq!(adjusted(&off, &[0, 1]), [2.0, -1.0, 0.5, 4.0, 0.0, GONE]);
    let bias = vec![(TokenId(1), 5.0), (TokenId(3), GONE), (TokenId(5), 9.0)];
    assert_eq!(adjusted(&Open { logit_bias: bias, ..open(sampling) }, &[]), [2.0, 4.0, 0.5, GONE, 0.0, GONE]);
}

#[test]
fn log_probabilities_are_the_log_softmax() {
    let logits = [1.0f32, 3.0, 3.0, -2.0, 0.0, f32::NEG_INFINITY];
    let sum: f64 = logits.iter().map(|logit| f64::from(*logit).exp()).sum();
    let expected = |token: usize| (f64::from(logits[token]).exp() / sum).ln();
    let found = log_probabilities(&logits, TokenId(3), 4);
    assert!((f64::from(found.chosen) - expected(3)).abs() < 1e-6);
    assert_eq!(found.top.iter().map(|(token, _)| token.0).collect::<Vec<_>>(), [1, 2, 0, 4]);
    for (token, value) in found.top {
        assert!((f64::from(value) - expected(token.0 as usize)).abs() < 1e-6, "{token:?} {value}");
    }
    assert_eq!(log_probabilities(&logits, TokenId(0), 0).top, []);
    assert_eq!(log_probabilities(&logits, TokenId(5), 20).top.len(), 6);
}

#[test]
fn log_probabilities_are_of_the_raw_logits() {
    let logits = [1.0f32, 3.0, 2.0, 0.0, 0.0, 0.0];
    let banned = vec![(TokenId(1), f32::NEG_INFINITY)];
    let open = Open { logit_bias: banned, logprobs: Some(2), ..open(Sampling::greedy()) };
    let mut run = Run::new(open, &spec(), None);
    let drawn = run.draw(&mut Drawer::with_end_tokens([5].into()), &logits, 3).expect("a token");
    assert_eq!(drawn.token, TokenId(2));
    assert_eq!(drawn.logprobs, Some(log_probabilities(&logits, TokenId(2), 2)));
}

#[test]
fn the_state_is_that_of_the_tokens_computed() {
    let sampling = Sampling { presence_penalty: 3.0, ..Sampling::greedy() };
    let logits = [1.0f32, 3.0, 2.0, 0.5, 0.0, -1.0];
    let mut drawer = Drawer::with_end_tokens([5].into());
    let mut run = Run::new(open(sampling), &spec(), None);
    let mut said = Vec::new();
    run.computed(0, tokens(&[1, 1, 1]).into_iter());
    for position in 3..7 {
        let token = run.draw(&mut drawer, &logits, position).expect("a token").token;
        said.push(token.0);
        run.computed(position, [token].into_iter());
    }
    assert_eq!(said, [1, 2, 0, 3]);
    // Cut back, it says the same again; gone on elsewhere as well.
    run.truncate(5);
    assert_eq!(run.draw(&mut drawer, &logits, 5).expect("a token").token, TokenId(0));
    let elsewhere = Open { generated: tokens(&[1, 2]), ..open(sampling) };
    let mut elsewhere = Run::new(elsewhere, &spec(), None);
    assert_eq!(elsewhere.draw(&mut drawer, &logits, 5).expect("a token").token, TokenId(0));
    assert!(matches!(elsewhere.draw(&mut drawer, &logits, 6), Err(DrawFailure::Internal(_))), "a gap");
}

fn enforcer() -> Enforcer {
    let text = |text: &str| Piece::Text(text.as_bytes().into());
    Enforcer::new(Lexicon::new(vec![text("a"), text("b"), text("ab"), text("c"), Piece::Nothing, Piece::End]))
}

#[test]
fn filters_see_only_what_the_constraint_allows() {
    let logits = [0.0f32, 9.0, 1.0, 8.0, 7.0, 6.0];
    for sampling in [Sampling::greedy(), Sampling { top_k: 1, ..Sampling::default() }, Sampling::default()] {
        let constraint = Some(Constraint::immediately("start: \"a\" \"b\"+"));
        let open = Open { constraint, ..open(Sampling { top_p: 0.1, ..sampling }) };
        let mut run = Run::new(open, &spec(), Some(&mut enforcer()));
        let drawn = run.draw(&mut Drawer::with_end_tokens([5].into()), &logits, 3).expect("a token");
        assert_eq!(drawn.token, TokenId(2));
    }
}

#[test]
fn the_end_that_a_constraint_asks_for_is_not_ignored() {
    let sampling = Sampling { ignore_eos: true, ..Sampling::greedy() };
    let open = Open { constraint: Some(Constraint::immediately("start: \"ab\"")), ..open(sampling) };
    let mut run = Run::new(open, &spec(), Some(&mut enforcer()));
    run.computed(3, tokens(&[2]).into_iter());
    let drawn = run.draw(&mut Drawer::with_end_tokens([5].into()), &[0.0; 6], 4).expect("a token");
    assert_eq!(drawn.token, TokenId(5));
}

#[test]
fn a_run_that_cannot_be_constrained_fails_alone() {
    let draw = |grammar: &str| {
        let open = Open { constraint: Some(Constraint::immediately(grammar)), ..open(Sampling::greedy()) };
        let mut run = Run::new(open, &spec(), Some(&mut enforcer()));
        run.draw(&mut Drawer::with_end_tokens([5].into()), &[0.0; 6], 3)
    };
    assert!(matches!(draw("start: nothing"), Err(DrawFailure::Invalid(_))));
    assert!(matches!(draw("start: \"x\""), Err(DrawFailure::Invalid(_))), "the vocabulary has no x");
}

#[test]
fn what_was_drawn_is_known_until_it_is_cut_off_or_ends_the_run() {
    let logits = [0.0f32, 3.0, 2.0, 0.0, 0.0, 0.0];
    let mut drawer = Drawer::with_end_tokens([5].into());
    let mut run = Run::new(Open { stop_tokens: tokens(&[2]), ..open(Sampling::greedy()) }, &spec(), None);
    assert_eq!(run.drawn(3), None);
    run.draw(&mut drawer, &logits, 3).expect("a token");
    assert_eq!((run.drawn(3), run.drawn(2), run.drawn(4)), (Some(TokenId(1)), None, None));
    run.truncate(3);
    assert_eq!(run.drawn(3), Some(TokenId(1)), "its place is free");
    run.truncate(2);
    assert_eq!(run.drawn(3), None);
    run.draw(&mut drawer, &[0.0, 0.0, 9.0, 0.0, 0.0, 0.0], 3).expect("a token");
    assert_eq!(run.drawn(3), None, "it ends the run");
    run.draw(&mut drawer, &[f32::NAN; 6], 3).expect_err("no number");
    assert_eq!(run.drawn(3), None);
}
