//! Runs that come, go, pause and fail at random, over a model of a stage that insists on order.

use std::collections::HashMap;

use mesh_engine::{Frame, GenerateError, TokenEvent};
use mesh_types::{FinishReason, GenerateSpec, RequestId, Sampling, TokenId};
use proptest::prelude::*;

use super::model::{Model, N_VOCAB, drawn};
use super::*;

#[derive(Clone, Debug)]
enum Op {
    Submit { prompt: u32, max_tokens: u32, stop_at: Option<u32> },
    Cancel(usize),
    Hold(usize),
    Release(usize),
    Send,
    Compute,
    Fail,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => (1..40u32, 0..12u32, prop::option::of(0..6u32))
            .prop_map(|(prompt, max_tokens, stop_at)| Op::Submit { prompt, max_tokens, stop_at }),
        1 => any::<usize>().prop_map(Op::Cancel),
        1 => any::<usize>().prop_map(Op::Hold),
        1 => any::<usize>().prop_map(Op::Release),
        8 => Just(Op::Send),
        6 => Just(Op::Compute),
        1 => Just(Op::Fail),
    ]
}

fn limits() -> impl Strategy<Value = Limits> {
    (1..5u32, 1..9u32, 1..9u32, 1..5usize, 0..4usize).prop_map(|(n_seq, n_batch, chunk, depth, max_queue)| Limits {
        n_seq,
        n_ctx: 32,
        n_vocab: N_VOCAB,
        n_batch,
        prefill_chunk: chunk.min(n_batch),
        depth,
        max_queue,
    })
}

/// A scheduler, a model of a stage, and what was told of each run.
struct World {
    limits: Limits,
    scheduler: Scheduler,
    model: Model,
    runs: Vec<(RunId, GenerateSpec, Told)>,
    /// For each run that could go on: micro-batches formed without it since it could.
    passed_over: HashMap<RunId, usize>,
}

#[derive(Default)]
struct Told {
    tokens: Vec<TokenId>,
    end: Option<Result<FinishReason, GenerateError>>,
    cancelled: bool,
}

impl World {
    fn new(limits: Limits) -> Self {
        Self {
            limits,
            scheduler: Scheduler::new(limits),
            model: Model::new(limits),
            runs: Vec::new(),
            passed_over: HashMap::new(),
        }
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Submit { prompt, max_tokens, stop_at } => self.submit(prompt, max_tokens, stop_at),
            Op::Cancel(index) => self.each(index, |scheduler, run| scheduler.cancel(run), true),
            Op::Hold(index) => self.each(index, |scheduler, run| scheduler.hold(run), false),
            Op::Release(index) => self.each(index, |scheduler, run| scheduler.release(run), false),
            Op::Send => drop(self.send()),
            Op::Compute => drop(self.compute()),
            Op::Fail => {
                if let Some(failure) = self.model.fail() {
                    self.scheduler.failure(&failure).expect("the step whose turn it is");
                }
            }
        }
        self.listen();
        self.check();
    }

    fn each(&mut self, index: usize, act: impl Fn(&mut Scheduler, RunId), cancels: bool) {
        if self.runs.is_empty() {
            return;
        }
        let index = index % self.runs.len();
        let (run, _, told) = &mut self.runs[index];
        told.cancelled |= cancels && told.end.is_none();
        act(&mut self.scheduler, *run);
    }

    fn submit(&mut self, prompt: u32, max_tokens: u32, stop_at: Option<u32>) {
        let request = RequestId::new(format!("run {}", self.runs.len()));
        let stop_tokens = stop_at.map(|at| drawn(&request, prompt + at)).into_iter().collect();
        let prompt_tokens = (0..prompt).map(|token| TokenId(token as i32 % 10)).collect();
        let spec = GenerateSpec {
            max_tokens,
            sampling: Sampling::greedy(),
            stop_tokens,
            ..GenerateSpec::new(request, prompt_tokens)
        };
        let is_full = self.scheduler.free.is_empty() && self.scheduler.queue.len() >= self.limits.max_queue;
        match self.scheduler.submit(spec.clone()) {
            Ok(run) => {
                assert!(prompt < self.limits.n_ctx && !is_full);
                self.runs.push((run, spec, Told::default()));
            }
            Err(GenerateError::PromptTooLong { .. }) => assert!(prompt >= self.limits.n_ctx),
            Err(GenerateError::QueueFull { .. }) => assert!(is_full),
            Err(other) => panic!("{other}"),
        }
    }

    fn send(&mut self) -> bool {
        let has_frame = self.scheduler.has_frame();
        let could_go_on: Vec<RunId> = self.scheduler.ready.iter().chain(&self.scheduler.prefill).copied().collect();
        let frame = self.scheduler.next_frame();
        assert_eq!(frame.is_some(), has_frame);
        let Some(frame) = frame else { return false };
        if let Frame::Batch(batch) = &frame {
            let served =
                |run: &RunId| batch.segments.iter().any(|s| self.scheduler.slots[s.seq.0 as usize] == Some(*run));
            self.passed_over.retain(|run, _| could_go_on.contains(run) && !served(run));
            for run in could_go_on.iter().filter(|run| !served(run)) {
                *self.passed_over.entry(*run).or_default() += 1;
            }
            let most = 2 * self.limits.n_seq as usize;
            assert!(self.passed_over.values().all(|times| *times <= most), "a run starves: {:?}", self.passed_over);
        }
        self.model.send(frame);
        true
    }

    fn compute(&mut self) -> bool {
        let Some(result) = self.model.compute() else { return false };
        self.scheduler.result(result).expect("a result as it was asked for");
        true
    }

    fn listen(&mut self) {
        while let Some(Event { run, what }) = self.scheduler.next_event() {
            let (_, spec, told) = self.runs.iter_mut().find(|(id, ..)| *id == run).expect("a run that was submitted");
            assert!(told.end.is_none(), "an event after the end");
            assert!(!told.cancelled, "an event after the cancel");
            match what {
                Ok(TokenEvent::Token { token, position, .. }) => {
                    assert_eq!(position as usize, spec.prompt.len() + told.tokens.len());
                    assert_eq!(token, drawn(&spec.request, position));
                    told.tokens.push(token);
                }
                Ok(TokenEvent::Finished { reason, usage }) => {
                    assert_eq!(usage.completion_tokens as usize, told.tokens.len());
                    assert_eq!(usage.prompt_tokens as usize, spec.prompt.len());
                    told.end = Some(Ok(reason));
                }
                Err(error) => told.end = Some(Err(error)),
            }
        }
    }

    fn check(&self) {
        assert!(self.scheduler.in_flight() <= self.limits.depth);
        assert_eq!(self.scheduler.in_flight(), self.model.under_way());
        assert!(self.scheduler.commands.len() <= 2 * self.limits.n_seq as usize, "commands pile up");
        assert!(self.scheduler.queue.is_empty() || self.scheduler.free.is_empty(), "a slot is free and a run waits");
        let owned = self.scheduler.slots.iter().flatten().count() as u32;
        assert_eq!(owned, self.scheduler.active());
    }

    /// Lets everything finish.
    fn settle(&mut self) {
        for (run, ..) in &self.runs {
            self.scheduler.release(*run);
        }
        let most = 10_000;
        for _ in 0..most {
            let went_on = self.send() | self.compute();
            self.listen();
            self.check();
            if !went_on {
                break;
            }
        }
        assert!(self.scheduler.is_idle(), "work is left: {:?}", self.scheduler);
        assert!(self.model.is_empty(), "slots are left open");
        for (_, spec, told) in &self.runs {
            assert_eq!(told.end.is_none(), told.cancelled, "{} ended {:?}", spec.request, told.end);
            if let Some(Ok(reason)) = &told.end {
                let stopped = told.tokens.last().is_some_and(|last| spec.stop_tokens.contains(last));
                assert_eq!(*reason == FinishReason::Stop, stopped);
                let len = told.tokens.len() as u32;
                let is_full = spec.prompt.len() as u32 + len == self.limits.n_ctx;
                assert!(stopped || is_full || len == spec.max_tokens, "{} ended early", spec.request);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn whatever_comes_the_rules_hold(limits in limits(), ops in prop::collection::vec(op(), 0..200)) {
        let mut world = World::new(limits);
        for op in ops {
            world.apply(op);
        }
        world.settle();
    }
}
