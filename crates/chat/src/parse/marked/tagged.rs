//! Arguments that are written between tags.

use super::{Reader, State, Step, elements};
use crate::format::{Body, Part, Tagged};
use crate::parse::json::{Place, escape_into, place, quoted};
use crate::parse::marker::{self, Match, blank};
use crate::parse::pattern::{self, Found};
use crate::tools::schema::Types;

/// What may stand around a string.
const CDATA: (&str, &str) = ("<![CDATA[", "]]>");

/// A value that is being read.
#[derive(Clone, Debug)]
pub(super) struct Value {
    tool: String,
    key: String,
    types: Types,
    /// What closes it.
    close: String,
    /// Nothing of it was looked at.
    fresh: bool,
}

impl Value {
    /// It is a string whatever comes, and can go out as it comes.
    fn is_string(&self, tagged: &Tagged) -> bool {
        self.types.is_string() && (tagged.nested.is_empty() || self.types != Types::UNKNOWN)
    }
}

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
        let end = marker::starts_any(rest, self.ends(tagged));
        let value = pattern::any(tagged.values, rest);
        // Where keys are tags, an end looks like one.
        if let (Found::Yes(len, slots), Match::No) = (&value, end) {
            let key = if tagged.entities { without_entities(&slots.key) } else { slots.key.clone() };
            let types = match slots.is_string {
                Some(true) => Types::STRING,
                Some(false) => Types::JSON,
                None => self.setting.offered.types(tool, &key),
            };
            let close = match tagged.nested {
                "" => tagged.close.to_owned(),
                _ => format!("{}{}>", tagged.close, slots.key),
            };
            let before = if first { "{" } else { ", " };
            let next = Value { tool: tool.clone(), key, types, close, fresh: true };
            let opening = if next.is_string(tagged) { "\"" } else { "" };
            self.out.arguments(&format!("{before}{}: {opening}", quoted(&next.key)));
            self.text.drain(..self.text.len() - rest.len() + len);
            return self.to(State::Value(next));
        }
        let is_undecided = rest.is_empty() || value == Found::Partial || end == Match::Partial;
        match end {
            Match::Yes(_) => {}
            _ if is_undecided && !self.has_ended() => return Step::Wait,
            _ if is_undecided && !self.is_to_be_closed() => {
                if let Some((key, is_whole)) = pattern::key(tagged.values, rest) {
                    let before = if first { "{" } else { ", " };
                    let key = if tagged.entities { without_entities(key) } else { key.to_owned() };
                    let mut key = quoted(&key);
                    if is_whole {
                        key.push_str(": ");
                    } else {
                        key.pop();
                    }
                    self.out.arguments(&format!("{before}{key}"));
                }
                return self.to(State::Over);
            }
            _ => {}
        }
        if !tagged.end.is_empty() && rest.starts_with(tagged.end) {
            self.text.drain(..self.text.len() - rest.len() + tagged.end.len());
        }
        self.out.arguments(if first { "{}" } else { "}" });
        self.to(State::Tail { closed: false })
    }

    pub(super) fn value(&mut self) -> Step {
        let (Some(tagged), State::Value(value)) = (self.tagged(), &mut self.state) else { return Step::On };
        if value.fresh && tagged.newlines {
            if self.text.is_empty() && self.ended.is_none() {
                return Step::Wait;
            }
            if self.text.starts_with('\n') {
                self.text.remove(0);
            }
        }
        if value.fresh && tagged.cdata {
            match marker::starts(&self.text, CDATA.0) {
                Match::Yes(len) => {
                    self.text.drain(..len);
                    value.close.insert_str(0, CDATA.1);
                }
                Match::Partial if self.ended.is_none() => return Step::Wait,
                _ => {}
            }
        }
        value.fresh = false;
        let value = value.clone();
        match self.end_of_value(tagged, &value) {
            End::At(len, next) => {
                self.value_out(tagged, &value, len, true);
                self.text.drain(..next - len);
                self.to(State::Values { tool: value.tool, first: false })
            }
            End::After(len) if self.has_ended() => {
                self.value_out(tagged, &value, len, self.is_to_be_closed());
                self.text.clear();
                if self.is_to_be_closed() {
                    self.out.arguments("}");
                }
                self.to(State::Over)
            }
            End::After(len) => {
                if value.is_string(tagged) {
                    self.value_out(tagged, &value, len, false);
                }
                Step::Wait
            }
        }
    }

    /// A closing tag counts if what follows it makes sense, and if it closes no element within the value and is no part of
    /// a JSON string in it; else it is part of the value. A string that turns out to be none ends at the first of its tags.
    fn end_of_value(&self, tagged: &'static Tagged, value: &Value) -> End {
        let (text, close) = (&self.text, value.close.as_str());
        let within = (!tagged.nested.is_empty() && !value.is_string(tagged))
            .then(|| format!("{}<{}>", tagged.nested, value.key));
        let follows = || {
            let values = tagged.values.iter().filter_map(|pattern| match pattern.first() {
                Some(Part::Text(text)) => Some(*text),
                _ => None,
            });
            values.chain(self.ends(tagged))
        };
        let layout = |len: usize| len - usize::from(tagged.newlines && text[..len].ends_with('\n'));
        let has_strings = tagged.nested.is_empty()
            && !value.is_string(tagged)
            && match text.trim_start().as_bytes().first() {
                Some(b'[') => value.types.may_be_list(),
                Some(b'{') => value.types.may_be_object(),
                _ => false,
            };
        let (mut from, mut open, mut in_string) = (0, 0, None);
        while let Some(found) = text[from..].find(close) {
            let (at, next) = (from + found, from + found + close.len());
            open += within.as_ref().map_or(0, |tag| text[from..at].matches(tag.as_str()).count());
            if open > 0 {
                (from, open) = (next, open - 1);
                continue;
            }
            let rest = text[next..].trim_start();
            let follows = marker::starts_any(rest, follows());
            match (if has_strings { place(&text[..at]) } else { Place::Outside }, in_string) {
                (Place::InString, _) => {
                    if matches!(follows, Match::Yes(_)) {
                        in_string = in_string.or(Some((layout(at), next)));
                    }
                    from = next;
                    continue;
                }
                (Place::Broken, Some((len, next))) => return End::At(len, next),
                (Place::Broken | Place::Outside, _) => {}
            }
            match follows {
                Match::Yes(_) => return End::At(layout(at), next),
                Match::Partial if self.has_ended() => return End::At(layout(at), next),
                Match::Partial => return End::After(layout(at)),
                Match::No => from = next,
            }
        }
        if let Some((len, next)) = in_string.filter(|_| self.has_ended()) {
            return End::At(len, next);
        }
        let held = if self.has_ended() { 0 } else { marker::held(text, [close]) };
        End::After(layout(text.len() - held))
    }

    /// Gives out the first `len` bytes as a value, or the part of it that is there.
    fn value_out(&mut self, tagged: &'static Tagged, value: &Value, len: usize, is_last: bool) {
        let text: String = self.text.drain(..len).collect();
        let mut out = String::with_capacity(text.len() + 2);
        if value.is_string(tagged) {
            text.chars().for_each(|c| escape_into(c, &mut out));
            if is_last {
                out.push('"');
            }
        } else if is_last && !tagged.nested.is_empty() {
            out = elements::json(&text, tagged.nested, &self.setting.offered.schema(&value.tool, &value.key));
        } else if is_last {
            out = value.types.value(&text);
        } else if self.has_ended() && tagged.nested.is_empty() {
            out = value.types.broken_off(&text, marker::held(&text, [value.close.as_str()]));
        } else if self.has_ended() {
            // What its elements would have become is not to be said: there they are, as a text that goes on.
            out.push('"');
            text.chars().for_each(|c| escape_into(c, &mut out));
        }
        self.out.arguments(&out);
    }
}

/// `text` with the entities that stand in attributes replaced.
fn without_entities(text: &str) -> String {
    text.replace("&quot;", "\"").replace("&amp;", "&")
}
