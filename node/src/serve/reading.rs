//! How the text of an answer is read: as a turn of a conversation, or as it is.

use mesh_chat::{TurnEvent, TurnParser};
use mesh_types::FinishReason;

/// Reads one answer.
pub(super) enum Reading {
    /// With reasoning and calls of tools.
    Turn(Box<TurnParser>),
    /// Text and nothing else: what follows a raw prompt.
    Plain,
}

impl Reading {
    /// Takes the next text.
    pub(super) fn push(&mut self, text: &str) -> Vec<TurnEvent> {
        match self {
            Self::Turn(parser) => parser.push(text),
            Self::Plain if text.is_empty() => Vec::new(),
            Self::Plain => vec![TurnEvent::Content(text.to_owned())],
        }
    }

    /// Whether the answer is complete whatever follows.
    pub(super) fn is_complete(&self) -> bool {
        match self {
            Self::Turn(parser) => parser.is_complete(),
            Self::Plain => false,
        }
    }

    /// Ends the answer: gives out what was held back.
    pub(super) fn finish(&mut self, reason: FinishReason) -> Vec<TurnEvent> {
        match self {
            Self::Turn(parser) => parser.finish(reason),
            Self::Plain => Vec::new(),
        }
    }
}
