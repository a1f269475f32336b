//! `POST /v1/completions`: <https://platform.openai.com/docs/api-reference/completions/create>.

use super::shared::{ACCOUNTS, CONSTRAINTS, SAMPLING};
use super::{Kind, Neutral, Table, read, refused};

pub(crate) static COMPLETIONS: Table = Table {
    request: "POST /v1/completions",
    place: "",
    fields: &[
        &[
            read("model", Kind::Text).note("required"),
            read("prompt", Kind::TextOr("strings, of tokens, or of arrays of tokens")).note(
                "required; the texts of special tokens in it are those tokens; several prompts make several choices",
            ),
            read("stream", Kind::Flag),
            read("stream_options", Kind::Object).note("`include_usage`; only with `stream`"),
            read("max_tokens", Kind::Integer("0 or more")).note("16 unless given"),
            read("temperature", Kind::Range(0.0, 2.0)),
            read("stop", Kind::TextOr("strings")).note("at most 64"),
            read("n", Kind::Count).note("times the number of prompts at most 16"),
            read("echo", Kind::Flag)
                .note("with `logprobs`, the prompt's tokens are scored, too; all of it is computed then"),
            read("logprobs", Kind::Integer("0 to 20")),
            refused("best_of", Neutral::Number(1.0)),
            refused("suffix", Neutral::Empty),
        ],
        SAMPLING,
        CONSTRAINTS,
        ACCOUNTS,
    ],
};
