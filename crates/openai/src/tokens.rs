//! `/tokenize` and `/detokenize` as llama.cpp's server and vLLM have them.

use mesh_types::chat::{RawInput, RawPrompt, SamplingOverrides};
use mesh_types::{ChatRequest, Fault, ModelId, ResponseFormat, ToolChoice};
use serde_json::{Map, Value, json};

use crate::completions;
use crate::fields::{DETOKENIZE, TOKENIZE};
use crate::json::{self, Object};
use crate::reply::Context;
use crate::request;

/// A request for the tokens of a text or a conversation.
#[derive(Clone, Debug, PartialEq)]
pub struct Tokenize {
    /// What is to be cut. The model is empty where the client named none.
    pub chat: ChatRequest,
    /// Each token with its text.
    pub with_pieces: bool,
    /// Texts of tokens in a list of their own.
    pub token_strs: bool,
}

impl Tokenize {
    /// Reads the body of `POST /tokenize`.
    ///
    /// # Errors
    /// An invalid request.
    pub fn parse(body: &[u8], context: &Context) -> Result<Self, Fault> {
        let mut map = json::body(body)?;
        TOKENIZE.sort(&map, "", &mut Vec::new())?;
        let request = Object::root(&map);
        let with_pieces = request.flag("with_pieces")?.unwrap_or(false);
        let token_strs = request.flag("return_token_strs")?.unwrap_or(false);
        let model = ModelId::new(request.text("model")?.unwrap_or_default());
        let chat = match (request.text("content")?, request.text("prompt")?, request.get("messages")) {
            (None, None, None) => return Err(request.missing("content")),
            (None, None, Some(_)) => {
                // The conversation of a chat completion and nothing else of it.
                map.retain(|name, _| ["messages", "tools", "chat_template_kwargs"].contains(&name.as_str()));
                map.insert("model".to_owned(), json!("m"));
                let chat = request::read(map, context.request.clone())?.chat;
                ChatRequest { model, ..chat }
            }
            (content, prompt, _) => {
                let add_special = request.flag("add_special")?;
                let add_special = request.flag("add_special_tokens")?.or(add_special).unwrap_or(content.is_none());
                let parse_special = request.flag("parse_special")?.unwrap_or(true);
                let text = content.or(prompt).unwrap_or_default().to_owned();
                raw(context, model, RawInput::Text { text, add_special, parse_special })
            }
        };
        Ok(Self { chat, with_pieces, token_strs })
    }

    /// The answer. `pieces` are the tokens' bytes, where they were asked for.
    pub fn reply(&self, tokens: &[i32], pieces: &[Vec<u8>], context: u32) -> Vec<u8> {
        let listed: Vec<Value> = match self.with_pieces {
            true => {
                tokens.iter().zip(pieces).map(|(id, piece)| json!({"id": id, "piece": text_or_bytes(piece)})).collect()
            }
            false => tokens.iter().map(|id| json!(id)).collect(),
        };
        let mut reply = json!({"count": tokens.len(), "max_model_len": context, "tokens": listed});
        if self.token_strs {
            let texts: Vec<_> = pieces.iter().map(|piece| String::from_utf8_lossy(piece)).collect();
            reply["token_strs"] = json!(texts);
        }
        reply.to_string().into_bytes()
    }
}

fn raw(context: &Context, model: ModelId, input: RawInput) -> ChatRequest {
    ChatRequest {
        request: context.request.clone(),
        model,
        messages: Vec::new(),
        raw: Some(RawPrompt { input, echo: false }),
        max_tokens: None,
        sampling: SamplingOverrides::default(),
        logit_bias: Vec::new(),
        logprobs: None,
        stop: Vec::new(),
        tools: Vec::new(),
        tool_choice: ToolChoice::None,
        parallel_tool_calls: true,
        response_format: ResponseFormat::Text,
        grammar: None,
        conversation: None,
        template_kwargs: Map::new(),
    }
}

/// As llama.cpp's server shows pieces: a text, or where that is none, its bytes.
fn text_or_bytes(piece: &[u8]) -> Value {
    std::str::from_utf8(piece).map_or_else(|_| json!(piece), |text| json!(text))
}

/// A request for the text of tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Detokenize {
    /// The model; empty where the client named none.
    pub model: ModelId,
    /// The tokens.
    pub tokens: Vec<i32>,
}

impl Detokenize {
    /// Reads the body of `POST /detokenize`.
    ///
    /// # Errors
    /// An invalid request.
    pub fn parse(body: &[u8]) -> Result<Self, Fault> {
        let map = json::body(body)?;
        DETOKENIZE.sort(&map, "", &mut Vec::new())?;
        let request = Object::root(&map);
        let items = request.list("tokens")?.ok_or_else(|| request.missing("tokens"))?;
        let tokens = match completions::tokens(items, "tokens")? {
            RawInput::Tokens(tokens) => tokens.into_iter().map(|token| token.0).collect(),
            RawInput::Text { .. } => Vec::new(),
        };
        Ok(Self { model: ModelId::new(request.text("model")?.unwrap_or_default()), tokens })
    }

    /// The answer, under the names that llama.cpp's server and vLLM have for it.
    pub fn reply(text: &str) -> Vec<u8> {
        json!({"content": text, "prompt": text}).to_string().into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::context;

    fn tokenize(body: Value) -> Tokenize {
        Tokenize::parse(body.to_string().as_bytes(), &context()).unwrap()
    }

    fn text(body: Value) -> (String, bool, bool) {
        match tokenize(body).chat.raw.unwrap().input {
            RawInput::Text { text, add_special, parse_special } => (text, add_special, parse_special),
            RawInput::Tokens(_) => panic!("a text"),
        }
    }

    #[test]
    fn both_servers_requests_are_read_with_their_defaults() {
        assert_eq!(text(json!({"content": "a"})), ("a".into(), false, true));
        assert_eq!(
            text(json!({"content": "a", "add_special": true, "parse_special": false})),
            ("a".into(), true, false)
        );
        assert_eq!(text(json!({"model": "m", "prompt": "a"})), ("a".into(), true, true));
        assert_eq!(text(json!({"prompt": "a", "add_special_tokens": false})), ("a".into(), false, true));
        let chat = tokenize(json!({"model": "x", "messages": [{"role": "user", "content": "hi"}]})).chat;
        assert_eq!((chat.model.as_str(), chat.messages.len(), chat.raw), ("x", 1, None));
        assert_eq!(tokenize(json!({"content": ""})).chat.model.as_str(), "");
    }

    #[test]
    fn what_is_wrong_is_named() {
        let wrong = |body: Value| Tokenize::parse(body.to_string().as_bytes(), &context()).unwrap_err().param.unwrap();
        assert_eq!(wrong(json!({})), "content");
        assert_eq!(wrong(json!({"content": 1})), "content");
        assert_eq!(wrong(json!({"messages": []})), "messages");
        let wrong = |body: Value| Detokenize::parse(body.to_string().as_bytes()).unwrap_err().param.unwrap();
        assert_eq!(wrong(json!({})), "tokens");
        assert_eq!(wrong(json!({"tokens": [1, "a"]})), "tokens[1]");
    }

    #[test]
    fn pieces_that_are_no_text_are_bytes() {
        let request = tokenize(json!({"content": "é", "with_pieces": true, "return_token_strs": true}));
        let reply = request.reply(&[1, 2], &[b"a".to_vec(), vec![0xc3]], 9);
        let reply: Value = serde_json::from_slice(&reply).unwrap();
        let expected = json!({
            "count": 2, "max_model_len": 9, "tokens": [{"id": 1, "piece": "a"}, {"id": 2, "piece": [195]}],
            "token_strs": ["a", "\u{fffd}"],
        });
        assert_eq!(reply, expected);
    }
}
