//! What of a request has depth, as it is written, typed: only the fields that are read, with errors that name their
//! place. `tools` and `tool_choice` are read by `tools`, from JSON.

use std::fmt;

use serde::Deserialize as Derive;
use serde::de::{self, Deserialize, Deserializer, SeqAccess, Visitor};
use serde_json::{Map, Value};

#[derive(Derive)]
pub(crate) struct RawRequest {
    pub(crate) messages: Option<Vec<RawMessage>>,
    pub(crate) response_format: Option<Map<String, Value>>,
}

#[derive(Derive)]
pub(crate) struct RawMessage {
    pub(crate) role: Option<String>,
    pub(crate) content: Option<RawContent>,
    pub(crate) name: Option<String>,
    pub(crate) reasoning_content: Option<String>,
    pub(crate) tool_calls: Option<Vec<RawToolCall>>,
    pub(crate) tool_call_id: Option<String>,
}

#[derive(Derive)]
pub(crate) struct RawToolCall {
    pub(crate) id: Option<String>,
    #[serde(rename = "type")]
    pub(crate) kind: Option<String>,
    pub(crate) function: Option<RawFunction>,
}

#[derive(Derive)]
pub(crate) struct RawFunction {
    pub(crate) name: Option<String>,
    pub(crate) arguments: Option<String>,
}

/// A string, or an array of parts.
pub(crate) enum RawContent {
    Text(String),
    Parts(Vec<RawPart>),
}

#[derive(Derive)]
pub(crate) struct RawPart {
    #[serde(rename = "type")]
    pub(crate) kind: Option<String>,
    pub(crate) text: Option<String>,
    pub(crate) refusal: Option<String>,
}

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
