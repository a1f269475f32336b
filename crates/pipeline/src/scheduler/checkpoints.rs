//! Checkpoints of what recurrent layers hold, where sequences cannot be cut back.
//!
//! Such a sequence can only go on at its end. So stages are told to keep what its layers hold at places in its prompt
//! that another prompt is likely to share; that one is then computed from there on.

use mesh_engine::{Command, SeqId};

use super::Scheduler;
use super::slots::Given;

impl Scheduler {
    /// Keeps what the slot holds once all frames so far are applied. What was used longest ago gives way to it.
    pub(super) fn keep_checkpoint(&mut self, seq: SeqId) {
        while let Some(given) = self.slots.give_checkpoint(seq) {
            self.forget(given);
        }
        if self.slots.has_room_for_state() && self.slots.keep_checkpoint(seq) {
            self.commands.push_back(Command::Checkpoint { seq, len: self.slots.sent(seq) });
        }
    }

    pub(super) fn forget(&mut self, given: Given) {
        self.commands.push_back(match given {
            Given::Checkpoint(seq, len) => Command::Forget { seq, len },
            Given::Place(place) => Command::Drop { place: self.slots.place(place) },
        });
    }
}
