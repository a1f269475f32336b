//! What the tests of all dialects share.

use std::sync::Arc;

use mesh_types::RequestId;
use serde_json::Value;

use crate::reply::Context;
use crate::seal::Seal;

/// Seals with a prefix.
pub(crate) struct Prefix;

impl Seal for Prefix {
    fn seal(&self, text: &str) -> String {
        format!("sealed:{text}")
    }

    fn open(&self, sealed: &str) -> Option<String> {
        sealed.strip_prefix("sealed:").map(str::to_owned)
    }
}

pub(crate) fn context() -> Context {
    Context { request: RequestId::new("r"), unique: "1".into(), created: 7, seal: Arc::new(Prefix) }
}

/// The events of a stream: the name, empty where there is none, and the data.
pub(crate) fn events(bytes: &[u8]) -> Vec<(String, Value)> {
    let text = std::str::from_utf8(bytes).unwrap();
    assert!(text.is_empty() || text.ends_with("\n\n"), "{text}");
    let event = |event: &str| {
        let (name, data) = match event.split_once('\n') {
            Some((name, data)) => (name.strip_prefix("event: ").unwrap(), data),
            None => ("", event),
        };
        (name.to_owned(), serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap())
    };
    text.split_terminator("\n\n").map(event).collect()
}
