//! Arguments that are written between tags.

use super::{Reader, State, Step};
use crate::format::{Body, Part, Tagged};
use crate::parse::json::{escape_into, quoted};
use crate::parse::marker::{self, Match, blank};
use crate::parse::pattern::{self, Found};
use crate::tools::schema::Types;

/// Where a value ends.
enum End {
    /// The value has so many bytes, and what follows its closing tag begins there.
    At(usize, usize),
    /// Not within so many bytes.
    After(usize),
}

impl Reader {
    fn tagged(&self) -> Option<&'static Tagged> {
        match &self.setting.marked.body {
            Body::Tagged(tagged) => Some(tagged),
            _ => None,
        }
    }

    /// What may end a call: its own end, or a closing marker.
    fn ends(&self, tagged: &'static Tagged) -> impl Iterator<Item = &'static str> + use<> {
        std::iter::once(tagged.end).filter(|end| !end.is_empty()).chain(self.setting.marked.close.iter().copied())
    }

    pub(super) fn values(&mut self) -> Step {
        let (Some(tagged), State::Values { tool, first }) = (self.tagged(), &self.state) else { return Step::On };
        let first = *first;
        let rest = &self.text[blank(&self.text)..];
        let value = pattern::any(tagged.values, rest);
        if let Found::Yes(len, slots) = value {
            let types = match slots.is_string {
                Some(true) => Types::STRING,
                Some(false) => Types::JSON,
                None => self.setting.offered.types(tool, &slots.key),
            };
            let before = if first { "{" } else { ", " };
            let opening = if types.is_string() { "\"" } else { "" };
            let next = State::Value { tool: tool.clone(), types, fresh: true };
            self.out.arguments(&format!("{before}{}: {opening}", quoted(&slots.key)));
            self.text.drain(..self.text.len() - rest.len() + len);
            return self.to(next);
        }
        let end = marker::starts_any(rest, self.ends(tagged));
        let is_undecided = rest.is_empty() || value == Found::Partial || end == Match::Partial;
        match end {
            Match::Yes(_) => {}
            _ if is_undecided && !self.has_ended() => return Step::Wait,
            _ if is_undecided && !self.is_to_be_closed() => return self.to(State::Over),
            _ => {}
        }
        if !tagged.end.is_empty() && rest.starts_with(tagged.end) {
            self.text.drain(..self.text.len() - rest.len() + tagged.end.len());
        }
        self.out.arguments(if first { "{}" } else { "}" });
        self.to(State::Tail { closed: false })
    }

    pub(super) fn value(&mut self) -> Step {
        let (Some(tagged), State::Value { tool, types, fresh }) = (self.tagged(), &mut self.state) else {
            return Step::On;
        };
        if *fresh && tagged.newlines {
            if self.text.is_empty() && self.ended.is_none() {
                return Step::Wait;
            }
            if self.text.starts_with('\n') {
                self.text.remove(0);
            }
        }
        *fresh = false;
        let (tool, types) = (tool.clone(), *types);
        match self.end_of_value(tagged) {
            End::At(len, next) => {
                self.value_out(types, len, true);
                self.text.drain(..next - len);
                self.to(State::Values { tool, first: false })
            }
            End::After(len) if self.has_ended() => {
                self.value_out(types, len, self.is_to_be_closed());
                self.text.clear();
                if self.is_to_be_closed() {
                    self.out.arguments("}");
                }
                self.to(State::Over)
            }
            End::After(len) => {
                if types.is_string() {
                    self.value_out(types, len, false);
                }
                Step::Wait
            }
        }
    }

    /// A closing tag counts if what follows it makes sense; else it is part of the value.
    fn end_of_value(&self, tagged: &'static Tagged) -> End {
        let text = &self.text;
        let follows = || {
            let values = tagged.values.iter().filter_map(|pattern| match pattern.first() {
                Some(Part::Text(text)) => Some(*text),
                _ => None,
            });
            values.chain(self.ends(tagged))
        };
        let layout = |len: usize| len - usize::from(tagged.newlines && text[..len].ends_with('\n'));
        let mut from = 0;
        while let Some(found) = text[from..].find(tagged.close) {
            let (at, next) = (from + found, from + found + tagged.close.len());
            let rest = text[next..].trim_start();
            match marker::starts_any(rest, follows()) {
                Match::Yes(_) => return End::At(layout(at), next),
                Match::Partial if self.has_ended() => return End::At(layout(at), next),
                Match::Partial => return End::After(layout(at)),
                Match::No => from = next,
            }
        }
        let held = if self.has_ended() { 0 } else { marker::held(text, [tagged.close]) };
        End::After(layout(text.len() - held))
    }

    /// Gives out the first `len` bytes as a value, or the part of it that is there.
    fn value_out(&mut self, types: Types, len: usize, is_last: bool) {
        let text: String = self.text.drain(..len).collect();
        let mut out = String::with_capacity(text.len() + 2);
        if types.is_string() {
            text.chars().for_each(|c| escape_into(c, &mut out));
            if is_last {
                out.push('"');
            }
        } else if is_last {
            out = types.value(&text);
        }
        self.out.arguments(&out);
    }
}
