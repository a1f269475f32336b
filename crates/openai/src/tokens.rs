//! `/tokenize` and `/detokenize` as llama.cpp's server and vLLM have them.

use mesh_types::chat::{RawInput, RawPrompt, SamplingOverrides};
use mesh_types::{ChatRequest, Fault, ModelId, ResponseFormat, ToolChoice};
use serde::{Serialize, Serializer};
use serde_json::{Map, json};

use crate::completions;
use crate::fields::{DETOKENIZE, TOKENIZE};
use crate::ignored::Ignored;
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
    /// Paths of fields that have no effect.
    pub ignored: Vec<String>,
}

impl Tokenize {
    /// Reads the body of `POST /tokenize`.
    ///
    /// # Errors
    /// An invalid request.
    pub fn parse(body: &[u8], context: &Context) -> Result<Self, Fault> {
        let mut map = json::body(body)?;
        let mut ignored = Ignored::default();
        TOKENIZE.sort(&map, "", &mut ignored)?;
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
        Ok(Self { chat, with_pieces, token_strs, ignored: ignored.into() })
    }

    /// The answer. `pieces` are the tokens' bytes, where they were asked for.
    pub fn reply(&self, tokens: &[i32], pieces: &[Vec<u8>], context: u32) -> Vec<u8> {
        let listed = if self.with_pieces { Listed::WithPieces(tokens, pieces) } else { Listed::Ids(tokens) };
        let token_strs = self.token_strs.then_some(Texts(pieces));
        let reply = Cut { count: tokens.len(), max_model_len: context, tokens: listed, token_strs };
        // Struct fields, numbers and strings only: serialising them cannot fail.
        serde_json::to_vec(&reply).unwrap_or_default()
    }
}

/// The answer. A text of megabytes has millions of tokens: they are written from where they are.
#[derive(Serialize)]
struct Cut<'a> {
    count: usize,
    max_model_len: u32,
    tokens: Listed<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_strs: Option<Texts<'a>>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Listed<'a> {
    Ids(&'a [i32]),
    #[serde(serialize_with = "with_pieces")]
    WithPieces(&'a [i32], &'a [Vec<u8>]),
}

#[derive(Serialize)]
struct Token<'a> {
    id: i32,
    piece: Piece<'a>,
}

/// As llama.cpp's server shows pieces: a text, or where that is none, its bytes.
#[derive(Serialize)]
#[serde(untagged)]
enum Piece<'a> {
    Text(&'a str),
    Bytes(&'a [u8]),
}

fn with_pieces<S: Serializer>(ids: &&[i32], pieces: &&[Vec<u8>], serializer: S) -> Result<S::Ok, S::Error> {
    let piece = |bytes| std::str::from_utf8(bytes).map_or(Piece::Bytes(bytes), Piece::Text);
    serializer.collect_seq(ids.iter().zip(*pieces).map(|(id, bytes)| Token { id: *id, piece: piece(bytes) }))
}

struct Texts<'a>(&'a [Vec<u8>]);

impl Serialize for Texts<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(|piece| String::from_utf8_lossy(piece)))
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
        cache_prompt: None,
        conversation: None,
        template_kwargs: Map::new(),
    }
}

/// A request for the text of tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Detokenize {
    /// The model; empty where the client named none.
    pub model: ModelId,
    /// The tokens.
    pub tokens: Vec<i32>,
    /// Paths of fields that have no effect.
    pub ignored: Vec<String>,
}

impl Detokenize {
    /// Reads the body of `POST /detokenize`.
    ///
    /// # Errors
    /// An invalid request.
    pub fn parse(body: &[u8]) -> Result<Self, Fault> {
        let map = json::body(body)?;
        let mut ignored = Ignored::default();
        DETOKENIZE.sort(&map, "", &mut ignored)?;
        let request = Object::root(&map);
        let items = request.list("tokens")?.ok_or_else(|| request.missing("tokens"))?;
        let tokens = match completions::tokens(items, "tokens")? {
            RawInput::Tokens(tokens) => tokens.into_iter().map(|token| token.0).collect(),
            RawInput::Text { .. } => Vec::new(),
        };
        let model = ModelId::new(request.text("model")?.unwrap_or_default());
        Ok(Self { model, tokens, ignored: ignored.into() })
    }

    /// The answer, under the names that llama.cpp's server and vLLM have for it.
    pub fn reply(text: &str) -> Vec<u8> {
        json!({"content": text, "prompt": text}).to_string().into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

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
