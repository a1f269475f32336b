//! From an opening marker to the tool's name.

use std::ops::Range;

use mesh_types::FinishReason;

use super::arguments::Json;
use super::{Reader, State, Step, fence};
use crate::format::Body;
use crate::parse::call_json::{self, Head};
use crate::parse::json::{Flow, Transcoder};
use crate::parse::marker::{self, Match, blank};
use crate::parse::pattern::{self, Found, Slots};

/// Text longer than this is looked at again only when it has grown by a part of its length.
const LONG: usize = 1024;

/// How far an undecided head was looked at.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// Less text than this needs no second look.
    next: usize,
    /// Of the emulation: bytes that were read of the object, in which state, and what came out.
    done: usize,
    transcoder: Transcoder,
    object: String,
}

/// A call whose name is known.
struct Call {
    name: String,
    id: String,
    /// Text that stood in its object.
    beside: String,
    /// Bytes up to where reading goes on.
    len: usize,
    then: Then,
}

enum Then {
    /// JSON, in so many open objects.
    Json(usize),
    Values,
    Keywords,
    /// The arguments are known; so many objects are open behind them.
    Whole(String, usize),
}

enum Seen {
    Call(Call),
    More,
    No,
}

impl Reader {
    pub(super) fn head(&mut self) -> Step {
        let (len, has_ended) = (self.text.len(), self.has_ended());
        if let State::Head { progress, .. } = &self.state
            && len < progress.next
            && !has_ended
        {
            return Step::Wait;
        }
        let seen = match self.opening() {
            Some(at) => self.call(at),
            None => Seen::More,
        };
        if let State::Head { progress, .. } = &mut self.state
            && len > LONG
            && self.setting.marked.body != Body::Emulated
        {
            progress.next = len + len / 16;
        }
        match seen {
            Seen::Call(call) if self.setting.offered.has(&call.name) => self.begin(call),
            Seen::More if !self.has_ended() => Step::Wait,
            _ => self.no_call(),
        }
    }

    /// What looked like a call is prose.
    fn no_call(&mut self) -> Step {
        let State::Head { taken, least, .. } = std::mem::replace(&mut self.state, State::Prose) else {
            return Step::On;
        };
        if self.is_emulated() && self.out.calls() > 0 {
            return self.to(State::Over);
        }
        let len = least.min(self.text.len());
        self.text.insert_str(0, &taken);
        self.prose_out(taken.len() + len);
        Step::On
    }

    /// Where the call itself begins: behind more opening markers, blanks, brackets and fences. `None`: not there yet.
    fn opening(&self) -> Option<usize> {
        let text = &self.text;
        let body = &self.setting.marked.body;
        let is_json = matches!(body, Body::Object | Body::KeyedObject);
        let mut at = 0;
        loop {
            at += blank(&text[at..]);
            let rest = &text[at..];
            if rest.is_empty() {
                return None;
            }
            if (is_json || self.is_emulated())
                && let Some(len) = fence::opening(rest)?
            {
                at += len;
                continue;
            }
            if (is_json || *body == Body::Python) && rest.starts_with('[')
                || self.is_emulated() && rest.starts_with(':')
            {
                at += 1;
                continue;
            }
            if self.is_emulated() {
                return Some(at);
            }
            match marker::starts_any(rest, self.setting.marked.open.iter().copied()) {
                Match::Yes(len) => at += len,
                Match::Partial => return None,
                Match::No => return Some(at),
            }
        }
    }

    fn call(&mut self, at: usize) -> Seen {
        match &self.setting.marked.body {
            Body::Object => self.object(at, false),
            Body::KeyedObject => self.object(at, true),
            Body::Named(heads) => self.named(pattern::any(heads, &self.text[at..]), at, Then::Json(0)),
            Body::Quoted { heads, .. } => self.named(pattern::any(heads, &self.text[at..]), at, Then::Json(0)),
            Body::Tagged(tagged) => self.named(pattern::any(tagged.heads, &self.text[at..]), at, Then::Values),
            Body::Python => self.python(at),
            Body::Emulated => self.emulated(at),
        }
    }

    fn object(&self, at: usize, keyed: bool) -> Seen {
        match call_json::head(&self.text, at, keyed) {
            Head::More => Seen::More,
            Head::No => Seen::No,
            Head::Call { name, arguments, next, open, beside } => {
                let then = match arguments.text(&self.text) {
                    None => Then::Json(open),
                    Some(arguments) => Then::Whole(Json::whole(&arguments), open),
                };
                let beside = texts(&self.text, &beside);
                Seen::Call(Call { name, id: String::new(), beside, len: next, then })
            }
        }
    }

    fn named(&self, found: Found, at: usize, then: Then) -> Seen {
        match found {
            Found::Partial => Seen::More,
            Found::No => Seen::No,
            Found::Yes(len, Slots { name, id, .. }) => {
                // In Kimi's `functions.get_weather:0` the id holds the name.
                let name = if name.is_empty() { name_in(&id) } else { name };
                Seen::Call(Call { name, id, beside: String::new(), len: at + len, then })
            }
        }
    }

    fn python(&self, at: usize) -> Seen {
        let text = &self.text[at..];
        match text.find(|c: char| !(c.is_alphanumeric() || "_-.".contains(c))) {
            None => Seen::More,
            Some(len) if len > 0 && text[len..].starts_with('(') => {
                let name = text[..len].to_owned();
                let (id, beside) = (String::new(), String::new());
                Seen::Call(Call { name, id, beside, len: at + len + 1, then: Then::Keywords })
            }
            Some(_) => Seen::No,
        }
    }

    /// The object is read whole before it is believed.
    fn emulated(&mut self, at: usize) -> Seen {
        let State::Head { progress, .. } = &mut self.state else { return Seen::No };
        if !self.text[at..].starts_with('{') {
            return Seen::No;
        }
        progress.done = progress.done.max(at);
        for c in self.text[progress.done..].chars() {
            let flow = progress.transcoder.push(c, &mut progress.object);
            if progress.transcoder.is_broken() || flow == Flow::Fail {
                return Seen::No;
            }
            progress.done += c.len_utf8();
            if flow == Flow::Done {
                return complete(&progress.object, progress.done);
            }
        }
        Seen::More
    }

    fn begin(&mut self, call: Call) -> Step {
        self.text.drain(..call.len);
        self.prompted = "";
        self.out.content(&call.beside);
        self.out.call(&call.name, &call.id);
        let next = match call.then {
            Then::Json(open) => State::Json(Json::new(open, self.setting.marked.body.quote())),
            Then::Values => State::Values { tool: call.name, first: true },
            Then::Keywords => State::Keywords { first: true },
            Then::Whole(arguments, open) => {
                self.out.arguments(&arguments);
                State::Rest { open }
            }
        };
        self.to(next)
    }
}

/// A call that is complete in `object`.
fn complete(object: &str, len: usize) -> Seen {
    let Head::Call { name, arguments, next, open, mut beside } = call_json::head(object, 0, false) else {
        return Seen::No;
    };
    let arguments = match arguments.text(object) {
        Some(arguments) => arguments,
        None => {
            let behind = call_json::end_of_value(object, next).unwrap_or(object.len());
            let rest = call_json::rest(&object[behind..], open, Some(FinishReason::Stop)).unwrap_or_default();
            beside.extend(rest.beside.into_iter().map(|range| behind + range.start..behind + range.end));
            object[next..behind].to_owned()
        }
    };
    let (arguments, beside) = (Json::whole(&arguments), texts(object, &beside));
    Seen::Call(Call { name, id: String::new(), beside, len, then: Then::Whole(arguments, 0) })
}

/// The parts of `text` at `ranges`.
pub(super) fn texts(text: &str, ranges: &[Range<usize>]) -> String {
    ranges.iter().map(|range| &text[range.clone()]).collect::<Vec<_>>().join(", ")
}

fn name_in(id: &str) -> String {
    let name = id.rsplit_once(':').map_or(id, |(name, _)| name);
    name.strip_prefix("functions.").unwrap_or(name).to_owned()
}
