//! Conversations and what a model answers, drawn; and each conversation as a request of every dialect.

use std::fmt::Write as _;

use mesh_tests::models::SMOLLM2;
use serde_json::{Value, json};

/// Draws from a sequence that a seed fixes (Knuth's MMIX generator).
pub(crate) struct Draws(pub(crate) u64);

impl Draws {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    pub(crate) fn text(&mut self) -> String {
        const WORDS: [&str; 12] = [
            "the",
            "naïve",
            "{\"a\": 1}",
            "🌍",
            "line\nbreak",
            "TOOL",
            "<b>",
            "END",
            "`code`",
            "東京",
            "\\n",
            "x = 1;",
        ];
        let count = 1 + self.below(8);
        (0..count).map(|_| WORDS[self.below(WORDS.len() as u64) as usize]).collect::<Vec<_>>().join(" ")
    }

    /// What a model might write.
    pub(crate) fn answer(&mut self) -> String {
        let mut answer = String::new();
        if self.below(3) == 0 {
            let _ = write!(answer, "<think>\n{}\n</think>\n\n", self.text());
        }
        if self.below(5) > 0 {
            answer += &self.text();
        }
        for _ in 0..self.below(3) {
            let arguments = json!({"path": self.text(), "n": self.below(9)});
            let _ = write!(answer, "\nTOOL_CALL {}", json!({"name": "read", "arguments": arguments}));
        }
        answer
    }
}

/// A conversation, and how a request for its next turn bounds the answer.
pub(crate) struct Case {
    /// Stands in the last question, and names the rule that answers.
    pub(crate) marker: String,
    pub(crate) max_tokens: u64,
    pub(crate) stop: Option<&'static str>,
    pub(crate) tools: bool,
    /// Turns before the last question.
    before: Option<Before>,
}

/// A question, what was said and called, and what the calls gave.
struct Before {
    said: String,
    /// Arguments and result.
    calls: Vec<(Value, String)>,
}

impl Case {
    pub(crate) fn draw(marker: String, draws: &mut Draws) -> Self {
        let max_tokens = if draws.below(4) == 0 { 1 + draws.below(12) } else { 256 };
        let stop = (draws.below(4) == 0).then_some("END");
        let tools = draws.below(4) > 0;
        let before = (draws.below(2) == 0).then(|| {
            let count = if tools { draws.below(3) } else { 0 };
            let calls =
                (0..count).map(|_| (json!({"path": draws.text(), "n": draws.below(9)}), draws.text())).collect();
            Before { said: draws.text(), calls }
        });
        Self { marker, max_tokens, stop, tools, before }
    }

    /// The conversation, as chat completions have it.
    pub(crate) fn conversation(&self) -> Value {
        let mut messages = vec![json!({"role": "system", "content": "Be brief."})];
        if let Some(Before { said, calls }) = &self.before {
            let mut turn = json!({"role": "assistant", "content": said});
            if !calls.is_empty() {
                let call = |(index, (arguments, _)): (usize, &(Value, String))| {
                    let function = json!({"name": "read", "arguments": arguments.to_string()});
                    json!({"id": format!("call_{index}"), "type": "function", "function": function})
                };
                turn["tool_calls"] = calls.iter().enumerate().map(call).collect();
            }
            messages.extend([json!({"role": "user", "content": "Before."}), turn]);
            let result = |(index, (_, result)): (usize, &(Value, String))| json!({"role": "tool", "tool_call_id": format!("call_{index}"), "content": result});
            messages.extend(calls.iter().enumerate().map(result));
        }
        messages.push(json!({"role": "user", "content": self.marker}));
        json!(messages)
    }

    pub(crate) fn tools(&self) -> Value {
        let function = json!({"name": "read", "description": "Reads.", "parameters": schema()});
        let tool = json!({"type": "function", "function": function});
        if self.tools { json!([tool]) } else { Value::Null }
    }

    pub(crate) fn chat(&self) -> Value {
        json!({
            "model": SMOLLM2, "max_tokens": self.max_tokens, "stop": self.stop, "messages": self.conversation(),
            "tools": self.tools(),
        })
    }

    pub(crate) fn responses(&self) -> Value {
        let mut input = Vec::new();
        if let Some(Before { said, calls }) = &self.before {
            input.push(json!({"role": "user", "content": "Before."}));
            let content = json!([{"type": "output_text", "text": said}]);
            input.push(json!({"type": "message", "role": "assistant", "content": content}));
            for (index, (arguments, _)) in calls.iter().enumerate() {
                let (id, arguments) = (format!("call_{index}"), arguments.to_string());
                input.push(json!({"type": "function_call", "call_id": id, "name": "read", "arguments": arguments}));
            }
            for (index, (_, result)) in calls.iter().enumerate() {
                let id = format!("call_{index}");
                input.push(json!({"type": "function_call_output", "call_id": id, "output": result}));
            }
        }
        input.push(json!({"role": "user", "content": [{"type": "input_text", "text": self.marker}]}));
        let tool = json!({"type": "function", "name": "read", "description": "Reads.", "parameters": schema()});
        json!({
            "model": SMOLLM2, "max_output_tokens": self.max_tokens, "stop": self.stop, "instructions": "Be brief.",
            "input": input, "tools": if self.tools { json!([tool]) } else { Value::Null },
        })
    }

    pub(crate) fn messages(&self) -> Value {
        let mut messages = Vec::new();
        let mut last = Vec::new();
        if let Some(Before { said, calls }) = &self.before {
            messages.push(json!({"role": "user", "content": "Before."}));
            let mut turn = vec![json!({"type": "text", "text": said})];
            for (index, (arguments, result)) in calls.iter().enumerate() {
                let id = format!("call_{index}");
                turn.push(json!({"type": "tool_use", "id": id, "name": "read", "input": arguments}));
                last.push(json!({"type": "tool_result", "tool_use_id": id, "content": result}));
            }
            messages.push(json!({"role": "assistant", "content": turn}));
        }
        last.push(json!({"type": "text", "text": self.marker}));
        messages.push(json!({"role": "user", "content": last}));
        let tool = json!({"name": "read", "description": "Reads.", "input_schema": schema()});
        json!({
            "model": SMOLLM2, "max_tokens": self.max_tokens, "stop_sequences": self.stop.map(|stop| [stop]),
            "system": "Be brief.", "messages": messages, "tools": if self.tools { json!([tool]) } else { Value::Null },
        })
    }
}

fn schema() -> Value {
    json!({"type": "object", "properties": {"path": {"type": "string"}, "n": {"type": "integer"}}})
}
