//! A node's events, checked: in their order, bounded, and only what a dialect has words for.

use mesh_proto::convert::Malformed;
use mesh_proto::v1;
use mesh_proto::v1::generate_event::Event as Wire;
use mesh_types::{FinishReason, Usage};

/// Most calls in one answer. A model that makes more is going round in circles.
const MAX_CALLS: u32 = 1024;
/// Most bytes of a call's id and of its tool's name, each.
const MAX_NAME: usize = 1024;

/// What happens in a run, in order. [`Event::Finished`] is the last.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// More text; never empty.
    Text(String),
    /// More of what the model thinks; never empty.
    Reasoning(String),
    /// A call of a tool begins.
    Call {
        /// Counts the calls from 0.
        index: u32,
        /// Names the call.
        id: String,
        /// The tool.
        name: String,
    },
    /// More of the arguments of a call that has begun; never empty.
    Arguments {
        /// The call.
        index: u32,
        /// JSON text, to be appended.
        text: String,
    },
    /// The run is over, and went well.
    Finished(FinishReason, Usage),
}

impl Event {
    /// Bytes of text in it.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Text(text) | Self::Reasoning(text) | Self::Arguments { text, .. } => text.len(),
            Self::Call { id, name, .. } => id.len() + name.len(),
            Self::Finished(..) => 0,
        }
    }
}

/// Reads the events of one run.
#[derive(Debug, Default)]
pub(super) struct Reader {
    /// How many calls have begun.
    calls: u32,
}

impl Reader {
    /// The event in `message`; `None`: it is no news for a client.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn read(&mut self, message: Wire) -> Result<Option<Event>, Malformed> {
        Ok(match message {
            Wire::Started(_) => return Err(Malformed("a second start")),
            Wire::Fault(_) => return Err(Malformed("a fault that is no end")),
            Wire::Delta(v1::Delta { text, .. }) => (!text.is_empty()).then_some(Event::Text(text)),
            Wire::Reasoning(v1::ReasoningDelta { text }) => (!text.is_empty()).then_some(Event::Reasoning(text)),
            Wire::ToolCallStart(start) => Some(self.start(start)?),
            Wire::ToolCallDelta(v1::ToolCallDelta { index, .. }) if index >= self.calls => {
                return Err(Malformed("arguments of a call that has not begun"));
            }
            Wire::ToolCallDelta(v1::ToolCallDelta { index, text }) => {
                (!text.is_empty()).then_some(Event::Arguments { index, text })
            }
            Wire::Finished(finished) => {
                let (reason, usage) = finished.try_into()?;
                if reason == FinishReason::ToolCalls && self.calls == 0 {
                    return Err(Malformed("an end with calls, of which there are none"));
                }
                Some(Event::Finished(reason, usage))
            }
        })
    }

    fn start(&mut self, start: v1::ToolCallStart) -> Result<Event, Malformed> {
        let v1::ToolCallStart { index, id, name } = start;
        if index != self.calls {
            return Err(Malformed("a call out of order"));
        }
        if index >= MAX_CALLS {
            return Err(Malformed("calls without an end"));
        }
        if [&id, &name].iter().any(|text| text.is_empty() || text.len() > MAX_NAME) {
            return Err(Malformed("a call whose id or name is empty or too long"));
        }
        self.calls += 1;
        Ok(Event::Call { index, id, name })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mesh_proto::convert::finished;

    fn call(index: u32, id: &str) -> Wire {
        Wire::ToolCallStart(v1::ToolCallStart { index, id: id.into(), name: "f".into() })
    }

    fn arguments(index: u32, text: &str) -> Wire {
        Wire::ToolCallDelta(v1::ToolCallDelta { index, text: text.into() })
    }

    #[test]
    fn calls_come_in_order() {
        let mut reader = Reader::default();
        assert_eq!(reader.read(arguments(0, "{}")), Err(Malformed("arguments of a call that has not begun")));
        assert_eq!(reader.read(call(1, "a")), Err(Malformed("a call out of order")));
        let begun = Event::Call { index: 0, id: "a".into(), name: "f".into() };
        assert_eq!(reader.read(call(0, "a")), Ok(Some(begun)));
        assert_eq!(reader.read(call(0, "a")), Err(Malformed("a call out of order")));
        assert_eq!(reader.read(arguments(0, "{}")), Ok(Some(Event::Arguments { index: 0, text: "{}".into() })));
        assert_eq!(reader.read(arguments(0, "")), Ok(None));
        assert!(reader.read(arguments(1, "{}")).is_err());
        for index in 1..MAX_CALLS {
            assert!(reader.read(call(index, "b")).is_ok());
        }
        assert_eq!(reader.read(call(MAX_CALLS, "b")), Err(Malformed("calls without an end")));
    }

    #[test]
    fn a_call_has_an_id_and_a_name() {
        for id in ["", &"x".repeat(MAX_NAME + 1)] {
            assert!(Reader::default().read(call(0, id)).is_err());
        }
    }

    #[test]
    fn an_end_with_calls_has_some() {
        let end = || Wire::Finished(finished(FinishReason::ToolCalls, Usage::default()));
        let mut reader = Reader::default();
        assert_eq!(reader.read(end()), Err(Malformed("an end with calls, of which there are none")));
        assert!(reader.read(call(0, "a")).is_ok());
        assert_eq!(reader.read(end()), Ok(Some(Event::Finished(FinishReason::ToolCalls, Usage::default()))));
    }
}
