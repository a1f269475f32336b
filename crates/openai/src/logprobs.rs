//! Log probabilities in the shapes of chat completions and of completions.

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::event::TokenLogprob;

/// What stands for a logarithm that is not finite, which JSON has no word for.
const LOWEST: f32 = -9999.0;

/// `logprobs` of a choice of a chat completion, or of one of its chunks.
#[derive(Debug, Serialize)]
pub(crate) struct ChatLogprobs {
    content: Vec<Value>,
    refusal: Option<()>,
}

impl ChatLogprobs {
    /// `None` where there are none.
    pub(crate) fn of(tokens: &[TokenLogprob]) -> Option<Self> {
        let content: Vec<_> = tokens.iter().map(chat_token).collect();
        (!content.is_empty()).then_some(Self { content, refusal: None })
    }
}

fn chat_token(token: &TokenLogprob) -> Value {
    let entry = |piece: &[u8], logprob: f32| {
        let (token, logprob) = (String::from_utf8_lossy(piece), finite(logprob));
        json!({"token": token, "logprob": logprob, "bytes": piece})
    };
    // Only what was drawn is shown here: something stands before it.
    let mut shown = entry(&token.piece, token.logprob.unwrap_or_default());
    shown["top_logprobs"] = token.top.iter().map(|(piece, logprob)| entry(piece, *logprob)).collect();
    shown
}

/// `logprobs` of a choice of a completion, or of one of its chunks, whose text begins `offset` characters into the
/// whole. Gives the offset after it.
pub(crate) fn completion(tokens: &[TokenLogprob], mut offset: usize) -> (Option<Value>, usize) {
    if tokens.is_empty() {
        return (None, offset);
    }
    let text = |piece: &[u8]| String::from_utf8_lossy(piece).into_owned();
    let mut offsets = Vec::with_capacity(tokens.len());
    for token in tokens {
        offsets.push(offset);
        offset += text(&token.piece).chars().count();
    }
    let top = |token: &TokenLogprob| -> Option<Map<String, Value>> {
        token.logprob?;
        Some(token.top.iter().map(|(piece, logprob)| (text(piece), json!(finite(*logprob)))).collect())
    };
    let logprobs = json!({
        "tokens": tokens.iter().map(|token| text(&token.piece)).collect::<Vec<_>>(),
        "token_logprobs": tokens.iter().map(|token| token.logprob.map(finite)).collect::<Vec<_>>(),
        "top_logprobs": tokens.iter().map(top).collect::<Vec<_>>(),
        "text_offset": offsets,
    });
    (Some(logprobs), offset)
}

fn finite(logprob: f32) -> f32 {
    if logprob.is_finite() { logprob } else { LOWEST }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens() -> Vec<TokenLogprob> {
        let top = vec![(b"a".to_vec(), -0.5), (vec![0xc3], f32::NEG_INFINITY)];
        vec![
            TokenLogprob { piece: "aé".into(), logprob: Some(-0.5), top },
            TokenLogprob { piece: vec![0xc3], logprob: Some(-2.0), top: Vec::new() },
        ]
    }

    #[test]
    fn both_shapes_say_the_same() {
        let chat = serde_json::to_value(ChatLogprobs::of(&tokens())).unwrap();
        let second = json!({"token": "\u{fffd}", "logprob": -2.0, "bytes": [195], "top_logprobs": []});
        assert_eq!(chat["content"][1], second);
        assert_eq!(chat["content"][0]["bytes"], json!([97, 195, 169]));
        assert_eq!(chat["content"][0]["top_logprobs"][1]["logprob"], -9999.0);
        assert!(chat["refusal"].is_null());
        let (completion, offset) = completion(&tokens(), 3);
        let expected = json!({
            "tokens": ["aé", "\u{fffd}"], "token_logprobs": [-0.5, -2.0],
            "top_logprobs": [{"a": -0.5, "\u{fffd}": -9999.0}, {}], "text_offset": [3, 5],
        });
        assert_eq!((completion, offset), (Some(expected), 6));
        assert!(ChatLogprobs::of(&[]).is_none());
    }

    #[test]
    fn the_first_token_of_a_prompt_has_no_probability() {
        let first = TokenLogprob { piece: b"a".to_vec(), ..TokenLogprob::default() };
        let (shown, _) = completion(&[first, tokens().remove(1)], 0);
        let expected = json!({
            "tokens": ["a", "\u{fffd}"], "token_logprobs": [null, -2.0], "top_logprobs": [null, {}],
            "text_offset": [0, 1],
        });
        assert_eq!(shown, Some(expected));
    }
}
