//! Every field of a chat completion request that is known, and what is done with it: the one place to change when a
//! field becomes supported.

use serde_json::Value;

/// What is done with a field.
#[derive(Clone, Copy, Debug)]
pub(super) enum Handling {
    /// Read into the canonical request.
    Read {
        /// What its value must be, for the sentence about a wrong type.
        expects: &'static str,
    },
    /// Accepted and without effect on the answer's content.
    Harmless,
    /// Would change the answer and is not supported: refused unless it says what happens anyway.
    Refused(Neutral),
    /// Has a successor, and is refused unless it is null or empty.
    Legacy {
        /// What took its place, in the words of the refusal.
        successor: &'static str,
    },
}

/// The value of a refused field that asks for nothing; null always does.
#[derive(Clone, Copy, Debug)]
pub(super) enum Neutral {
    /// Only null.
    Null,
    /// An empty array, object or string.
    Empty,
    /// This number.
    Number(f64),
    /// This truth value.
    Bool(bool),
    /// One of these strings.
    OneOf(&'static [&'static str]),
    /// `["text"]`.
    TextOnly,
}

use Handling::{Harmless, Legacy, Read, Refused};

const COUNT: &str = "a positive integer";
const FLAG: &str = "true or false";

/// Sorted by topic. Sources: <https://platform.openai.com/docs/api-reference/chat/create>, and the additions of
/// llama.cpp's server and vLLM that clients send.
#[rustfmt::skip]
const FIELDS: &[(&str, Handling)] = &[
    ("model", Read { expects: "a string" }),
    ("messages", Read { expects: "an array of messages" }),
    ("stream", Read { expects: FLAG }),
    ("stream_options", Read { expects: "an object" }),
    ("max_tokens", Read { expects: COUNT }),
    ("max_completion_tokens", Read { expects: COUNT }),
    ("temperature", Read { expects: "a number from 0 to 2" }),
    ("top_p", Read { expects: "a number from 0 to 1" }),
    ("top_k", Read { expects: "an integer; 0 keeps all tokens" }),
    ("min_p", Read { expects: "a number from 0 to 1" }),
    ("seed", Read { expects: "a 64-bit integer" }),
    ("stop", Read { expects: "a string or an array of strings" }),
    ("ignore_eos", Read { expects: FLAG }),
    ("n", Read { expects: COUNT }),
    ("tools", Read { expects: "an array of tools" }),
    ("tool_choice", Read { expects: "a string or an object" }),
    ("parallel_tool_calls", Read { expects: FLAG }),
    ("response_format", Read { expects: "an object" }),
    ("reasoning_effort", Read { expects: "a string" }),
    ("chat_template_kwargs", Read { expects: "an object" }),

    ("user", Harmless),
    ("metadata", Harmless),
    ("store", Harmless),
    ("service_tier", Harmless),
    ("safety_identifier", Harmless),
    ("prompt_cache_key", Harmless),
    ("prompt_cache_retention", Harmless),
    // A guess at the answer that may speed it up and never changes it.
    ("prediction", Harmless),
    ("cache_prompt", Harmless),
    ("id_slot", Harmless),

    ("functions", Legacy { successor: "`tools`" }),
    ("function_call", Legacy { successor: "`tool_choice` with `tools`" }),
    ("json_schema", Refused(Neutral::Null)),
    ("grammar", Refused(Neutral::Empty)),
    ("guided_json", Refused(Neutral::Null)),
    ("guided_regex", Refused(Neutral::Null)),
    ("guided_choice", Refused(Neutral::Null)),
    ("guided_grammar", Refused(Neutral::Null)),
    ("structured_outputs", Refused(Neutral::Null)),
    ("logprobs", Refused(Neutral::Bool(false))),
    ("top_logprobs", Refused(Neutral::Number(0.0))),
    ("n_probs", Refused(Neutral::Number(0.0))),
    ("logit_bias", Refused(Neutral::Empty)),
    ("presence_penalty", Refused(Neutral::Number(0.0))),
    ("frequency_penalty", Refused(Neutral::Number(0.0))),
    ("repetition_penalty", Refused(Neutral::Number(1.0))),
    ("repeat_penalty", Refused(Neutral::Number(1.0))),
    ("typical_p", Refused(Neutral::Number(1.0))),
    ("mirostat", Refused(Neutral::Number(0.0))),
    ("min_tokens", Refused(Neutral::Number(0.0))),
    ("stop_token_ids", Refused(Neutral::Empty)),
    ("samplers", Refused(Neutral::Empty)),
    ("best_of", Refused(Neutral::Number(1.0))),
    ("echo", Refused(Neutral::Bool(false))),
    ("modalities", Refused(Neutral::TextOnly)),
    ("audio", Refused(Neutral::Null)),
    ("web_search_options", Refused(Neutral::Null)),
    ("verbosity", Refused(Neutral::OneOf(&["medium"]))),
    ("chat_template", Refused(Neutral::Null)),
    ("add_generation_prompt", Refused(Neutral::Bool(true))),
    ("continue_final_message", Refused(Neutral::Bool(false))),
];

/// The same for the fields of one message.
#[rustfmt::skip]
const MESSAGE_FIELDS: &[(&str, Handling)] = &[
    ("role", Read { expects: "a string" }),
    ("content", Read { expects: "a string or an array of text parts" }),
    ("name", Read { expects: "a string" }),
    ("reasoning_content", Read { expects: "a string" }),
    ("tool_calls", Read { expects: "an array of tool calls" }),
    ("tool_call_id", Read { expects: "a string" }),

    ("refusal", Harmless),
    ("annotations", Harmless),

    ("function_call", Legacy { successor: "`tool_calls`" }),
    ("audio", Refused(Neutral::Null)),
];

/// What is done with the request's field `name`; `None`: it is not known.
pub(super) fn handling(name: &str) -> Option<Handling> {
    find(FIELDS, name)
}

/// What is done with a message's field `name`; `None`: it is not known.
pub(super) fn message_handling(name: &str) -> Option<Handling> {
    find(MESSAGE_FIELDS, name)
}

fn find(table: &[(&str, Handling)], name: &str) -> Option<Handling> {
    table.iter().find(|row| row.0 == name).map(|row| row.1)
}

impl Neutral {
    /// Whether `value` asks for nothing.
    pub(super) fn covers(self, value: &Value) -> bool {
        match (self, value) {
            (_, Value::Null) => true,
            (Self::Empty, Value::Array(items)) => items.is_empty(),
            (Self::Empty, Value::Object(map)) => map.is_empty(),
            (Self::Empty, Value::String(text)) => text.is_empty(),
            (Self::Number(neutral), Value::Number(number)) => number.as_f64() == Some(neutral),
            (Self::Bool(neutral), Value::Bool(flag)) => *flag == neutral,
            (Self::OneOf(neutral), Value::String(text)) => neutral.contains(&text.as_str()),
            (Self::TextOnly, Value::Array(items)) => items.iter().all(|item| item.as_str() == Some("text")),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_field_is_listed_twice() {
        for table in [FIELDS, MESSAGE_FIELDS] {
            let mut names: Vec<_> = table.iter().map(|row| row.0).collect();
            names.sort_unstable();
            let before = names.len();
            names.dedup();
            assert_eq!(names.len(), before);
        }
    }
}
