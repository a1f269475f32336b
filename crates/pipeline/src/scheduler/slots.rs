//! What every KV slot holds, which of them a prompt is best computed on, and what that leaves of the rest.
//!
//! A slot whose run is over keeps its tokens until another run needs the slot or the cells. The state here is the one
//! that stages will have once they have applied all frames that were made so far.

use std::collections::HashMap;

use mesh_engine::SeqId;
use mesh_types::TokenId;

use super::{Limits, Part, RunId};
use crate::prefix::PrefixIndex;

mod checkpoints;
mod parked;

use checkpoints::Checkpoint;
pub(super) use checkpoints::Given;
pub(super) use parked::Parked;

/// All slots.
#[derive(Debug)]
pub(super) struct Slots {
    /// Behind them the places on the host, which are never anybody's.
    slots: Vec<Slot>,
    index: PrefixIndex,
    limits: Limits,
    /// Counts what was done to slots: the time by which the least recently used is found.
    now: u64,
    /// Tokens computed so far.
    computed: u64,
    next_origin: Origin,
    next_checkpoint: u64,
}

#[derive(Debug, Default)]
struct Slot {
    /// Who computes on it.
    run: Option<RunId>,
    /// Tokens of its positions: those computed or under way, and behind them what is still to be sent of a prompt.
    tokens: Vec<TokenId>,
    /// Positions computed or under way.
    sent: u32,
    /// Positions that its run may come to need.
    reserved: u32,
    spans: Vec<Span>,
    /// In order of their lengths.
    checkpoints: Vec<Checkpoint>,
    used: u64,
    /// What was computed in all when its run was over.
    idle_since: u64,
}

/// Counts what was computed in one go.
pub(super) type Origin = u64;

/// Positions that were computed in one go: a copy shares those cells.
#[derive(Clone, Copy, Debug)]
struct Span {
    origin: Origin,
    start: u32,
}

/// How a prompt is computed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    /// On this slot.
    pub(super) seq: SeqId,
    /// Behind this many positions, which need not be computed.
    pub(super) start: u32,
    /// Which are copied from this slot; `None`: its own.
    pub(super) from: Option<SeqId>,
    /// Slots that are emptied to make room.
    pub(super) evict: Vec<SeqId>,
}

/// A slot that holds a prefix of the prompt.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    seq: SeqId,
    /// Tokens of the prefix.
    len: u32,
    is_busy: bool,
    /// Tokens that it holds behind that.
    more: u32,
}

impl Slots {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            slots: (0..limits.n_seq + limits.n_places).map(|_| Slot::default()).collect(),
            index: PrefixIndex::default(),
            limits,
            now: 0,
            computed: 0,
            next_origin: 0,
            next_checkpoint: 0,
        }
    }

    /// Runs that have a slot.
    pub(super) fn busy(&self) -> u32 {
        self.slots.iter().filter(|slot| slot.run.is_some()).count() as u32
    }

    /// All runs that have a slot.
    pub(super) fn runs(&self) -> impl Iterator<Item = RunId> {
        self.slots.iter().filter_map(|slot| slot.run)
    }

    /// Whose slot this is.
    pub(super) fn run(&self, seq: SeqId) -> Option<RunId> {
        self.slots[seq.0 as usize].run
    }

    /// Of what is computed on the slot now.
    pub(super) fn origin(&self, seq: SeqId) -> Option<Origin> {
        self.slots[seq.0 as usize].spans.last().map(|span| span.origin)
    }

    /// Positions computed or under way.
    pub(super) fn sent(&self, seq: SeqId) -> u32 {
        self.slots[seq.0 as usize].sent
    }

    /// How best to compute `prompt`, of a run that may come to hold `need` positions. With `afresh`, no prefix is used.
    /// `None`: it has to wait until another run ends.
    pub(super) fn plan(&self, prompt: &[TokenId], need: u32, afresh: bool) -> Option<Plan> {
        if self.busy() >= self.limits.n_parallel {
            return None;
        }
        let candidate = if afresh { None } else { self.best(prompt) };
        let (seq, start, from) = match candidate {
            None => (self.least_used(None)?, 0, None),
            Some(found) if found.is_busy || self.is_place(found.seq) => {
                (self.least_used(None)?, found.len, Some(found.seq))
            }
            Some(found) => {
                match self.least_used(Some(found.seq)).filter(|other| self.is_worth_keeping(found, *other)) {
                    Some(other) => (other, found.len, Some(found.seq)),
                    None => (found.seq, found.len, None),
                }
            }
        };
        let mut plan = Plan { seq, start, from, evict: Vec::new() };
        while self.cells(&plan, need) > self.limits.n_cells {
            match self.evictable(&plan) {
                Some(seq) => plan.evict.push(seq),
                // Rather compute a prefix again than wait for what it is shared with.
                None if plan.start > 0 && !afresh => return self.plan(prompt, need, true),
                None => return None,
            }
        }
        Some(plan)
    }

    /// Carries a plan out. False: the slot that it copies from has not come that far yet, and [`Self::join`] is to
    /// follow.
    pub(super) fn take(&mut self, plan: &Plan, run: RunId, prompt: &[TokenId], need: u32) -> bool {
        for seq in &plan.evict {
            self.clear(*seq);
        }
        let is_there = plan.from.is_none_or(|from| self.sent(from) >= plan.start);
        self.index.insert(plan.seq, prompt);
        for seq in plan.from.into_iter().chain([plan.seq]) {
            self.touch(seq);
        }
        let slot = &mut self.slots[plan.seq.0 as usize];
        (slot.run, slot.reserved) = (Some(run), need);
        slot.tokens = prompt.to_vec();
        let from = plan.from.unwrap_or(plan.seq);
        if is_there {
            self.join(plan.seq, from, plan.start)
        } else {
            self.follow(plan.seq, from, plan.start)
        }
        is_there
    }

    /// The slot has the first `len` positions of `from`, and computes the rest itself.
    pub(super) fn join(&mut self, seq: SeqId, from: SeqId, len: u32) {
        let mut spans = self.slots[from.0 as usize].spans.clone();
        spans.retain(|span| span.start < len);
        // What comes from the host shares no cells.
        spans.push(Span { origin: self.next_origin, start: if self.is_place(from) { 0 } else { len } });
        self.next_origin += 1;
        let mut checkpoints = self.slots[from.0 as usize].checkpoints.clone();
        checkpoints.retain(|checkpoint| checkpoint.len <= len);
        let slot = &mut self.slots[seq.0 as usize];
        (slot.sent, slot.spans, slot.checkpoints) = (len, spans, checkpoints);
    }

    /// The slot is to have the first `len` positions of `from`, which has not come that far yet.
    pub(super) fn follow(&mut self, seq: SeqId, from: SeqId, len: u32) {
        self.join(seq, from, len);
        self.slots[seq.0 as usize].sent = 0;
    }

    /// The next `len` prompt tokens of the slot are on their way.
    pub(super) fn send(&mut self, seq: SeqId, len: u32) {
        self.slots[seq.0 as usize].sent += len;
    }

    /// `token`, drawn before, is on its way.
    pub(super) fn send_drawn(&mut self, seq: SeqId, token: TokenId) {
        self.index.push(seq, token);
        let slot = &mut self.slots[seq.0 as usize];
        slot.tokens.push(token);
        slot.sent += 1;
    }

    /// What was sent behind the first `len` positions did not come true.
    pub(super) fn take_back(&mut self, seq: SeqId, len: u32) {
        self.cut(seq, len);
        let Some(Span { origin, .. }) = self.slots[seq.0 as usize].spans.last().copied() else { return };
        let shares = |slot: &Slot| slot.spans.iter().any(|span| span.origin == origin);
        // Who copied what did not come true keeps its cells; what comes now is in others.
        if self.slots.iter().filter(|slot| shares(slot)).count() > 1 {
            self.slots[seq.0 as usize].spans.push(Span { origin: self.next_origin, start: len });
            self.next_origin += 1;
        }
    }

    /// The run on the slot is over. Returns how many positions it keeps for others; 0: it is empty.
    pub(super) fn retire(&mut self, seq: SeqId) -> u32 {
        let sent = self.sent(seq);
        if sent < self.limits.min_reuse {
            self.release(seq);
            return 0;
        }
        self.slots[seq.0 as usize].run = None;
        self.slots[seq.0 as usize].idle_since = self.computed;
        self.cut(seq, sent);
        self.touch(seq);
        sent
    }

    /// What the slot holds is only certain up to `len`. Returns how many positions it still has; 0: it is empty.
    pub(super) fn distrust(&mut self, seq: SeqId, len: u32) -> u32 {
        let sent = self.sent(seq);
        if len >= sent {
            return sent;
        }
        if !self.limits.cuts_back || len == 0 {
            self.clear(seq);
            return 0;
        }
        self.cut(seq, len);
        len
    }

    /// Slots that hold something of what `part` and those behind it compute, copies included.
    pub(super) fn holders(&self, part: &Part) -> Vec<SeqId> {
        let Some(origin) = part.origin else { return Vec::new() };
        let holds = |slot: &Slot| slot.reach(origin).is_some_and(|reach| reach > part.start);
        (0..self.limits.n_seq).map(SeqId).filter(|seq| holds(&self.slots[seq.0 as usize])).collect()
    }

    /// The run on the slot is over, and nothing is kept.
    pub(super) fn release(&mut self, seq: SeqId) {
        self.slots[seq.0 as usize].run = None;
        self.clear(seq);
    }

    /// Empties the slot; its run, if any, keeps it.
    fn clear(&mut self, seq: SeqId) {
        self.index.remove(seq);
        let slot = &mut self.slots[seq.0 as usize];
        *slot = Slot { run: slot.run, reserved: slot.reserved, used: slot.used, ..Slot::default() };
    }

    fn cut(&mut self, seq: SeqId, len: u32) {
        self.index.truncate(seq, len);
        let slot = &mut self.slots[seq.0 as usize];
        slot.tokens.truncate(len as usize);
        slot.sent = len;
        slot.spans.retain(|span| span.start < len);
        slot.checkpoints.retain(|checkpoint| checkpoint.len <= len);
    }

    fn touch(&mut self, seq: SeqId) {
        self.now += 1;
        self.slots[seq.0 as usize].used = self.now;
    }

    /// The slot that saves most; of equals one that is not on the host, one that is idle, then the one used last.
    fn best(&self, prompt: &[TokenId]) -> Option<Candidate> {
        let common = self.index.common(prompt);
        let candidates =
            common.into_iter().filter_map(|(seq, common)| self.candidate(seq, common, prompt.len() as u32));
        let is_here = |found: &Candidate| !self.is_place(found.seq);
        candidates
            .max_by_key(|found| (found.len, is_here(found), !found.is_busy, self.slots[found.seq.0 as usize].used))
    }

    /// What of `common` tokens can be used. One token of a prompt is always computed: its logits are needed.
    fn candidate(&self, seq: SeqId, common: u32, prompt: u32) -> Option<Candidate> {
        let slot = &self.slots[seq.0 as usize];
        let is_busy = slot.run.is_some();
        let len = self.reachable(seq, common.min(prompt.saturating_sub(1)));
        let fits = !self.is_place(seq) || self.is_worth_fetching(seq, len);
        let more = slot.sent.saturating_sub(len);
        (len >= self.limits.min_reuse && fits).then_some(Candidate { seq, len, is_busy, more })
    }

    /// Whether an idle slot, of which a prefix is used, should keep the rest as well, and `other` be taken instead: the
    /// rest is another conversation rather than a turn of this one that was taken back.
    fn is_worth_keeping(&self, found: Candidate, other: SeqId) -> bool {
        let other = &self.slots[other.0 as usize];
        let is_free = other.tokens.is_empty();
        let is_older = other.used < self.slots[found.seq.0 as usize].used;
        found.more >= self.limits.min_reuse && (is_free || (is_older && found.more > found.len))
    }

    /// The idle slot that is empty, or else was used longest ago.
    fn least_used(&self, except: Option<SeqId>) -> Option<SeqId> {
        let idle = self.idle().filter(|seq| Some(*seq) != except);
        idle.min_by_key(|seq| {
            let slot = &self.slots[seq.0 as usize];
            (!slot.tokens.is_empty(), slot.used, *seq)
        })
    }

    fn idle(&self) -> impl Iterator<Item = SeqId> {
        (0..self.limits.n_seq).map(SeqId).filter(|seq| self.run(*seq).is_none())
    }

    /// The next slot to give its cells up.
    fn evictable(&self, plan: &Plan) -> Option<SeqId> {
        let is_needed = |seq: &SeqId| *seq == plan.seq || Some(*seq) == plan.from || plan.evict.contains(seq);
        let held = self.idle().filter(|seq| !self.slots[seq.0 as usize].tokens.is_empty() && !is_needed(seq));
        held.min_by_key(|seq| self.slots[seq.0 as usize].used)
    }

    /// Cells taken once `plan` is carried out and all runs have grown as far as they may.
    fn cells(&self, plan: &Plan, need: u32) -> u32 {
        let goes = |seq: SeqId| seq == plan.seq || plan.evict.contains(&seq);
        let others = (0..).map(SeqId).zip(&self.slots).filter(|(seq, _)| !goes(*seq)).map(|(_, slot)| slot.grown());
        let mut own = self.slots[plan.from.unwrap_or(plan.seq).0 as usize].spans.clone();
        own.retain(|span| span.start < plan.start);
        let shared = cells_of(others.chain([(&own[..], plan.start)]));
        let there = if plan.from.is_some_and(|from| self.is_place(from)) { 0 } else { plan.start };
        shared.saturating_add(need - there.min(need))
    }

    /// The idle slot that is to give its cells up, where runs may grow to more than there are: what one was to share with
    /// another did not come.
    pub(super) fn overdrawn(&self) -> Option<SeqId> {
        if cells_of(self.slots.iter().map(Slot::grown)) <= self.limits.n_cells {
            return None;
        }
        let held = self.idle().filter(|seq| !self.slots[seq.0 as usize].tokens.is_empty());
        held.min_by_key(|seq| self.slots[seq.0 as usize].used)
    }

    /// What stages should have of a slot.
    #[cfg(test)]
    pub(super) fn held(&self, seq: SeqId) -> &[TokenId] {
        let slot = &self.slots[seq.0 as usize];
        &slot.tokens[..slot.sent as usize]
    }
}

impl Slot {
    /// How far cells of this origin reach, if it has any.
    fn reach(&self, origin: Origin) -> Option<u32> {
        let at = self.spans.iter().position(|span| span.origin == origin)?;
        Some(self.spans.get(at + 1).map_or(self.sent, |next| next.start.min(self.sent)))
    }

    /// What it holds once its run, if any, has grown as far as it may.
    fn grown(&self) -> (&[Span], u32) {
        (&self.spans, if self.run.is_some() { self.reserved } else { self.sent })
    }
}

/// Cells that sequences of these lengths take together: those of one origin are there once.
fn cells_of<'a>(sequences: impl Iterator<Item = (&'a [Span], u32)>) -> u32 {
    // From the position at which they begin: how far cells of one origin reach.
    let mut reach: HashMap<Origin, (u32, u32)> = HashMap::new();
    for (spans, len) in sequences {
        let ends = spans.iter().skip(1).map(|span| span.start).chain([len]);
        for (span, end) in spans.iter().zip(ends) {
            let reached = reach.entry(span.origin).or_insert((span.start, span.start));
            reached.1 = reached.1.max(end.min(len));
        }
    }
    reach.values().map(|(start, end)| end - start).sum()
}
