//! How runs get their slots, and what becomes of a slot behind them.

use mesh_engine::{Command, SeqId};

use super::run::{Phase, Run};
use super::slots::Plan;
use super::{RunId, Scheduler};

/// Commands that may be unsent, for each slot, while runs are admitted.
const COMMANDS_PER_SLOT: usize = 4;

impl Scheduler {
    /// Gives slots to those who wait, in order.
    pub(super) fn admit(&mut self) {
        while self.commands.len() < COMMANDS_PER_SLOT * self.limits.n_seq as usize
            && let Some(&run) = self.queue.front()
        {
            let Some(state) = self.runs.get(&run) else { return };
            let on_empty = state.wants_empty_cache() && self.slots.busy() == 0;
            let (prompt, need) = (&state.spec.prompt, state.need(self.limits.n_ctx));
            let Some(plan) = self.slots.plan(prompt, need, on_empty || state.computes_all()) else { return };
            self.queue.pop_front();
            if on_empty {
                self.empty_cache();
            }
            self.start(run, &plan, on_empty);
        }
    }

    fn start(&mut self, run: RunId, plan: &Plan, on_empty: bool) {
        let Some(state) = self.runs.get_mut(&run) else { return };
        let need = state.need(self.limits.n_ctx);
        // What is about to give way shows as well where prompts part. A chunk ends at each of them: they would make it
        // another run than the one before.
        let checkpoints = if on_empty { Vec::new() } else { self.slots.checkpoints_of(&state.spec.prompt, plan.start) };
        let overwritten = (plan.from.is_some() || plan.start == 0).then_some(plan.seq);
        for seq in plan.evict.iter().copied().chain(overwritten) {
            self.give_way(seq, plan.from);
        }
        if self.slots.busy() == 0 {
            self.make_way(plan);
        }
        let held = self.slots.sent(plan.seq);
        let Some(state) = self.runs.get_mut(&run) else { return };
        state.checkpoints = checkpoints.into();
        let is_there = self.slots.take(plan, run, &state.spec.prompt, need);
        state.seq = Some(plan.seq);
        let seq = plan.seq;
        match plan.from {
            Some(from) if !is_there => {
                state.phase = Phase::Following { from, len: plan.start };
                return;
            }
            Some(from) if self.slots.is_place(from) => {
                state.fetched = Some(from);
                self.fetch(from, seq, plan.start);
            }
            Some(from) => self.commands.push_back(Command::Copy { from, to: seq, len: plan.start }),
            None if held > plan.start => self.commands.push_back(Command::Truncate { seq, len: plan.start }),
            None => {}
        }
        self.open(run, plan.start);
    }

    /// The run has its slot, which holds the first `start` tokens of its prompt.
    fn open(&mut self, run: RunId, start: u32) {
        let Some(state) = self.runs.get_mut(&run) else { return };
        let Some(seq) = state.seq else { return };
        state.phase = Phase::Prefill { sent: start };
        (state.cached, state.alone) = (start, start > 0);
        self.commands.push_back(Command::Open(Box::new(state.open(seq))));
        self.prefill.push_back(run);
    }

    /// More of `from` was sent: those who follow it and have come so far go on by themselves.
    pub(super) fn join_followers(&mut self, from: SeqId) {
        let sent = self.slots.sent(from);
        for (run, seq, len) in self.followers(from) {
            if len <= sent {
                self.join(run, seq, (from, len));
            }
        }
    }

    /// Nothing more of `from` is sent: of those who follow it, the one that has most in common with it takes what there
    /// is and computes the rest, and the others follow that one. Were each to compute it, there might be no room.
    fn end_followers(&mut self, from: SeqId) {
        let sent = self.slots.sent(from);
        let sent = if sent < self.limits.min_reuse { 0 } else { sent };
        let mut others = self.followers(from);
        let Some(most) = (0..others.len()).rev().max_by_key(|index| others[*index].2) else { return };
        let (run, seq, len) = others.remove(most);
        for (other, _, len) in &others {
            if let Some(state) = self.runs.get_mut(other) {
                state.phase = Phase::Following { from: seq, len: *len };
            }
        }
        self.join(run, seq, (from, len.min(sent)));
    }

    /// Runs that were to share what did not come take cells of their own: what is idle gives way to them.
    fn make_room(&mut self) {
        while let Some(seq) = self.slots.overdrawn() {
            self.give_way(seq, None);
        }
    }

    /// Who was to follow `from` with `len` positions is gone, without any on its slot `seq`: those who follow it follow
    /// `from` instead, as far as it did. Of those who have more in common with it, one takes its place.
    fn pass_followers(&mut self, seq: SeqId, (from, len): (SeqId, u32)) {
        let mut others = self.followers(seq);
        let place = (0..others.len()).rev().max_by_key(|index| others[*index].2).filter(|index| others[*index].2 > len);
        let heir = place.map(|place| others.remove(place));
        if let Some((run, heir, _)) = heir {
            self.follow(run, heir, (from, len));
        }
        for (run, other, common) in others {
            let follows = match heir {
                Some((_, heir, _)) if common > len => (heir, common),
                _ => (from, common.min(len)),
            };
            self.follow(run, other, follows);
        }
        self.join_followers(from);
    }

    /// `run`, whose slot is `seq`, waits until `len` positions of `from` are sent.
    fn follow(&mut self, run: RunId, seq: SeqId, (from, len): (SeqId, u32)) {
        if let Some(state) = self.runs.get_mut(&run) {
            state.phase = Phase::Following { from, len };
        }
        self.slots.follow(seq, from, len);
        self.refollow(seq);
    }

    /// The slot's cells are other ones now: so are those of which its followers count on a share.
    fn refollow(&mut self, seq: SeqId) {
        for (_, other, len) in self.followers(seq) {
            self.slots.follow(other, seq, len);
            self.refollow(other);
        }
    }

    fn join(&mut self, run: RunId, seq: SeqId, (from, len): (SeqId, u32)) {
        self.slots.join(seq, from, len);
        if len > 0 {
            self.commands.push_back(Command::Copy { from, to: seq, len });
        }
        self.open(run, len);
        self.refollow(seq);
        self.join_followers(seq);
    }

    /// Runs that follow `from`, in order of arrival: with their slots, and how far they follow.
    fn followers(&self, from: SeqId) -> Vec<(RunId, SeqId, u32)> {
        let follows = |run: RunId| match self.runs.get(&run) {
            Some(Run { seq: Some(seq), phase: Phase::Following { from: source, len }, .. }) if *source == from => {
                Some((run, *seq, *len))
            }
            _ => None,
        };
        let mut followers: Vec<_> = self.slots.runs().filter_map(follows).collect();
        followers.sort();
        followers
    }

    /// Takes a run out of everything; its slot goes to the next in the queue.
    pub(super) fn close(&mut self, run: RunId) -> Option<Run> {
        let state = self.runs.remove(&run)?;
        match state.seq {
            None => self.queue.retain(|queued| *queued != run),
            Some(seq) => {
                self.leave(run);
                match state.phase {
                    // The stages have not heard of it.
                    Phase::Following { from, len } => {
                        self.slots.release(seq);
                        self.pass_followers(seq, (from, len));
                    }
                    _ => {
                        self.close_slot(seq);
                        self.end_followers(seq);
                    }
                }
                self.make_room();
                self.admit();
            }
        }
        Some(state)
    }

    fn close_slot(&mut self, seq: SeqId) {
        let kept = self.slots.retire(seq);
        match self.withdraw(seq) {
            true => {}
            false if kept > 0 => self.commands.push_back(Command::Retain { seq, len: kept }),
            false => self.commands.push_back(Command::Close { seq }),
        }
    }

    /// Takes an `Open` back that was not sent: the stages never hear of that run. False: they have.
    fn withdraw(&mut self, seq: SeqId) -> bool {
        let is_open = |command: &Command| matches!(command, Command::Open(open) if open.seq == seq);
        let unsent = self.commands.iter().position(is_open);
        unsent.and_then(|unsent| self.commands.remove(unsent)).is_some()
    }

    /// The run goes back to the head of the queue, and is computed from its first token on.
    pub(super) fn begin_again(&mut self, run: RunId) {
        let Some(state) = self.runs.get_mut(&run) else { return };
        let Some(seq) = state.seq else { return };
        tracing::info!(request = %state.spec.request, cached = state.cached, "a prefix does not hold: begun again");
        let fetched = state.fetched.take();
        state.begin_again();
        self.leave(run);
        if let Some(place) = fetched.filter(|place| self.slots.sent(*place) > 0) {
            self.slots.empty(place);
            self.commands.push_back(Command::Drop { place: self.slots.place(place) });
        }
        self.slots.release(seq);
        self.withdraw(seq);
        // What it was to build on may be there.
        self.commands.push_back(Command::Close { seq });
        self.end_followers(seq);
        self.make_room();
        self.queue.push_front(run);
        self.admit();
    }

    /// A part failed: what a slot without a run keeps from position `start` on may be missing.
    pub(super) fn distrust_kept(&mut self, seq: SeqId, start: u32) {
        let held = self.slots.sent(seq);
        match self.slots.distrust(seq, start) {
            left if left == held => {}
            0 => self.commands.push_back(Command::Close { seq }),
            len => self.commands.push_back(Command::Truncate { seq, len }),
        }
    }

    fn leave(&mut self, run: RunId) {
        self.ready.retain(|ready| *ready != run);
        self.prefill.retain(|prefill| *prefill != run);
        self.draft_requests.retain(|asked| *asked != run);
    }
}
