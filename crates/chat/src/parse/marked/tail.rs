//! What may follow a call: the end of a list, a closing marker, another call, prose.

use mesh_types::FinishReason;

use super::{Reader, State, Step, fence};
use crate::format::{Body, Part};
use crate::parse::marker::{self, Match, blank};

impl Reader {
    pub(super) fn tail(&mut self, closed: bool) -> Step {
        if !self.setting.parallel {
            return self.to(State::Over);
        }
        if self.is_emulated() {
            return self.emulated_tail();
        }
        let Some(at) = self.separators(closed) else { return self.wait_in_tail() };
        let rest = &self.text[at..];
        if rest.is_empty() {
            return self.wait_in_tail();
        }
        match marker::starts_any(rest, self.setting.marked.close.iter().copied()) {
            Match::Yes(len) => {
                self.text.drain(..at + len);
                return self.to(State::Tail { closed: true });
            }
            Match::Partial if !self.has_ended() => return Step::Wait,
            // There was no room for the rest of it.
            Match::Partial if !closed && self.ended == Some(FinishReason::Length) => return self.wait_in_tail(),
            _ => {}
        }
        match self.next_call(rest, closed) {
            Match::Yes(_) => {
                self.text.drain(..at);
                self.to(State::head(String::new(), 0))
            }
            Match::Partial if !self.has_ended() => Step::Wait,
            _ => {
                // Blanks belong to the prose that follows, the rest of what was passed over does not.
                if !self.text[..at].trim().is_empty() {
                    self.text.drain(..at);
                }
                self.to(State::Prose)
            }
        }
    }

    fn wait_in_tail(&mut self) -> Step {
        if self.has_ended() {
            self.text.clear();
        }
        Step::Wait
    }

    /// Bytes of what may stand between calls. `None`: not to be said yet.
    fn separators(&self, closed: bool) -> Option<usize> {
        let body = &self.setting.marked.body;
        let is_json = matches!(body, Body::Object | Body::KeyedObject | Body::Named(_));
        let mut at = 0;
        loop {
            at += blank(&self.text[at..]);
            let rest = &self.text[at..];
            let has_list = is_json || *body == Body::Python;
            if has_list && !closed && rest.starts_with([',', ';', ']']) {
                at += 1;
                continue;
            }
            if is_json && !closed && !self.setting.marked.close.contains(&fence::FENCE) {
                match fence::opening(rest) {
                    Some(Some(len)) => {
                        at += len;
                        continue;
                    }
                    Some(None) => {}
                    None if self.has_ended() => {}
                    None => return None,
                }
            }
            return Some(at);
        }
    }

    /// Whether another call of the same list follows.
    fn next_call(&self, rest: &str, closed: bool) -> Match {
        if closed {
            return Match::No;
        }
        match &self.setting.marked.body {
            Body::Object | Body::KeyedObject if rest.starts_with('{') => Match::Yes(0),
            Body::Python if rest.starts_with(|c: char| c.is_alphabetic() || c == '_') => Match::Yes(0),
            Body::Tagged(tagged) => match tagged.heads.first().and_then(|head| head.first()) {
                Some(Part::Text(text)) => marker::starts(rest, text),
                _ => Match::No,
            },
            _ => Match::No,
        }
    }

    /// Only another call matters, in a fence of its own or not.
    fn emulated_tail(&mut self) -> Step {
        let mut at = 0;
        loop {
            at += blank(&self.text[at..]);
            match fence::opening(&self.text[at..]) {
                Some(Some(len)) => at += len,
                None if !self.has_ended() => return Step::Wait,
                _ => break,
            }
        }
        match marker::starts_any(&self.text[at..], self.openers()) {
            Match::Yes(len) => {
                let taken = self.text.drain(..at + len).collect();
                self.to(State::head(taken, 0))
            }
            Match::Partial if !self.has_ended() => Step::Wait,
            _ => self.to(State::Over),
        }
    }
}
