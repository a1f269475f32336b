//! Reads answers in which calls stand between markers: all native formats but harmony, and the emulation.
//!
//! A state machine over the text that is not given out yet. A step decides only what no further text could change; so
//! it does not matter how much of that text is there already.

mod arguments;
pub(crate) mod elements;
mod fence;
mod head;
mod tagged;
mod tail;

use mesh_types::FinishReason;

use crate::format::{Body, Format, Marked, Part, Tags};
use crate::parse::TurnEvent;
use crate::parse::json::Transcoder;
use crate::parse::marker::{self, Match};
use crate::parse::out::{Out, THINKING};
use crate::parse::pattern::{self, Found};
use crate::tools::Offered;

/// What an answer is read with.
#[derive(Debug)]
pub(crate) struct Setting {
    pub(crate) format: &'static Format,
    pub(crate) marked: &'static Marked,
    pub(crate) offered: Offered,
    pub(crate) parallel: bool,
}

/// Reads one answer.
#[derive(Debug)]
pub(crate) struct Reader {
    setting: Setting,
    state: State,
    /// Text that is not given out yet.
    text: String,
    /// What of it stood in the prompt: it is never given out.
    prompted: &'static str,
    /// How the answer ended, once it did: then nothing is waited for.
    ended: Option<FinishReason>,
    /// The last character given out as prose.
    last: Option<char>,
    /// The answer's beginning was tried as a call without a marker.
    bare_tried: bool,
    out: Out,
}

#[derive(Debug)]
enum State {
    Prose,
    /// Until `close`.
    Thinking {
        close: &'static str,
        /// Something was thought.
        begun: bool,
        /// The template opened it.
        by_prompt: bool,
    },
    /// A call may have been opened. If there is none, `taken`, and `least` bytes of what follows, are prose.
    Head {
        taken: String,
        least: usize,
        progress: head::Progress,
    },
    /// In a call's arguments, which are JSON.
    Json(arguments::Json),
    /// Behind the arguments, in objects that are still open.
    Rest {
        open: usize,
    },
    /// Before a value, or the end of the call.
    Values {
        tool: String,
        first: bool,
    },
    /// In a value.
    Value(tagged::Value),
    /// Before `key=`, or the end of the call.
    Keywords {
        first: bool,
    },
    /// In the value of a keyword.
    Keyword(Transcoder),
    /// Behind a call.
    Tail {
        /// Its closing marker was there.
        closed: bool,
    },
    /// Nothing that comes matters.
    Over,
}

impl State {
    fn head(taken: String, least: usize) -> Self {
        Self::Head { taken, least, progress: head::Progress::default() }
    }
}

/// What became of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// There may be another.
    On,
    /// More text is needed.
    Wait,
}

impl Reader {
    pub(crate) fn new(setting: Setting, prompt: &str, out: Out) -> Self {
        let end = prompt.trim_end();
        let open = thinking(setting.format).find(|(open, _)| end.ends_with(open));
        let state = match open {
            Some((_, close)) => State::Thinking { close, begun: false, by_prompt: true },
            None => State::Prose,
        };
        // What opens a call may stand in the prompt already.
        let prompted = setting.marked.open.iter().find(|open| end.ends_with(**open)).map_or("", |open| *open);
        Self { setting, state, text: prompted.to_owned(), prompted, ended: None, last: None, bare_tried: false, out }
    }

    pub(crate) fn push(&mut self, text: &str) -> Vec<TurnEvent> {
        self.text.push_str(text);
        self.run();
        self.out.take()
    }

    pub(crate) fn finish(&mut self, reason: FinishReason) -> Vec<TurnEvent> {
        self.ended = Some(reason);
        self.run();
        self.out.end();
        self.out.take()
    }

    pub(crate) fn is_complete(&self) -> bool {
        matches!(self.state, State::Over)
    }

    fn run(&mut self) {
        while self.step() == Step::On {}
    }

    fn step(&mut self) -> Step {
        match &mut self.state {
            State::Prose => self.prose(),
            State::Thinking { .. } => self.think(),
            State::Head { .. } => self.head(),
            State::Json(_) => self.json(),
            State::Rest { open } => {
                let open = *open;
                self.rest(open)
            }
            State::Values { .. } => self.values(),
            State::Value(_) => self.value(),
            State::Keywords { .. } => self.keywords(),
            State::Keyword(_) => self.keyword(),
            State::Tail { closed } => {
                let closed = *closed;
                self.tail(closed)
            }
            State::Over => {
                self.text.clear();
                Step::Wait
            }
        }
    }

    fn has_ended(&self) -> bool {
        self.ended.is_some()
    }

    /// The rest of an open call is to be made up, not left out.
    fn is_to_be_closed(&self) -> bool {
        self.ended == Some(FinishReason::Stop)
    }

    fn to(&mut self, state: State) -> Step {
        self.state = state;
        Step::On
    }

    /// Gives out the first `len` bytes as prose.
    fn prose_out(&mut self, len: usize) {
        if len == 0 {
            return;
        }
        let mut text: String = self.text.drain(..len).collect();
        let prompted = std::mem::take(&mut self.prompted);
        if text.starts_with(prompted) {
            text.drain(..prompted.len());
        }
        self.last = text.chars().next_back().or(self.last);
        self.out.content(&text);
    }

    fn openers(&self) -> impl Iterator<Item = &'static str> + use<> {
        let marked = self.setting.marked;
        let open = if self.setting.offered.is_empty() { &[] } else { marked.open };
        let open_head = if self.setting.offered.is_empty() { &[] } else { marked.open_head };
        open.iter().chain(open_head).copied()
    }

    /// Whether a message may be for `name`.
    fn is_recipient(&self, name: &str) -> bool {
        ["self", "user"].contains(&name) || self.setting.offered.has(name)
    }

    /// Whether the answer may begin with a call that nothing opens, here.
    fn is_bare(&self) -> bool {
        self.setting.marked.bare && !self.bare_tried && !self.out.has_begun() && !self.setting.offered.is_empty()
    }

    fn prose(&mut self) -> Step {
        if self.is_bare() {
            match self.text.trim_start().chars().next() {
                None if !self.has_ended() => return Step::Wait,
                None => {}
                Some('{' | '[') => {
                    self.bare_tried = true;
                    self.prose_out(marker::blank(&self.text));
                    return self.to(State::head(String::new(), 1));
                }
                Some(_) if self.starts_with_marker() == Match::No => self.bare_tried = true,
                Some(_) => {}
            }
        }
        if let Some(step) = self.stray_end() {
            return step;
        }
        let thinking: Vec<Tags> = thinking(self.setting.format).collect();
        let markers = || {
            let silent = self.setting.format.silent.iter().filter_map(|pattern| pattern.first());
            let silent = silent.filter_map(|part| if let Part::Text(text) = part { Some(*text) } else { None });
            self.openers().chain(thinking.iter().map(|(open, _)| *open)).chain(silent)
        };
        let Some((at, found)) = marker::find(&self.text, markers()) else {
            let held = if self.has_ended() { 0 } else { self.held(markers()) };
            let free = self.text.len() - held;
            self.prose_out(free);
            return Step::Wait;
        };
        // Markers may begin alike, and the longest counts.
        let is_undecided = markers().any(|marker| marker::starts(&self.text[at..], marker) == Match::Partial);
        let is_call = self.openers().any(|open| open == found);
        let is_thought = thinking.iter().any(|(open, _)| *open == found);
        let silent = match is_thought {
            true => Found::No,
            false => pattern::any(self.setting.format.silent, &self.text[at..]),
        };
        match silent {
            _ if is_undecided && !self.has_ended() => {
                self.prose_out(at);
                return Step::Wait;
            }
            // A recipient that there is not is text.
            Found::Yes(len, slots) if !slots.name.is_empty() && !self.is_recipient(&slots.name) => {
                self.prose_out(at + len);
                return Step::On;
            }
            Found::Yes(len, _) => {
                self.prose_out(at);
                self.prompted = "";
                self.text.drain(..len);
                return Step::On;
            }
            Found::Partial if !self.has_ended() => {
                self.prose_out(at);
                return Step::Wait;
            }
            _ if !is_call && !is_thought => {
                self.prose_out(at + found.len());
                return Step::On;
            }
            _ => {}
        }
        if let Some((_, close)) = thinking.iter().find(|(open, _)| *open == found) {
            self.prose_out(at);
            // Mentioned, not meant.
            if self.last.is_some_and(|last| "`\"'".contains(last)) {
                self.prose_out(found.len());
                return Step::On;
            }
            self.text.drain(..found.len());
            return self.to(State::Thinking { close, begun: false, by_prompt: false });
        }
        let fence = if self.is_emulated() { fence::before(&self.text[..at]) } else { 0 };
        self.prose_out(at - fence);
        if self.setting.marked.open_head.contains(&found) {
            return self.to(State::head(String::new(), found.len()));
        }
        let taken = self.text.drain(..fence + found.len()).collect();
        self.to(State::head(taken, 0))
    }

    /// The end of a thought that was none may begin the answer: it is no text. `None`: there is none here.
    fn stray_end(&mut self) -> Option<Step> {
        if self.out.has_begun() {
            return None;
        }
        let at = marker::blank(&self.text);
        let ends = thinking(self.setting.format).map(|(_, close)| close);
        match marker::starts_any(&self.text[at..], ends) {
            Match::Yes(len) => {
                self.text.drain(..at + len);
                self.out.end_reasoning();
                Some(Step::On)
            }
            Match::Partial if !self.text[at..].is_empty() && !self.has_ended() => Some(Step::Wait),
            _ => None,
        }
    }

    /// Whether the text begins with something that opens a call or thinking.
    fn starts_with_marker(&self) -> Match {
        let thinking = thinking(self.setting.format).map(|(open, _)| open);
        marker::starts_any(self.text.trim_start(), self.openers().chain(thinking))
    }

    /// Bytes at the end that may belong to a marker, or to a fence around one.
    fn held(&self, markers: impl Iterator<Item = &'static str>) -> usize {
        let held = marker::held(&self.text, markers);
        if !self.is_emulated() || self.setting.offered.is_empty() {
            return held;
        }
        let before = &self.text[..self.text.len() - held];
        match fence::begun_before(before) {
            0 if held == 0 => marker::held(before, [fence::FENCE]),
            fence => fence + held,
        }
    }

    fn is_emulated(&self) -> bool {
        self.setting.marked.body == Body::Emulated
    }

    fn think(&mut self) -> Step {
        let State::Thinking { close, begun, by_prompt } = self.state else { return Step::On };
        if !begun {
            self.text.drain(..marker::blank(&self.text));
            if self.text.is_empty() {
                return Step::Wait;
            }
            if by_prompt {
                let opens = thinking(self.setting.format).map(|(open, _)| open);
                match marker::starts_any(&self.text, opens) {
                    Match::Yes(len) => {
                        self.text.drain(..len);
                        return self.to(State::Thinking { close, begun, by_prompt: false });
                    }
                    Match::Partial if !self.has_ended() => return Step::Wait,
                    _ => {}
                }
                // A template opened the thinking, and the model does not think. (The emulation's marker is plain text,
                // and may well be what a thought begins with.)
                match marker::starts_any(&self.text, self.openers()) {
                    _ if self.is_emulated() => {}
                    Match::Yes(_) => {
                        self.out.end_reasoning();
                        return self.to(State::Prose);
                    }
                    Match::Partial if !self.has_ended() => return Step::Wait,
                    _ => {}
                }
            }
            return self.to(State::Thinking { close, begun: true, by_prompt });
        }
        if let Some(at) = self.text.find(close) {
            self.out.reasoning(&self.text[..at]);
            self.text.drain(..at + close.len());
            self.out.end_reasoning();
            return self.to(State::Prose);
        }
        let held = if self.has_ended() { 0 } else { marker::held(&self.text, [close]) };
        let free = self.text.len() - held;
        self.out.reasoning(&self.text[..free]);
        self.text.drain(..free);
        Step::Wait
    }
}

/// The marks around thinking that count in `format`.
fn thinking(format: &'static Format) -> impl Iterator<Item = Tags> {
    std::iter::once(THINKING).chain(format.thinking.iter().copied())
}
