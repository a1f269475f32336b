//! What each KV slot of a loaded stage holds, and what commands do to it: opened, copied, cut back, parked, closed.
//!
//! Recurrent layers keep one running state a sequence, which cannot be cut back. Such a stage keeps checkpoints, on the
//! host, where it is told to; cutting back to one of them sets the state to it.

use std::collections::HashSet;
use std::sync::Arc;

use kernels_ffi::{Checkpoint, Saved};

use super::engine::Engine;
use crate::error::StageError;
use crate::frame::{Command, Open, SeqId};
use crate::run::Run;

/// One sequence.
#[derive(Default)]
pub(super) struct Slot {
    /// Positions held.
    pub(super) len: u32,
    /// Set where recurrent layers hold positions that should have been cut off; only emptying the slot helps.
    pub(super) spoilt: bool,
    pub(super) run: Option<Run>,
    /// States that recurrent layers can be set back to.
    checkpoints: Vec<Arc<Checkpoint>>,
}

/// What a slot held, on the host.
pub(super) struct Parked {
    saved: Saved,
    checkpoints: Vec<Arc<Checkpoint>>,
}

impl Engine {
    pub(super) fn command(&mut self, command: &Command) -> Result<(), StageError> {
        match command {
            Command::Open(open) => {
                let Open { seq, request, .. } = &**open;
                if self.slot(*seq).run.is_some() {
                    return Err(StageError::InvalidFrame(format!("slot {} is open already", seq.0)));
                }
                let enforcer = self.head.as_mut().map(|head| &mut head.enforcer);
                let run = Run::new((**open).clone(), &self.spec, enforcer);
                self.slot(*seq).run = Some(run);
                tracing::debug!(%request, slot = seq.0, layers = %self.spec.layers, "run opened");
            }
            Command::Truncate { seq, len } => self.truncate(*seq, *len),
            Command::Copy { from, to, len } => self.copy(*from, *to, *len),
            Command::Checkpoint { seq, len } => self.keep_checkpoint(*seq, *len),
            Command::Forget { seq, len } => self.slot(*seq).checkpoints.retain(|checkpoint| checkpoint.len() != *len),
            Command::Park { seq, place } => return self.park(*seq, *place),
            Command::Fetch { place, seq, len } => self.fetch(*place, *seq, *len),
            Command::Drop { place } => self.places_on_host[*place as usize] = None,
            Command::Close { seq } => {
                self.context.clear_seq(seq.0);
                *self.slot(*seq) = Slot::default();
            }
            Command::Retain { seq, len } => {
                self.slot(*seq).run = None;
                self.truncate(*seq, *len);
            }
        }
        Ok(())
    }

    pub(super) fn truncate(&mut self, seq: SeqId, len: u32) {
        if len >= self.slot(seq).len {
            return;
        }
        if len == 0 {
            self.context.clear_seq(seq.0);
        }
        // What a sliding window needs may have been overwritten meanwhile.
        let cut = len == 0
            || (self.context.truncate(seq.0, len) && self.context.can_continue(seq.0, len))
            || self.restore_checkpoint(seq, len);
        let slot = self.slot(seq);
        slot.len = len;
        slot.spoilt = !cut;
        slot.checkpoints.retain(|checkpoint| checkpoint.len() <= len);
        slot.run.iter_mut().for_each(|run| run.truncate(len));
    }

    fn copy(&mut self, from: SeqId, to: SeqId, len: u32) {
        if from != to {
            let Slot { len: held, spoilt, checkpoints, .. } = self.slot(from);
            let (held, spoilt, checkpoints) = (*held, *spoilt, checkpoints.clone());
            self.context.clear_seq(to.0);
            let recurrent = self.context.model().is_recurrent();
            self.context.copy_seq(from.0, to.0, len.min(held));
            let slot = self.slot(to);
            (slot.len, slot.spoilt, slot.checkpoints) = (held, spoilt, checkpoints);
            if !recurrent {
                slot.len = slot.len.min(len);
            }
        }
        self.truncate(to, len);
    }

    fn park(&mut self, seq: SeqId, place: u32) -> Result<(), StageError> {
        if self.slot(seq).run.is_some() {
            return Err(StageError::InvalidFrame(format!("slot {} with a run is to be parked", seq.0)));
        }
        let slot = std::mem::take(self.slot(seq));
        self.places_on_host[place as usize] = None;
        let fits = !self.context.model().is_recurrent() || self.has_room_for_state(&slot.checkpoints);
        let saved = if slot.spoilt || !fits { None } else { self.context.save(seq.0) };
        self.context.clear_seq(seq.0);
        self.places_on_host[place as usize] = saved.map(|saved| Parked { saved, checkpoints: slot.checkpoints });
        Ok(())
    }

    /// Where nothing is there, or the cache has no room, the slot stays empty: the next batch for it fails.
    fn fetch(&mut self, place: u32, seq: SeqId, len: u32) {
        let loaded = match &self.places_on_host[place as usize] {
            Some(parked) if self.context.load(seq.0, &parked.saved) => {
                Slot { len: parked.saved.len(), checkpoints: parked.checkpoints.clone(), ..Slot::default() }
            }
            _ => {
                self.context.clear_seq(seq.0);
                Slot::default()
            }
        };
        *self.slot(seq) = loaded;
        self.truncate(seq, len);
    }

    /// Where the slot holds something else, the step before it has failed, and so will what is built on this one.
    fn keep_checkpoint(&mut self, seq: SeqId, len: u32) {
        let slot = self.slot(seq);
        let is_there = slot.len == len && !slot.spoilt;
        slot.checkpoints.retain(|checkpoint| checkpoint.len() != len);
        if !self.context.model().is_recurrent() || !is_there || !self.has_room_for_state(&[]) {
            return;
        }
        let checkpoint = self.context.checkpoint(seq.0).filter(|checkpoint| checkpoint.len() == len);
        self.slot(seq).checkpoints.extend(checkpoint.map(Arc::new));
    }

    /// Whether one more running state may be on the host, beside `more` and all that slots and places have there.
    fn has_room_for_state(&self, more: &[Arc<Checkpoint>]) -> bool {
        let parked = self.places_on_host.iter().flatten();
        let states = parked.clone().count();
        let of_slots = self.slots.iter().flat_map(|slot| &slot.checkpoints);
        let all = of_slots.chain(parked.flat_map(|parked| &parked.checkpoints)).chain(more);
        let checkpoints: HashSet<*const Checkpoint> = all.map(Arc::as_ptr).collect();
        states + checkpoints.len() < self.spec.n_states as usize
    }

    /// Sets the slot back to the checkpoint at `len` positions; false where there is none.
    fn restore_checkpoint(&mut self, seq: SeqId, len: u32) -> bool {
        let found = self.slot(seq).checkpoints.iter().find(|checkpoint| checkpoint.len() == len).cloned();
        found.is_some_and(|checkpoint| self.context.restore(seq.0, &checkpoint))
    }

    fn slot(&mut self, seq: SeqId) -> &mut Slot {
        &mut self.slots[seq.0 as usize] // checked against the spec with the frame
    }
}
