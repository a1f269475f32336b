//! An answer to a chat completion, whole or event by event, in the shapes of
//! <https://platform.openai.com/docs/api-reference/chat-streaming>.
//!
//! Order of a stream: a role chunk for each choice; chunks of reasoning, text and calls; for each choice one with its
//! finish reason; one with the usage where asked for; `[DONE]`. A call is one chunk with its id, type and name, then
//! chunks of arguments, to be joined. An answer that fails ends with an error event instead: no finish reason for what
//! was not finished, no usage, no `[DONE]`.

use mesh_types::Usage;
use serde::{Serialize, Serializer};

use crate::error::ApiError;
use crate::event::{Answer, Event, total};
use crate::logprobs::ChatLogprobs;
use crate::reply::Reply;
use crate::response::{Head, UsageObject, completion, finish_reason};
use crate::sse;

/// Writes one answer.
#[derive(Clone, Debug)]
pub(crate) struct ChunkWriter {
    head: Head,
    /// Of each choice: its end, and log probabilities that wait for their text.
    answers: Vec<Answer>,
    include_usage: bool,
}

#[derive(Serialize)]
struct Chunk<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: &'a [Choice<'a>],
    #[serde(skip_serializing_if = "Slot::is_absent")]
    usage: Slot,
}

#[derive(Serialize)]
struct Choice<'a> {
    index: u32,
    delta: Delta<'a>,
    logprobs: Option<ChatLogprobs>,
    finish_reason: Option<&'static str>,
}

#[derive(Default, Serialize)]
struct Delta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_calls: Option<[CallDelta<'a>; 1]>,
}

#[derive(Serialize)]
struct CallDelta<'a> {
    index: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    function: FunctionDelta<'a>,
}

#[derive(Serialize)]
struct FunctionDelta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    arguments: &'a str,
}

/// `usage` is absent where the client did not ask, null in the chunks before the last, and an object in the last.
pub(crate) enum Slot {
    Absent,
    Null,
    Usage(UsageObject),
}

impl Slot {
    pub(crate) fn is_absent(&self) -> bool {
        matches!(self, Self::Absent)
    }
}

impl Serialize for Slot {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Absent | Self::Null => serializer.serialize_none(),
            Self::Usage(usage) => usage.serialize(serializer),
        }
    }
}

impl ChunkWriter {
    /// A writer for an answer of `n` choices; `include_usage` as in the request's `stream_options`.
    pub(crate) fn new(head: Head, n: usize, include_usage: bool) -> Self {
        Self { head, answers: vec![Answer::default(); n], include_usage }
    }

    fn call(&self, choice: u32, call: CallDelta<'_>) -> Vec<u8> {
        self.choice(choice, Delta { tool_calls: Some([call]), ..Delta::default() }, None)
    }

    fn choice(&self, index: u32, delta: Delta<'_>, finish_reason: Option<&'static str>) -> Vec<u8> {
        let usage = if self.include_usage { Slot::Null } else { Slot::Absent };
        self.chunk(&[Choice { index, delta, logprobs: None, finish_reason }], usage)
    }

    /// A chunk with the log probabilities that wait.
    fn with_logprobs(&mut self, index: u32, delta: Delta<'_>, finish_reason: Option<&'static str>) -> Vec<u8> {
        let waiting = self.answers.get_mut(index as usize).map(|answer| std::mem::take(&mut answer.logprobs));
        let logprobs = ChatLogprobs::of(&waiting.unwrap_or_default());
        let usage = if self.include_usage { Slot::Null } else { Slot::Absent };
        self.chunk(&[Choice { index, delta, logprobs, finish_reason }], usage)
    }

    fn chunk(&self, choices: &[Choice<'_>], usage: Slot) -> Vec<u8> {
        sse::event(&Chunk {
            id: &self.head.id,
            object: "chat.completion.chunk",
            created: self.head.created,
            model: &self.head.model,
            choices,
            usage,
        })
    }

    fn usage(&self) -> Usage {
        total(&self.answers, self.answers.len())
    }
}

impl Reply for ChunkWriter {
    fn begin(&mut self, _prompt_tokens: u32) -> Vec<u8> {
        let role =
            |index| self.choice(index, Delta { role: Some("assistant"), content: Some(""), ..Delta::default() }, None);
        (0..self.answers.len() as u32).flat_map(role).collect()
    }

    fn event(&mut self, choice: u32, event: &Event) -> Vec<u8> {
        if let (Event::Logprobs(_) | Event::Stop(_) | Event::Finished(..), Some(answer)) =
            (event, self.answers.get_mut(choice as usize))
        {
            answer.push(event);
        }
        match event {
            Event::Text(text) => self.with_logprobs(choice, Delta { content: Some(text), ..Delta::default() }, None),
            Event::Reasoning(text) => {
                self.choice(choice, Delta { reasoning_content: Some(text), ..Delta::default() }, None)
            }
            Event::Call { index, id, name } => {
                let function = FunctionDelta { name: Some(name), arguments: "" };
                self.call(choice, CallDelta { index: *index, id: Some(id), kind: Some("function"), function })
            }
            Event::Arguments { index, text } => {
                let function = FunctionDelta { name: None, arguments: text };
                self.call(choice, CallDelta { index: *index, id: None, kind: None, function })
            }
            Event::Logprobs(_) | Event::Stop(_) => Vec::new(),
            Event::Finished(reason, _) => self.with_logprobs(choice, Delta::default(), Some(finish_reason(*reason))),
        }
    }

    fn end(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        if self.include_usage {
            out.extend(self.chunk(&[], Slot::Usage(self.usage().into())));
        }
        out.extend_from_slice(sse::DONE);
        out
    }

    fn error(&mut self, error: &ApiError) -> Vec<u8> {
        sse::event(&serde_json::json!({ "error": error.error }))
    }

    fn whole(&mut self, answers: &[Answer]) -> Vec<u8> {
        completion(&self.head, answers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mesh_types::{Fault, FinishReason};
    use serde_json::{Value, json};

    const USAGE: Usage = Usage {
        prompt_tokens: 5,
        completion_tokens: 2,
        cached_tokens: 0,
        reasoning_tokens: 0,
        accepted_tokens: 0,
        rejected_tokens: 0,
    };

    fn writer(include_usage: bool) -> ChunkWriter {
        ChunkWriter::new(Head { id: "chatcmpl-1".into(), created: 7, model: "m".into() }, 1, include_usage)
    }

    fn events(bytes: &[u8]) -> Vec<String> {
        let text = std::str::from_utf8(bytes).unwrap();
        text.split_terminator("\n\n").map(|event| event.strip_prefix("data: ").unwrap().to_owned()).collect()
    }

    fn json(event: &str) -> Value {
        serde_json::from_str(event).unwrap()
    }

    #[test]
    fn the_first_chunk_names_the_role_and_later_ones_only_text() {
        let role = json(&events(&writer(false).begin(5))[0]);
        let expected = json!({
            "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 7, "model": "m",
            "choices": [{
                "index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": null, "finish_reason": null,
            }],
        });
        assert_eq!(role, expected);
        let text = json(&events(&writer(false).event(0, &Event::Text("hé\n".into())))[0]);
        assert_eq!(text["choices"][0]["delta"], json!({"content": "hé\n"}));
        assert!(text["choices"][0]["finish_reason"].is_null());
    }

    #[test]
    fn a_call_is_named_once_and_its_arguments_follow() {
        let mut writer = writer(false);
        let mut delta = |event: Event| json(&events(&writer.event(0, &event))[0])["choices"][0]["delta"].clone();
        let function = json!({"name": "f", "arguments": ""});
        let expected = json!({"tool_calls": [{"index": 1, "id": "a", "type": "function", "function": function}]});
        assert_eq!(delta(Event::Call { index: 1, id: "a".into(), name: "f".into() }), expected);
        let expected = json!({"tool_calls": [{"index": 1, "function": {"arguments": "{\"x\""}}]});
        assert_eq!(delta(Event::Arguments { index: 1, text: "{\"x\"".into() }), expected);
        assert_eq!(delta(Event::Reasoning("hm".into())), json!({"reasoning_content": "hm"}));
        let end = events(&writer.event(0, &Event::Finished(FinishReason::ToolCalls, Usage::default())));
        assert_eq!(json(&end[0])["choices"][0]["finish_reason"], "tool_calls");
    }

    fn ended(writer: &mut ChunkWriter) -> Vec<String> {
        let mut bytes = writer.event(0, &Event::Finished(FinishReason::Stop, USAGE));
        bytes.extend(writer.end());
        events(&bytes)
    }

    #[test]
    fn the_end_is_reason_usage_done() {
        let end = ended(&mut writer(true));
        assert_eq!(end.len(), 3);
        assert_eq!(json(&end[0])["choices"][0]["finish_reason"], "stop");
        assert_eq!(json(&end[0])["choices"][0]["delta"], json!({}));
        assert_eq!(json(&end[0]).as_object().unwrap().get("usage"), Some(&Value::Null));
        assert_eq!(json(&end[1])["choices"], json!([]));
        assert_eq!(json(&end[1])["usage"]["total_tokens"], 7);
        assert_eq!(end[2], "[DONE]");

        let end = ended(&mut writer(false));
        assert_eq!(end.len(), 2);
        assert!(json(&end[0]).as_object().unwrap().get("usage").is_none());
    }

    #[test]
    fn log_probabilities_come_with_their_text_or_at_the_end() {
        let mut writer = writer(false);
        let token = |piece: &str| crate::event::TokenLogprob { piece: piece.into(), ..Default::default() };
        let mut chunks = Vec::new();
        for event in [
            Event::Logprobs(vec![token("a"), token("b")]),
            Event::Text("ab".into()),
            Event::Text("c".into()),
            Event::Logprobs(vec![token("<end>")]),
            Event::Finished(FinishReason::Stop, USAGE),
        ] {
            chunks.extend(events(&writer.event(0, &event)));
        }
        let tokens = |chunk: &String| json(chunk)["choices"][0]["logprobs"]["content"].as_array().map_or(0, Vec::len);
        assert_eq!(chunks.iter().map(tokens).collect::<Vec<_>>(), [2, 0, 1]);
    }

    #[test]
    fn choices_have_their_index_and_one_usage() {
        let mut writer = ChunkWriter { answers: vec![Answer::default(); 2], ..writer(true) };
        let roles = events(&writer.begin(5));
        let index = |event: &String| json(event)["choices"][0]["index"].clone();
        assert_eq!(roles.iter().map(index).collect::<Vec<_>>(), [0, 1]);
        for choice in [1, 0] {
            let end = events(&writer.event(choice, &Event::Finished(FinishReason::Stop, USAGE)));
            assert_eq!(index(&end[0]), choice);
        }
        let usage = json(&events(&writer.end())[0])["usage"].clone();
        assert_eq!((&usage["prompt_tokens"], &usage["completion_tokens"]), (&json!(5), &json!(4)));
    }

    #[test]
    fn a_failed_answer_ends_with_the_error_alone() {
        let end = events(&writer(true).error(&Fault::unavailable("beta was lost").into()));
        assert_eq!(end.len(), 1);
        assert_eq!(json(&end[0])["error"]["message"], "beta was lost");
        assert_eq!(json(&end[0])["error"]["type"], "server_error");
    }
}
