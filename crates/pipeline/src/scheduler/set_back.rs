//! Checkpoints: where they are taken, what they save, and how many there are.

use super::model::answer;
use super::reuse::{Bench, LIMITS, next_turn, prompt};
use super::*;

/// Slots that only go on at their end. With these, a checkpoint is 4 tokens before a prompt's end, and at least 16 from
/// the one before.
const RECURRENT: Limits = Limits { cuts_back: false, rolls_back: false, n_states: 4, ..LIMITS };

/// Lengths of the checkpoints that were taken.
fn taken(bench: &Bench) -> Vec<u32> {
    let taken = |command: &Command| match command {
        Command::Checkpoint { len, .. } => Some(*len),
        _ => None,
    };
    bench.commands.iter().filter_map(taken).collect()
}

#[test]
fn a_turn_that_is_asked_for_again_computes_the_end_of_its_prompt() {
    let mut bench = Bench::new(RECURRENT);
    let first = prompt(&[(0, 30)]);
    assert_eq!((bench.ask(&first, 5), taken(&bench)), (0, vec![26]));
    assert_eq!(bench.ask(&first, 5), 26);
    // The answer in other words, as of a template that leaves out what the model thought.
    let second = [&first[..], &prompt(&[(500, 520)])].concat();
    let before = bench.model.computed;
    assert_eq!(bench.ask(&second, 5), 26);
    assert_eq!(bench.model.computed - before, 24 + 4);
    assert_eq!(taken(&bench), [26, 46]);
    // What was said word by word is still not computed again.
    assert_eq!(bench.ask(&next_turn(&second, 5, (600, 601)), 2), 54);
}

#[test]
fn what_can_be_cut_back_needs_none() {
    let mut bench = Bench::new(Limits { n_states: 4, ..LIMITS });
    bench.ask(&prompt(&[(0, 30)]), 5);
    assert!(taken(&bench).is_empty());
}

#[test]
fn short_stretches_are_computed_again() {
    let mut bench = Bench::new(RECURRENT);
    bench.ask(&prompt(&[(0, 19)]), 5);
    assert!(taken(&bench).is_empty());
    let first = prompt(&[(0, 30)]);
    bench.ask(&first, 5);
    bench.ask(&[&first[..], &prompt(&[(500, 510)])].concat(), 5);
    assert_eq!(taken(&bench), [26], "36 is not far behind 26");
}

#[test]
fn conversations_part_at_a_checkpoint() {
    for meanwhile in [false, true] {
        let mut bench = Bench::new(Limits { n_cells: 256, ..RECURRENT });
        let conversations = [100, 200, 300].map(|at| prompt(&[(0, 24), (at, at + 26)]));
        assert_eq!(bench.ask(&conversations[0], 5), 0);
        assert_eq!((bench.ask(&conversations[1], 5), taken(&bench)), (0, vec![46, 24, 46]));
        let busy = meanwhile.then(|| {
            let run = bench.submit(&next_turn(&conversations[1], 5, (400, 401)), 8);
            bench.steps(2);
            run
        });
        let third = bench.submit(&conversations[2], 2);
        let [(said, cached)] = bench.settle([third]);
        assert_eq!((said, cached), (answer(&conversations[2], 2), 24), "busy: {busy:?}");
    }
}

#[test]
fn states_are_bounded_and_what_was_used_longest_ago_gives_way() {
    let mut bench = Bench::new(Limits { n_states: 2, n_cells: 256, ..RECURRENT });
    let prompts = [0, 100, 200].map(|at| prompt(&[(at, at + 30)]));
    for prompt in &prompts {
        bench.ask(prompt, 5);
    }
    let again = prompts.each_ref().map(|prompt| bench.scheduler.slots.plan(prompt, 12, false).map(|plan| plan.start));
    assert_eq!(again, [Some(0), Some(26), Some(26)]);
    // One slot's own: the stretch that is shortest to compute again goes, but for the latest.
    let mut bench = Bench::new(Limits { n_seq: 1, n_parallel: 1, n_ctx: 128, n_states: 3, ..RECURRENT });
    let mut all = Vec::new();
    for len in [30, 50, 74, 98] {
        all = prompt(&[(0, len)]);
        bench.ask(&all, 1);
    }
    assert_eq!(bench.scheduler.slots.checkpoints(SeqId(0)), [26, 70, 94]);
    assert_eq!(bench.ask(&all, 1), 94);
    // None at all.
    let mut bench = Bench::new(Limits { n_states: 0, ..RECURRENT });
    bench.ask(&prompts[0], 5);
    assert_eq!((bench.ask(&prompts[0], 5), taken(&bench)), (0, Vec::new()));
}

#[test]
fn checkpoints_go_to_the_host_and_come_back_with_their_slot() {
    let limits = Limits { n_seq: 1, n_parallel: 1, n_cells: 64, n_parked: 200, n_places: 4, ..RECURRENT };
    for (n_states, cached) in [(4, 26), (3, 26), (2, 0)] {
        let mut bench = Bench::new(Limits { n_states, ..limits });
        let prompts = [0, 100].map(|at| prompt(&[(at, at + 30)]));
        for prompt in &prompts {
            bench.ask(prompt, 5);
        }
        let other = [&prompts[0][..], &prompt(&[(500, 505)])].concat();
        assert_eq!(bench.ask(&other, 5), cached, "{n_states} states");
    }
}

#[test]
fn a_checkpoint_that_does_not_hold_costs_nobody_an_error() {
    let mut bench = Bench::new(Limits { depth: 1, ..RECURRENT });
    let first = prompt(&[(0, 30)]);
    bench.ask(&first, 5);
    bench.model.lose_checkpoints();
    assert_eq!(bench.ask(&first, 5), 0);
    assert_eq!(bench.ask(&first, 5), 26, "it was taken again");
}
