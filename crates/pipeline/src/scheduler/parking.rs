//! What slots hold moves to the host and back.
//!
//! Every token that is computed looks at all cells in use, and runs need cells: so what is idle leaves the cache where a
//! run needs its slot or its cells, before one begins alone, or when others have computed for a while. On the host it
//! costs memory alone.

use mesh_engine::{Command, SeqId};

use super::Scheduler;
use super::slots::{Parked, Plan};

impl Scheduler {
    /// What an idle slot holds makes room: it moves to the host, or is forgotten. `protected` is about to be fetched.
    pub(super) fn give_way(&mut self, seq: SeqId, protected: Option<SeqId>) {
        if self.slots.sent(seq) > 0 && !self.park(seq, protected, true) {
            self.forget_slot(seq);
        }
    }

    /// Everything that is kept leaves the cache, in which nobody computes.
    pub(super) fn empty_cache(&mut self) {
        for seq in (0..self.limits.n_seq).map(SeqId) {
            self.give_way(seq, None);
        }
    }

    /// A run begins while nobody computes. What others left in the cache leaves before that lies behind it: every token
    /// looks at all cells up to the last one in use.
    pub(super) fn make_way(&mut self, plan: &Plan) {
        let mut moved = 0;
        while let Some(seq) = self.slots.idle_beside(plan, moved) {
            moved += self.slots.sent(seq);
            if !self.park(seq, plan.from, true) {
                return;
            }
        }
    }

    /// `tokens` were computed: slots that are idle for long leave, as many as others can wait for. What has been on the
    /// host for longest gives way to them.
    pub(super) fn park_idle(&mut self, tokens: u32) {
        self.slots.computed(tokens);
        let mut moved = 0;
        while let Some(seq) = self.slots.idle_for_long(moved) {
            moved += self.slots.sent(seq);
            if !self.park(seq, None, true) {
                return;
            }
        }
    }

    /// Slot `seq` gets the first `len` tokens of what is at a place. That stays there where it is more than these.
    pub(super) fn fetch(&mut self, from: SeqId, seq: SeqId, len: u32) {
        let place = self.slots.place(from);
        self.commands.push_back(Command::Fetch { place, seq, len });
        if self.slots.sent(from) < len + self.limits.min_reuse {
            self.slots.empty(from);
            self.commands.push_back(Command::Drop { place });
        }
    }

    fn forget_slot(&mut self, seq: SeqId) {
        self.slots.empty(seq);
        self.commands.push_back(Command::Close { seq });
    }

    /// False: there is no room on the host.
    fn park(&mut self, seq: SeqId, protected: Option<SeqId>, may_drop: bool) -> bool {
        if self.slots.is_on_host(seq) {
            self.forget_slot(seq);
            return true;
        }
        let Parked { given, place } = self.slots.park(seq, protected, may_drop);
        given.into_iter().for_each(|given| self.forget(given));
        let Some(place) = place else { return false };
        self.commands.push_back(Command::Park { seq, place: self.slots.place(place) });
        true
    }
}
