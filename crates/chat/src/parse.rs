//! A model's answer, as it is generated, taken apart: reasoning, text, tool calls.
//!
//! Text goes through as it comes. Only an end that could still become a marker is held back, and blanks, which are
//! layout if a call follows. A call is reported when its name is known and offered, then its arguments, fragment by
//! fragment; they add up to JSON, but for an answer that was cut off at its length. What looked like a call and is
//! none goes out as text. Nothing depends on how the answer is cut into pieces.
//!
//! Start with [`TurnParser`].

mod call_json;
mod ending;
mod harmony;
pub(crate) mod json;
pub(crate) mod marked;
pub(crate) mod marker;
mod out;
pub(crate) mod pattern;

use mesh_types::{FinishReason, Tool, ToolCall, ToolChoice};

use crate::capability::Strategy;
use crate::format::{EMULATED, PROSE, Syntax};
use crate::tools::Offered;

pub use ending::Ending;
pub(crate) use harmony::MARKERS as HARMONY_MARKERS;
pub(crate) use out::{THINKING, nine};

/// What comes out of an answer, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TurnEvent {
    /// More of what the model thinks before it speaks.
    Reasoning(String),
    /// More of what it says.
    Content(String),
    /// A call begins.
    Call {
        /// Counts the calls of this answer from 0.
        index: usize,
        /// Its id, no other's in this conversation.
        id: String,
        /// The tool.
        name: String,
    },
    /// More of a call's arguments. At least one comes for each call.
    Arguments {
        /// The call.
        index: usize,
        /// JSON text, to be appended.
        fragment: String,
    },
}

/// What an answer is read with.
#[derive(Clone, Debug)]
pub struct TurnOptions<'a> {
    /// How the model calls tools.
    pub strategy: Strategy,
    /// The tools of the request. Without any, nothing is a call.
    pub tools: &'a [Tool],
    /// The tools that may be called of these.
    pub choice: &'a ToolChoice,
    /// Every tool counts as offered, known or not: for looking at answers without their request.
    pub any_tool: bool,
    /// Whether there may be more than one call.
    pub parallel: bool,
    /// The prompt, whose end says whether the model begins by thinking.
    pub prompt: &'a str,
    /// What makes ids of calls unique: the request's id, say.
    pub seed: &'a str,
}

/// Reads one answer.
#[derive(Debug)]
pub struct TurnParser {
    reader: Reader,
}

#[derive(Debug)]
enum Reader {
    Marked(marked::Reader),
    Harmony(harmony::Reader),
}

impl TurnParser {
    /// A parser at the beginning of the answer.
    pub fn new(options: &TurnOptions<'_>) -> Self {
        let offered = Offered::new(options.tools, options.choice, options.any_tool);
        let format = match &options.strategy {
            // A format is not only how calls are written, but also how thoughts are, or the shape of every answer.
            Strategy::Native(format) => *format,
            Strategy::Emulated(_) if !offered.is_empty() => &EMULATED,
            _ => &PROSE,
        };
        let out = out::Out::new(format.ids, options.seed);
        let reader = match &format.syntax {
            Syntax::Harmony => Reader::Harmony(harmony::Reader::new(offered, options.parallel, out)),
            Syntax::Marked(marked) => {
                let setting = marked::Setting { format, marked, offered, parallel: options.parallel };
                Reader::Marked(marked::Reader::new(setting, options.prompt, out))
            }
        };
        Self { reader }
    }

    /// Takes the next text.
    pub fn push(&mut self, text: &str) -> Vec<TurnEvent> {
        match &mut self.reader {
            Reader::Marked(reader) => reader.push(text),
            Reader::Harmony(reader) => reader.push(text),
        }
    }

    /// Ends the answer: gives out what was held back. A call that the model left open is closed, unless it had no room
    /// for the rest.
    pub fn finish(&mut self, reason: FinishReason) -> Vec<TurnEvent> {
        match &mut self.reader {
            Reader::Marked(reader) => reader.finish(reason),
            Reader::Harmony(reader) => reader.finish(reason),
        }
    }

    /// Whether the answer is complete whatever follows: the generation can end.
    pub fn is_complete(&self) -> bool {
        match &self.reader {
            Reader::Marked(reader) => reader.is_complete(),
            Reader::Harmony(reader) => reader.is_complete(),
        }
    }
}

/// A whole answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// What the model thought; empty: nothing.
    pub reasoning: String,
    /// What it said.
    pub content: String,
    /// What it calls.
    pub calls: Vec<ToolCall>,
}

impl Turn {
    /// All of `text` at once.
    pub fn parse(options: &TurnOptions<'_>, text: &str, reason: FinishReason) -> Self {
        let mut parser = TurnParser::new(options);
        let mut turn = Self::default();
        turn.extend(parser.push(text));
        turn.extend(parser.finish(reason));
        turn
    }
}

impl Extend<TurnEvent> for Turn {
    fn extend<I: IntoIterator<Item = TurnEvent>>(&mut self, events: I) {
        for event in events {
            match event {
                TurnEvent::Reasoning(text) => self.reasoning += &text,
                TurnEvent::Content(text) => self.content += &text,
                TurnEvent::Call { id, name, .. } => self.calls.push(ToolCall { id, name, arguments: String::new() }),
                TurnEvent::Arguments { index, fragment } => {
                    if let Some(call) = self.calls.get_mut(index) {
                        call.arguments += &fragment;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
