//! Places on the host: what slots held that gave way.

use mesh_engine::SeqId;

use super::{Given, Plan, Slot, Slots};

/// Of so many tokens that a place holds, one has to be of use for them to be fetched: they are copied all together.
const FETCHED_FOR_ONE: u32 = 64;
/// A slot is idle for long when so many tokens were computed meanwhile: each of these looked at its cells.
const IDLE: u64 = 256;
/// More tokens than this are not moved at a time but to make room: others would wait for the copy.
const MOVED_WHEN_IDLE: u32 = 4096;

/// What becomes of a slot that gives way.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::scheduler) struct Parked {
    /// Checkpoints of the slot, and places, that made room for it.
    pub(in crate::scheduler) given: Vec<Given>,
    /// Where it is now; `None`: it does not fit, and is where it was.
    pub(in crate::scheduler) place: Option<SeqId>,
}

impl Slots {
    /// Whether this is a place on the host.
    pub(in crate::scheduler) fn is_place(&self, seq: SeqId) -> bool {
        seq.0 >= self.limits.n_seq
    }

    /// The number by which stages know a place.
    pub(in crate::scheduler) fn place(&self, seq: SeqId) -> u32 {
        seq.0.saturating_sub(self.limits.n_seq)
    }

    /// Moves what an idle slot holds to the host. Others there give way, those used longest ago first, but for
    /// `protected`, if `may_drop`.
    pub(in crate::scheduler) fn park(&mut self, seq: SeqId, protected: Option<SeqId>, may_drop: bool) -> Parked {
        let mut parked = Parked::default();
        let len = self.sent(seq);
        let kept: u32 = protected.filter(|seq| self.is_place(*seq)).map_or(0, |seq| self.sent(seq));
        if len < self.limits.min_reuse || kept.saturating_add(len) > self.limits.n_parked {
            return parked;
        }
        loop {
            let used: u32 = self.places().map(|place| self.sent(place)).sum();
            let free = self.places().find(|place| self.sent(*place) == 0);
            let has_room = self.limits.cuts_back || self.has_room_for_state();
            if let Some(place) = free.filter(|_| has_room && used.saturating_add(len) <= self.limits.n_parked) {
                self.move_to(place, seq);
                parked.place = Some(place);
                return parked;
            }
            let held = self.places().filter(|place| self.sent(*place) > 0 && Some(*place) != protected);
            let oldest = held.min_by_key(|place| self.slots[place.0 as usize].used);
            match oldest.filter(|_| may_drop) {
                Some(oldest) => {
                    self.empty(oldest);
                    parked.given.push(Given::Place(oldest));
                }
                // What it holds at its end is what goes on.
                None if may_drop && !has_room => match self.forget_cheapest(seq) {
                    Some(given) => parked.given.push(given),
                    None => return parked,
                },
                None => return parked,
            }
        }
    }

    /// Whether a place holds all that the slot does. It counts as used now.
    pub(in crate::scheduler) fn is_on_host(&mut self, seq: SeqId) -> bool {
        let Slot { tokens, sent, .. } = &self.slots[seq.0 as usize];
        let is_same = |(place, common): &(SeqId, u32)| {
            let ends_there = self.limits.cuts_back || self.sent(*place) == *sent;
            self.is_place(*place) && common == sent && ends_there
        };
        let found = self.index.common(&tokens[..*sent as usize]).into_iter().find(is_same);
        if let Some((place, _)) = found {
            self.touch(place);
        }
        found.is_some()
    }

    /// `tokens` were computed, each of which looked at all cells in use.
    pub(in crate::scheduler) fn computed(&mut self, tokens: u32) {
        self.computed += u64::from(tokens);
    }

    /// A slot that has been idle for long, and can be moved when `moved` tokens were already.
    pub(in crate::scheduler) fn idle_for_long(&self, moved: u32) -> Option<SeqId> {
        let is_long = |seq: &SeqId| self.slots[seq.0 as usize].idle_since + IDLE <= self.computed;
        self.movable(moved).filter(is_long).min_by_key(|seq| self.slots[seq.0 as usize].used)
    }

    /// The same of a slot that has been idle for any time, but for those that `plan` makes use of.
    pub(in crate::scheduler) fn idle_beside(&self, plan: &Plan, moved: u32) -> Option<SeqId> {
        let is_other = |seq: &SeqId| *seq != plan.seq && Some(*seq) != plan.from && !plan.evict.contains(seq);
        self.movable(moved).filter(is_other).min_by_key(|seq| self.slots[seq.0 as usize].used)
    }

    /// Idle slots that the host could take, when `moved` tokens were moved already.
    fn movable(&self, moved: u32) -> impl Iterator<Item = SeqId> {
        self.idle().filter(move |seq| {
            let sent = self.sent(*seq);
            let fits = (self.limits.min_reuse..=self.limits.n_parked).contains(&sent);
            fits && moved.saturating_add(sent) <= MOVED_WHEN_IDLE
        })
    }

    /// Forgets what a slot without a run, or a place, holds.
    pub(in crate::scheduler) fn empty(&mut self, seq: SeqId) {
        self.clear(seq);
    }

    pub(super) fn is_worth_fetching(&self, place: SeqId, len: u32) -> bool {
        len.saturating_mul(FETCHED_FOR_ONE) >= self.sent(place)
    }

    fn places(&self) -> impl Iterator<Item = SeqId> + use<> {
        (self.limits.n_seq..self.limits.n_seq + self.limits.n_places).map(SeqId)
    }

    fn move_to(&mut self, place: SeqId, seq: SeqId) {
        self.index.remove(seq);
        let Slot { tokens, sent, used, checkpoints, .. } = std::mem::take(&mut self.slots[seq.0 as usize]);
        self.index.insert(place, &tokens);
        self.slots[place.0 as usize] = Slot { tokens, sent, used, checkpoints, ..Slot::default() };
    }
}
