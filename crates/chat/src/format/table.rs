//! The formats, each with the families whose templates write it.

use super::Part::{Any, Id, Key, Kind, Name, Text};
use super::{Body, Format, Ids, Marked, Syntax, Tagged};

/// Other names of formats.
pub(super) static ALIASES: &[(&str, &str)] = &[
    ("qwen", "hermes"),
    ("qwen3", "hermes"),
    ("granite4", "hermes"),
    ("llama3", "llama3_json"),
    ("llama", "llama3_json"),
    ("mistral", "mistral_v11"),
    ("mistral_v7", "mistral_json"),
    ("mistral_nemo", "mistral_json"),
    ("qwen3_coder", "qwen3_coder_xml"),
    ("qwen_xml", "qwen3_coder_xml"),
    ("gpt_oss", "harmony"),
    ("kimi", "kimi_k2"),
    ("glm", "glm47"),
    ("glm45", "glm47"),
    ("glm46", "glm47"),
    ("deepseek", "deepseek_v31"),
    ("deepseek_v3", "deepseek_r1"),
    ("command_r", "command_r7b"),
    ("cohere", "command_r7b"),
    ("functionary", "functionary_v31"),
    ("minimax", "minimax_m2"),
    ("lfm2", "pythonic"),
    ("granite", "granite3"),
];

const NO_THINKING: &[super::Tags] = &[];

const fn marked(
    name: &'static str,
    open: &'static [&'static str],
    close: &'static [&'static str],
    body: Body,
) -> Format {
    Format {
        name,
        syntax: Syntax::Marked(Marked { open, open_head: &[], close, bare: false, body }),
        thinking: NO_THINKING,
        silent: &[],
        ids: Ids::Ours,
    }
}

pub(super) static FORMATS: &[Format] = &[
    // Hermes, Qwen 2.5 and 3, QwQ, Granite 4, MiMo, Bielik, Reka.
    marked("hermes", &["<tool_call>"], &["</tool_call>"], Body::Object),
    // Seed-OSS; before the next, which knows its inner tags.
    Format {
        name: "seed_oss",
        syntax: Syntax::Marked(Marked {
            open: &["<seed:tool_call>"],
            open_head: &[],
            close: &["</seed:tool_call>"],
            bare: false,
            body: Body::Tagged(Tagged {
                heads: &[&[Text("<function="), Name, Text(">")]],
                values: &[&[Text("<parameter="), Key, Text(">")]],
                close: "</parameter>",
                end: "</function>",
                nested: "",
                entities: false,
                cdata: false,
                newlines: false,
            }),
        }),
        thinking: &[("<seed:think>", "</seed:think>")],
        silent: &[],
        ids: Ids::Ours,
    },
    // Qwen3-Coder, Qwen 3.5, Nemotron 3, Step 3.5. The outer tag is often left out.
    Format {
        name: "qwen3_coder_xml",
        syntax: Syntax::Marked(Marked {
            open: &["<tool_call>"],
            open_head: &["<function="],
            close: &["</tool_call>"],
            bare: false,
            body: Body::Tagged(Tagged {
                heads: &[&[Text("<function="), Name, Text(">")]],
                values: &[&[Text("<parameter="), Key, Text(">")]],
                close: "</parameter>",
                end: "</function>",
                nested: "",
                entities: false,
                cdata: false,
                newlines: true,
            }),
        }),
        thinking: NO_THINKING,
        silent: &[],
        ids: Ids::Ours,
    },
    // GLM 4.5 to 4.7, Ling, Laguna, Spark.
    marked(
        "glm47",
        &["<tool_call>"],
        &["</tool_call>"],
        Body::Tagged(Tagged {
            heads: &[&[Name]],
            values: &[&[Text("<arg_key>"), Key, Text("</arg_key>"), Text("<arg_value>")]],
            close: "</arg_value>",
            end: "",
            nested: "",
            entities: false,
            cdata: false,
            newlines: false,
        }),
    ),
    // Mistral Small 3.2, Devstral, Ministral 3, Magistral.
    Format {
        name: "mistral_v11",
        syntax: Syntax::Marked(Marked {
            open: &["[TOOL_CALLS]"],
            open_head: &[],
            close: &[],
            bare: false,
            body: Body::Named(&[&[Name, Text("[ARGS]")], &[Name, Text("[CALL_ID]"), Id, Text("[ARGS]")]]),
        }),
        thinking: &[("[THINK]", "[/THINK]")],
        silent: &[],
        ids: Ids::Nine,
    },
    // Mistral 7B v0.3, Nemo, Small 2409, Large 2407.
    Format {
        name: "mistral_json",
        syntax: Syntax::Marked(Marked {
            open: &["[TOOL_CALLS]"],
            open_head: &[],
            close: &[],
            bare: false,
            body: Body::Object,
        }),
        thinking: NO_THINKING,
        silent: &[],
        ids: Ids::Nine,
    },
    // gpt-oss.
    Format { name: "harmony", syntax: Syntax::Harmony, thinking: NO_THINKING, silent: &[], ids: Ids::Ours },
    // Kimi K2.
    Format {
        name: "kimi_k2",
        syntax: Syntax::Marked(Marked {
            open: &["<|tool_calls_section_begin|>", "<|tool_call_begin|>"],
            open_head: &[],
            close: &["<|tool_call_end|>", "<|tool_calls_section_end|>"],
            bare: false,
            body: Body::Named(&[&[Id, Text("<|tool_call_argument_begin|>")]]),
        }),
        thinking: NO_THINKING,
        silent: &[],
        ids: Ids::Model,
    },
    // Kimi K3. What it says is an element of its own.
    Format {
        name: "kimi_k3",
        syntax: Syntax::Marked(Marked {
            open: &["<|open|>tools<|sep|>"],
            open_head: &["<|open|>call tool=\""],
            close: &["<|close|>tools<|sep|>"],
            bare: false,
            body: Body::Tagged(Tagged {
                heads: &[&[Text("<|open|>call tool=\""), Name, Text("\" index=\""), Any, Text("\"<|sep|>")]],
                values: &[&[
                    Text("<|open|>argument key=\""),
                    Key,
                    Text("\" type=\""),
                    Kind("string", &["number", "boolean", "null", "object", "array"]),
                    Text("\"<|sep|>"),
                ]],
                close: "<|close|>argument<|sep|>",
                end: "<|close|>call<|sep|>",
                nested: "",
                entities: true,
                cdata: false,
                newlines: false,
            }),
        }),
        thinking: &[("<|open|>think<|sep|>", "<|close|>think<|sep|>")],
        silent: &[
            &[Text("<|open|>response<|sep|>")],
            &[Text("<|close|>response<|sep|>")],
            &[Text("<|close|>message<|sep|>")],
            &[Text("<|end_of_msg|>")],
        ],
        ids: Ids::Ours,
    },
    // DeepSeek V3.1.
    marked(
        "deepseek_v31",
        DEEPSEEK_OPEN,
        DEEPSEEK_CLOSE,
        Body::Named(&[&[Name, Text("<\u{ff5c}tool\u{2581}sep\u{ff5c}>")]]),
    ),
    // DeepSeek R1 and V3.
    marked(
        "deepseek_r1",
        DEEPSEEK_OPEN,
        DEEPSEEK_CLOSE,
        Body::Named(&[&[Any, Text("<\u{ff5c}tool\u{2581}sep\u{ff5c}>"), Name, Text("```json")]]),
    ),
    // DeepSeek V3.2 and V4.
    marked(
        "deepseek_dsml",
        &["<\u{ff5c}DSML\u{ff5c}function_calls>", "<\u{ff5c}DSML\u{ff5c}tool_calls>"],
        &["</\u{ff5c}DSML\u{ff5c}function_calls>", "</\u{ff5c}DSML\u{ff5c}tool_calls>"],
        Body::Tagged(Tagged {
            heads: &[&[Text("<\u{ff5c}DSML\u{ff5c}invoke name=\""), Name, Text("\">")]],
            values: &[&[
                Text("<\u{ff5c}DSML\u{ff5c}parameter name=\""),
                Key,
                Text("\" string=\""),
                Kind("true", &["false"]),
                Text("\">"),
            ]],
            close: "</\u{ff5c}DSML\u{ff5c}parameter>",
            end: "</\u{ff5c}DSML\u{ff5c}invoke>",
            nested: "",
            entities: false,
            cdata: false,
            newlines: false,
        }),
    ),
    // MiniMax M2.
    marked(
        "minimax_m2",
        &["<minimax:tool_call>"],
        &["</minimax:tool_call>"],
        Body::Tagged(Tagged {
            heads: &[&[Text("<invoke name=\""), Name, Text("\">")]],
            values: &[&[Text("<parameter name=\""), Key, Text("\">")]],
            close: "</parameter>",
            end: "</invoke>",
            nested: "",
            entities: false,
            cdata: false,
            newlines: false,
        }),
    ),
    // MiniMax M3.
    Format {
        name: "minimax_m3",
        syntax: Syntax::Marked(Marked {
            open: &["]<]minimax[>[<tool_call>"],
            open_head: &[],
            close: &["]<]minimax[>[</tool_call>"],
            bare: false,
            body: Body::Tagged(Tagged {
                heads: &[&[Text("]<]minimax[>[<invoke name=\""), Name, Text("\">")]],
                values: &[&[Text("]<]minimax[>[<"), Key, Text(">")]],
                close: "]<]minimax[>[</",
                end: "]<]minimax[>[</invoke>",
                nested: "]<]minimax[>[",
                entities: false,
                cdata: false,
                newlines: false,
            }),
        }),
        thinking: &[("<mm:think>", "</mm:think>")],
        silent: &[&[Text("</mm:think>")]],
        ids: Ids::Ours,
    },
    // Muse Glimmer: a message for each recipient, itself and the user among them.
    Format {
        name: "muse",
        syntax: Syntax::Marked(Marked {
            open: &["<atem:function_calls>"],
            open_head: &["<atem:invoke name=\""],
            close: &["</atem:function_calls>"],
            bare: false,
            body: Body::Tagged(Tagged {
                heads: &[&[Text("<atem:invoke name=\""), Name, Text("\">")]],
                values: &[&[Text("<atem:parameter name=\""), Key, Text("\">")]],
                close: "</atem:parameter>",
                end: "</atem:invoke>",
                nested: "",
                entities: false,
                cdata: false,
                newlines: false,
            }),
        }),
        thinking: &[(" to=self<|message|>", "<|eom|>")],
        silent: &[
            &[Text("<|start|>assistant")],
            &[Text(" to="), Name, Text("<|message|>")],
            &[Text("<|eom|>")],
            &[Text("<|eot|>")],
        ],
        ids: Ids::Ours,
    },
    // Apriel, MiniMax M1.
    marked("tool_calls", &["<tool_calls>"], &["</tool_calls>"], Body::Object),
    // Functionary 3.1.
    Format {
        name: "functionary_v31",
        syntax: Syntax::Marked(Marked {
            open: &[],
            open_head: &["<function="],
            close: &["</function>"],
            bare: false,
            body: Body::Named(&[&[Text("<function="), Name, Text(">")]]),
        }),
        thinking: NO_THINKING,
        silent: &[],
        ids: Ids::Ours,
    },
    // Functionary 3.2: what it says has a recipient too.
    Format {
        name: "functionary_v32",
        syntax: Syntax::Marked(Marked {
            open: &[">>>"],
            open_head: &[],
            close: &[],
            bare: false,
            body: Body::Named(&[&[Name]]),
        }),
        thinking: NO_THINKING,
        silent: &[&[Text(">>>all\n")]],
        ids: Ids::Ours,
    },
    // Firefunction 2.
    marked("firefunction_v2", &["functools"], &[], Body::Object),
    // MiniCPM 5.
    Format {
        name: "minicpm5",
        syntax: Syntax::Marked(Marked {
            open: &[],
            open_head: &["<function name=\""],
            close: &["</function>"],
            bare: false,
            body: Body::Tagged(Tagged {
                heads: &[&[Text("<function name=\""), Name, Text("\">")]],
                values: &[&[Text("<param name=\""), Key, Text("\">")]],
                close: "</param>",
                end: "",
                nested: "",
                entities: false,
                cdata: true,
                newlines: false,
            }),
        }),
        thinking: NO_THINKING,
        silent: &[],
        ids: Ids::Ours,
    },
    // Hunyuan 3.
    Format {
        name: "hunyuan3",
        syntax: Syntax::Marked(Marked {
            open: &["<tool_calls:opensource>", "<tool_call:opensource>"],
            open_head: &[],
            close: &["</tool_call:opensource>", "</tool_calls:opensource>"],
            bare: false,
            body: Body::Tagged(Tagged {
                heads: &[&[Name, Text("<tool_sep:opensource>")]],
                values: &[&[
                    Text("<arg_key:opensource>"),
                    Key,
                    Text("</arg_key:opensource>"),
                    Text("<arg_value:opensource>"),
                ]],
                close: "</arg_value:opensource>",
                end: "",
                nested: "",
                entities: false,
                cdata: false,
                newlines: false,
            }),
        }),
        thinking: &[("<think:opensource>", "</think:opensource>")],
        silent: &[],
        ids: Ids::Ours,
    },
    // Command R7B, Command A.
    Format {
        name: "command_r7b",
        syntax: Syntax::Marked(Marked {
            open: &["<|START_ACTION|>"],
            open_head: &[],
            close: &["<|END_ACTION|>"],
            bare: false,
            body: Body::Object,
        }),
        thinking: &[("<|START_THINKING|>", "<|END_THINKING|>")],
        silent: &[],
        ids: Ids::Ours,
    },
    // Command R+.
    marked("command_r_plus", &["Action:"], &["```"], Body::Object),
    // Nemotron Nano 2.
    marked("nemotron_nano", &["<TOOLCALL>"], &["</TOOLCALL>"], Body::Object),
    // Granite 3.
    marked("granite3", &["<|tool_call|>"], &[], Body::Object),
    // GigaChat 3.1.
    marked("gigachat31", &["<|function_call|>"], &[], Body::Object),
    // GigaChat 3.
    marked(
        "gigachat3",
        &["<|message_sep|>\n\nfunction call<|role_sep|>", "function call<|role_sep|>"],
        &["<|message_sep|>"],
        Body::Object,
    ),
    // Solar Open.
    marked(
        "solar_open",
        &["<|tool_calls|>", "<|tool_call:begin|>"],
        &["<|tool_call:end|>", "<|calls|>"],
        Body::Named(&[&[Id, Text("<|tool_call:name|>"), Name, Text("<|tool_call:args|>")]]),
    ),
    // Apertus.
    marked("apertus", &["<|tools_prefix|>"], &["<|tools_suffix|>"], Body::KeyedObject),
    // Gemma 4.
    Format {
        name: "gemma4",
        syntax: Syntax::Marked(Marked {
            open: &["<|tool_call>"],
            open_head: &[],
            close: &["<tool_call|>"],
            bare: false,
            body: Body::Quoted { heads: &[&[Text("call:"), Name]], quote: "<|\"|>" },
        }),
        thinking: &[("<|channel>thought", "<channel|>")],
        silent: &[],
        ids: Ids::Ours,
    },
    // LFM 2.5.
    marked("pythonic", &["<|tool_call_start|>"], &["<|tool_call_end|>"], Body::Python),
    // Llama 3.1 to 3.3. The last one, because nothing opens a call.
    Format {
        name: "llama3_json",
        syntax: Syntax::Marked(Marked {
            open: &["<|python_tag|>"],
            open_head: &[],
            close: &[],
            bare: true,
            body: Body::Object,
        }),
        thinking: NO_THINKING,
        silent: &[],
        ids: Ids::Ours,
    },
];

const DEEPSEEK_OPEN: &[&str] =
    &["<\u{ff5c}tool\u{2581}calls\u{2581}begin\u{ff5c}>", "<\u{ff5c}tool\u{2581}call\u{2581}begin\u{ff5c}>"];
const DEEPSEEK_CLOSE: &[&str] =
    &["<\u{ff5c}tool\u{2581}call\u{2581}end\u{ff5c}>", "<\u{ff5c}tool\u{2581}calls\u{2581}end\u{ff5c}>"];
