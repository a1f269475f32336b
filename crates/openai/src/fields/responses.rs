//! `POST /v1/responses`: <https://platform.openai.com/docs/api-reference/responses/create>.

use super::shared::{ACCOUNTS, CONSTRAINTS, SAMPLING, TEMPLATE};
use super::{Kind, Neutral, Table, harmless, read, refused};

pub(crate) static RESPONSES: Table = Table {
    request: "POST /v1/responses",
    place: "",
    fields: &[
        &[
            read("model", Kind::Text).note("required"),
            read("input", Kind::TextOr("items")).note("required; not empty"),
            read("instructions", Kind::Text).note("a system message before all others"),
            read("stream", Kind::Flag),
            read("max_output_tokens", Kind::Count).note("a ceiling, not a reservation"),
            read("temperature", Kind::Range(0.0, 2.0)),
            read("tools", Kind::Array("tools")).note(
                "`function`, and `namespace`, which holds some; others are left out, and `x-mesh-ignored` says so",
            ),
            read("tool_choice", Kind::TextOrObject).note("`auto`, `none`, `required` or a function"),
            read("parallel_tool_calls", Kind::Flag),
            read("reasoning", Kind::Object).note("`effort`: a variable of the chat template; `summary` has no effect"),
            read("text", Kind::Object).note("`format`; of `verbosity` only `medium`"),
            read("include", Kind::Array("strings")).note("`reasoning.encrypted_content`; others have no effect"),
            read("stop", Kind::TextOr("strings")).note("at most 64; this server's addition"),
            refused("previous_response_id", Neutral::Empty).note("nothing is stored: send the whole conversation"),
            refused("conversation", Neutral::Null).note("nothing is stored: send the whole conversation"),
            refused("background", Neutral::Bool(false)),
            refused("prompt", Neutral::Null).note("there are no stored prompts"),
            refused("truncation", Neutral::OneOf(&["disabled"])),
            refused("top_logprobs", Neutral::Number(0.0)),
            harmless("stream_options"),
            harmless("max_tool_calls").note("of hosted tools, of which there are none"),
            harmless("client_metadata"),
            harmless("context_management"),
        ],
        SAMPLING,
        CONSTRAINTS,
        TEMPLATE,
        ACCOUNTS,
    ],
};

pub(crate) static RESPONSES_ITEM: Table = Table {
    request: "POST /v1/responses",
    place: "input[]",
    fields: &[&[
        read("type", Kind::Text).note(
            "`message`, `function_call`, `function_call_output`, `reasoning`; calls of hosted tools are left out",
        ),
        read("role", Kind::Text).note("`developer` is taken as `system`"),
        read("content", Kind::TextOr("parts")).note("`input_text`, `output_text`, `refusal`, `reasoning_text`"),
        read("call_id", Kind::Text),
        read("name", Kind::Text),
        read("namespace", Kind::Text).note("of a function that was given in a `namespace`"),
        read("arguments", Kind::Text),
        read("output", Kind::TextOr("parts")),
        read("summary", Kind::Array("parts")),
        read("encrypted_content", Kind::Text).note("restores the reasoning of an earlier answer"),
        harmless("id"),
        harmless("status"),
        harmless("phase"),
    ]],
};
