//! A node's events, checked: in their order, bounded, and only what a dialect has words for.

use std::collections::VecDeque;

use mesh_openai::{Event, TokenLogprob};
use mesh_proto::convert::Malformed;
use mesh_proto::v1;
use mesh_proto::v1::generate_event::Event as Wire;
use mesh_types::FinishReason;

/// Most calls in one answer. A model that makes more is going round in circles.
const MAX_CALLS: u32 = 1024;
/// Most bytes of a call's id and of its tool's name, each.
const MAX_NAME: usize = 1024;

/// Reads the events of one run.
#[derive(Debug, Default)]
pub(super) struct Reader {
    /// How many calls have begun.
    calls: u32,
    /// Whether the last one may still get arguments.
    open: bool,
}

impl Reader {
    /// The event in `message`; `None`: it is no news for a client. What comes before it goes into `before`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn read(&mut self, message: Wire, before: &mut VecDeque<Event>) -> Result<Option<Event>, Malformed> {
        let event = match message {
            Wire::Started(_) => return Err(Malformed("a second start")),
            Wire::Fault(_) => return Err(Malformed("a fault that is no end")),
            Wire::Delta(v1::Delta { text, logprobs, .. }) => {
                if !logprobs.is_empty() {
                    before.push_back(Event::Logprobs(logprobs.into_iter().map(logprob).collect()));
                }
                (!text.is_empty()).then_some(Event::Text(text))
            }
            Wire::Reasoning(v1::ReasoningDelta { text }) => (!text.is_empty()).then_some(Event::Reasoning(text)),
            Wire::ToolCallStart(start) => Some(self.start(start)?),
            Wire::ToolCallDelta(v1::ToolCallDelta { index, .. }) if index >= self.calls => {
                return Err(Malformed("arguments of a call that has not begun"));
            }
            Wire::ToolCallDelta(v1::ToolCallDelta { index, .. }) if !self.open || index + 1 != self.calls => {
                return Err(Malformed("arguments of a call that is over"));
            }
            Wire::ToolCallDelta(v1::ToolCallDelta { index, text }) => {
                (!text.is_empty()).then_some(Event::Arguments { index, text })
            }
            Wire::Finished(mut finished) => {
                before.extend(finished.stop.take().map(Event::Stop));
                let (reason, usage) = finished.try_into()?;
                if reason == FinishReason::ToolCalls && self.calls == 0 {
                    return Err(Malformed("an end with calls, of which there are none"));
                }
                Some(Event::Finished(reason, usage))
            }
        };
        match event {
            Some(Event::Call { .. }) => self.open = true,
            Some(Event::Text(_) | Event::Reasoning(_)) => self.open = false,
            Some(Event::Arguments { .. } | Event::Logprobs(_) | Event::Stop(_) | Event::Finished(..)) | None => {}
        }
        Ok(event)
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

fn logprob(token: v1::TokenLogprob) -> TokenLogprob {
    let top = token.top.into_iter().map(|top| (top.piece, top.logprob)).collect();
    TokenLogprob { piece: token.piece, logprob: (!token.is_first).then_some(token.logprob), top }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mesh_proto::convert::finished;
    use mesh_types::Usage;

    fn read(reader: &mut Reader, message: Wire) -> Result<Option<Event>, Malformed> {
        reader.read(message, &mut VecDeque::new())
    }

    #[test]
    fn log_probabilities_and_stop_strings_come_before() {
        let (mut reader, mut before) = (Reader::default(), VecDeque::new());
        let token = |is_first| v1::TokenLogprob { piece: b"a".to_vec(), logprob: -1.0, is_first, ..Default::default() };
        let delta = v1::Delta { text: "aa".into(), logprobs: vec![token(true), token(false)], ..Default::default() };
        assert_eq!(reader.read(Wire::Delta(delta), &mut before), Ok(Some(Event::Text("aa".into()))));
        let seen = |logprob| TokenLogprob { piece: b"a".to_vec(), logprob, top: Vec::new() };
        assert_eq!(before.pop_front(), Some(Event::Logprobs(vec![seen(None), seen(Some(-1.0))])));
        let end = v1::Finished { stop: Some("END".into()), ..finished(FinishReason::Stop, Usage::default()) };
        assert!(reader.read(Wire::Finished(end), &mut before).is_ok());
        assert_eq!(before.pop_front(), Some(Event::Stop("END".into())));
    }

    fn call(index: u32, id: &str) -> Wire {
        Wire::ToolCallStart(v1::ToolCallStart { index, id: id.into(), name: "f".into() })
    }

    fn arguments(index: u32, text: &str) -> Wire {
        Wire::ToolCallDelta(v1::ToolCallDelta { index, text: text.into() })
    }

    #[test]
    fn calls_come_in_order() {
        let mut reader = Reader::default();
        assert_eq!(read(&mut reader, arguments(0, "{}")), Err(Malformed("arguments of a call that has not begun")));
        assert_eq!(read(&mut reader, call(1, "a")), Err(Malformed("a call out of order")));
        let begun = Event::Call { index: 0, id: "a".into(), name: "f".into() };
        assert_eq!(read(&mut reader, call(0, "a")), Ok(Some(begun)));
        assert_eq!(read(&mut reader, call(0, "a")), Err(Malformed("a call out of order")));
        assert_eq!(read(&mut reader, arguments(0, "{}")), Ok(Some(Event::Arguments { index: 0, text: "{}".into() })));
        assert_eq!(read(&mut reader, arguments(0, "")), Ok(None));
        assert!(read(&mut reader, arguments(1, "{}")).is_err());
        assert!(read(&mut reader, call(1, "b")).is_ok());
        assert_eq!(read(&mut reader, arguments(0, "{}")), Err(Malformed("arguments of a call that is over")));
        for index in 2..MAX_CALLS {
            assert!(read(&mut reader, call(index, "b")).is_ok());
        }
        assert_eq!(read(&mut reader, call(MAX_CALLS, "b")), Err(Malformed("calls without an end")));
    }

    #[test]
    fn a_call_has_an_id_and_a_name() {
        for id in ["", &"x".repeat(MAX_NAME + 1)] {
            assert!(read(&mut Reader::default(), call(0, id)).is_err());
        }
    }

    #[test]
    fn an_end_with_calls_has_some() {
        let end = || Wire::Finished(finished(FinishReason::ToolCalls, Usage::default()));
        let mut reader = Reader::default();
        assert_eq!(read(&mut reader, end()), Err(Malformed("an end with calls, of which there are none")));
        assert!(read(&mut reader, call(0, "a")).is_ok());
        assert_eq!(read(&mut reader, end()), Ok(Some(Event::Finished(FinishReason::ToolCalls, Usage::default()))));
    }
}
