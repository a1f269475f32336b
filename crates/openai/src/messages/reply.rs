//! Anthropic's answers: <https://docs.anthropic.com/en/docs/build-with-claude/streaming>.
//!
//! Order of a stream: `message_start`, `ping`; for each block `content_block_start`, its deltas, `content_block_stop`;
//! `message_delta` with the reason and the usage, `message_stop`. A failed one ends with `error`.

use std::sync::Arc;

use mesh_types::{FinishReason, ToolCall, Usage};
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::event::{Answer, Event, Part};
use crate::reply::Reply;
use crate::response::Head;
use crate::seal::Seal;
use crate::sse;

/// Writes one message.
pub(super) struct Writer {
    head: Head,
    seal: Arc<dyn Seal>,
    /// What has been written so far.
    answer: Answer,
}

impl Writer {
    pub(super) fn new(head: Head, seal: Arc<dyn Seal>) -> Self {
        Self { head, seal, answer: Answer::default() }
    }

    fn message(&self, answer: &Answer, usage: &Value) -> Value {
        let content: Vec<_> = answer.parts.iter().map(|part| self.block(part)).collect();
        json!({
            "id": self.head.id, "type": "message", "role": "assistant", "model": self.head.model, "content": content,
            "stop_reason": answer.end.is_some().then(|| stop_reason(answer)), "stop_sequence": answer.stop,
            "usage": usage,
        })
    }

    /// A part as a whole block.
    fn block(&self, part: &Part) -> Value {
        match part {
            Part::Text(text) => json!({"type": "text", "text": text}),
            Part::Reasoning(text) => json!({"type": "thinking", "thinking": text, "signature": self.seal.seal(text)}),
            Part::Call(call) => json!({"type": "tool_use", "id": call.id, "name": call.name, "input": input(call)}),
        }
    }

    fn open(&self) -> usize {
        self.answer.parts.len().saturating_sub(1)
    }

    fn delta(&self, delta: &Value) -> Vec<u8> {
        let event = json!({"type": "content_block_delta", "index": self.open(), "delta": delta});
        sse::named("content_block_delta", &event)
    }

    /// Ends the block that is open.
    fn close(&self) -> Vec<u8> {
        let Some(part) = self.answer.parts.last() else { return Vec::new() };
        let mut out = Vec::new();
        if let Part::Reasoning(text) = part {
            out.extend(self.delta(&json!({"type": "signature_delta", "signature": self.seal.seal(text)})));
        }
        let stop = json!({"type": "content_block_stop", "index": self.open()});
        out.extend(sse::named("content_block_stop", &stop));
        out
    }

    fn start(&self) -> Vec<u8> {
        let block = match self.answer.parts.last() {
            Some(Part::Reasoning(_)) => json!({"type": "thinking", "thinking": "", "signature": ""}),
            Some(Part::Call(call)) => json!({"type": "tool_use", "id": call.id, "name": call.name, "input": {}}),
            Some(Part::Text(_)) | None => json!({"type": "text", "text": ""}),
        };
        let event = json!({"type": "content_block_start", "index": self.open(), "content_block": block});
        sse::named("content_block_start", &event)
    }
}

impl Reply for Writer {
    fn begin(&mut self, prompt_tokens: u32) -> Vec<u8> {
        let usage = usage(Usage { prompt_tokens, ..Usage::default() });
        let message = self.message(&Answer::default(), &usage);
        let mut out = sse::named("message_start", &json!({"type": "message_start", "message": message}));
        out.extend_from_slice(PING);
        out
    }

    fn event(&mut self, _choice: u32, event: &Event) -> Vec<u8> {
        let mut out = Vec::new();
        if matches!(event, Event::Finished(..)) {
            out.extend(self.close());
            self.answer.push(event);
            return out;
        }
        // The block before is closed while it still is the last.
        if !event.continues(self.answer.parts.last()) {
            out.extend(self.close());
        }
        if self.answer.push(event) {
            out.extend(self.start());
        }
        match event {
            Event::Text(text) => out.extend(self.delta(&json!({"type": "text_delta", "text": text}))),
            Event::Reasoning(text) => out.extend(self.delta(&json!({"type": "thinking_delta", "thinking": text}))),
            Event::Arguments { text, .. } => {
                out.extend(self.delta(&json!({"type": "input_json_delta", "partial_json": text})));
            }
            Event::Call { .. } | Event::Logprobs(_) | Event::Stop(_) | Event::Finished(..) => {}
        }
        out
    }

    fn end(&mut self) -> Vec<u8> {
        let delta = json!({"stop_reason": stop_reason(&self.answer), "stop_sequence": self.answer.stop});
        let total = usage(self.answer.end.map(|end| end.1).unwrap_or_default());
        let event = json!({"type": "message_delta", "delta": delta, "usage": total});
        let mut out = sse::named("message_delta", &event);
        out.extend(sse::named("message_stop", &json!({"type": "message_stop"})));
        out
    }

    fn error(&mut self, error: &ApiError) -> Vec<u8> {
        sse::named("error", &error.anthropic(None))
    }

    fn keep_alive(&self) -> &'static [u8] {
        PING
    }

    fn whole(&mut self, answers: &[Answer]) -> Vec<u8> {
        let Some(answer) = answers.first() else { return Vec::new() };
        let usage = usage(answer.end.map(|end| end.1).unwrap_or_default());
        self.message(answer, &usage).to_string().into_bytes()
    }
}

const PING: &[u8] = b"event: ping\ndata: {\"type\":\"ping\"}\n\n";

fn stop_reason(answer: &Answer) -> &'static str {
    match answer.reason() {
        FinishReason::Stop if answer.stop.is_some() => "stop_sequence",
        FinishReason::Stop => "end_turn",
        FinishReason::Length => "max_tokens",
        FinishReason::ToolCalls => "tool_use",
    }
}

/// Tokens that were read from a cache do not count as input tokens here.
fn usage(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.prompt_tokens.saturating_sub(usage.cached_tokens), "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens, "output_tokens": usage.completion_tokens,
    })
}

/// The arguments of a call as the object that they have to be here. What a model wrote that is none is kept under a
/// name.
fn input(call: &ToolCall) -> Value {
    match serde_json::from_str(&call.arguments) {
        Ok(object @ Value::Object(_)) => object,
        Ok(value) => json!({ "arguments": value }),
        Err(_) if call.arguments.trim().is_empty() => json!({}),
        Err(_) => json!({ "arguments": call.arguments }),
    }
}
