//! Why an answer ended, as its client is told.

use mesh_types::FinishReason;
use serde::de::IgnoredAny;

use super::TurnEvent;

/// Follows the events of an answer, to say how it ended.
#[derive(Debug, Default)]
pub struct Ending {
    has_calls: bool,
    /// The last call's, as far as they came.
    arguments: String,
    /// Something was said after the last call.
    goes_on: bool,
}

impl Ending {
    /// Takes the next events.
    pub fn take<'a>(&mut self, events: impl IntoIterator<Item = &'a TurnEvent>) {
        for event in events {
            match event {
                TurnEvent::Reasoning(text) | TurnEvent::Content(text) => {
                    self.goes_on |= self.has_calls && !text.trim().is_empty();
                }
                TurnEvent::Call { .. } => *self = Self { has_calls: true, ..Self::default() },
                TurnEvent::Arguments { fragment, .. } => self.arguments += fragment,
            }
        }
    }

    /// The reason for an answer whose generation ended for `reason`: `ToolCalls` for calls that are whole, also where the
    /// tokens ran out right behind the last one.
    pub fn reason(&self, reason: FinishReason) -> FinishReason {
        let is_whole = || !self.goes_on && serde_json::from_str::<IgnoredAny>(&self.arguments).is_ok();
        match reason {
            FinishReason::Stop if self.has_calls => FinishReason::ToolCalls,
            FinishReason::Length if self.has_calls && is_whole() => FinishReason::ToolCalls,
            reason => reason,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(arguments: &[&str]) -> Vec<TurnEvent> {
        let begin = TurnEvent::Call { index: 0, id: "call".to_owned(), name: "now".to_owned() };
        let more = |text: &&str| TurnEvent::Arguments { index: 0, fragment: (*text).to_owned() };
        std::iter::once(begin).chain(arguments.iter().map(more)).collect()
    }

    fn ends(events: &[TurnEvent]) -> [FinishReason; 2] {
        let mut ending = Ending::default();
        events.iter().for_each(|event| ending.take([event]));
        [FinishReason::Stop, FinishReason::Length].map(|reason| ending.reason(reason))
    }

    #[test]
    fn calls_that_are_whole_are_no_answer_that_ran_out_of_tokens() {
        let (stop, length, calls) = (FinishReason::Stop, FinishReason::Length, FinishReason::ToolCalls);
        let text = || vec![TurnEvent::Content("Hm.".to_owned())];
        assert_eq!(ends(&text()), [stop, length]);
        assert_eq!(ends(&call(&["{\"a\"", ": 1}"])), [calls, calls]);
        assert_eq!(ends(&[text(), call(&["{}"])].concat()), [calls, calls]);
        assert_eq!(ends(&[call(&["{}"]), vec![TurnEvent::Content("\n".to_owned())]].concat()), [calls, calls]);
        assert_eq!(ends(&[call(&["{\"a\": 1"]), call(&["{}"])].concat()), [calls, calls], "the last one counts");
        // Cut off in its arguments, or in what comes behind it.
        assert_eq!(ends(&call(&["{\"a\": 1"])), [calls, length]);
        assert_eq!(ends(&call(&[""])), [calls, length]);
        assert_eq!(ends(&[call(&["{}"]), call(&["{\"a\""])].concat()), [calls, length]);
        assert_eq!(ends(&[call(&["{}"]), text()].concat()), [calls, length]);
    }
}
