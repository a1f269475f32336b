//! `POST /v1/messages`: <https://docs.anthropic.com/en/api/messages>.

use super::shared::{CONSTRAINTS, SAMPLING, TEMPLATE};
use super::{Kind, Neutral, Table, harmless, read, refused};

pub(crate) static MESSAGES: Table = Table {
    request: "POST /v1/messages",
    place: "",
    fields: &[
        &[
            read("model", Kind::Text).note("required"),
            read("messages", Kind::Array("messages")).note("required; not empty"),
            read("system", Kind::TextOr("text blocks")),
            read("max_tokens", Kind::Count).note("a ceiling, not a reservation; may be left out"),
            read("stream", Kind::Flag),
            read("temperature", Kind::Range(0.0, 1.0)),
            read("stop_sequences", Kind::Array("strings")).note("at most 64"),
            read("tools", Kind::Array("tools"))
                .note("with an `input_schema`; those that the vendor runs or defines are left out, and `x-mesh-ignored` says so"),
            read("tool_choice", Kind::Object).note("`auto`, `any`, `tool`, `none`, with `disable_parallel_tool_use`"),
            read("thinking", Kind::Object)
                .note("`enabled` and `disabled` set the template's `enable_thinking`; nothing else in it has an effect"),
            read("output_config", Kind::Object).note("`effort`: a variable of the chat template; `format`"),
            read("output_format", Kind::Object),
            refused("mcp_servers", Neutral::Empty),
            refused("container", Neutral::Null),
            read("metadata", Kind::Object).note("`user_id` names the conversation: its requests go to the same node"),
            harmless("service_tier"),
            harmless("inference_geo"),
            harmless("speed"),
            harmless("betas"),
            harmless("cache_control").note("prompts are always cached"),
            harmless("context_management"),
        ],
        SAMPLING,
        CONSTRAINTS,
        TEMPLATE,
    ],
};

pub(crate) static MESSAGES_MESSAGE: Table = Table {
    request: "POST /v1/messages",
    place: "messages[]",
    fields: &[&[
        read("role", Kind::Text).note("required; `user`, `assistant` or `system`"),
        read("content", Kind::TextOr("blocks")).note("required"),
    ]],
};

pub(crate) static MESSAGES_BLOCK: Table = Table {
    request: "POST /v1/messages",
    place: "messages[].content[]",
    fields: &[&[
        read("type", Kind::Text).note(
            "`text`, `tool_use`, `tool_result`, `thinking`, `redacted_thinking`; those of hosted tools are left out",
        ),
        read("text", Kind::Text),
        read("id", Kind::Text),
        read("name", Kind::Text),
        read("input", Kind::Any("an object")),
        read("tool_use_id", Kind::Text),
        read("content", Kind::TextOr("blocks")),
        read("thinking", Kind::Text),
        read("signature", Kind::Text).note("restores the reasoning of an earlier answer"),
        read("data", Kind::Text).note("the same"),
        harmless("is_error").note("say it in `content`"),
        harmless("cache_control").note("prompts are always cached"),
        harmless("citations"),
        harmless("caller"),
    ]],
};
