//! A streamed answer, event by event, in the shapes of
//! <https://platform.openai.com/docs/api-reference/chat-streaming>.
//!
//! Order: one role chunk; chunks of reasoning, text and calls; one with the finish reason, one with the usage where asked
//! for, `[DONE]`. A call is one chunk with its id, type and name, then chunks of arguments, to be joined. An answer that fails ends with an error event instead: no finish reason, no usage, no `[DONE]`.

use mesh_types::{FinishReason, Usage};
use serde::{Serialize, Serializer};

use crate::error::ApiError;
use crate::response::{Head, UsageObject, finish_reason};
use crate::sse;

/// Writes the events of one answer as bytes of a `text/event-stream`.
#[derive(Clone, Debug)]
pub struct ChunkWriter {
    head: Head,
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
    logprobs: Option<()>,
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
enum Slot {
    Absent,
    Null,
    Usage(UsageObject),
}

impl Slot {
    fn is_absent(&self) -> bool {
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
    /// A writer for the answer `head`; `include_usage` as in the request's `stream_options`.
    pub fn new(head: Head, include_usage: bool) -> Self {
        Self { head, include_usage }
    }

    /// The first event: who speaks.
    pub fn role(&self) -> Vec<u8> {
        self.choice(Delta { role: Some("assistant"), content: Some(""), ..Delta::default() }, None)
    }

    /// More text.
    pub fn text(&self, text: &str) -> Vec<u8> {
        self.choice(Delta { content: Some(text), ..Delta::default() }, None)
    }

    /// More of what the model thinks.
    pub fn reasoning(&self, text: &str) -> Vec<u8> {
        self.choice(Delta { reasoning_content: Some(text), ..Delta::default() }, None)
    }

    /// The call `index`, counted from 0, begins.
    pub fn call(&self, index: u32, id: &str, name: &str) -> Vec<u8> {
        let function = FunctionDelta { name: Some(name), arguments: "" };
        self.call_delta(CallDelta { index, id: Some(id), kind: Some("function"), function })
    }

    /// More of the arguments of the call `index`.
    pub fn arguments(&self, index: u32, text: &str) -> Vec<u8> {
        let function = FunctionDelta { name: None, arguments: text };
        self.call_delta(CallDelta { index, id: None, kind: None, function })
    }

    /// The last events of an answer that ended as it should, `[DONE]` included.
    pub fn finish(&self, reason: FinishReason, usage: Usage) -> Vec<u8> {
        let mut out = self.choice(Delta::default(), Some(finish_reason(reason)));
        if self.include_usage {
            out.extend(self.chunk(&[], Slot::Usage(usage.into())));
        }
        out.extend_from_slice(sse::DONE);
        out
    }

    /// The last event of an answer that failed.
    pub fn error(&self, error: &ApiError) -> Vec<u8> {
        sse::event(&serde_json::json!({ "error": error.error }))
    }

    fn call_delta(&self, call: CallDelta<'_>) -> Vec<u8> {
        self.choice(Delta { tool_calls: Some([call]), ..Delta::default() }, None)
    }

    fn choice(&self, delta: Delta<'_>, finish_reason: Option<&'static str>) -> Vec<u8> {
        let usage = if self.include_usage { Slot::Null } else { Slot::Absent };
        self.chunk(&[Choice { index: 0, delta, logprobs: None, finish_reason }], usage)
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use mesh_types::Fault;
    use serde_json::{Value, json};

    fn writer(include_usage: bool) -> ChunkWriter {
        ChunkWriter::new(Head { id: "chatcmpl-1".into(), created: 7, model: "m".into() }, include_usage)
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
        let role = json(&events(&writer(false).role())[0]);
        let expected = json!({
            "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 7, "model": "m",
            "choices": [{
                "index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": null, "finish_reason": null,
            }],
        });
        assert_eq!(role, expected);
        let text = json(&events(&writer(false).text("hé\n"))[0]);
        assert_eq!(text["choices"][0]["delta"], json!({"content": "hé\n"}));
        assert!(text["choices"][0]["finish_reason"].is_null());
    }

    #[test]
    fn a_call_is_named_once_and_its_arguments_follow() {
        let delta = |bytes: &[u8]| json(&events(bytes)[0])["choices"][0]["delta"].clone();
        let writer = writer(false);
        let function = json!({"name": "f", "arguments": ""});
        let expected = json!({"tool_calls": [{"index": 1, "id": "a", "type": "function", "function": function}]});
        assert_eq!(delta(&writer.call(1, "a", "f")), expected);
        let expected = json!({"tool_calls": [{"index": 1, "function": {"arguments": "{\"x\""}}]});
        assert_eq!(delta(&writer.arguments(1, "{\"x\"")), expected);
        assert_eq!(delta(&writer.reasoning("hm")), json!({"reasoning_content": "hm"}));
        let end = events(&writer.finish(FinishReason::ToolCalls, Usage::default()));
        assert_eq!(json(&end[0])["choices"][0]["finish_reason"], "tool_calls");
    }

    #[test]
    fn the_end_is_reason_usage_done() {
        let usage = Usage { prompt_tokens: 5, completion_tokens: 2, cached_tokens: 0 };
        let end = events(&writer(true).finish(FinishReason::Stop, usage));
        assert_eq!(end.len(), 3);
        assert_eq!(json(&end[0])["choices"][0]["finish_reason"], "stop");
        assert_eq!(json(&end[0])["choices"][0]["delta"], json!({}));
        assert_eq!(json(&end[0]).as_object().unwrap().get("usage"), Some(&Value::Null));
        assert_eq!(json(&end[1])["choices"], json!([]));
        assert_eq!(json(&end[1])["usage"]["total_tokens"], 7);
        assert_eq!(end[2], "[DONE]");

        let end = events(&writer(false).finish(FinishReason::Stop, usage));
        assert_eq!(end.len(), 2);
        assert!(json(&end[0]).as_object().unwrap().get("usage").is_none());
    }

    #[test]
    fn a_failed_answer_ends_with_the_error_alone() {
        let end = events(&writer(true).error(&Fault::unavailable("beta was lost").into()));
        assert_eq!(end.len(), 1);
        assert_eq!(json(&end[0])["error"]["message"], "beta was lost");
        assert_eq!(json(&end[0])["error"]["type"], "server_error");
    }
}
