//! Fields that several dialects share, and the list of all tables.

use super::{Field, Kind, Neutral, Table, harmless, read, refused};

/// Every table, in the order of the documentation.
pub static TABLES: &[&Table] = &[
    &super::CHAT,
    &super::CHAT_MESSAGE,
    &super::COMPLETIONS,
    &super::RESPONSES,
    &super::RESPONSES_ITEM,
    &super::MESSAGES,
    &super::MESSAGES_MESSAGE,
    &super::MESSAGES_BLOCK,
    &super::TOKENIZE,
    &super::DETOKENIZE,
    &super::EMBEDDINGS,
];

/// How tokens are drawn, but for the temperature, whose range is the dialect's. The names of llama.cpp's server, vLLM
/// and Ollama where OpenAI has none.
pub(super) const SAMPLING: &[Field] = &[
    read("top_p", Kind::Range(0.0, 1.0)),
    read("top_k", Kind::Integer("0 keeps all tokens")).note("-1 is taken as 0"),
    read("min_p", Kind::Range(0.0, 1.0)),
    read("seed", Kind::Integer("any 64 bits"))
        .note("the same seed draws the same tokens from the same logits: see [above](#the-same-text-again)"),
    read("cache_prompt", Kind::Flag).note(
        "true: what is cached of the prompt is taken over, also where a `seed` is given; false: all of it is computed",
    ),
    read("ignore_eos", Kind::Flag),
    read("logit_bias", Kind::Object).note("token numbers to values from -100 to 100"),
    read("presence_penalty", Kind::Range(-2.0, 2.0)),
    read("frequency_penalty", Kind::Range(-2.0, 2.0)),
    read("repeat_penalty", Kind::Range(0.0, 10.0)).note("above 0"),
    read("repetition_penalty", Kind::Range(0.0, 10.0)).note("the same under vLLM's name"),
    read("repeat_last_n", Kind::Integer("how many tokens `repeat_penalty` looks back")).note("-1: all"),
    refused("typical_p", Neutral::Number(1.0)),
    refused("mirostat", Neutral::Number(0.0)),
    refused("min_tokens", Neutral::Number(0.0)),
    refused("stop_token_ids", Neutral::Empty),
    refused("samplers", Neutral::Empty),
];

/// Constraints of the answer's text, as local servers name them.
pub(super) const CONSTRAINTS: &[Field] = &[
    refused("json_schema", Neutral::Null).note("use `response_format`"),
    read("grammar", Kind::Text)
        .note("in GBNF, as llama.cpp has it; of at most 64 KiB; not with tools or a format, and of the whole answer"),
    refused("guided_json", Neutral::Null),
    refused("guided_regex", Neutral::Null),
    refused("guided_choice", Neutral::Null),
    refused("guided_grammar", Neutral::Null),
    refused("structured_outputs", Neutral::Null),
];

/// What a template gets beyond the conversation.
pub(super) const TEMPLATE: &[Field] = &[
    read("chat_template_kwargs", Kind::Object).note("more variables for the model's chat template"),
    refused("chat_template", Neutral::Null),
    refused("add_generation_prompt", Neutral::Bool(true)),
    refused("continue_final_message", Neutral::Bool(false)),
];

/// Names, bills and caches: nothing that the answer depends on.
pub(super) const ACCOUNTS: &[Field] = &[
    harmless("user"),
    harmless("metadata"),
    harmless("store").note("nothing is stored"),
    harmless("service_tier"),
    harmless("safety_identifier"),
    read("prompt_cache_key", Kind::Any("a string")).note("names the conversation: its requests go to the same node"),
    harmless("prompt_cache_retention"),
    harmless("id_slot"),
];
