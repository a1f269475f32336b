//! Which tokens each slot of a scripted stage holds, kept with llama.cpp's rules.

use std::collections::HashSet;

use mesh_types::TokenId;

use super::mix;
use crate::error::StageError;
use crate::frame::{Command, MicroBatch, SeqId};
use crate::stage::StageSpec;

/// All slots of a link. Indices were checked against the spec before they come here.
pub(super) struct Slots {
    slots: Vec<Slot>,
    /// On the host.
    places: Vec<Slot>,
    cuts_back: bool,
    n_states: usize,
    next_checkpoint: u64,
}

#[derive(Clone, Default)]
struct Slot {
    /// One a position, from 0.
    tokens: Vec<TokenId>,
    /// `hashes[p]` depends on `tokens[..=p]`.
    hashes: Vec<u32>,
    /// Of the run that is open on this slot.
    prompt_len: Option<u32>,
    /// Tokens that end it.
    stop_tokens: Vec<TokenId>,
    /// Log probabilities that it wants.
    logprobs: Option<u8>,
    /// It should have been cut back, and could not.
    spoilt: bool,
    /// The lengths that it can be cut back to nevertheless, each with its number: a copy shares them.
    checkpoints: Vec<(u32, u64)>,
}

impl Slots {
    pub(super) fn new(spec: &StageSpec) -> Self {
        let empty = |count: u32| vec![Slot::default(); count as usize];
        Self {
            slots: empty(spec.n_seq),
            places: empty(spec.places()),
            cuts_back: spec.cuts_back,
            n_states: spec.n_states as usize,
            next_checkpoint: 0,
        }
    }

    pub(super) fn apply(&mut self, command: &Command) -> Result<(), StageError> {
        match *command {
            Command::Open(ref open) => {
                let slot = &mut self.slots[open.seq.0 as usize];
                if slot.prompt_len.replace(open.prompt_len).is_some() {
                    return Err(StageError::InvalidFrame(format!("slot {} is open already", open.seq.0)));
                }
                slot.logprobs = open.logprobs;
                slot.stop_tokens.clone_from(&open.stop_tokens);
            }
            Command::Truncate { seq, len } => self.truncate(seq, len),
            Command::Copy { from, to, len } => {
                if from != to {
                    let Slot { prompt_len, logprobs, stop_tokens, .. } = std::mem::take(&mut self.slots[to.0 as usize]);
                    let copy = self.slots[from.0 as usize].clone();
                    self.slots[to.0 as usize] = Slot { prompt_len, logprobs, stop_tokens, ..copy };
                }
                self.truncate(to, len);
            }
            Command::Park { seq, place } => {
                if self.slots[seq.0 as usize].prompt_len.is_some() {
                    return Err(StageError::InvalidFrame(format!("slot {} with a run is to be parked", seq.0)));
                }
                let slot = std::mem::take(&mut self.slots[seq.0 as usize]);
                self.places[place as usize] = Slot::default();
                if self.cuts_back || self.states(&slot.checkpoints) < self.n_states {
                    self.places[place as usize] = slot;
                }
            }
            Command::Fetch { place, seq, len } => {
                self.slots[seq.0 as usize] = self.places[place as usize].clone();
                self.truncate(seq, len);
            }
            Command::Drop { place } => self.places[place as usize] = Slot::default(),
            Command::Close { seq } => self.slots[seq.0 as usize] = Slot::default(),
            Command::Retain { seq, len } => {
                self.slots[seq.0 as usize].prompt_len = None;
                self.truncate(seq, len);
            }
            Command::Checkpoint { seq, len } => self.checkpoint(seq, len),
            Command::Forget { seq, len } => self.slots[seq.0 as usize].checkpoints.retain(|held| held.0 != len),
        }
        Ok(())
    }

    fn checkpoint(&mut self, seq: SeqId, len: u32) {
        let slot = &mut self.slots[seq.0 as usize];
        let is_there = slot.tokens.len() == len as usize && len > 0 && !slot.spoilt;
        slot.checkpoints.retain(|held| held.0 != len);
        if is_there && self.states(&[]) < self.n_states {
            self.slots[seq.0 as usize].checkpoints.push((len, self.next_checkpoint));
            self.next_checkpoint += 1;
        }
    }

    /// Running states that would be on the host, with those of `more`.
    fn states(&self, more: &[(u32, u64)]) -> usize {
        let all = self.slots.iter().chain(&self.places).flat_map(|slot| &slot.checkpoints).chain(more);
        let checkpoints: HashSet<u64> = all.map(|held| held.1).collect();
        checkpoints.len() + self.places.iter().filter(|place| !place.tokens.is_empty()).count()
    }

    fn truncate(&mut self, seq: SeqId, len: u32) {
        let slot = &mut self.slots[seq.0 as usize];
        let cuts_back = self.cuts_back || slot.checkpoints.iter().any(|held| held.0 == len);
        slot.spoilt |= !cuts_back && (len as usize) < slot.tokens.len();
        slot.spoilt &= len > 0;
        slot.checkpoints.retain(|held| held.0 <= len);
        slot.tokens.truncate(len as usize);
        slot.hashes.truncate(len as usize);
    }

    /// Appends a checked batch, or says which segment does not follow on what its slot holds; then nothing is changed.
    pub(super) fn extend(&mut self, batch: &MicroBatch) -> Result<(), String> {
        for segment in &batch.segments {
            let slot = &self.slots[segment.seq.0 as usize];
            if slot.spoilt {
                return Err(format!("slot {} cannot be cut back, only emptied", segment.seq.0));
            }
            let held = slot.tokens.len();
            if held != segment.start as usize {
                return Err(format!("slot {} holds {held} positions, and got {}", segment.seq.0, segment.start));
            }
        }
        let mut tokens = batch.tokens.iter();
        for segment in &batch.segments {
            let slot = &mut self.slots[segment.seq.0 as usize];
            tokens.by_ref().take(segment.len as usize).for_each(|token| slot.push(*token));
        }
        Ok(())
    }

    /// The first `len` tokens.
    pub(super) fn tokens(&self, seq: SeqId, len: u32) -> &[TokenId] {
        let tokens = &self.slots[seq.0 as usize].tokens;
        &tokens[..tokens.len().min(len as usize)]
    }

    /// A hash of all tokens up to `position`.
    pub(super) fn history(&self, seq: SeqId, position: u32) -> u32 {
        self.slots[seq.0 as usize].hashes.get(position as usize).copied().unwrap_or_default()
    }

    pub(super) fn logprobs(&self, seq: SeqId) -> Option<u8> {
        self.slots[seq.0 as usize].logprobs
    }

    /// What ends the run of a slot that holds `len` positions, its prompt among them; `None` where it does not.
    pub(super) fn stop_tokens_behind(&self, seq: SeqId, len: u32) -> Option<&[TokenId]> {
        let slot = &self.slots[seq.0 as usize];
        let is_there = slot.tokens.len() == len as usize && slot.prompt_len.is_some_and(|prompt_len| prompt_len <= len);
        is_there.then_some(&slot.stop_tokens[..])
    }

    pub(super) fn prompt_len(&self, seq: SeqId) -> Option<u32> {
        self.slots[seq.0 as usize].prompt_len
    }
}

impl Slot {
    fn push(&mut self, token: TokenId) {
        let before = self.hashes.last().copied().unwrap_or(0x5eed);
        self.hashes.push(mix(before.rotate_left(5) ^ mix(token.0.cast_unsigned())));
        self.tokens.push(token);
    }
}
