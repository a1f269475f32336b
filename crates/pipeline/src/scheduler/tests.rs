//! How runs are computed: order, chunks, fairness, drafts.

use mesh_engine::{MicroBatch, Open, Output, Segment, StepResult};
use mesh_types::{RequestId, Sampling, Usage};

use super::model::{Model, N_VOCAB, answer, score};
use super::*;

pub(super) fn limits(n_seq: u32, n_batch: u32, depth: usize) -> Limits {
    Limits {
        n_seq,
        n_parallel: n_seq,
        n_cells: 64 * n_seq,
        cuts_back: true,
        rolls_back: true,
        runs_ahead: false,
        n_parked: 0,
        n_places: 0,
        n_states: 0,
        min_reuse: 16,
        n_ctx: 64,
        n_vocab: N_VOCAB,
        n_batch,
        prefill_chunk: n_batch,
        depth,
        max_queue: 4,
    }
}

pub(super) fn spec(name: &str, prompt: u32, max_tokens: u32) -> GenerateSpec {
    let prompt = (0..prompt as i32).map(TokenId).collect();
    GenerateSpec { max_tokens, sampling: Sampling::greedy(), ..GenerateSpec::new(RequestId::new(name), prompt) }
}

/// A scheduler with a model of a stage behind it.
pub(super) struct Bench {
    pub(super) scheduler: Scheduler,
    pub(super) model: Model,
}

impl Bench {
    pub(super) fn new(limits: Limits) -> Self {
        Self { scheduler: Scheduler::new(limits), model: Model::new(limits) }
    }

    pub(super) fn submit(&mut self, name: &str, prompt: u32, max_tokens: u32) -> RunId {
        self.scheduler.submit(spec(name, prompt, max_tokens)).expect("room")
    }

    /// Sends all that can be sent; gives the micro-batches as `(slot, start, len)`.
    pub(super) fn send(&mut self) -> Vec<Vec<(u32, u32, u32)>> {
        let mut batches = Vec::new();
        while let Some(frame) = self.scheduler.next_frame() {
            if let Frame::Batch(batch) = &frame {
                batches.push(batch.segments.iter().map(|s| (s.seq.0, s.start, s.len)).collect());
            }
            self.model.send(frame);
        }
        batches
    }

    /// One micro-batch comes home.
    pub(super) fn compute(&mut self) {
        let result = self.model.compute().expect("a micro-batch under way").expect("no failure");
        self.scheduler.result(result).expect("as asked for");
    }

    pub(super) fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.scheduler.next_event()).collect()
    }

    /// Which runs the events are about, and whether they end them.
    pub(super) fn told(&mut self) -> Vec<(RunId, bool)> {
        let is_end = |event: &Event| matches!(event.what, Ok(TokenEvent::Finished { .. }) | Err(_));
        self.events().iter().map(|event| (event.run, is_end(event))).collect()
    }
}

#[test]
fn a_run_goes_through_open_prefill_decode_and_close() {
    let mut scheduler = Scheduler::new(limits(2, 8, 1));
    let run = scheduler.submit(spec("a", 3, 2)).expect("room");
    let open = Open::new(SeqId(0), RequestId::new("a"), 3, Sampling::greedy());
    let open = Open { max_tokens: 2, prompt_tail: vec![TokenId(0), TokenId(1), TokenId(2)], ..open };
    assert_eq!(scheduler.next_frame(), Some(Frame::Command(Command::Open(Box::new(open)))));
    let batch = |step, tokens: &[i32], start| {
        let segment = Segment { seq: SeqId(0), start, len: tokens.len() as u32, want: Want::Token };
        let tokens = tokens.iter().copied().map(TokenId).collect();
        Some(Frame::Batch(MicroBatch { step: StepId(step), segments: vec![segment], tokens, rows: None }))
    };
    assert_eq!(scheduler.next_frame(), batch(0, &[0, 1, 2], 0));
    assert_eq!(scheduler.next_frame(), None);
    let result = |step, position, token| StepResult {
        step: StepId(step),
        outputs: vec![Output::token(SeqId(0), position, TokenId(token))],
    };
    let progress = scheduler.result(result(0, 3, 50)).expect("as asked for");
    assert_eq!(progress, Progress { prompt_tokens: 3, generated_tokens: 1, decode_tokens: 0 });
    assert_eq!(scheduler.next_frame(), batch(1, &[50], 3));
    let progress = scheduler.result(result(1, 4, 51)).expect("as asked for");
    assert_eq!(progress, Progress { prompt_tokens: 0, generated_tokens: 1, decode_tokens: 1 });
    let usage = Usage { prompt_tokens: 3, completion_tokens: 2, cached_tokens: 0, ..Usage::default() };
    for what in [
        TokenEvent::Token {
            token: TokenId(50),
            position: 3,
            logprobs: None,
            usage: Usage { completion_tokens: 1, ..usage },
        },
        TokenEvent::Token { token: TokenId(51), position: 4, logprobs: None, usage },
        TokenEvent::Finished { reason: FinishReason::Length, usage },
    ] {
        assert_eq!(scheduler.next_event(), Some(Event { run, what: Ok(what) }));
    }
    assert_eq!(scheduler.next_frame(), Some(Frame::Command(Command::Close { seq: SeqId(0) })));
    assert_eq!((scheduler.next_frame(), scheduler.next_event()), (None, None));
    assert!(scheduler.is_idle());
}

#[test]
fn a_prompt_is_scored_in_chunks_that_the_last_stage_has_room_for() {
    let mut bench = Bench::new(Limits { n_ctx: 256, n_cells: 512, ..limits(2, 128, 2) });
    // What is kept of it is of no use to a run that wants scores.
    bench.submit("before", 100, 1);
    bench.send();
    bench.compute();
    bench.told();
    for (max_tokens, computed) in [(0, 99), (1, 100)] {
        let scored = GenerateSpec { score_prompt: true, ..spec("a", 100, max_tokens) };
        bench.scheduler.submit(scored).expect("room");
        let mut sent = Vec::new();
        loop {
            match bench.send() {
                batches if batches.is_empty() => break,
                batches => sent.extend(batches),
            }
            while bench.model.under_way() > 0 {
                bench.compute();
            }
        }
        let ends: Vec<u32> = sent.iter().map(|batch| batch[0].1 + batch[0].2).collect();
        assert_eq!(ends, [33, 66, 99, computed][..if max_tokens == 0 { 3 } else { 4 }]);
        let events: Vec<_> = bench.events().into_iter().map(|event| event.what.expect("no failure")).collect();
        let TokenEvent::Prompt(scores) = &events[0] else { panic!("{events:?}") };
        assert_eq!(scores, &(1..100).map(score).collect::<Vec<_>>());
        assert_eq!(events.len(), 2 + max_tokens as usize);
    }
    let one = GenerateSpec { score_prompt: true, ..spec("a", 1, 0) };
    bench.scheduler.submit(one).expect("room");
    assert!(matches!(&bench.events()[..], [Event { what: Ok(TokenEvent::Prompt(none)), .. }, _] if none.is_empty()));
}

#[test]
fn decoding_sequences_are_spread_over_the_depth() {
    for (depth, sizes) in [(1, vec![5]), (2, vec![3, 2]), (3, vec![2, 2, 1]), (8, vec![1, 1, 1, 1, 1])] {
        let mut bench = Bench::new(limits(5, 32, depth));
        for name in ["a", "b", "c", "d", "e"] {
            bench.submit(name, 1, 20);
        }
        assert_eq!(bench.send().len(), 1, "all prompts fit one micro-batch");
        bench.compute();
        for _ in 0..3 {
            let sent: Vec<usize> = bench.send().iter().map(Vec::len).collect();
            assert_eq!(sent, sizes, "depth {depth}");
            for _ in &sizes {
                bench.compute();
            }
        }
    }
}

/// How many micro-batches a run takes whose text repeats itself, and what it says of drafts.
fn repetitive(limits: Limits, cost: StepCost, repeatable: bool) -> (u32, Usage) {
    let mut bench = Bench::new(limits);
    bench.scheduler.set_cost(cost);
    let prompt: Vec<TokenId> = (0..30).map(|i| TokenId(10 + i % 3)).collect();
    let all = GenerateSpec::new(RequestId::new("a"), prompt.clone());
    let spec = GenerateSpec { max_tokens: 30, sampling: Sampling::greedy(), repeatable, ..all };
    let run = bench.scheduler.submit(spec);
    let (run, mut steps, mut told) = (run.expect("room"), 0, Vec::new());
    loop {
        bench.send();
        bench.compute();
        steps += 1;
        for event in bench.events() {
            assert_eq!(event.run, run);
            match event.what.expect("no failure") {
                TokenEvent::Token { token, .. } => told.push(token),
                TokenEvent::Finished { usage, .. } => {
                    assert_eq!(told, answer(&prompt, 30));
                    return (steps, usage);
                }
                TokenEvent::Prompt(_) => panic!("nothing is scored"),
            }
        }
    }
}

#[test]
fn drafts_save_steps_and_change_nothing() {
    let far = StepCost { fixed: 20.0, per_token: 1.0 };
    let (steps, usage) = repetitive(limits(1, 32, 1), far, false);
    assert!(steps < 25 && usage.rejected_tokens > 0, "{steps} {usage:?}");
    assert_eq!(steps, 30 - usage.accepted_tokens, "a draft that came true is a step less");
    let (without, usage) = repetitive(Limits { rolls_back: false, ..limits(1, 32, 1) }, far, false);
    assert_eq!((without, usage.accepted_tokens, usage.rejected_tokens), (30, 0, 0));
    // Drafts would make its batches depend on the time.
    let (without, usage) = repetitive(limits(1, 32, 1), far, true);
    assert_eq!((without, usage.accepted_tokens, usage.rejected_tokens), (30, 0, 0));
    // Where a token more costs as much as a step more, nothing is gained.
    let (without, _) = repetitive(limits(1, 32, 1), StepCost { fixed: 0.0, per_token: 1.0 }, false);
    assert_eq!(without, 30);
}

/// One run to its end, with a second model that is right but for every fifth of its tokens. Returns micro-batches,
/// questions, and what the run says of drafts.
fn with_draft_model(cost: StepCost, draft_cost: DraftCost) -> (u32, u32, Usage) {
    let mut bench =
        Bench { scheduler: Scheduler::new(limits(1, 32, 1)).with_draft_model(), ..Bench::new(limits(1, 32, 1)) };
    bench.scheduler.set_cost(cost);
    bench.scheduler.set_draft_cost(draft_cost);
    let prompt: Vec<TokenId> = (0..8).map(TokenId).collect();
    let all = GenerateSpec::new(RequestId::new("a"), prompt.clone());
    let spec = GenerateSpec { max_tokens: 50, sampling: Sampling::greedy(), ..all };
    bench.scheduler.submit(spec).expect("room");
    let (mut steps, mut questions, mut said, mut told) = (0, 0, 0, Vec::new());
    loop {
        while let Some(DraftRequest { run, tokens, most, .. }) = bench.scheduler.next_draft_request() {
            assert!(bench.send().is_empty(), "it waits for the answer");
            questions += 1;
            for mut token in answer(&tokens, most) {
                said += 1;
                token.0 = (token.0 + i32::from(said % 5 == 0)) % N_VOCAB as i32;
                if !bench.scheduler.draft(run, token, 0.8) {
                    break;
                }
            }
            bench.scheduler.drafted(run);
        }
        bench.send();
        bench.compute();
        steps += 1;
        for event in bench.events() {
            match event.what.expect("no failure") {
                TokenEvent::Token { token, .. } => told.push(token),
                TokenEvent::Finished { usage, .. } => {
                    assert_eq!(told, answer(&prompt, 50));
                    return (steps, questions, usage);
                }
                TokenEvent::Prompt(_) => panic!("nothing is scored"),
            }
        }
    }
}

#[test]
fn a_second_model_is_asked_where_that_is_worth_its_time() {
    let far = StepCost { fixed: 20.0, per_token: 1.0 };
    let (steps, questions, usage) = with_draft_model(far, DraftCost { first: 1.0, next: 1.0 });
    assert!(steps < 25 && questions > 5, "{steps} {questions} {usage:?}");
    assert_eq!(steps, 50 - usage.accepted_tokens);
    assert!(usage.rejected_tokens > 0, "{usage:?}");
    // One that takes as long as the first.
    let (_, questions, _) = with_draft_model(far, DraftCost { first: 20.0, next: 20.0 });
    assert_eq!(questions, 0);
}

#[test]
fn who_waits_for_a_second_model_can_be_held_and_cancelled() {
    let mut bench =
        Bench { scheduler: Scheduler::new(limits(2, 32, 1)).with_draft_model(), ..Bench::new(limits(2, 32, 1)) };
    let ask = |bench: &mut Bench, name| {
        let run = bench.submit(name, 3, 20);
        bench.send();
        bench.compute();
        assert_eq!(
            bench.scheduler.next_draft_request().map(|request| (request.run, request.is_new)),
            Some((run, true))
        );
        assert!(bench.scheduler.is_asked(run) && bench.send().is_empty());
        run
    };
    let held = ask(&mut bench, "a");
    bench.scheduler.hold(held);
    bench.scheduler.release(held);
    assert!(bench.send().is_empty(), "it still waits");
    bench.scheduler.hold(held);
    bench.scheduler.drafted(held);
    assert!(bench.send().is_empty(), "its client takes its time");
    bench.scheduler.release(held);
    assert_eq!(bench.send().len(), 1);
    bench.scheduler.cancel(held);
    bench.compute();
    let cancelled = ask(&mut bench, "b");
    bench.scheduler.cancel(cancelled);
    assert!(!bench.scheduler.is_asked(cancelled));
    assert!(!bench.scheduler.draft(cancelled, TokenId(1), 0.5));
    bench.scheduler.drafted(cancelled);
    bench.send();
    assert!(bench.scheduler.is_idle());
}

#[test]
fn a_group_goes_out_again_as_soon_as_it_is_home() {
    let mut bench = Bench::new(limits(4, 32, 2));
    for name in ["a", "b", "c", "d"] {
        bench.submit(name, 1, 20);
    }
    bench.send();
    bench.compute();
    assert_eq!(bench.send(), [[(0, 1, 1), (1, 1, 1)], [(2, 1, 1), (3, 1, 1)]]);
    bench.compute();
    assert_eq!(bench.send(), [[(0, 2, 1), (1, 2, 1)]]);
    bench.compute();
    assert_eq!(bench.send(), [[(2, 2, 1), (3, 2, 1)]]);
}

#[test]
fn chunks_of_a_prompt_follow_each_other_without_waiting() {
    let mut bench = Bench::new(limits(1, 4, 3));
    bench.submit("a", 10, 1);
    assert_eq!(bench.send(), [[(0, 0, 4)], [(0, 4, 4)], [(0, 8, 2)]]);
    bench.compute();
    bench.compute();
    assert_eq!(bench.events(), []);
    bench.compute();
    assert_eq!(bench.events().len(), 2);
}

#[test]
fn prompts_take_turns_and_decode_rides_along() {
    let mut bench = Bench::new(limits(3, 4, 1));
    let first = bench.submit("a", 1, 20);
    bench.send();
    bench.compute();
    bench.submit("b", 9, 20);
    bench.submit("c", 5, 20);
    let mut sent = Vec::new();
    for _ in 0..6 {
        sent.extend(bench.send());
        bench.compute();
    }
    assert_eq!(
        sent,
        [
            vec![(0, 1, 1), (1, 0, 3)],
            vec![(0, 2, 1), (2, 0, 3)],
            vec![(0, 3, 1), (1, 3, 3)],
            vec![(0, 4, 1), (2, 3, 2), (1, 6, 1)],
            vec![(0, 5, 1), (2, 5, 1), (1, 7, 2)],
            vec![(0, 6, 1), (2, 6, 1), (1, 9, 1)],
        ]
    );
    assert_eq!(bench.told().iter().filter(|(run, _)| *run == first).count(), 7);
}

#[test]
fn a_prompt_chunk_may_be_limited() {
    let mut bench = Bench::new(Limits { prefill_chunk: 2, ..limits(2, 8, 1) });
    bench.submit("a", 5, 1);
    assert_eq!(bench.send(), [[(0, 0, 2)]]);
}

#[test]
fn prompts_come_in_smaller_chunks_while_others_decode() {
    let mut bench = Bench::new(limits(2, 16, 1));
    bench.scheduler.set_shared_chunk(3);
    bench.submit("alone", 12, 9);
    assert_eq!(bench.send(), [[(0, 0, 12)]], "nobody waits");
    bench.compute();
    bench.submit("late", 8, 1);
    for late in [(1, 0, 3), (1, 3, 3), (1, 6, 2)] {
        let sent = bench.send();
        assert_eq!((sent.len(), sent[0][1]), (1, late));
        bench.compute();
    }
}

#[test]
fn more_decoding_sequences_than_a_batch_holds_do_not_starve_a_prompt() {
    for n_batch in [1, 2] {
        let mut bench = Bench::new(limits(4, n_batch, 1));
        for name in ["a", "b", "c"] {
            bench.submit(name, 1, 60);
        }
        for _ in 0..10 {
            bench.send();
            bench.compute();
        }
        let late = bench.submit("late", 3, 1);
        for _ in 0..6 {
            bench.send();
            bench.compute();
        }
        assert!(bench.told().contains(&(late, true)), "batches of {n_batch}");
    }
}
