//! Server-sent events: the framing of a streamed answer (<https://html.spec.whatwg.org/multipage/server-sent-events.html>).

use serde::Serialize;

/// The last event of an answer that ended as it should.
pub const DONE: &[u8] = b"data: [DONE]\n\n";

/// A comment, which clients skip: it keeps the connection from looking dead while a long prompt is read.
pub const KEEP_ALIVE: &[u8] = b": keep-alive\n\n";

/// `event: NAME`, then `data: {…}`.
pub fn named(name: &str, value: &impl Serialize) -> Vec<u8> {
    let mut out = format!("event: {name}\n").into_bytes();
    out.extend(event(value));
    out
}

/// `data: {…}\n\n`. JSON text holds no raw line breaks, so one line is always enough.
pub fn event(value: &impl Serialize) -> Vec<u8> {
    let mut out = b"data: ".to_vec();
    // The types of this crate have string keys only: serialising them cannot fail.
    if serde_json::to_writer(&mut out, value).is_err() {
        out.truncate(b"data: ".len());
        out.extend_from_slice(
            br#"{"error":{"message":"internal error","type":"server_error","param":null,"code":null}}"#,
        );
    }
    out.extend_from_slice(b"\n\n");
    out
}

#[cfg(test)]
mod tests {
    #[test]
    fn an_event_is_one_line() {
        let event = super::event(&serde_json::json!({"text": "a\nb\r\n\u{2028}"}));
        let text = String::from_utf8(event).unwrap();
        assert!(text.starts_with("data: {") && text.ends_with("}\n\n"));
        assert_eq!(text.trim_end().lines().count(), 1);
    }
}
