//! How runs end, and what is refused.

use mesh_engine::{StageError, StepResult};

use super::model::{N_VOCAB, answer};
use super::tests::{Bench, limits, spec};
use super::*;

#[test]
fn runs_wait_for_a_slot_in_order_and_the_queue_is_bounded() {
    let mut bench = Bench::new(Limits { max_queue: 2, ..limits(1, 8, 1) });
    let runs = [bench.submit("a", 1, 1), bench.submit("b", 1, 1), bench.submit("c", 1, 1)];
    assert_eq!(bench.scheduler.submit(spec("d", 1, 1)), Err(GenerateError::QueueFull { queued: 2 }));
    assert_eq!((bench.scheduler.active(), bench.scheduler.queued()), (1, 2));
    for run in runs {
        bench.send();
        bench.compute();
        assert_eq!(bench.told(), [(run, false), (run, true)]);
    }
    bench.send();
    assert!(bench.scheduler.is_idle() && bench.model.is_empty());
}

#[test]
fn what_can_never_run_is_refused() {
    let mut scheduler = Scheduler::new(limits(1, 8, 1));
    let too_long = GenerateError::PromptTooLong { prompt: 64, context: 64 };
    assert_eq!(scheduler.submit(spec("a", 64, 1)), Err(too_long));
    assert!(matches!(scheduler.submit(spec("a", 0, 1)), Err(GenerateError::Step(_))));
    let foreign = GenerateSpec { prompt: vec![TokenId(N_VOCAB as i32)], ..spec("a", 1, 1) };
    assert!(matches!(scheduler.submit(foreign), Err(GenerateError::Step(_))));
    assert!(scheduler.is_idle());
}

#[test]
fn runs_end_at_a_stop_token_the_ceiling_or_the_contexts_end() {
    let end = |prompt: u32, max_tokens: u32, stop_at: Option<u32>| {
        let mut bench = Bench::new(limits(1, 64, 1));
        let mut spec = spec("a", prompt, max_tokens);
        spec.stop_tokens = stop_at.and_then(|at| answer(&spec.prompt, at + 1).pop()).into_iter().collect();
        bench.scheduler.submit(spec).expect("room");
        while !bench.send().is_empty() {
            bench.compute();
        }
        match bench.events().pop().map(|event| event.what) {
            Some(Ok(TokenEvent::Finished { reason, usage })) => (reason, usage.completion_tokens),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(end(5, 10, None), (FinishReason::Length, 10));
    // The token that ends it may come before the place that it is taken from.
    let told = answer(&spec("a", 5, 10).prompt, 5);
    let first = told.iter().position(|token| *token == told[4]).expect("it is there") as u32 + 1;
    assert_eq!(end(5, 10, Some(4)), (FinishReason::Stop, first));
    assert_eq!(end(5, first, Some(4)), (FinishReason::Stop, first));
    assert_eq!(end(60, 10, None), (FinishReason::Length, 4));
    assert_eq!(end(63, 10, None), (FinishReason::Length, 1));
    assert_eq!(end(5, 0, None), (FinishReason::Length, 0));
}

#[test]
fn a_cancelled_run_leaves_at_every_moment() {
    // Queued.
    let mut bench = Bench::new(limits(1, 4, 2));
    let first = bench.submit("a", 10, 5);
    let queued = bench.submit("b", 1, 5);
    bench.scheduler.cancel(queued);
    assert_eq!(bench.scheduler.queued(), 0);
    // In prefill, with chunks under way: the slot goes on at once, behind the `Close`.
    assert_eq!(bench.send().len(), 2);
    let next = bench.submit("c", 2, 5);
    bench.scheduler.cancel(first);
    assert_eq!((bench.scheduler.active(), bench.scheduler.queued()), (1, 0));
    assert_eq!(bench.scheduler.next_frame(), Some(Frame::Command(Command::Close { seq: SeqId(0) })));
    bench.model.send(Frame::Command(Command::Close { seq: SeqId(0) }));
    bench.send();
    bench.compute();
    bench.compute();
    assert_eq!(bench.events(), []);
    // With a token being drawn: what comes home is dropped.
    assert_eq!(bench.send(), [[(0, 0, 2)]]);
    bench.scheduler.cancel(next);
    let result = bench.model.compute().expect("a micro-batch under way").expect("no failure");
    assert_eq!(
        bench.scheduler.result(result),
        Ok(Progress { prompt_tokens: 2, generated_tokens: 0, decode_tokens: 0 })
    );
    assert_eq!(bench.events(), []);
    // Ready, and its events not read.
    let ready = bench.submit("d", 1, 5);
    bench.send();
    bench.compute();
    bench.scheduler.cancel(ready);
    assert_eq!((bench.send(), bench.events()), (vec![], vec![]));
    // Over.
    bench.scheduler.cancel(ready);
    assert!(bench.scheduler.is_idle() && bench.model.is_empty());
}

#[test]
fn the_stages_never_hear_of_a_run_that_was_cancelled_at_once() {
    let mut scheduler = Scheduler::new(limits(2, 4, 1));
    let run = scheduler.submit(spec("a", 1, 5)).expect("room");
    scheduler.cancel(run);
    assert_eq!(scheduler.next_frame(), None);
    assert!(scheduler.is_idle());
}

#[test]
fn a_failed_step_ends_its_runs_and_no_others() {
    let mut bench = Bench::new(limits(3, 4, 2));
    let (a, b) = (bench.submit("a", 4, 9), bench.submit("b", 4, 9));
    let waits = bench.submit("c", 1, 1);
    assert_eq!(bench.send(), [[(0, 0, 4)], [(1, 0, 4)]]);
    let failure = bench.model.fail().expect("a micro-batch under way");
    bench.scheduler.failure(&failure).expect("its turn");
    let events = bench.events();
    assert!(matches!(&events[..], [Event { run, what: Err(GenerateError::Step(_)) }] if *run == a), "{events:?}");
    bench.compute();
    bench.send();
    bench.compute();
    let told = bench.told();
    assert!(told.contains(&(b, false)) && told.contains(&(waits, true)), "{told:?}");
}

#[test]
fn a_run_whose_client_does_not_read_is_held_back_alone() {
    let mut bench = Bench::new(limits(2, 8, 1));
    let slow = bench.submit("slow", 1, 9);
    bench.submit("fast", 1, 9);
    bench.send();
    bench.scheduler.hold(slow);
    bench.compute();
    assert_eq!(bench.told().len(), 2, "the token under way still comes");
    for position in 1..4 {
        assert_eq!(bench.send(), [[(1, position, 1)]]);
        bench.compute();
    }
    bench.scheduler.release(slow);
    bench.scheduler.release(slow);
    assert_eq!(bench.send(), [[(1, 4, 1), (0, 1, 1)]]);
}

#[test]
fn results_that_were_not_asked_for_are_refused() {
    let mut bench = Bench::new(limits(2, 8, 1));
    let nothing = StepResult { step: StepId(0), outputs: vec![] };
    assert!(matches!(bench.scheduler.result(nothing.clone()), Err(StageError::InvalidFrame(_))));
    bench.submit("a", 3, 2);
    bench.send();
    let good = bench.model.compute().expect("a micro-batch under way").expect("no failure");
    let with = |change: fn(&mut StepResult)| {
        let mut result = good.clone();
        change(&mut result);
        result
    };
    for bad in [
        nothing,
        with(|r| r.step = StepId(1)),
        with(|r| r.outputs[0].seq = SeqId(1)),
        with(|r| r.outputs[0].position = 4),
        with(|r| r.outputs[0].token = None),
        with(|r| r.outputs[0].token = Some(TokenId(-1))),
        with(|r| r.outputs.push(r.outputs[0].clone())),
    ] {
        assert!(matches!(bench.scheduler.result(bad.clone()), Err(StageError::InvalidFrame(_))), "{bad:?}");
    }
    assert_eq!(bench.events(), []);
    assert!(bench.scheduler.result(good).is_ok());
}

#[test]
fn a_lost_link_ends_every_run_once() {
    let mut bench = Bench::new(limits(1, 8, 1));
    let runs = [bench.submit("a", 3, 2), bench.submit("b", 3, 2), bench.submit("c", 3, 2)];
    bench.send();
    let lost = GenerateError::Unavailable("lost".to_owned());
    bench.scheduler.fail_all(&lost);
    let mut ended: Vec<RunId> =
        bench.told().into_iter().map(|(run, end)| (end.then_some(run)).expect("an end")).collect();
    ended.sort();
    assert_eq!(ended, runs);
    assert!(bench.scheduler.is_idle());
}
