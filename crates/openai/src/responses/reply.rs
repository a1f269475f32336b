//! The events of a streamed response: <https://platform.openai.com/docs/api-reference/responses-streaming>.
//!
//! Order: `response.created`, `response.in_progress`; for each item `response.output_item.added`, its parts and deltas,
//! `response.output_item.done`; `response.completed`, `.incomplete` or `.failed`. Every event has a number.

use mesh_types::FinishReason;
use serde_json::{Value, json};

use super::object::{Response, text_part};
use crate::error::ApiError;
use crate::event::{Answer, Event, Part};
use crate::reply::Reply;
use crate::sse;

/// Writes one response.
pub(super) struct Writer {
    response: Response,
    /// What has been written so far.
    answer: Answer,
    /// Of the next event.
    number: u64,
}

impl Writer {
    pub(super) fn new(response: Response) -> Self {
        Self { response, answer: Answer::default(), number: 0 }
    }

    /// One event: its type, its number, and `fields`.
    fn emit(&mut self, kind: &str, fields: Value) -> Vec<u8> {
        let mut event = json!({"type": kind, "sequence_number": self.number});
        self.number += 1;
        if let (Value::Object(event), Value::Object(fields)) = (&mut event, fields) {
            event.extend(fields);
        }
        sse::named(kind, &event)
    }

    fn state(&mut self, kind: &str, error: Option<&ApiError>) -> Vec<u8> {
        let response = self.response.object(&self.answer, error);
        self.emit(kind, json!({ "response": response }))
    }

    /// The last item: its index, its id, and what it holds.
    fn last(&self) -> Option<(usize, String, Part)> {
        let index = self.answer.parts.len().checked_sub(1)?;
        let part = self.answer.parts.get(index)?;
        Some((index, self.response.id(index, part), part.clone()))
    }

    /// An event about the last item.
    fn about(&mut self, kind: &str, fields: Value) -> Vec<u8> {
        let Some(index) = self.answer.parts.len().checked_sub(1) else { return Vec::new() };
        let id = self.answer.parts.get(index).map(|part| self.response.id(index, part));
        let mut event = json!({"item_id": id, "output_index": index});
        if let (Value::Object(event), Value::Object(fields)) = (&mut event, fields) {
            event.extend(fields);
        }
        self.emit(kind, event)
    }

    /// Begins the last item.
    fn open(&mut self) -> Vec<u8> {
        let Some((index, _, part)) = self.last() else { return Vec::new() };
        let item = self.response.item(index, &part, false);
        let mut out = self.emit("response.output_item.added", json!({"output_index": index, "item": item}));
        let begun = match part {
            Part::Text(_) => text_part(""),
            Part::Reasoning(_) => json!({"type": "reasoning_text", "text": ""}),
            Part::Call(_) => return out,
        };
        out.extend(self.about("response.content_part.added", json!({"content_index": 0, "part": begun})));
        out
    }

    /// Ends the last item.
    fn close(&mut self) -> Vec<u8> {
        let Some((index, _, part)) = self.last() else { return Vec::new() };
        let item = self.response.item(index, &part, true);
        let mut out = match &part {
            Part::Text(text) => {
                let fields = json!({"content_index": 0, "text": text, "logprobs": []});
                let mut out = self.about("response.output_text.done", fields);
                let fields = json!({"content_index": 0, "part": text_part(text)});
                out.extend(self.about("response.content_part.done", fields));
                out
            }
            Part::Reasoning(text) => {
                let mut out = self.about("response.reasoning_text.done", json!({"content_index": 0, "text": text}));
                let part = json!({"type": "reasoning_text", "text": text});
                out.extend(self.about("response.content_part.done", json!({"content_index": 0, "part": part})));
                out
            }
            Part::Call(call) => {
                let fields = json!({"name": item["name"], "arguments": call.arguments});
                self.about("response.function_call_arguments.done", fields)
            }
        };
        out.extend(self.emit("response.output_item.done", json!({"output_index": index, "item": item})));
        out
    }
}

impl Reply for Writer {
    fn begin(&mut self, _prompt_tokens: u32) -> Vec<u8> {
        let mut out = self.state("response.created", None);
        out.extend(self.state("response.in_progress", None));
        out
    }

    fn event(&mut self, _choice: u32, event: &Event) -> Vec<u8> {
        let mut out = Vec::new();
        if matches!(event, Event::Finished(..)) {
            out.extend(self.close());
            self.answer.push(event);
            return out;
        }
        if !event.continues(self.answer.parts.last()) {
            out.extend(self.close());
        }
        if self.answer.push(event) {
            out.extend(self.open());
        }
        out.extend(match event {
            Event::Text(text) => {
                let fields = json!({"content_index": 0, "delta": text, "logprobs": []});
                self.about("response.output_text.delta", fields)
            }
            Event::Reasoning(text) => {
                self.about("response.reasoning_text.delta", json!({"content_index": 0, "delta": text}))
            }
            Event::Arguments { text, .. } => {
                self.about("response.function_call_arguments.delta", json!({ "delta": text }))
            }
            Event::Call { .. } | Event::Logprobs(_) | Event::Stop(_) | Event::Finished(..) => Vec::new(),
        });
        out
    }

    fn end(&mut self) -> Vec<u8> {
        match self.answer.reason() {
            FinishReason::Length => self.state("response.incomplete", None),
            FinishReason::Stop | FinishReason::ToolCalls => self.state("response.completed", None),
        }
    }

    fn error(&mut self, error: &ApiError) -> Vec<u8> {
        self.state("response.failed", Some(error))
    }

    fn whole(&mut self, answers: &[Answer]) -> Vec<u8> {
        let empty = Answer::default();
        self.response.object(answers.first().unwrap_or(&empty), None).to_string().into_bytes()
    }
}
