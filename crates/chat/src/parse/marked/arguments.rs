//! Arguments that are JSON.

use super::head::texts;
use super::{Reader, State, Step};
use crate::parse::call_json;
use crate::parse::json::{self, Flow, Transcoder};
use crate::parse::marker::{self, Match, blank};

/// Arguments that are being read.
#[derive(Debug)]
pub(super) struct Json {
    transcoder: Transcoder,
    /// Objects that are open around them.
    open: usize,
    /// Something of them was there.
    begun: bool,
    /// All of them so far, where they are no object and cannot go out as they come.
    whole: Option<String>,
}

impl Json {
    /// `mark` is what quotes strings beside JSON's own quotes; empty: nothing.
    pub(super) fn new(open: usize, mark: &'static str) -> Self {
        Self { transcoder: Transcoder::with_mark(mark), open, begun: false, whole: None }
    }

    /// Complete arguments as an object where they can be one: models also write the object as a string, or null.
    pub(super) fn whole(text: &str) -> String {
        let (mut transcoder, mut out) = (Transcoder::new(), String::new());
        for c in text.chars() {
            if transcoder.push(c, &mut out) != Flow::More {
                break;
            }
        }
        transcoder.close(&mut out);
        let out = out.trim();
        match serde_json::from_str(out) {
            Ok(serde_json::Value::Null) => "{}".to_owned(),
            Ok(serde_json::Value::String(inner)) if inner.trim().is_empty() => "{}".to_owned(),
            Ok(serde_json::Value::String(inner)) => {
                json::mended(&inner).filter(|inner| inner.starts_with('{')).unwrap_or_else(|| out.to_owned())
            }
            _ => out.to_owned(),
        }
    }
}

impl Reader {
    pub(super) fn json(&mut self) -> Step {
        let State::Json(json) = &mut self.state else { return Step::On };
        let closers = self.setting.marked.close;
        let mark = self.setting.marked.body.quote();
        let mut done = 0;
        let mut out = String::new();
        let mut is_complete = false;
        for (at, c) in self.text.char_indices() {
            if at < done {
                continue;
            }
            let (is_mark, len) = match marker::starts(&self.text[at..], mark) {
                _ if mark.is_empty() => (false, c.len_utf8()),
                Match::Yes(len) => (true, len),
                Match::Partial if self.ended.is_none() => break,
                _ => (false, c.len_utf8()),
            };
            if json.transcoder.is_between() {
                match marker::starts_any(&self.text[at..], closers.iter().copied()) {
                    Match::Yes(_) => is_complete = true,
                    Match::Partial if self.ended.is_none() => break,
                    _ => {}
                }
            }
            if is_complete {
                break;
            }
            if !json.begun && c.is_whitespace() {
                done = at + len;
                continue;
            }
            if !json.begun {
                json.begun = true;
                json.whole = (c != '{').then(String::new);
            }
            let transcoder = &mut json.transcoder;
            let flow = if is_mark { transcoder.push_mark(&mut out) } else { transcoder.push(c, &mut out) };
            if flow != Flow::DoneBefore && flow != Flow::Fail {
                done = at + len;
            }
            is_complete = flow != Flow::More;
            if is_complete {
                break;
            }
        }
        self.text.drain(..done);
        let is_over = is_complete || (self.ended == Some(mesh_types::FinishReason::Stop));
        let is_broken_off = !is_over && self.ended.is_some();
        if is_over && json.begun {
            json.transcoder.close(&mut out);
        } else if is_broken_off {
            json.transcoder.break_off(&mut out);
        }
        match &mut json.whole {
            None => self.out.arguments(&out),
            Some(whole) => whole.push_str(&out),
        }
        if is_broken_off {
            self.out.arguments(json.whole.as_deref().unwrap_or_default());
            return self.to(State::Over);
        }
        if !is_over {
            return Step::Wait;
        }
        match (&json.whole, json.begun) {
            (_, false) => self.out.arguments("{}"),
            (Some(whole), true) => self.out.arguments(&Json::whole(whole)),
            (None, true) => {}
        }
        let open = json.open;
        self.to(State::Rest { open })
    }

    pub(super) fn rest(&mut self, open: usize) -> Step {
        let Some(rest) = call_json::rest(&self.text, open, self.ended) else { return Step::Wait };
        self.out.content(&texts(&self.text, &rest.beside));
        self.text.drain(..rest.taken);
        self.to(State::Tail { closed: false })
    }

    /// `name(` was read.
    pub(super) fn keywords(&mut self) -> Step {
        let State::Keywords { first } = self.state else { return Step::On };
        let at = self.text.len() - self.text.trim_start_matches(|c: char| c.is_whitespace() || c == ',').len();
        let rest = &self.text[at..];
        let word = rest.find(|c: char| !(c.is_alphanumeric() || c == '_'));
        match word {
            Some(len) if len > 0 => {
                let equals = len + blank(&rest[len..]);
                match rest[equals..].chars().next() {
                    Some('=') => {
                        let key = json::quoted(&rest[..len]);
                        let before = if first { "{" } else { ", " };
                        self.out.arguments(&format!("{before}{key}: "));
                        self.text.drain(..at + equals + 1);
                        return self.to(State::Keyword(Transcoder::python()));
                    }
                    None if !self.has_ended() => return Step::Wait,
                    None if !self.is_to_be_closed() => return self.keyword_broken_off(at, len, first),
                    _ => {}
                }
            }
            None if !self.has_ended() => return Step::Wait,
            None if !self.is_to_be_closed() => return self.keyword_broken_off(at, rest.len(), first),
            _ => {}
        }
        let is_end = rest.starts_with(')');
        self.text.drain(..at + usize::from(is_end));
        self.out.arguments(if first { "{}" } else { "}" });
        self.to(State::Tail { closed: false })
    }

    /// The text ends with a keyword of `len` bytes at `at`, or with the beginning of one.
    fn keyword_broken_off(&mut self, at: usize, len: usize, first: bool) -> Step {
        if len > 0 {
            let before = if first { "{" } else { ", " };
            self.out.arguments(&format!("{before}\"{}", &self.text[at..at + len]));
        }
        self.to(State::Over)
    }

    pub(super) fn keyword(&mut self) -> Step {
        let State::Keyword(transcoder) = &mut self.state else { return Step::On };
        let (mut done, mut out, mut is_complete) = (0, String::new(), false);
        for (at, c) in self.text.char_indices() {
            if transcoder.has_not_begun() && c.is_whitespace() {
                done = at + c.len_utf8();
                continue;
            }
            let flow = transcoder.push(c, &mut out);
            if flow != Flow::DoneBefore && flow != Flow::Fail {
                done = at + c.len_utf8();
            }
            is_complete = flow != Flow::More;
            if is_complete {
                break;
            }
        }
        self.text.drain(..done);
        if !is_complete && self.is_to_be_closed_now() {
            is_complete = true;
        }
        let is_broken_off = !is_complete && self.has_ended();
        if let State::Keyword(transcoder) = &mut self.state {
            match is_complete {
                true => transcoder.close(&mut out),
                false if is_broken_off => transcoder.break_off(&mut out),
                false => {}
            }
        }
        self.out.arguments(&out);
        match (is_complete, is_broken_off) {
            (true, _) => self.to(State::Keywords { first: false }),
            (false, true) => self.to(State::Over),
            (false, false) => Step::Wait,
        }
    }

    fn is_to_be_closed_now(&self) -> bool {
        self.text.is_empty() && self.is_to_be_closed()
    }
}
