//! `/tokenize`, `/detokenize` (llama.cpp's server and vLLM), and `/v1/embeddings`.

use super::shared::TEMPLATE;
use super::{Kind, Table, harmless, read};

pub(crate) static TOKENIZE: Table = Table {
    request: "POST /tokenize",
    place: "",
    fields: &[
        &[
            read("model", Kind::Text).note("may be left out where one model is served"),
            read("content", Kind::Text).note("the text"),
            read("prompt", Kind::Text).note("the same"),
            read("messages", Kind::Array("messages")).note("instead: a conversation, as in chat completions"),
            read("tools", Kind::Array("tools")).note("with `messages`"),
            read("add_special", Kind::Flag).note("false unless given"),
            read("add_special_tokens", Kind::Flag).note("the same; wins, and is true unless given with `prompt`"),
            read("parse_special", Kind::Flag).note("true unless given"),
            read("with_pieces", Kind::Flag).note("each token with its text"),
            read("return_token_strs", Kind::Flag).note("texts in `token_strs`"),
        ],
        TEMPLATE,
    ],
};

pub(crate) static DETOKENIZE: Table = Table {
    request: "POST /detokenize",
    place: "",
    fields: &[&[
        read("model", Kind::Text).note("may be left out where one model is served"),
        read("tokens", Kind::Array("tokens")).note("required"),
    ]],
};

pub(crate) static EMBEDDINGS: Table = Table {
    request: "POST /v1/embeddings",
    place: "",
    fields: &[&[
        read("model", Kind::Text).note("required; models that generate text are refused: they do not pool"),
        read("input", Kind::TextOr("strings, of tokens, or of arrays of tokens")).note("required; at most 2048 texts"),
        read("encoding_format", Kind::Text).note("`float` or `base64`"),
        read("dimensions", Kind::Count)
            .note("the first so many, scaled to the length of one; for models that are trained for it"),
        harmless("user"),
    ]],
};
