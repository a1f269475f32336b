//! What happens in an answer, whatever its dialect, and the whole of it.

use mesh_types::{FinishReason, ToolCall, Usage};

/// One thing that happens in a choice of an answer. [`Event::Finished`] is its last.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// More text; never empty.
    Text(String),
    /// More of what the model thinks; never empty.
    Reasoning(String),
    /// A call of a tool begins.
    Call {
        /// Counts the calls of this choice from 0.
        index: u32,
        /// Names the call.
        id: String,
        /// The tool.
        name: String,
    },
    /// More of the arguments of the call that began last; never empty, and not after anything else has begun.
    Arguments {
        /// The call.
        index: u32,
        /// JSON text, to be appended.
        text: String,
    },
    /// How likely the tokens of the text that follows were. Comes where it was asked for.
    Logprobs(Vec<TokenLogprob>),
    /// The stop string that ends the choice; just before its end.
    Stop(String),
    /// The choice is complete.
    Finished(FinishReason, Usage),
}

impl Event {
    /// Bytes of text in it.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Text(text) | Self::Reasoning(text) | Self::Arguments { text, .. } => text.len(),
            Self::Call { id, name, .. } => id.len() + name.len(),
            Self::Logprobs(tokens) => tokens.iter().map(TokenLogprob::bytes).sum(),
            Self::Stop(stop) => stop.len(),
            Self::Finished(..) => 0,
        }
    }

    /// Whether it belongs to the part that is the last so far.
    pub(crate) fn continues(&self, last: Option<&Part>) -> bool {
        matches!(
            (self, last),
            (Self::Logprobs(_) | Self::Stop(_), _)
                | (Self::Text(_), Some(Part::Text(_)))
                | (Self::Reasoning(_), Some(Part::Reasoning(_)))
                | (Self::Arguments { .. }, Some(Part::Call(_)))
        )
    }
}

/// How likely a token was.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenLogprob {
    /// The token's bytes; not always whole characters.
    pub piece: Vec<u8>,
    /// The natural logarithm of its probability; `None`: nothing stands before it.
    pub logprob: Option<f32>,
    /// The most likely tokens, the most likely first: bytes and logarithms.
    pub top: Vec<(Vec<u8>, f32)>,
}

impl TokenLogprob {
    fn bytes(&self) -> usize {
        self.piece.len() + self.top.iter().map(|(piece, _)| piece.len() + size_of::<f32>()).sum::<usize>()
    }
}

/// One piece of an answer. Two of a kind in a row are two only where they are calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// What the model says.
    Text(String),
    /// What it thinks.
    Reasoning(String),
    /// A tool that it calls.
    Call(ToolCall),
}

/// All of one choice, in the order in which it came.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// The pieces.
    pub parts: Vec<Part>,
    /// Of all its tokens, where they were asked for.
    pub logprobs: Vec<TokenLogprob>,
    /// The stop string that ended it.
    pub stop: Option<String>,
    /// How it ended; `None`: it has not.
    pub end: Option<(FinishReason, Usage)>,
}

impl Answer {
    /// Takes the next event; whether a new part began.
    pub fn push(&mut self, event: &Event) -> bool {
        let part = match (event, self.parts.last_mut()) {
            (Event::Text(more), Some(Part::Text(text))) | (Event::Reasoning(more), Some(Part::Reasoning(text))) => {
                text.push_str(more);
                return false;
            }
            (Event::Arguments { text, .. }, Some(Part::Call(call))) => {
                call.arguments.push_str(text);
                return false;
            }
            (Event::Arguments { .. }, _) => return false,
            (Event::Logprobs(tokens), _) => {
                self.logprobs.extend_from_slice(tokens);
                return false;
            }
            (Event::Stop(stop), _) => {
                self.stop = Some(stop.clone());
                return false;
            }
            (Event::Finished(reason, usage), _) => {
                self.end = Some((*reason, *usage));
                return false;
            }
            (Event::Text(text), _) => Part::Text(text.clone()),
            (Event::Reasoning(text), _) => Part::Reasoning(text.clone()),
            (Event::Call { id, name, .. }, _) => {
                Part::Call(ToolCall { id: id.clone(), name: name.clone(), arguments: String::new() })
            }
        };
        self.parts.push(part);
        true
    }

    /// All that it says.
    pub fn text(&self) -> String {
        self.parts.iter().map(|part| if let Part::Text(text) = part { text.as_str() } else { "" }).collect()
    }

    /// All that it thinks.
    pub fn reasoning(&self) -> String {
        self.parts.iter().map(|part| if let Part::Reasoning(text) = part { text.as_str() } else { "" }).collect()
    }

    /// Its calls.
    pub fn calls(&self) -> impl Iterator<Item = &ToolCall> {
        self.parts.iter().filter_map(|part| if let Part::Call(call) = part { Some(call) } else { None })
    }

    /// Why it ended; of one that has not: that it was cut off.
    pub fn reason(&self) -> FinishReason {
        self.end.map_or(FinishReason::Length, |end| end.0)
    }
}

/// The usage of a request with several choices: each prompt counts once, what was drawn counts always.
pub(crate) fn total(answers: &[Answer], choices_per_prompt: usize) -> Usage {
    let mut sum = Usage::default();
    for (index, answer) in answers.iter().enumerate() {
        let usage = answer.end.map(|end| end.1).unwrap_or_default();
        if index % choices_per_prompt.max(1) == 0 {
            sum.prompt_tokens = sum.prompt_tokens.saturating_add(usage.prompt_tokens);
            sum.cached_tokens = sum.cached_tokens.saturating_add(usage.cached_tokens);
        }
        sum.completion_tokens = sum.completion_tokens.saturating_add(usage.completion_tokens);
        sum.reasoning_tokens = sum.reasoning_tokens.saturating_add(usage.reasoning_tokens);
        sum.accepted_tokens = sum.accepted_tokens.saturating_add(usage.accepted_tokens);
        sum.rejected_tokens = sum.rejected_tokens.saturating_add(usage.rejected_tokens);
    }
    sum
}
