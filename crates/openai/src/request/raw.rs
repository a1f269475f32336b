//! The request as it is written, typed: only the fields that are read, with errors that name their place. `tools` and
//! `tool_choice` are read by `tools`, from JSON.

use std::fmt;

use serde::Deserialize as Derive;
use serde::de::{self, Deserialize, Deserializer, SeqAccess, Visitor};
use serde_json::{Map, Value};

#[derive(Derive)]
pub(super) struct RawRequest {
    pub(super) model: Option<String>,
    pub(super) messages: Option<Vec<RawMessage>>,
    pub(super) stream: Option<bool>,
    pub(super) stream_options: Option<RawStreamOptions>,
    pub(super) max_tokens: Option<i64>,
    pub(super) max_completion_tokens: Option<i64>,
    pub(super) temperature: Option<f64>,
    pub(super) top_p: Option<f64>,
    pub(super) top_k: Option<i64>,
    pub(super) min_p: Option<f64>,
    pub(super) seed: Option<i64>,
    pub(super) stop: Option<OneOrMany>,
    pub(super) ignore_eos: Option<bool>,
    pub(super) n: Option<i64>,
    pub(super) parallel_tool_calls: Option<bool>,
    pub(super) response_format: Option<Map<String, Value>>,
    pub(super) reasoning_effort: Option<String>,
    pub(super) chat_template_kwargs: Option<Map<String, Value>>,
    /// Routing alone reads it: a value of another type is no mistake.
    pub(super) prompt_cache_key: Option<Value>,
}

#[derive(Derive)]
pub(super) struct RawStreamOptions {
    pub(super) include_usage: Option<bool>,
}

#[derive(Derive)]
pub(super) struct RawMessage {
    pub(super) role: Option<String>,
    pub(super) content: Option<RawContent>,
    pub(super) name: Option<String>,
    pub(super) reasoning_content: Option<String>,
    pub(super) tool_calls: Option<Vec<RawToolCall>>,
    pub(super) tool_call_id: Option<String>,
}

#[derive(Derive)]
pub(super) struct RawToolCall {
    pub(super) id: Option<String>,
    #[serde(rename = "type")]
    pub(super) kind: Option<String>,
    pub(super) function: Option<RawFunction>,
}

#[derive(Derive)]
pub(super) struct RawFunction {
    pub(super) name: Option<String>,
    pub(super) arguments: Option<String>,
}

/// A string, or an array of parts.
pub(super) enum RawContent {
    Text(String),
    Parts(Vec<RawPart>),
}

#[derive(Derive)]
pub(super) struct RawPart {
    #[serde(rename = "type")]
    pub(super) kind: Option<String>,
    pub(super) text: Option<String>,
    pub(super) refusal: Option<String>,
}

/// A string, or an array of strings.
pub(super) struct OneOrMany(pub(super) Vec<String>);

impl<'de> Deserialize<'de> for RawContent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Content;

        impl<'de> Visitor<'de> for Content {
            type Value = RawContent;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or an array of text parts")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<RawContent, E> {
                Ok(RawContent::Text(text.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<RawContent, A::Error> {
                let mut parts = Vec::new();
                while let Some(part) = seq.next_element()? {
                    parts.push(part);
                }
                Ok(RawContent::Parts(parts))
            }
        }

        deserializer.deserialize_any(Content)
    }
}

impl<'de> Deserialize<'de> for OneOrMany {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Strings;

        impl<'de> Visitor<'de> for Strings {
            type Value = OneOrMany;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or an array of strings")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<OneOrMany, E> {
                Ok(OneOrMany(vec![text.to_owned()]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<OneOrMany, A::Error> {
                let mut texts = Vec::new();
                while let Some(text) = seq.next_element()? {
                    texts.push(text);
                }
                Ok(OneOrMany(texts))
            }
        }

        deserializer.deserialize_any(Strings)
    }
}
