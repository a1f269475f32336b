//! `POST /v1/chat/completions`: <https://platform.openai.com/docs/api-reference/chat/create>.

use super::shared::{ACCOUNTS, CONSTRAINTS, SAMPLING, TEMPLATE};
use super::{Kind, Neutral, Table, harmless, legacy, read, refused};

pub(crate) static CHAT: Table = Table {
    request: "POST /v1/chat/completions",
    place: "",
    fields: &[
        &[
            read("model", Kind::Text).note("required"),
            read("messages", Kind::Array("messages")).note("required; not empty"),
            read("stream", Kind::Flag),
            read("stream_options", Kind::Object).note("`include_usage`; only with `stream`"),
            read("max_tokens", Kind::Count).note("a ceiling, not a reservation"),
            read("max_completion_tokens", Kind::Count).note("wins over `max_tokens`"),
            read("temperature", Kind::Range(0.0, 2.0)),
            read("stop", Kind::TextOr("strings")).note("at most 64"),
            read("n", Kind::Count).note("at most 16"),
            read("tools", Kind::Array("tools")).note("of type `function`"),
            read("tool_choice", Kind::TextOrObject),
            read("parallel_tool_calls", Kind::Flag),
            read("response_format", Kind::Object),
            read("reasoning_effort", Kind::Text).note("a variable of the chat template"),
            read("logprobs", Kind::Flag).note("of every token, those of reasoning and of calls included"),
            read("top_logprobs", Kind::Integer("0 to 20")),
            refused("n_probs", Neutral::Number(0.0)),
            refused("best_of", Neutral::Number(1.0)),
            refused("echo", Neutral::Bool(false)),
            refused("modalities", Neutral::TextOnly),
            refused("audio", Neutral::Null),
            refused("web_search_options", Neutral::Null),
            refused("verbosity", Neutral::OneOf(&["medium"])),
            harmless("prediction").note("may speed up an answer and never changes it"),
            legacy("functions", "`tools`"),
            legacy("function_call", "`tool_choice` with `tools`"),
        ],
        SAMPLING,
        CONSTRAINTS,
        TEMPLATE,
        ACCOUNTS,
    ],
};

pub(crate) static CHAT_MESSAGE: Table = Table {
    request: "POST /v1/chat/completions",
    place: "messages[]",
    fields: &[&[
        read("role", Kind::Text)
            .note("required; `system`, `developer`, `user`, `assistant`, `tool`, or another that the template knows"),
        read("content", Kind::TextOr("text parts"))
            .note("parts of type `text` and `refusal`; images, audio and files are refused"),
        read("name", Kind::Text),
        read("reasoning_content", Kind::Text).note("of an assistant's turn"),
        read("tool_calls", Kind::Array("tool calls")).note("of an assistant's turn; arguments need not be JSON"),
        read("tool_call_id", Kind::Text).note("of a tool's result"),
        harmless("refusal"),
        harmless("annotations"),
        legacy("function_call", "`tool_calls`"),
        refused("audio", Neutral::Null),
    ]],
};
