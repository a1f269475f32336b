//! Prefixes that are found again: which slot a run gets, and what is computed.

use mesh_types::{RequestId, Sampling};

use super::model::{Model, N_VOCAB, answer};
use super::*;

pub(super) const LIMITS: Limits = Limits {
    n_seq: 4,
    n_parallel: 2,
    n_cells: 128,
    cuts_back: true,
    rolls_back: true,
    runs_ahead: false,
    n_parked: 0,
    n_places: 0,
    n_states: 0,
    min_reuse: 4,
    n_ctx: 64,
    n_vocab: N_VOCAB,
    n_batch: 8,
    prefill_chunk: 8,
    depth: 2,
    max_queue: 4,
};

pub(super) struct Bench {
    pub(super) scheduler: Scheduler,
    pub(super) model: Model,
    pub(super) commands: Vec<Command>,
}

/// How a run ended: its tokens, and how many of its prompt were there already.
type Ended = (Vec<TokenId>, u32);

impl Bench {
    pub(super) fn new(limits: Limits) -> Self {
        Self { scheduler: Scheduler::new(limits), model: Model::new(limits), commands: Vec::new() }
    }

    pub(super) fn submit(&mut self, prompt: &[TokenId], max_tokens: u32) -> RunId {
        self.submit_as(prompt, max_tokens, (None, false))
    }

    fn submit_as(&mut self, prompt: &[TokenId], max_tokens: u32, (reuse, repeatable): (Option<bool>, bool)) -> RunId {
        let all = GenerateSpec::new(RequestId::new("r"), prompt.to_vec());
        let spec = GenerateSpec { max_tokens, sampling: Sampling::greedy(), reuse, repeatable, ..all };
        self.scheduler.submit(spec).expect("room")
    }

    fn send(&mut self) {
        while let Some(frame) = self.scheduler.next_frame() {
            if let Frame::Command(command) = &frame {
                self.commands.push(command.clone());
            }
            self.model.send(frame);
        }
    }

    fn step(&mut self) -> bool {
        self.send();
        match self.model.compute() {
            None => return false,
            Some(Ok(result)) => drop(self.scheduler.result(result).expect("as asked for")),
            Some(Err(failure)) => self.scheduler.failure(&failure).expect("its turn"),
        }
        true
    }

    pub(super) fn steps(&mut self, count: u32) {
        for _ in 0..count {
            self.step();
        }
    }

    /// Runs everything to its end. Returns how these runs ended.
    pub(super) fn settle<const N: usize>(&mut self, runs: [RunId; N]) -> [Ended; N] {
        while self.step() {}
        let mut told: HashMap<RunId, Ended> = HashMap::new();
        while let Some(Event { run, what }) = self.scheduler.next_event() {
            let ended = told.entry(run).or_default();
            match what.expect("no failure") {
                TokenEvent::Token { token, .. } => ended.0.push(token),
                TokenEvent::Finished { usage, .. } => ended.1 = usage.cached_tokens,
                TokenEvent::Prompt(_) => panic!("nothing is scored"),
            }
        }
        runs.map(|run| told.remove(&run).expect("an end"))
    }

    /// One run, to its end; checks what it says.
    pub(super) fn ask(&mut self, prompt: &[TokenId], max_tokens: u32) -> u32 {
        let run = self.submit(prompt, max_tokens);
        let [(tokens, cached)] = self.settle([run]);
        assert_eq!(tokens, answer(prompt, max_tokens));
        cached
    }

    fn copies(&self) -> Vec<(u32, u32, u32)> {
        let copy = |command: &Command| match command {
            Command::Copy { from, to, len } => Some((from.0, to.0, *len)),
            _ => None,
        };
        self.commands.iter().filter_map(copy).collect()
    }
}

pub(super) fn prompt(ranges: &[(i32, i32)]) -> Vec<TokenId> {
    ranges.iter().flat_map(|(start, end)| *start..*end).map(TokenId).collect()
}

/// What a client sends next: all that was said, and more.
pub(super) fn next_turn(before: &[TokenId], said: u32, more: (i32, i32)) -> Vec<TokenId> {
    [before, &answer(before, said), &prompt(&[more])].concat()
}

#[test]
fn the_next_turn_of_a_conversation_computes_its_tail() {
    for cuts_back in [true, false] {
        let mut bench = Bench::new(Limits { cuts_back, ..LIMITS });
        let first = prompt(&[(0, 20)]);
        assert_eq!(bench.ask(&first, 5), 0);
        let second = next_turn(&first, 5, (50, 60));
        let before = bench.model.computed;
        // The last token of an answer is drawn and not computed.
        assert_eq!(bench.ask(&second, 5), 24);
        assert_eq!(bench.model.computed - before, 1 + 10 + 4);
        assert_eq!(bench.copies(), []);
        let third = next_turn(&second, 5, (70, 71));
        assert_eq!(bench.ask(&third, 3), 24 + 1 + 10 + 4);
    }
}

#[test]
fn one_token_of_a_prompt_is_always_computed() {
    let mut bench = Bench::new(LIMITS);
    let first = prompt(&[(0, 20)]);
    bench.ask(&first, 5);
    assert_eq!(bench.ask(&first, 5), 19);
    // Where nothing can be cut off, nothing can be taken: the answer is there as well.
    let mut bench = Bench::new(Limits { cuts_back: false, ..LIMITS });
    bench.ask(&first, 5);
    assert_eq!(bench.ask(&first, 5), 0);
}

#[test]
fn a_shared_beginning_is_copied_while_its_slot_is_busy() {
    let mut bench = Bench::new(LIMITS);
    let (one, two) = (prompt(&[(0, 20), (30, 35)]), prompt(&[(0, 20), (40, 45)]));
    let first = bench.submit(&one, 30);
    bench.steps(6);
    let second = bench.submit(&two, 30);
    let [(said, _), (also_said, cached)] = bench.settle([first, second]);
    assert_eq!((said, also_said, cached), (answer(&one, 30), answer(&two, 30), 20));
    assert_eq!(bench.copies(), [(0, 1, 20)]);
}

#[test]
fn a_beginning_that_is_being_computed_is_waited_for() {
    let mut bench = Bench::new(LIMITS);
    let prompts = [prompt(&[(0, 20), (30, 35)]), prompt(&[(0, 20), (40, 45)])];
    let runs = prompts.each_ref().map(|prompt| bench.submit(prompt, 3));
    let ended = bench.settle(runs);
    let said = prompts.each_ref().map(|prompt| answer(prompt, 3));
    assert_eq!(ended, [(said[0].clone(), 0), (said[1].clone(), 20)]);
    assert_eq!(bench.model.computed, 25 + 5 + 2 + 2);
}

#[test]
fn who_waits_for_a_run_that_is_cancelled_takes_what_there_is() {
    for (steps, cached) in [(0, 0), (1, 16)] {
        let mut bench = Bench::new(LIMITS);
        let first = bench.submit(&prompt(&[(0, 40)]), 3);
        let second = bench.submit(&prompt(&[(0, 40)]), 3);
        bench.steps(steps);
        bench.scheduler.cancel(first);
        assert_eq!(bench.settle([second]), [(answer(&prompt(&[(0, 40)]), 3), cached)]);
    }
}

#[test]
fn of_several_who_wait_for_a_run_that_is_cancelled_one_computes_the_rest() {
    let mut bench = Bench::new(Limits { n_parallel: 3, n_cells: 60, ..LIMITS });
    let prompt = prompt(&[(0, 40)]);
    let runs = [(); 3].map(|()| bench.submit(&prompt, 3));
    bench.steps(1);
    bench.scheduler.cancel(runs[0]);
    let ended = bench.settle([runs[1], runs[2]]);
    assert_eq!(ended, [(answer(&prompt, 3), 16), (answer(&prompt, 3), 39)]);
    assert_eq!(bench.model.computed, 40 + 1 + 2 + 2);
}

#[test]
fn who_waits_for_one_that_waits_itself_and_is_cancelled_waits_for_the_first() {
    // Room for what they have in common, once.
    let mut bench = Bench::new(Limits { n_parallel: 3, n_cells: 60, ..LIMITS });
    let prompts = [prompt(&[(0, 40)]), prompt(&[(0, 40), (50, 55)]), prompt(&[(0, 40), (50, 56)])];
    let runs = prompts.each_ref().map(|prompt| bench.submit(prompt, 3));
    bench.scheduler.cancel(runs[1]);
    let ended = bench.settle([runs[0], runs[2]]);
    assert_eq!(ended, [(answer(&prompts[0], 3), 0), (answer(&prompts[2], 3), 40)]);
}

#[test]
fn another_conversation_is_kept_and_a_turn_taken_back_is_not() {
    let mut bench = Bench::new(LIMITS);
    let long = prompt(&[(0, 10), (20, 50)]);
    bench.ask(&long, 5);
    // Shares ten tokens: the other thirty stay for the conversation that they belong to.
    assert_eq!(bench.ask(&prompt(&[(0, 10), (60, 80)]), 5), 10);
    assert_eq!(bench.copies(), [(0, 1, 10)]);
    assert_eq!(bench.ask(&next_turn(&long, 5, (90, 92)), 2), 44);
    // The last turn, asked once more with other words, while all slots hold something.
    bench.ask(&prompt(&[(100, 108)]), 2);
    bench.ask(&prompt(&[(200, 208)]), 2);
    let copies = bench.copies().len();
    assert_eq!(bench.ask(&[&long[..], &prompt(&[(300, 304)])].concat(), 2), 40);
    assert_eq!(bench.copies().len(), copies, "the slot itself is cut back");
}

#[test]
fn what_was_used_longest_ago_gives_way() {
    let mut bench = Bench::new(LIMITS);
    let prompts = [0, 100, 200, 300, 400].map(|at| prompt(&[(at, at + 10)]));
    for prompt in &prompts[..4] {
        bench.ask(prompt, 2);
    }
    bench.ask(&prompts[0], 2);
    bench.ask(&prompts[4], 2);
    let kept = prompts.each_ref().map(|prompt| bench.scheduler.slots.plan(prompt, 12, false).map(|plan| plan.start));
    assert_eq!(kept, [Some(9), Some(0), Some(9), Some(9), Some(9)]);
}

#[test]
fn runs_that_need_the_cells_get_them() {
    let mut bench = Bench::new(Limits { n_cells: 100, ..LIMITS });
    bench.ask(&prompt(&[(0, 40)]), 10);
    bench.ask(&prompt(&[(100, 140)]), 10);
    // 49 and 49 are kept; the next may come to need 60.
    bench.ask(&prompt(&[(200, 250)]), 10);
    assert_eq!(bench.ask(&prompt(&[(0, 40)]), 1), 0);
    // More than there are together: one after the other, the queue in order.
    let runs = [bench.submit(&prompt(&[(500, 550)]), 14), bench.submit(&prompt(&[(600, 650)]), 14)];
    assert_eq!((bench.scheduler.active(), bench.scheduler.queued()), (1, 1));
    let ended = bench.settle(runs);
    assert!(ended.iter().all(|(said, _)| said.len() == 14));
}

#[test]
fn what_gives_way_is_found_again_on_the_host() {
    let mut bench = Bench::new(Limits { n_seq: 1, n_parallel: 1, n_cells: 64, n_parked: 100, n_places: 4, ..LIMITS });
    let prompts = [0, 100, 200].map(|at| prompt(&[(at, at + 20)]));
    for prompt in &prompts {
        assert_eq!(bench.ask(prompt, 5), 0);
    }
    // The last one is still in the slot; the others come back whole, with what was said to them.
    for (prompt, more) in [(&prompts[0], 300), (&prompts[1], 310), (&prompts[2], 320)] {
        assert_eq!(bench.ask(&next_turn(prompt, 5, (more, more + 5)), 3), 24);
    }
    let fetched = bench.commands.iter().filter(|command| matches!(command, Command::Fetch { .. })).count();
    assert_eq!(fetched, 3);
    assert_eq!(bench.copies(), []);
}

#[test]
fn the_host_holds_so_much_and_no_more() {
    let mut bench = Bench::new(Limits { n_seq: 1, n_parallel: 1, n_cells: 64, n_parked: 30, n_places: 4, ..LIMITS });
    let prompts = [0, 100, 200].map(|at| prompt(&[(at, at + 20)]));
    for prompt in &prompts {
        bench.ask(prompt, 5);
    }
    assert_eq!(bench.ask(&next_turn(&prompts[0], 5, (300, 305)), 3), 0, "it gave way to the second");
    // Part of a conversation that goes on there: it stays for that.
    let mut bench = Bench::new(Limits { n_seq: 1, n_parallel: 1, n_cells: 64, n_parked: 100, n_places: 4, ..LIMITS });
    bench.ask(&prompts[0], 5);
    bench.ask(&prompts[1], 5);
    assert_eq!(bench.ask(&prompt(&[(0, 15), (400, 410)]), 3), 15);
    assert_eq!(bench.ask(&next_turn(&prompts[0], 5, (300, 305)), 3), 24);
}

#[test]
fn what_is_idle_for_long_leaves_the_cache() {
    let limits = Limits { n_ctx: 600, n_cells: 1200, n_parked: 100, n_places: 4, rolls_back: false, ..LIMITS };
    let mut bench = Bench::new(limits);
    let long = bench.submit(&prompt(&[(100, 110)]), 400);
    let short = bench.submit(&prompt(&[(0, 20)]), 5);
    bench.steps(150);
    assert_eq!(bench.scheduler.slots.held(SeqId(1)).len(), 24, "it was not long");
    bench.settle([long, short]);
    assert_eq!(bench.scheduler.slots.held(SeqId(1)).len(), 0);
    assert_eq!(bench.ask(&next_turn(&prompt(&[(0, 20)]), 5, (300, 305)), 3), 24);
    // A prompt's tokens look at all cells as well.
    let mut bench = Bench::new(limits);
    let runs = [(prompt(&[(200, 700)]), 2), (prompt(&[(0, 20)]), 5)].map(|(prompt, max)| bench.submit(&prompt, max));
    bench.settle(runs);
    assert_eq!(bench.scheduler.slots.held(SeqId(1)).len(), 0);
    // Of two, the host has room for the one used last.
    let mut bench = Bench::new(Limits { n_parked: 40, ..limits });
    let idle = [prompt(&[(0, 20)]), prompt(&[(100, 120)])];
    idle.iter().for_each(|prompt| assert_eq!(bench.ask(prompt, 5), 0));
    bench.ask(&prompt(&[(200, 500)]), 2);
    assert_eq!(bench.ask(&next_turn(&idle[1], 5, (600, 605)), 3), 24);
    assert_eq!(bench.ask(&next_turn(&idle[0], 5, (600, 605)), 3), 0);
}

#[test]
fn what_is_idle_leaves_before_another_begins_alone() {
    let mut bench = Bench::new(Limits { n_parked: 100, n_places: 4, ..LIMITS });
    let idle = [prompt(&[(0, 20)]), prompt(&[(100, 120)])];
    bench.ask(&idle[0], 5);
    // One's own next turn finds what was there.
    let second = next_turn(&idle[0], 5, (30, 35));
    assert_eq!(bench.ask(&second, 5), 24);
    assert!(!bench.commands.iter().any(|command| matches!(command, Command::Park { .. })));
    let other = bench.submit(&idle[1], 20);
    bench.step();
    assert_eq!(bench.scheduler.slots.held(SeqId(0)).len(), 0);
    // It comes back beside the other, which stays where it is.
    let third = bench.submit(&next_turn(&second, 5, (40, 45)), 3);
    let [(said, _), (_, cached)] = bench.settle([other, third]);
    assert_eq!((said, cached), (answer(&idle[1], 20), 24 + 1 + 5 + 4));
}

#[test]
fn what_is_to_be_the_same_again_is_computed_on_an_empty_cache_if_it_is_alone() {
    let mut bench = Bench::new(Limits { n_parked: 100, n_places: 4, ..LIMITS });
    let prompts = [0, 100].map(|at| prompt(&[(at, at + 20)]));
    prompts.iter().for_each(|prompt| assert_eq!(bench.ask(prompt, 5), 0));
    let repeatable = |bench: &mut Bench, reuse| {
        let run = bench.submit_as(&prompts[1], 5, (reuse, true));
        assert_eq!(bench.scheduler.active(), 1);
        let kept = (0..LIMITS.n_seq).filter(|seq| !bench.scheduler.slots.held(SeqId(*seq)).is_empty()).count();
        let [(said, cached)] = bench.settle([run]);
        assert_eq!(said, answer(&prompts[1], 5));
        (kept, cached)
    };
    for _ in 0..3 {
        assert_eq!(repeatable(&mut bench, None), (0, 0));
    }
    // Who wants the prefix more gets it.
    assert_eq!(repeatable(&mut bench, Some(true)).1, 19);
    // What was kept is on the host, once.
    let parked = |command: &&Command| matches!(command, Command::Park { .. });
    assert_eq!(bench.commands.iter().filter(parked).count(), 2);
    assert_eq!(bench.ask(&next_turn(&prompts[0], 5, (300, 305)), 3), 24);
    // Beside another, nothing would be the same in any case.
    let other = bench.submit(&prompt(&[(400, 410)]), 30);
    let beside = bench.submit_as(&prompts[1], 5, (None, true));
    let [_, (said, cached)] = bench.settle([other, beside]);
    assert_eq!((said, cached), (answer(&prompts[1], 5), 19));
}

#[test]
fn a_prefix_that_does_not_hold_costs_nobody_an_error() {
    let mut bench = Bench::new(LIMITS);
    let first = prompt(&[(0, 20)]);
    bench.ask(&first, 10);
    bench.model.spoil_cuts();
    let other = bench.submit(&prompt(&[(100, 110)]), 30);
    bench.steps(6);
    let again = bench.submit(&prompt(&[(0, 20), (50, 55)]), 5);
    let [(other, _), (again, cached)] = bench.settle([other, again]);
    assert_eq!((other, again), (answer(&prompt(&[(100, 110)]), 30), answer(&prompt(&[(0, 20), (50, 55)]), 5)));
    assert_eq!(cached, 0, "nothing was of use");
}

#[test]
fn what_a_failed_step_may_have_lost_is_not_used() {
    let mut bench = Bench::new(Limits { depth: 1, ..LIMITS });
    let long = prompt(&[(0, 30)]);
    let run = bench.submit(&long, 5);
    bench.step();
    bench.send();
    let failure = bench.model.fail().expect("the second chunk");
    bench.scheduler.failure(&failure).expect("its turn");
    assert!(matches!(bench.scheduler.next_event(), Some(Event { run: failed, what: Err(_) }) if failed == run));
    assert_eq!(bench.ask(&long, 5), 8, "what the first chunk computed");
}

/// A run is cancelled with a chunk under way; another takes its slot over and is cancelled before it sends anything, and
/// a third has a copy. Then the chunk fails.
#[test]
fn who_was_to_build_on_a_step_that_failed_builds_on_nothing() {
    let mut bench = Bench::new(Limits { depth: 1, ..LIMITS });
    let first = bench.submit(&prompt(&[(0, 30)]), 5);
    bench.step();
    bench.send();
    bench.scheduler.cancel(first);
    let heir = bench.submit(&prompt(&[(0, 16), (50, 55)]), 5);
    let third = prompt(&[(0, 16), (60, 65)]);
    let copy = bench.submit(&third, 5);
    bench.scheduler.cancel(heir);
    let failure = bench.model.fail().expect("the second chunk");
    bench.scheduler.failure(&failure).expect("its turn");
    assert_eq!(bench.scheduler.slots.held(SeqId(0)), prompt(&[(0, 8)]), "what the first chunk computed");
    let [(said, cached)] = bench.settle([copy]);
    assert_eq!((said, cached), (answer(&third, 5), 0));
    for seq in 0..LIMITS.n_seq {
        assert_eq!(bench.model.held(seq), bench.scheduler.slots.held(SeqId(seq)), "slot {seq}");
    }
}

#[test]
fn short_things_are_not_kept() {
    let mut bench = Bench::new(LIMITS);
    bench.ask(&prompt(&[(0, 1)]), 2);
    assert_eq!(bench.ask(&prompt(&[(0, 3)]), 1), 0);
    assert!(matches!(bench.commands.last(), Some(Command::Close { .. })));
}
