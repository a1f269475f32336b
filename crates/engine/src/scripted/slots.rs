//! Which tokens each slot of a scripted stage holds, kept with llama.cpp's rules.

use mesh_types::TokenId;

use super::mix;
use crate::error::StageError;
use crate::frame::{Command, MicroBatch, SeqId};
use crate::stage::StageSpec;

/// All slots of a link. Indices were checked against the spec before they come here.
pub(super) struct Slots(Vec<Slot>);

#[derive(Clone, Default)]
struct Slot {
    /// One a position, from 0.
    tokens: Vec<TokenId>,
    /// `hashes[p]` depends on `tokens[..=p]`.
    hashes: Vec<u32>,
    /// Of the run that is open on this slot.
    prompt_len: Option<u32>,
}

impl Slots {
    pub(super) fn new(spec: &StageSpec) -> Self {
        Self(vec![Slot::default(); spec.n_seq as usize])
    }

    pub(super) fn apply(&mut self, command: &Command) -> Result<(), StageError> {
        match *command {
            Command::Open { seq, prompt_len, .. } => {
                let slot = &mut self.0[seq.0 as usize];
                if slot.prompt_len.replace(prompt_len).is_some() {
                    return Err(StageError::InvalidFrame(format!("slot {} is open already", seq.0)));
                }
            }
            Command::Truncate { seq, len } => self.0[seq.0 as usize].truncate(len),
            Command::Copy { from, to, len } if from != to => {
                let mut copy = Slot { prompt_len: self.0[to.0 as usize].prompt_len, ..self.0[from.0 as usize].clone() };
                copy.truncate(len);
                self.0[to.0 as usize] = copy;
            }
            Command::Copy { to, len, .. } => self.0[to.0 as usize].truncate(len),
            Command::Close { seq } => self.0[seq.0 as usize] = Slot::default(),
        }
        Ok(())
    }

    /// Appends a checked batch, or says which segment does not follow on what its slot holds; then nothing is changed.
    pub(super) fn extend(&mut self, batch: &MicroBatch) -> Result<(), String> {
        for segment in &batch.segments {
            let held = self.0[segment.seq.0 as usize].tokens.len();
            if held != segment.start as usize {
                return Err(format!("slot {} holds {held} positions, and got {}", segment.seq.0, segment.start));
            }
        }
        let mut tokens = batch.tokens.iter();
        for segment in &batch.segments {
            let slot = &mut self.0[segment.seq.0 as usize];
            tokens.by_ref().take(segment.len as usize).for_each(|token| slot.push(*token));
        }
        Ok(())
    }

    /// The first `len` tokens.
    pub(super) fn tokens(&self, seq: SeqId, len: u32) -> &[TokenId] {
        let tokens = &self.0[seq.0 as usize].tokens;
        &tokens[..tokens.len().min(len as usize)]
    }

    /// A hash of all tokens up to `position`.
    pub(super) fn history(&self, seq: SeqId, position: u32) -> u32 {
        self.0[seq.0 as usize].hashes.get(position as usize).copied().unwrap_or_default()
    }

    pub(super) fn prompt_len(&self, seq: SeqId) -> Option<u32> {
        self.0[seq.0 as usize].prompt_len
    }
}

impl Slot {
    fn push(&mut self, token: TokenId) {
        let before = self.hashes.last().copied().unwrap_or(0x5eed);
        self.hashes.push(mix(before.rotate_left(5) ^ mix(token.0.cast_unsigned())));
        self.tokens.push(token);
    }

    fn truncate(&mut self, len: u32) {
        self.tokens.truncate(len as usize);
        self.hashes.truncate(len as usize);
    }
}
