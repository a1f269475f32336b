use super::super::model::answer;
use super::super::tests::{Bench, limits, spec};
use super::super::*;

fn ahead(n_seq: u32) -> Limits {
    Limits { runs_ahead: true, rolls_back: false, ..limits(n_seq, 8, 1) }
}

/// Tokens told, with whether the run ended behind them.
fn said(bench: &mut Bench, run: RunId) -> (Vec<TokenId>, bool) {
    let mut said = (Vec::new(), false);
    for event in bench.events().into_iter().filter(|event| event.run == run) {
        match event.what.expect("no failure") {
            TokenEvent::Token { token, .. } => said.0.push(token),
            TokenEvent::Finished { .. } => said.1 = true,
            TokenEvent::Prompt(_) => panic!("nothing is scored"),
        }
    }
    said
}

fn settle(bench: &mut Bench) {
    while !bench.send().is_empty() || bench.scheduler.in_flight() > 0 {
        bench.compute();
    }
}

#[test]
fn the_next_token_is_under_way_before_the_one_before_is_home() {
    let mut bench = Bench::new(ahead(2));
    let run = bench.submit("a", 3, 4);
    assert_eq!(bench.send(), [[(0, 0, 3)]], "nothing behind a prompt");
    bench.compute();
    assert_eq!(bench.send(), [[(0, 3, 1)], [(0, 4, 1)]]);
    bench.compute();
    assert_eq!(bench.send(), [[(0, 5, 1)]]);
    bench.compute();
    assert_eq!(bench.send().len(), 0, "the last of four is being drawn");
    bench.compute();
    assert_eq!(said(&mut bench, run), (answer(&spec("a", 3, 4).prompt, 4), true));
    assert_eq!(bench.model.computed, 3 + 3);
}

#[test]
fn behind_a_token_that_ends_a_run_nothing_is_computed() {
    let mut bench = Bench::new(ahead(2));
    let mut ends = spec("ends", 5, 9);
    ends.stop_tokens = answer(&ends.prompt, 3).pop().into_iter().collect();
    let told = answer(&ends.prompt, 9);
    let count = told.iter().position(|token| ends.stop_tokens.contains(token)).expect("it is there") + 1;
    let ends = bench.scheduler.submit(ends).expect("room");
    let goes_on = bench.submit("goes on", 7, 9);
    settle(&mut bench);
    let all = bench.events();
    let is_token = |event: &&Event| matches!(event.what, Ok(TokenEvent::Token { .. }));
    let tokens = |run| all.iter().filter(is_token).filter(|event| event.run == run).count();
    assert_eq!((tokens(ends), tokens(goes_on)), (count, 9));
    assert!(all.iter().all(|event| event.what.is_ok()));
    assert_eq!(bench.model.computed as usize, 5 + 7 + (count - 1) + (9 - 1));
}

#[test]
fn a_prompt_waits_for_what_is_under_way_and_no_more() {
    let mut bench = Bench::new(ahead(2));
    bench.submit("a", 3, 20);
    bench.send();
    bench.compute();
    assert_eq!(bench.send().len(), 2);
    bench.submit("b", 3, 2);
    assert_eq!(bench.send().len(), 0);
    bench.compute();
    assert_eq!(bench.send().len(), 0, "nothing is added before its turn");
    bench.compute();
    assert_eq!(bench.send(), [[(0, 5, 1), (1, 0, 3)]]);
    bench.compute();
    assert_eq!(bench.send(), [vec![(0, 6, 1), (1, 3, 1)], vec![(0, 7, 1)]], "both, and who goes on behind that");
}

#[test]
fn where_drafts_are_likely_they_are_waited_for() {
    let mut bench = Bench::new(Limits { runs_ahead: true, ..limits(1, 32, 1) });
    let mut copies = spec("copies", 3, 20);
    copies.prompt = [1, 2, 3, 4, 5, 6, 7, 1, 2, 3].map(TokenId).to_vec();
    bench.scheduler.set_cost(StepCost { fixed: 1.0, per_token: 0.01 });
    bench.scheduler.submit(copies).expect("room");
    bench.send();
    bench.compute();
    for _ in 0..6 {
        let sent = bench.send();
        let drafts = sent.iter().flatten().any(|(_, _, len)| *len > 1);
        assert!(!drafts || sent.len() == 1, "{sent:?}");
        bench.compute();
    }
}

#[test]
fn what_was_computed_for_nobody_is_cut_off() {
    let mut bench = Bench::new(Limits { min_reuse: 4, ..ahead(1) });
    let prompt = spec("a", 6, 20).prompt;
    let first = bench.submit("a", 6, 20);
    bench.send();
    bench.compute();
    bench.send();
    bench.compute();
    bench.send();
    assert_eq!(bench.scheduler.in_flight(), 2);
    let (told, _) = said(&mut bench, first);
    bench.scheduler.cancel(first);
    let next = GenerateSpec { prompt: [&prompt[..], &told].concat(), ..spec("b", 1, 2) };
    let expected = answer(&next.prompt, 2);
    let next = bench.scheduler.submit(next).expect("room");
    settle(&mut bench);
    assert_eq!(said(&mut bench, next), (expected, true));
    assert_eq!(bench.model.computed, 6 + 3 + 1 + 1, "both tokens of the first are there already");
}

#[test]
fn a_step_that_fails_takes_the_one_behind_it_along_and_no_other_run() {
    let mut bench = Bench::new(ahead(2));
    let first = bench.submit("a", 3, 20);
    bench.send();
    bench.compute();
    bench.send();
    assert_eq!(bench.scheduler.in_flight(), 2);
    let failure = bench.model.fail().expect("a micro-batch under way");
    bench.scheduler.failure(&failure).expect("its turn");
    let second = bench.submit("b", 4, 3);
    settle(&mut bench);
    let events = bench.events();
    let failed: Vec<RunId> = events.iter().filter(|event| event.what.is_err()).map(|event| event.run).collect();
    assert_eq!(failed, [first]);
    assert_eq!(events.iter().filter(|event| event.run == second).count(), 4);
}

#[test]
fn a_client_that_takes_its_time_holds_its_own_run_back() {
    let mut bench = Bench::new(ahead(2));
    let slow = bench.submit("slow", 1, 30);
    let fast = bench.submit("fast", 1, 30);
    bench.send();
    bench.compute();
    bench.send();
    bench.scheduler.hold(slow);
    bench.compute();
    assert_eq!(bench.send(), [[(1, 3, 1)]], "two tokens of it were under way");
    bench.compute();
    bench.compute();
    let (told, _) = said(&mut bench, fast);
    assert_eq!(told.len(), 4);
    bench.scheduler.release(slow);
    let sent: Vec<_> = bench.send().into_iter().flatten().collect();
    assert!(sent.contains(&(0, 3, 1)), "{sent:?}");
}
