//! Runs that come, go, pause and fail at random, over a model of a stage that insists on order.

use std::collections::HashMap;

use mesh_engine::{Frame, GenerateError, TokenEvent};
use mesh_types::{FinishReason, GenerateSpec, RequestId, Sampling, TokenId};
use proptest::prelude::*;

use super::model::{Model, N_VOCAB, answer, drawn, score};
use super::*;

#[derive(Clone, Debug)]
enum Op {
    /// A prompt, most tokens, the index of the one that ends the run, and whether the prompt is scored.
    Submit(Prompt, u32, Option<u32>, bool),
    Cancel(usize),
    Hold(usize),
    Release(usize),
    Send,
    Compute,
    Fail,
    /// The second model says so many tokens of which only the last is wrong, or cannot follow the run.
    Draft(Option<u32>),
}

/// How a prompt is made.
#[derive(Clone, Debug)]
enum Prompt {
    /// Of these tokens.
    New(Vec<u32>),
    /// Part of what a run before was asked and has said, and these tokens.
    Goes { on: usize, cut: u32, tail: Vec<u32> },
}

fn prompt() -> impl Strategy<Value = Prompt> {
    let tokens = |len| prop::collection::vec(0..3u32, len);
    prop_oneof![
        1 => tokens(1..40).prop_map(Prompt::New),
        2 => (any::<usize>(), 0..4u32, tokens(0..12)).prop_map(|(on, cut, tail)| Prompt::Goes { on, cut, tail }),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => (prompt(), 0..12u32, prop::option::of(0..6u32), prop::bool::weighted(0.2))
            .prop_map(|(prompt, max_tokens, stop_at, score)| Op::Submit(prompt, max_tokens, stop_at, score)),
        1 => any::<usize>().prop_map(Op::Cancel),
        1 => any::<usize>().prop_map(Op::Hold),
        1 => any::<usize>().prop_map(Op::Release),
        8 => Just(Op::Send),
        6 => Just(Op::Compute),
        1 => Just(Op::Fail),
        4 => prop::option::weighted(0.9, 0..5u32).prop_map(Op::Draft),
    ]
}

fn limits() -> impl Strategy<Value = Limits> {
    let slots = (1..7u32, 1..5u32, 32..100u32, any::<bool>(), 1..4u32);
    let depth = prop_oneof![2 => Just(1usize), 3 => 2..5usize];
    (slots, 1..9u32, 1..9u32, depth, 0..4usize).prop_map(|(slots, n_batch, chunk, depth, max_queue)| {
        let (n_seq, n_parallel, n_cells, cuts_back, min_reuse) = slots;
        Limits {
            n_seq,
            n_parallel: n_parallel.min(n_seq),
            n_cells,
            cuts_back,
            // Drafts in half of those that run ahead: they keep others from it.
            rolls_back: cuts_back && (if depth == 1 { n_cells % 2 == 0 } else { depth != 2 }),
            runs_ahead: cuts_back && depth == 1,
            n_parked: 20 * (n_cells % 4),
            n_places: if n_cells % 4 == 0 { 0 } else { 1 + n_cells % 3 },
            n_states: if cuts_back { 0 } else { n_cells / 4 % 6 },
            min_reuse,
            n_ctx: 32,
            n_vocab: N_VOCAB,
            n_batch,
            prefill_chunk: chunk.min(n_batch),
            depth,
            max_queue,
        }
    })
}

/// A scheduler, a model of a stage, and what was told of each run.
struct World {
    limits: Limits,
    scheduler: Scheduler,
    model: Model,
    runs: Vec<(RunId, GenerateSpec, Told)>,
    /// What the second model is asked.
    questions: Vec<DraftRequest>,
    /// For each run that could go on: micro-batches formed without it since it could.
    passed_over: HashMap<RunId, usize>,
    has_failed: bool,
}

#[derive(Default)]
struct Told {
    tokens: Vec<TokenId>,
    scored: bool,
    end: Option<Result<FinishReason, GenerateError>>,
    cancelled: bool,
}

impl World {
    fn new(limits: Limits) -> Self {
        Self {
            limits,
            // With a second model nothing runs ahead.
            scheduler: match limits.max_queue {
                0 | 2 => Scheduler::new(limits),
                _ => Scheduler::new(limits).with_draft_model(),
            },
            model: Model::new(limits),
            runs: Vec::new(),
            questions: Vec::new(),
            passed_over: HashMap::new(),
            has_failed: false,
        }
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Submit(prompt, max_tokens, stop_at, score) => self.submit(&prompt, max_tokens, stop_at, score),
            Op::Cancel(index) => self.each(index, |scheduler, run| scheduler.cancel(run), true),
            Op::Hold(index) => self.each(index, |scheduler, run| scheduler.hold(run), false),
            Op::Release(index) => self.each(index, |scheduler, run| scheduler.release(run), false),
            Op::Draft(count) => drop(self.draft(count)),
            Op::Send => drop(self.send()),
            Op::Compute => drop(self.compute()),
            Op::Fail => {
                if let Some(failure) = self.model.fail() {
                    self.has_failed = true;
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

    fn prompt(&self, prompt: &Prompt) -> Vec<TokenId> {
        let tokens = |tokens: &[u32]| tokens.iter().map(|token| TokenId(*token as i32)).collect::<Vec<_>>();
        match prompt {
            Prompt::New(new) => tokens(new),
            Prompt::Goes { on, cut, tail } => {
                let (_, spec, told) = match self.runs.len() {
                    0 => return tokens(&[1, 2]),
                    runs => &self.runs[on % runs],
                };
                let mut all = [spec.prompt.clone(), told.tokens.clone()].concat();
                all.truncate(all.len().saturating_sub(*cut as usize).max(1));
                [all, tokens(tail)].concat()
            }
        }
    }

    fn submit(&mut self, prompt: &Prompt, max_tokens: u32, stop_at: Option<u32>, score_prompt: bool) {
        let request = RequestId::new(format!("run {}", self.runs.len()));
        let prompt = self.prompt(prompt);
        let stop_tokens = stop_at.and_then(|at| answer(&prompt, at + 1).pop()).into_iter().collect();
        let len = prompt.len() as u32;
        let spec = GenerateSpec {
            max_tokens,
            sampling: Sampling::greedy(),
            stop_tokens,
            score_prompt,
            // Any share of the runs will do.
            reuse: [Some(false), None, Some(true)][len as usize % 3],
            repeatable: len.is_multiple_of(4),
            ..GenerateSpec::new(request, prompt)
        };
        let queued = self.scheduler.queue.len();
        match self.scheduler.submit(spec.clone()) {
            Ok(run) => {
                assert!(len < self.limits.n_ctx);
                self.runs.push((run, spec, Told::default()));
            }
            Err(GenerateError::PromptTooLong { .. }) => assert!(len >= self.limits.n_ctx),
            Err(GenerateError::QueueFull { .. }) => assert!(queued >= self.limits.max_queue),
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
            let served = |run: &RunId| batch.segments.iter().any(|s| self.scheduler.slots.run(s.seq) == Some(*run));
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
        match self.model.compute() {
            None => return false,
            Some(Ok(result)) => drop(self.scheduler.result(result).expect("a result as it was asked for")),
            Some(Err(failure)) => self.scheduler.failure(&failure).expect("the step whose turn it is"),
        }
        true
    }

    /// Answers the oldest question. False: there is none.
    fn draft(&mut self, count: Option<u32>) -> bool {
        self.listen();
        while let Some(question) = self.scheduler.next_draft_request() {
            self.questions.retain(|other| other.run != question.run);
            self.questions.push(question);
        }
        self.questions.retain(|question| self.scheduler.is_asked(question.run));
        if self.questions.is_empty() {
            return false;
        }
        let DraftRequest { run, tokens, most, .. } = self.questions.remove(0);
        let (_, spec, told) = self.runs.iter().find(|(id, ..)| *id == run).expect("a run that was submitted");
        assert_eq!(tokens, [&spec.prompt[..], &told.tokens].concat(), "the whole text is asked about");
        let Some(count) = count else {
            self.scheduler.not_drafted(run);
            return true;
        };
        let mut right = answer(&tokens, count);
        if let Some(last) = right.last_mut() {
            last.0 = (last.0 + 1) % N_VOCAB as i32;
        }
        for token in right.into_iter().take(most as usize) {
            if !self.scheduler.draft(run, token, 0.8) {
                break;
            }
        }
        self.scheduler.drafted(run);
        true
    }

    fn listen(&mut self) {
        while let Some(Event { run, what }) = self.scheduler.next_event() {
            let (_, spec, told) = self.runs.iter_mut().find(|(id, ..)| *id == run).expect("a run that was submitted");
            assert!(told.end.is_none(), "an event after the end");
            assert!(!told.cancelled, "an event after the cancel");
            match what {
                Ok(TokenEvent::Prompt(scores)) => {
                    assert!(spec.score_prompt && told.tokens.is_empty() && !told.scored);
                    assert_eq!(scores, (1..spec.prompt.len() as u32).map(score).collect::<Vec<_>>());
                    told.scored = true;
                }
                Ok(TokenEvent::Token { token, position, .. }) => {
                    assert_eq!(told.scored, spec.score_prompt);
                    assert_eq!(position as usize, spec.prompt.len() + told.tokens.len());
                    assert_eq!(token, drawn(&[&spec.prompt[..], &told.tokens].concat()));
                    told.tokens.push(token);
                }
                Ok(TokenEvent::Finished { reason, usage }) => {
                    assert_eq!(usage.completion_tokens as usize, told.tokens.len());
                    assert_eq!(usage.prompt_tokens as usize, spec.prompt.len());
                    assert_eq!(told.scored, spec.score_prompt);
                    let computes_all = spec.score_prompt || spec.reuse == Some(false);
                    assert!(usage.cached_tokens < if computes_all { 1 } else { usage.prompt_tokens });
                    told.end = Some(Ok(reason));
                }
                Err(error) => told.end = Some(Err(error)),
            }
        }
    }

    fn check(&self) {
        assert!(self.scheduler.in_flight() <= self.limits.depth + usize::from(self.limits.runs_ahead));
        assert_eq!(self.scheduler.in_flight(), self.model.under_way());
        let (n_seq, n_parallel) = (self.limits.n_seq, self.limits.n_parallel);
        assert!(self.scheduler.commands.len() <= 8 * n_seq as usize + 8, "commands pile up");
        assert!(self.scheduler.active() <= n_parallel);
        assert!(self.scheduler.queue.len() <= self.limits.max_queue + n_parallel as usize);
        let waits_for_nothing = self.scheduler.active() == 0 && self.scheduler.commands.is_empty();
        assert!(self.scheduler.queue.is_empty() || !waits_for_nothing, "a run waits for nothing");
    }

    /// Lets everything finish.
    fn settle(&mut self) {
        for (run, ..) in &self.runs {
            self.scheduler.release(*run);
        }
        let most = 10_000;
        for _ in 0..most {
            let mut went_on = false;
            while self.send() {
                went_on = true;
            }
            went_on |= self.compute() | self.draft(Some(2));
            self.listen();
            self.check();
            if !went_on {
                break;
            }
        }
        assert!(self.scheduler.is_idle(), "work is left: {:?}", self.scheduler);
        assert!(self.model.is_empty(), "slots are left open");
        for seq in 0..self.limits.n_seq {
            let (held, kept) = (self.model.held(seq), self.scheduler.slots.held(SeqId(seq)));
            assert!(self.has_failed || held == kept, "slot {seq} holds {held:?}, not {kept:?}");
            let (held, kept) = (self.model.checkpoints(seq), self.scheduler.slots.checkpoints(SeqId(seq)));
            assert!(self.has_failed || held == kept, "slot {seq} has checkpoints at {held:?}, not {kept:?}");
        }
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
    fn whatever_comes_the_rules_hold(
        limits in limits(),
        spoils in prop::bool::weighted(0.3),
        ops in prop::collection::vec(op(), 0..200),
    ) {
        let mut world = World::new(limits);
        if spoils {
            world.model.spoil_cuts();
        }
        for op in ops {
            world.apply(op);
        }
        world.settle();
    }
}
