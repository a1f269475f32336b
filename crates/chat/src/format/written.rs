//! How calls of each format are written where they are enforced.
//!
//! A reader takes many ways of writing a call; what is enforced is the way that models of the format were trained on,
//! with room for the blanks in which their templates differ. A format without an entry is read, and not enforced.

use super::Format;
use Piece::{Arguments, Blank, Id, Name, Number, Text};

/// One way in which calls are written.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Written {
    /// Before the first call.
    pub(crate) before: Pieces,
    /// A call.
    pub(crate) call: Pieces,
    /// Between two calls; `None`: there is never more than one.
    pub(crate) between: Option<Pieces>,
    /// After the last call.
    pub(crate) after: Pieces,
}

/// A text with places in it.
pub(crate) type Pieces = &'static [Piece];

/// A part of [`Pieces`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// This text.
    Text(&'static str),
    /// A few blanks, or none.
    Blank,
    /// The tool's name.
    Name,
    /// The arguments, in the way of the format's body.
    Arguments,
    /// Nine letters or digits.
    Id,
    /// A small number.
    Number,
}

impl Format {
    /// The ways in which calls are written where they are enforced; none: they are not enforced.
    pub(crate) fn written(&self) -> &'static [Written] {
        WRITTEN.iter().find(|(name, _)| *name == self.name).map_or(&[], |(_, written)| written)
    }
}

const fn each(call: Pieces, between: Pieces) -> Written {
    Written { before: &[], call, between: Some(between), after: &[] }
}

const fn single(call: Pieces) -> Written {
    Written { before: &[], call, between: None, after: &[] }
}

const fn all(before: Pieces, call: Pieces, between: Pieces, after: Pieces) -> Written {
    Written { before, call, between: Some(between), after }
}

const COMMA: Pieces = &[Text(","), Blank];

/// `{"name": "NAME", "arguments": {…}}`
const OBJECT: Pieces = &[
    Text("{\"name\":"),
    Blank,
    Text("\""),
    Name,
    Text("\","),
    Blank,
    Text("\"arguments\":"),
    Blank,
    Arguments,
    CLOSED,
];
const OBJECT_WITH_ID: Pieces = &[
    Text("{\"name\":"),
    Blank,
    Text("\""),
    Name,
    Text("\","),
    Blank,
    Text("\"arguments\":"),
    Blank,
    Arguments,
    Text(","),
    Blank,
    Text("\"id\":"),
    Blank,
    Text("\""),
    Id,
    Text("\"}"),
];
const CLOSED: Piece = Text("}");

/// By the formats' names.
static WRITTEN: &[(&str, &[Written])] = &[
    (
        "hermes",
        &[each(
            &[
                Text("<tool_call>"),
                Blank,
                Text("{\"name\":"),
                Blank,
                Text("\""),
                Name,
                Text("\","),
                Blank,
                Text("\"arguments\":"),
                Blank,
                Arguments,
                Text("}"),
                Blank,
                Text("</tool_call>"),
            ],
            &[Blank],
        )],
    ),
    (
        "seed_oss",
        &[each(
            &[
                Text("<seed:tool_call>"),
                Blank,
                Text("<function="),
                Name,
                Text(">"),
                Arguments,
                Blank,
                Text("</function>"),
                Blank,
                Text("</seed:tool_call>"),
            ],
            &[Blank],
        )],
    ),
    (
        "qwen3_coder_xml",
        &[
            each(
                &[
                    Text("<tool_call>"),
                    Blank,
                    Text("<function="),
                    Name,
                    Text(">"),
                    Arguments,
                    Blank,
                    Text("</function>"),
                    Blank,
                    Text("</tool_call>"),
                ],
                &[Blank],
            ),
            each(&[Text("<function="), Name, Text(">"), Arguments, Blank, Text("</function>")], &[Blank]),
        ],
    ),
    ("glm47", &[each(&[Text("<tool_call>"), Name, Arguments, Blank, Text("</tool_call>")], &[Blank])]),
    (
        "mistral_v11",
        &[
            each(&[Text("[TOOL_CALLS]"), Name, Text("[ARGS]"), Arguments], &[]),
            each(&[Text("[TOOL_CALLS]"), Name, Text("[CALL_ID]"), Id, Text("[ARGS]"), Arguments], &[]),
        ],
    ),
    (
        "mistral_json",
        &[
            all(&[Text("[TOOL_CALLS]"), Blank, Text("[")], OBJECT, COMMA, &[Text("]")]),
            all(&[Text("[TOOL_CALLS]"), Blank, Text("[")], OBJECT_WITH_ID, COMMA, &[Text("]")]),
        ],
    ),
    (
        "kimi_k2",
        &[all(
            &[Text("<|tool_calls_section_begin|>")],
            &[
                Text("<|tool_call_begin|>functions."),
                Name,
                Text(":"),
                Number,
                Text("<|tool_call_argument_begin|>"),
                Arguments,
                Text("<|tool_call_end|>"),
            ],
            &[],
            &[Text("<|tool_calls_section_end|>")],
        )],
    ),
    (
        "deepseek_v31",
        &[all(
            &[Text("<\u{ff5c}tool\u{2581}calls\u{2581}begin\u{ff5c}>")],
            &[
                Text("<\u{ff5c}tool\u{2581}call\u{2581}begin\u{ff5c}>"),
                Name,
                Text("<\u{ff5c}tool\u{2581}sep\u{ff5c}>"),
                Arguments,
                Text("<\u{ff5c}tool\u{2581}call\u{2581}end\u{ff5c}>"),
            ],
            &[],
            &[Text("<\u{ff5c}tool\u{2581}calls\u{2581}end\u{ff5c}>")],
        )],
    ),
    (
        "deepseek_r1",
        &[all(
            &[Text("<\u{ff5c}tool\u{2581}calls\u{2581}begin\u{ff5c}>")],
            &[
                Text("<\u{ff5c}tool\u{2581}call\u{2581}begin\u{ff5c}>function<\u{ff5c}tool\u{2581}sep\u{ff5c}>"),
                Name,
                Text("\n```json\n"),
                Arguments,
                Text("\n```<\u{ff5c}tool\u{2581}call\u{2581}end\u{ff5c}>"),
            ],
            &[Blank],
            &[Text("<\u{ff5c}tool\u{2581}calls\u{2581}end\u{ff5c}>")],
        )],
    ),
    (
        "deepseek_dsml",
        &[
            all(
                &[Text("<\u{ff5c}DSML\u{ff5c}function_calls>")],
                DSML_CALL,
                &[],
                &[Blank, Text("</\u{ff5c}DSML\u{ff5c}function_calls>")],
            ),
            all(
                &[Text("<\u{ff5c}DSML\u{ff5c}tool_calls>")],
                DSML_CALL,
                &[],
                &[Blank, Text("</\u{ff5c}DSML\u{ff5c}tool_calls>")],
            ),
        ],
    ),
    (
        "minimax_m2",
        &[all(
            &[Text("<minimax:tool_call>")],
            &[Blank, Text("<invoke name=\""), Name, Text("\">"), Arguments, Blank, Text("</invoke>")],
            &[],
            &[Blank, Text("</minimax:tool_call>")],
        )],
    ),
    (
        "tool_calls",
        &[
            all(&[Text("<tool_calls>"), Blank, Text("[")], OBJECT, COMMA, &[Text("]</tool_calls>")]),
            all(&[Text("<tool_calls>"), Blank, Text("[")], OBJECT_WITH_ID, COMMA, &[Text("]</tool_calls>")]),
            all(&[Text("<tool_calls>"), Blank], OBJECT, &[Blank], &[Blank, Text("</tool_calls>")]),
        ],
    ),
    ("functionary_v31", &[each(&[Text("<function="), Name, Text(">"), Arguments, Text("</function>")], &[Blank])]),
    ("minicpm5", &[each(&[Text("<function name=\""), Name, Text("\">"), Arguments, Text("</function>")], &[Blank])]),
    (
        "hunyuan3",
        &[all(
            &[Text("<tool_calls:opensource>"), Blank],
            &[
                Text("<tool_call:opensource>"),
                Name,
                Text("<tool_sep:opensource>"),
                Arguments,
                Blank,
                Text("</tool_call:opensource>"),
            ],
            &[Blank],
            &[Blank, Text("</tool_calls:opensource>")],
        )],
    ),
    (
        "command_r7b",
        &[all(
            &[Text("<|START_ACTION|>"), Blank, Text("["), Blank],
            &[
                Text("{\"tool_call_id\":"),
                Blank,
                Text("\""),
                Number,
                Text("\","),
                Blank,
                Text("\"tool_name\":"),
                Blank,
                Text("\""),
                Name,
                Text("\","),
                Blank,
                Text("\"parameters\":"),
                Blank,
                Arguments,
                CLOSED,
            ],
            COMMA,
            &[Blank, Text("]<|END_ACTION|>")],
        )],
    ),
    (
        "command_r_plus",
        &[all(
            &[Text("Action:"), Blank, Text("```json"), Blank, Text("["), Blank],
            &[
                Text("{"),
                Blank,
                Text("\"tool_name\":"),
                Blank,
                Text("\""),
                Name,
                Text("\","),
                Blank,
                Text("\"parameters\":"),
                Blank,
                Arguments,
                Blank,
                CLOSED,
            ],
            COMMA,
            &[Blank, Text("]"), Blank, Text("```")],
        )],
    ),
    ("nemotron_nano", &[all(&[Text("<TOOLCALL>[")], OBJECT, COMMA, &[Text("]</TOOLCALL>")])]),
    ("granite3", &[all(&[Text("<|tool_call|>"), Blank, Text("[")], OBJECT, COMMA, &[Text("]")])]),
    (
        "gigachat31",
        &[single(&[
            Text("<|function_call|>{\"name\":"),
            Blank,
            Text("\""),
            Name,
            Text("\","),
            Blank,
            Text("\"arguments\":"),
            Blank,
            Arguments,
            CLOSED,
        ])],
    ),
    (
        "gigachat3",
        &[
            Written {
                before: &[Text("<|message_sep|>\n\nfunction call<|role_sep|>"), Blank],
                call: OBJECT,
                between: None,
                after: &[],
            },
            Written { before: &[Text("function call<|role_sep|>"), Blank], call: OBJECT, between: None, after: &[] },
        ],
    ),
    (
        "solar_open",
        &[all(
            &[Text("<|tool_calls|>")],
            &[
                Text("<|tool_call:begin|>"),
                Id,
                Text("<|tool_call:name|>"),
                Name,
                Text("<|tool_call:args|>"),
                Arguments,
                Text("<|tool_call:end|>"),
            ],
            &[],
            // What closes the list ends the answer.
            &[],
        )],
    ),
    (
        "apertus",
        &[all(
            &[Text("<|tools_prefix|>[")],
            &[Text("{\""), Name, Text("\":"), Blank, Arguments, CLOSED],
            COMMA,
            &[Text("]<|tools_suffix|>")],
        )],
    ),
    ("gemma4", &[each(&[Text("<|tool_call>call:"), Name, Arguments, Text("<tool_call|>")], &[])]),
    (
        "pythonic",
        &[all(
            &[Text("<|tool_call_start|>[")],
            &[Name, Text("("), Arguments, Text(")")],
            COMMA,
            &[Text("]<|tool_call_end|>")],
        )],
    ),
    (
        "llama3_json",
        &[
            single(LLAMA_CALL),
            Written { before: &[Text("<|python_tag|>")], call: LLAMA_CALL, between: None, after: &[] },
        ],
    ),
    ("firefunction_v2", &[all(&[Text("functools"), Blank, Text("[")], OBJECT, COMMA, &[Text("]")])]),
    (
        "emulated",
        &[each(
            &[
                Text("TOOL_CALL"),
                Blank,
                Text("{\"name\":"),
                Blank,
                Text("\""),
                Name,
                Text("\","),
                Blank,
                Text("\"arguments\":"),
                Blank,
                Arguments,
                CLOSED,
            ],
            &[Text("\n")],
        )],
    ),
];

const DSML_CALL: Pieces = &[
    Blank,
    Text("<\u{ff5c}DSML\u{ff5c}invoke name=\""),
    Name,
    Text("\">"),
    Arguments,
    Blank,
    Text("</\u{ff5c}DSML\u{ff5c}invoke>"),
];

const LLAMA_CALL: Pieces = &[
    Text("{\"name\":"),
    Blank,
    Text("\""),
    Name,
    Text("\","),
    Blank,
    Text("\"parameters\":"),
    Blank,
    Arguments,
    CLOSED,
];
