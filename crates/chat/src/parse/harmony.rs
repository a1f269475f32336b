//! Reads answers in OpenAI's harmony: messages with a channel, and a recipient where they are calls.
//!
//! `<|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>commentary to=functions.NAME
//! <|constrain|>json<|message|>{…}<|call|>`. Analysis is reasoning; the final channel, and commentary to nobody, is
//! text. Format: <https://cookbook.openai.com/articles/openai-harmony>.

use mesh_types::FinishReason;

use crate::parse::TurnEvent;
use crate::parse::json::{Flow, Transcoder};
use crate::parse::marker::{self, Match};
use crate::parse::out::Out;
use crate::tools::Offered;

/// The structure's own tokens.
pub(crate) const MARKERS: [&str; 7] =
    ["<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>"];
const MESSAGE: &str = "<|message|>";
/// What a header begins with: behind the prompt's `<|start|>assistant`, or after a message.
const HEADERS: [&str; 3] = ["<|channel|>", "<|start|>", "to="];
/// What ends a message, or begins the next without an end.
const ENDS: [&str; 4] = ["<|end|>", "<|call|>", "<|return|>", "<|start|>"];
/// What stands in a header beside markers and the name of a tool.
const WORDS: [&str; 8] = ["assistant", "analysis", "commentary", "final", "json", "code", "to=functions.", "functions"];
/// Longest header, in bytes.
const MAX_HEADER: usize = 1024;

/// Reads one answer.
#[derive(Debug)]
pub(crate) struct Reader {
    offered: Offered,
    parallel: bool,
    state: State,
    text: String,
    ended: Option<FinishReason>,
    out: Out,
}

#[derive(Debug)]
enum State {
    /// Before a message.
    Between,
    /// In a header.
    Header,
    Reasoning,
    Content,
    Arguments(Transcoder),
    /// Behind a call, until the message ends.
    Rest,
    Over,
}

impl Reader {
    pub(crate) fn new(offered: Offered, parallel: bool, out: Out) -> Self {
        Self { offered, parallel, state: State::Between, text: String::new(), ended: None, out }
    }

    pub(crate) fn push(&mut self, text: &str) -> Vec<TurnEvent> {
        self.text.push_str(text);
        while self.step() {}
        self.out.take()
    }

    pub(crate) fn finish(&mut self, reason: FinishReason) -> Vec<TurnEvent> {
        self.ended = Some(reason);
        while self.step() {}
        self.out.end();
        self.out.take()
    }

    pub(crate) fn is_complete(&self) -> bool {
        matches!(self.state, State::Over)
    }

    /// Whether there may be another step.
    fn step(&mut self) -> bool {
        match self.state {
            State::Between => self.between(),
            State::Header => self.header(),
            State::Reasoning | State::Content | State::Rest => self.body(),
            State::Arguments(_) => self.arguments(),
            State::Over => {
                self.text.clear();
                false
            }
        }
    }

    fn to(&mut self, state: State) -> bool {
        self.state = state;
        true
    }

    fn between(&mut self) -> bool {
        let rest = self.text.trim_start();
        if rest.is_empty() {
            return false;
        }
        match marker::starts_any(rest, HEADERS.into_iter().chain([MESSAGE])) {
            Match::Yes(_) => self.to(State::Header),
            Match::Partial if self.ended.is_none() => false,
            // Text without a header.
            _ => self.to(State::Content),
        }
    }

    fn header(&mut self) -> bool {
        let Some(end) = self.text.find(MESSAGE) else {
            if self.text.len() > MAX_HEADER {
                return self.to(State::Content);
            }
            if self.ended.is_some() {
                let header = std::mem::take(&mut self.text);
                self.out.content(&self.strange_words(&header));
            }
            return false;
        };
        let header: String = self.text.drain(..end + MESSAGE.len()).collect();
        let recipient = header.split_once("to=").map(|(_, rest)| {
            let end = rest.find(|c: char| c.is_whitespace() || c == '<').unwrap_or(rest.len());
            let name = &rest[..end];
            name.strip_prefix("functions.").unwrap_or(name)
        });
        let strange = self.strange_words(&header);
        self.out.content(&strange);
        let next = match recipient {
            Some(name) if self.offered.has(name) => {
                self.out.call(name, "");
                State::Arguments(Transcoder::new())
            }
            None if header.contains("<|channel|>analysis") => State::Reasoning,
            _ => State::Content,
        };
        self.to(next)
    }

    /// What of a header is neither structure nor one of the words that belong there, nor the beginning of one: text, such
    /// as the name of a tool that there is not. A blank follows it.
    fn strange_words(&self, header: &str) -> String {
        let bare = MARKERS.iter().fold(header.to_owned(), |bare, marker| bare.replace(marker, " "));
        let is_known = |word: &&str| {
            let begun = |of: &&str| of.starts_with(word);
            let name = word.strip_prefix("to=functions.").or_else(|| word.strip_prefix("to="));
            WORDS.iter().chain(&MARKERS).any(begun) || name.is_some_and(|name| self.offered.has_beginning(name))
        };
        bare.split_whitespace().filter(|word| !is_known(word)).map(|word| format!("{word} ")).collect()
    }

    fn body(&mut self) -> bool {
        let found = marker::find(&self.text, MARKERS);
        let held = if self.ended.is_some() { 0 } else { marker::held(&self.text, MARKERS) };
        let free = found.map_or(self.text.len() - held, |(at, _)| at);
        let text: String = self.text.drain(..free).collect();
        match self.state {
            State::Reasoning => self.out.reasoning(&text),
            State::Content | State::Rest => self.out.content(&text),
            _ => {}
        }
        let Some((_, marker)) = found else { return false };
        if marker == "<|channel|>" {
            return self.end_body(State::Header);
        }
        if marker != "<|start|>" {
            self.text.drain(..marker.len());
        }
        if ENDS.contains(&marker) { self.end_body(State::Between) } else { true }
    }

    fn end_body(&mut self, next: State) -> bool {
        if matches!(self.state, State::Reasoning) {
            self.out.end_reasoning();
        }
        self.to(next)
    }

    fn arguments(&mut self) -> bool {
        let State::Arguments(transcoder) = &mut self.state else { return true };
        let (mut done, mut out, mut is_complete) = (0, String::new(), false);
        for (at, c) in self.text.char_indices() {
            if transcoder.is_between() {
                match marker::starts_any(&self.text[at..], ENDS) {
                    Match::Yes(_) => is_complete = true,
                    Match::Partial if self.ended.is_none() => break,
                    _ => {}
                }
            }
            if is_complete {
                break;
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
        is_complete |= self.ended == Some(FinishReason::Stop);
        if is_complete {
            let mut end = String::new();
            transcoder.close(&mut end);
            // No arguments at all.
            out.push_str(if end == "null" { "{}" } else { &end });
        } else if self.ended.is_some() {
            transcoder.break_off(&mut out);
        }
        self.out.arguments(&out);
        match (is_complete, self.ended) {
            (true, _) if !self.parallel => self.to(State::Over),
            (true, _) => self.to(State::Rest),
            (false, Some(_)) => self.to(State::Over),
            (false, None) => false,
        }
    }
}
