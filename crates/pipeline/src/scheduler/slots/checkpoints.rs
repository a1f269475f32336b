//! Checkpoints of slots that cannot be cut back: which there are, and which give way.

use std::collections::HashSet;

use mesh_engine::SeqId;
use mesh_types::TokenId;

use super::{Slot, Slots};

/// Most checkpoints of a slot.
const PER_SLOT: usize = 8;
/// A checkpoint is this many times [`super::Limits::min_reuse`] away from what is there already, or is not worth taking.
const APART: u32 = 4;

/// What stages keep of a slot, so that it can be cut back to so many positions. A copy of the slot shares it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Checkpoint {
    pub(super) len: u32,
    id: u64,
}

/// What gives way to a running state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::scheduler) enum Given {
    /// The checkpoint of this slot at this many positions.
    Checkpoint(SeqId, u32),
    /// All that is at this place.
    Place(SeqId),
}

impl Slots {
    /// How many of its first `len` positions the slot can be cut back to, or be copied with.
    pub(super) fn reachable(&self, seq: SeqId, len: u32) -> u32 {
        let slot = &self.slots[seq.0 as usize];
        // What a run computes on goes on meanwhile.
        if self.limits.cuts_back || (slot.run.is_none() && len >= slot.sent) {
            return len;
        }
        slot.checkpoints.iter().map(|checkpoint| checkpoint.len).filter(|held| *held <= len).max().unwrap_or(0)
    }

    /// Where checkpoints of `prompt` are to be taken, of which the first `start` tokens are there: where it parts with
    /// what another slot or place holds, since there others will; and shortly before its end, which is what the next
    /// turn shares with it in any case. In order.
    pub(in crate::scheduler) fn checkpoints_of(&self, prompt: &[TokenId], start: u32) -> Vec<u32> {
        if self.limits.n_states == 0 || self.limits.cuts_back {
            return Vec::new();
        }
        let apart = APART * self.limits.min_reuse;
        let end = (prompt.len() as u32).saturating_sub(self.limits.min_reuse);
        if end < start.saturating_add(apart) {
            return Vec::new();
        }
        let parts = self.index.common(prompt).into_iter().map(|(_, common)| common);
        let parting = parts.filter(|common| (start + apart..=end - apart.min(end)).contains(common)).max();
        parting.into_iter().chain([end]).collect()
    }

    /// The slot gets a checkpoint of what it holds. False: it has one.
    pub(in crate::scheduler) fn keep_checkpoint(&mut self, seq: SeqId) -> bool {
        let id = self.next_checkpoint;
        let slot = &mut self.slots[seq.0 as usize];
        let len = slot.sent;
        if slot.checkpoints.iter().any(|held| held.len == len) {
            return false;
        }
        slot.checkpoints.push(Checkpoint { len, id });
        self.next_checkpoint += 1;
        true
    }

    /// The next thing to give way to one more checkpoint of the slot; `None`: there is room, or nothing but what it is to
    /// make room for.
    pub(in crate::scheduler) fn give_checkpoint(&mut self, seq: SeqId) -> Option<Given> {
        if self.slots[seq.0 as usize].checkpoints.len() >= PER_SLOT {
            return self.forget_cheapest(seq);
        }
        if self.has_room_for_state() {
            return None;
        }
        let all = (0..self.slots.len() as u32).map(SeqId).filter(|other| *other != seq);
        let held = all.filter(|other| self.states_of(*other) > 0);
        match held.min_by_key(|other| self.slots[other.0 as usize].used) {
            Some(place) if self.is_place(place) => {
                self.empty(place);
                Some(Given::Place(place))
            }
            Some(other) => self.forget_cheapest(other),
            None => self.forget_cheapest(seq),
        }
    }

    /// Forgets the checkpoint whose loss costs the fewest tokens to compute again, the latest only where it is the last.
    pub(super) fn forget_cheapest(&mut self, seq: SeqId) -> Option<Given> {
        let held = &mut self.slots[seq.0 as usize].checkpoints;
        let before = [0].into_iter().chain(held.iter().map(|checkpoint| checkpoint.len));
        let gaps = held.iter().zip(before).map(|(checkpoint, before)| checkpoint.len - before);
        let but_last = held.len().saturating_sub(1).max(1);
        let (cheapest, _) = gaps.take(but_last).enumerate().min_by_key(|(_, gap)| *gap)?;
        Some(Given::Checkpoint(seq, held.remove(cheapest).len))
    }

    /// Whether one more running state may be on the host.
    pub(in crate::scheduler) fn has_room_for_state(&self) -> bool {
        let checkpoints: HashSet<u64> =
            self.slots.iter().flat_map(|slot| &slot.checkpoints).map(|checkpoint| checkpoint.id).collect();
        let parked = self.slots.iter().skip(self.limits.n_seq as usize).filter(|place| place.sent > 0).count();
        checkpoints.len() + parked < self.limits.n_states as usize
    }

    fn states_of(&self, seq: SeqId) -> usize {
        let Slot { sent, checkpoints, .. } = &self.slots[seq.0 as usize];
        checkpoints.len() + usize::from(self.is_place(seq) && *sent > 0)
    }

    /// The lengths that stages should be able to cut a slot back to.
    #[cfg(test)]
    pub(in crate::scheduler) fn checkpoints(&self, seq: SeqId) -> Vec<u32> {
        self.slots[seq.0 as usize].checkpoints.iter().map(|checkpoint| checkpoint.len).collect()
    }
}
