//! What a reader gives out: events, with blanks held back where they may be layout.

use std::mem;

use crate::format::{Ids, Tags};
use crate::parse::TurnEvent;

/// Marks around thinking that nearly all families use.
pub(crate) const THINKING: Tags = ("<think>", "</think>");

/// Collects the events of one answer.
#[derive(Debug)]
pub(crate) struct Out {
    events: Vec<TurnEvent>,
    ids: Ids,
    seed: String,
    calls: usize,
    content: Flow,
    reasoning: Flow,
}

/// Text whose outer blanks may have to be left out.
#[derive(Debug, Default)]
struct Flow {
    /// Blanks that are text only if more text follows.
    blanks: String,
    /// Something went out already.
    begun: bool,
    /// Blanks at the beginning are layout.
    trims_start: bool,
}

impl Flow {
    fn push(&mut self, text: &str) -> String {
        self.blanks.push_str(text);
        let mut text = mem::take(&mut self.blanks);
        self.blanks = text.split_off(text.trim_end().len());
        if self.trims_start && !self.begun {
            text.drain(..text.len() - text.trim_start().len());
            if text.is_empty() {
                self.blanks.clear();
            }
        }
        self.begun |= !text.is_empty();
        text
    }
}

impl Out {
    pub(crate) fn new(ids: Ids, seed: &str) -> Self {
        Self {
            events: Vec::new(),
            ids,
            seed: seed.to_owned(),
            calls: 0,
            content: Flow::default(),
            reasoning: Flow { trims_start: true, ..Flow::default() },
        }
    }

    pub(crate) fn calls(&self) -> usize {
        self.calls
    }

    /// Whether there was text or a call.
    pub(crate) fn has_begun(&self) -> bool {
        self.content.begun || self.calls > 0
    }

    pub(crate) fn content(&mut self, text: &str) {
        let text = self.content.push(text);
        match self.events.last_mut() {
            _ if text.is_empty() => {}
            Some(TurnEvent::Content(last)) => last.push_str(&text),
            _ => self.events.push(TurnEvent::Content(text)),
        }
    }

    pub(crate) fn reasoning(&mut self, text: &str) {
        let text = self.reasoning.push(text);
        match self.events.last_mut() {
            _ if text.is_empty() => {}
            Some(TurnEvent::Reasoning(last)) => last.push_str(&text),
            _ => self.events.push(TurnEvent::Reasoning(text)),
        }
    }

    /// The thinking is over; blanks around it are layout.
    pub(crate) fn end_reasoning(&mut self) {
        // Another stretch of thinking begins a new paragraph.
        self.reasoning.blanks = if self.reasoning.begun { "\n\n".to_owned() } else { String::new() };
        self.content.trims_start = true;
    }

    /// A call begins: blanks before it were layout.
    pub(crate) fn call(&mut self, name: &str, id: &str) {
        self.content.blanks.clear();
        self.content.trims_start = true;
        let index = self.calls;
        let id = match self.ids {
            Ids::Model if !id.is_empty() => id.to_owned(),
            Ids::Nine => nine(&self.seed, index),
            _ => format!("call_{:016x}{:04x}", hash(&self.seed, index), index & 0xffff),
        };
        self.calls += 1;
        self.events.push(TurnEvent::Call { index, id, name: name.to_owned() });
    }

    /// More of the last call's arguments.
    pub(crate) fn arguments(&mut self, text: &str) {
        match self.events.last_mut() {
            _ if text.is_empty() => {}
            Some(TurnEvent::Arguments { fragment, .. }) => fragment.push_str(text),
            _ => {
                let index = self.calls.saturating_sub(1);
                self.events.push(TurnEvent::Arguments { index, fragment: text.to_owned() });
            }
        }
    }

    /// The answer is over. Blanks at the end of a text without calls are text.
    pub(crate) fn end(&mut self) {
        if self.calls == 0 && (self.content.begun || !self.content.trims_start) {
            let blanks = mem::take(&mut self.content.blanks);
            match self.events.last_mut() {
                _ if blanks.is_empty() => {}
                Some(TurnEvent::Content(last)) => last.push_str(&blanks),
                _ => self.events.push(TurnEvent::Content(blanks)),
            }
        }
    }

    pub(crate) fn take(&mut self) -> Vec<TurnEvent> {
        mem::take(&mut self.events)
    }
}

/// Nine letters or digits.
pub(crate) fn nine(seed: &str, index: usize) -> String {
    const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let mut rest = hash(seed, index);
    let mut digit = || {
        let digit = DIGITS[usize::try_from(rest % 62).unwrap_or(0)];
        rest /= 62;
        char::from(digit)
    };
    (0..9).map(|_| digit()).collect()
}

/// FNV-1a, with a final mix so that neighbours differ in all digits.
fn hash(seed: &str, index: usize) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for byte in seed.bytes().chain(index.to_le_bytes()) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    hash ^= hash >> 32;
    hash = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    hash ^ (hash >> 29)
}
