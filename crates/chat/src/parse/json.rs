//! JSON as models write it, turned into JSON as clients read it, character by character.
//!
//! Valid JSON comes out byte for byte. What is not becomes the nearest that is: raw control characters are escaped,
//! Python's literals and quotes mapped, a trailing comma left out, bare words quoted. So what comes out, once the value
//! is complete, is always JSON; and it does not depend on how the input is cut.

mod place;
mod words;

use std::mem;

pub(crate) use place::{Place, place};
pub(crate) use words::{escape_into, is_number, may_be_scalar, quoted};
use words::{is_json_scalar, python_word};

/// Deepest nesting; `serde_json` reads no deeper either.
const MAX_DEPTH: usize = 120;

/// Stands for a quote that is a text of its own: between two of them all characters are what they are, this one too
/// where a model wrote it. Only [`Transcoder::push_mark`] makes it a quote; where it was none, its text comes out.
const MARK: char = '\u{1}';

/// What becomes of one character.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// Part of the value, which goes on.
    More,
    /// The value's last character.
    Done,
    /// No longer part of the value, which is complete.
    DoneBefore,
    /// Too deep.
    Fail,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Value,
    Key,
    Colon,
    After,
    /// A bare word or number, kept in `token`.
    Scalar {
        key: bool,
    },
    Text {
        quote: char,
        key: bool,
    },
    /// Behind a quote that ends a text if what follows says so; blanks since are in `token`.
    Quote {
        quote: char,
        key: bool,
    },
    /// Behind a backslash; what follows it is in `token`.
    Escape {
        quote: char,
        key: bool,
    },
    Complete,
}

/// Reads one value.
#[derive(Clone, Debug)]
pub(crate) struct Transcoder {
    state: State,
    /// The open brackets.
    open: Vec<char>,
    token: String,
    /// Blanks and a comma whose fate the next character decides.
    pending: String,
    /// The first half of a surrogate pair, escaped.
    surrogate: Option<String>,
    broken: bool,
    /// Texts are Python's, whatever their quotes: see [`Transcoder::python`].
    python: bool,
    /// Something was there that Python writes and JSON does not.
    was_python: bool,
    /// The text that is a quote of its own; empty: there is none.
    mark: &'static str,
    /// The character that is being taken is a mark.
    is_mark: bool,
}

impl Default for Transcoder {
    fn default() -> Self {
        Self::new()
    }
}

impl Transcoder {
    pub(crate) fn new() -> Self {
        Self::with_mark("")
    }

    /// One that knows `mark` as a quote.
    pub(crate) fn with_mark(mark: &'static str) -> Self {
        Self {
            state: State::Value,
            open: Vec::new(),
            token: String::new(),
            pending: String::new(),
            surrogate: None,
            broken: false,
            python: false,
            was_python: false,
            mark,
            is_mark: false,
        }
    }

    /// One for a value that Python wrote: `\x7f` and `\U0001f980` are characters, whatever the quotes; Python takes double
    /// ones where a text has single ones. Between single quotes they are so in any case. JSON has no such escapes: what
    /// has them there is mostly code, whose own they are.
    pub(crate) fn python() -> Self {
        Self { python: true, ..Self::new() }
    }

    /// Whether the input was more than badly escaped or Pythonic: what came out is a guess.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken
    }

    /// Whether nothing of the value was there.
    pub(crate) fn has_not_begun(&self) -> bool {
        self.state == State::Value && self.open.is_empty()
    }

    /// Whether the next character is not part of a text.
    pub(crate) fn is_between(&self) -> bool {
        !matches!(self.state, State::Text { .. } | State::Escape { .. })
    }

    /// Takes the mark.
    pub(crate) fn push_mark(&mut self, out: &mut String) -> Flow {
        let is_text = match self.state {
            State::Scalar { .. } | State::Escape { .. } => true,
            State::Text { quote, .. } | State::Quote { quote, .. } => quote != MARK,
            _ => false,
        };
        if is_text {
            for c in self.mark.chars() {
                match self.push(c, out) {
                    Flow::More => {}
                    flow => return flow,
                }
            }
            return Flow::More;
        }
        self.is_mark = true;
        let flow = self.push(MARK, out);
        self.is_mark = false;
        flow
    }

    /// Takes the next character.
    pub(crate) fn push(&mut self, c: char, out: &mut String) -> Flow {
        match self.state {
            State::Value => self.value(c, out),
            State::Key => self.key(c, out),
            State::Colon => self.colon(c, out),
            State::After => self.after(c, out),
            State::Scalar { key } => self.scalar(c, key, out),
            State::Text { quote, key } => self.text(c, quote, key, out),
            State::Quote { quote, key } => self.quote(c, quote, key, out),
            State::Escape { quote, key } => self.escape(c, quote, key, out),
            State::Complete => Flow::DoneBefore,
        }
    }

    /// Ends the value here: closes all that is open.
    pub(crate) fn close(&mut self, out: &mut String) {
        if let State::Scalar { key } = self.state {
            self.end_scalar(key, out);
        }
        if let State::Escape { quote, key } = self.state {
            self.abandon_escape(out);
            self.state = State::Text { quote, key };
        }
        self.end_surrogate(out);
        if let State::Text { key, .. } | State::Quote { key, .. } = self.state {
            out.push('"');
            self.state = if key { State::Colon } else { State::After };
        }
        if self.state == State::Colon {
            out.push_str(": null");
        } else if self.state == State::Value && (self.open.last() == Some(&'{') || self.open.is_empty()) {
            out.push_str("null");
        }
        self.pending.clear();
        while let Some(bracket) = self.open.pop() {
            out.push(closing(bracket));
        }
        self.state = State::Complete;
    }

    /// The input ends within the value, for which there was no room: what was held back goes out as far as it came.
    pub(crate) fn break_off(&mut self, out: &mut String) {
        if let Some(first) = self.surrogate.take() {
            out.extend(["\\", first.as_str()]);
        }
        let token = mem::take(&mut self.token);
        match self.state {
            State::Scalar { key: false } if may_be_scalar(&token) => out.push_str(python_word(&token)),
            State::Scalar { .. } => {
                self.broken = true;
                out.push('"');
                token.chars().for_each(|c| escape_into(c, out));
            }
            // Only the first two begin something in JSON.
            State::Escape { .. } if token.is_empty() || token.starts_with('u') => out.extend(["\\", token.as_str()]),
            State::Escape { .. } => out.extend(["\\\\", token.as_str()]),
            State::Quote { .. } => out.extend(["\"", token.as_str()]),
            _ => self.flush(out),
        }
        self.state = State::Complete;
    }

    fn value(&mut self, c: char, out: &mut String) -> Flow {
        match c {
            _ if c.is_whitespace() => self.pending.push(c),
            '{' | '[' => return self.open_bracket(c, out),
            '"' | '\'' | MARK if c != MARK || self.is_mark => {
                self.flush(out);
                out.push('"');
                self.was_python |= c == '\'';
                self.state = State::Text { quote: c, key: false };
            }
            ']' if self.open.last() == Some(&'[') => return self.close_bracket(out),
            '}' | ']' if self.open.is_empty() => return self.complete_empty(out),
            '}' | ']' => {
                self.broken = true;
                self.flush(out);
                out.push_str("null");
                return self.close_bracket(out);
            }
            ',' | ':' => self.broken = true,
            _ => {
                self.flush(out);
                self.token.push(c);
                self.state = State::Scalar { key: false };
            }
        }
        Flow::More
    }

    fn complete_empty(&mut self, out: &mut String) -> Flow {
        self.broken = true;
        out.push_str("null");
        self.state = State::Complete;
        Flow::DoneBefore
    }

    fn key(&mut self, c: char, out: &mut String) -> Flow {
        match c {
            _ if c.is_whitespace() => self.pending.push(c),
            '"' | '\'' | MARK if c != MARK || self.is_mark => {
                self.flush(out);
                out.push('"');
                self.was_python |= c == '\'';
                self.state = State::Text { quote: c, key: true };
            }
            '}' | ']' => return self.close_bracket(out),
            ',' | ':' => self.broken = true,
            _ => {
                self.broken = true;
                self.flush(out);
                self.token.push(c);
                self.state = State::Scalar { key: true };
            }
        }
        Flow::More
    }

    fn colon(&mut self, c: char, out: &mut String) -> Flow {
        match c {
            _ if c.is_whitespace() => self.pending.push(c),
            ':' => {
                self.flush(out);
                out.push(':');
                self.state = State::Value;
            }
            _ => {
                self.broken = true;
                self.pending.clear();
                out.push(':');
                self.state = State::Value;
                return self.value(c, out);
            }
        }
        Flow::More
    }

    fn after(&mut self, c: char, out: &mut String) -> Flow {
        match c {
            _ if self.open.is_empty() => {
                self.state = State::Complete;
                return Flow::DoneBefore;
            }
            _ if c.is_whitespace() => self.pending.push(c),
            ',' => {
                self.pending.push(c);
                self.state = if self.open.last() == Some(&'{') { State::Key } else { State::Value };
            }
            '}' | ']' => return self.close_bracket(out),
            ':' => self.broken = true,
            _ => {
                self.broken = true;
                self.pending.insert(0, ',');
                self.state = if self.open.last() == Some(&'{') { State::Key } else { State::Value };
                return self.push(c, out);
            }
        }
        Flow::More
    }

    fn scalar(&mut self, c: char, key: bool, out: &mut String) -> Flow {
        // Behind a keyword's value there is a bracket of the call.
        let ends = matches!(c, ',' | '}' | ']' | '\n') || (key && c == ':') || (self.open.is_empty() && c == ')');
        if !ends {
            self.token.push(c);
            return Flow::More;
        }
        self.end_scalar(key, out);
        self.push(c, out)
    }

    fn end_scalar(&mut self, key: bool, out: &mut String) {
        let token = mem::take(&mut self.token);
        let word = token.trim_end();
        if key {
            out.push_str(&quoted(word));
            self.state = State::Colon;
        } else {
            let json = python_word(word);
            self.was_python |= json != word;
            match json {
                word if is_json_scalar(word) => out.push_str(word),
                _ => {
                    self.broken = true;
                    out.push_str(&quoted(word));
                }
            }
            self.state = State::After;
        }
        self.pending.push_str(&token[word.len()..]);
    }

    fn text(&mut self, c: char, quote: char, key: bool, out: &mut String) -> Flow {
        if c == '\\' && quote != MARK {
            self.state = State::Escape { quote, key };
            return Flow::More;
        }
        self.end_surrogate(out);
        if c == quote && (c != MARK || self.is_mark) {
            self.state = State::Quote { quote, key };
        } else {
            escape_into(c, out);
        }
        Flow::More
    }

    /// Behind a valid text's last quote there is always one of these; else the quote was part of the text.
    fn quote(&mut self, c: char, quote: char, key: bool, out: &mut String) -> Flow {
        if self.open.is_empty() {
            out.push('"');
            self.state = State::Complete;
            return Flow::DoneBefore;
        }
        if c.is_whitespace() {
            self.token.push(c);
            return Flow::More;
        }
        let blanks = mem::take(&mut self.token);
        if matches!(c, ',' | '}' | ']') || (key && c == ':') {
            out.push('"');
            self.pending.push_str(&blanks);
            self.state = if key { State::Colon } else { State::After };
            return self.push(c, out);
        }
        self.broken = true;
        match quote {
            MARK => self.mark.chars().for_each(|c| escape_into(c, out)),
            _ => escape_into(quote, out),
        }
        blanks.chars().for_each(|blank| escape_into(blank, out));
        self.state = State::Text { quote, key };
        self.text(c, quote, key, out)
    }

    fn escape(&mut self, c: char, quote: char, key: bool, out: &mut String) -> Flow {
        let in_text = State::Text { quote, key };
        if self.token.is_empty() {
            if c == 'u' || (matches!(c, 'x' | 'U') && (quote == '\'' || self.python)) {
                self.token.push(c);
                return Flow::More;
            }
            self.end_surrogate(out);
            self.state = in_text;
            match c {
                '"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't' => out.extend(['\\', c]),
                '\'' => out.push(c),
                _ => {
                    out.push_str("\\\\");
                    escape_into(c, out);
                }
            }
            return Flow::More;
        }
        if !c.is_ascii_hexdigit() {
            self.abandon_escape(out);
            self.state = in_text;
            return self.text(c, quote, key, out);
        }
        self.token.push(c);
        let (is_json, digits) = match self.token.as_bytes()[0] {
            b'u' => (true, 4),
            b'x' => (false, 2),
            _ => (false, 8),
        };
        if self.token.len() > digits {
            self.state = in_text;
            if is_json { self.unicode(out) } else { self.code_point(out) }
        }
        Flow::More
    }

    /// A complete `xXX` or `UXXXXXXXX`, as Python writes what it cannot print.
    fn code_point(&mut self, out: &mut String) {
        match u32::from_str_radix(&self.token[1..], 16).ok().and_then(char::from_u32) {
            Some(c) => {
                self.end_surrogate(out);
                self.token.clear();
                escape_into(c, out);
            }
            None => self.abandon_escape(out),
        }
    }

    /// A complete `uXXXX`. Half a surrogate pair is no text.
    fn unicode(&mut self, out: &mut String) {
        let token = mem::take(&mut self.token);
        match u32::from_str_radix(&token[1..], 16).unwrap_or(0) {
            0xd800..=0xdbff => {
                self.end_surrogate(out);
                self.surrogate = Some(token);
            }
            0xdc00..=0xdfff => match self.surrogate.take() {
                Some(first) => out.extend(["\\", first.as_str(), "\\", token.as_str()]),
                None => out.push_str("\\ufffd"),
            },
            _ => {
                self.end_surrogate(out);
                out.extend(["\\", token.as_str()]);
            }
        }
    }

    fn abandon_escape(&mut self, out: &mut String) {
        self.end_surrogate(out);
        out.push_str("\\\\");
        out.push_str(&mem::take(&mut self.token));
    }

    fn end_surrogate(&mut self, out: &mut String) {
        if self.surrogate.take().is_some() {
            out.push_str("\\ufffd");
        }
    }

    fn open_bracket(&mut self, c: char, out: &mut String) -> Flow {
        if self.open.len() >= MAX_DEPTH {
            self.broken = true;
            return Flow::Fail;
        }
        self.flush(out);
        out.push(c);
        self.open.push(c);
        self.state = if c == '{' { State::Key } else { State::Value };
        Flow::More
    }

    fn close_bracket(&mut self, out: &mut String) -> Flow {
        // What is left of the pending is a comma too many.
        let pending = mem::take(&mut self.pending);
        out.extend(pending.chars().filter(|c| *c != ','));
        let Some(bracket) = self.open.pop() else { return Flow::DoneBefore };
        out.push(closing(bracket));
        if self.open.is_empty() {
            self.state = State::Complete;
            return Flow::Done;
        }
        self.state = State::After;
        Flow::More
    }

    fn flush(&mut self, out: &mut String) {
        // JSON knows four blanks; Unicode knows more.
        out.extend(self.pending.drain(..).map(|c| if c == ',' || c.is_ascii_whitespace() { c } else { ' ' }));
    }
}

/// The nearest JSON of the whole of `text`; `None` where that would be a guess, or more than one value.
pub(crate) fn mended(text: &str) -> Option<String> {
    let mut transcoder = Transcoder::new();
    let mended = all_of(text, &mut transcoder)?;
    // That one of its texts is Python's may be known only at another one.
    match transcoder.was_python && ["\\x", "\\U"].iter().any(|escape| text.contains(escape)) {
        true => all_of(text, &mut Transcoder::python()),
        false => Some(mended),
    }
}

/// The value that is all of `text`, as `transcoder` reads it; `None` as above.
fn all_of(text: &str, transcoder: &mut Transcoder) -> Option<String> {
    let mut out = String::new();
    let mut rest = text.trim().chars();
    for c in rest.by_ref() {
        match transcoder.push(c, &mut out) {
            Flow::More => {}
            Flow::Done => break,
            Flow::DoneBefore | Flow::Fail => return None,
        }
    }
    if rest.next().is_some() || !transcoder.open.is_empty() {
        return None;
    }
    transcoder.close(&mut out);
    (!transcoder.broken && serde_json::from_str::<serde::de::IgnoredAny>(&out).is_ok()).then_some(out)
}

fn closing(bracket: char) -> char {
    if bracket == '{' { '}' } else { ']' }
}

#[cfg(test)]
mod tests;
