//! How calls of each format are written where they are enforced.
//!
//! A reader takes many ways of writing a call; what is enforced is the way that models of the format were trained on,
//! with room for the blanks in which their templates differ.

use super::Format;
use Piece::{Arguments, Blank, Id, Maybe, Name, Number, Opened, Text};

/// One way in which calls are written.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Written {
    /// Where calls are written so.
    pub(crate) at: At,
    /// Before the first call.
    pub(crate) before: Pieces,
    /// A call.
    pub(crate) call: Pieces,
    /// Between two calls; `None`: there is never more than one.
    pub(crate) between: Option<Pieces>,
    /// After the last call.
    pub(crate) after: Pieces,
}

/// Where in an answer calls are written in a way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum At {
    /// Where they are all of the answer, and behind a text.
    Anywhere,
    /// Only where they are all of the answer, with what else belongs to one.
    Start,
    /// Only behind a text.
    Marker,
}

/// What stands around the text of an answer, and need not be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Said {
    /// Any of these before it; none: nothing does.
    pub(crate) before: &'static [&'static str],
    /// After it.
    pub(crate) after: &'static str,
}

/// A text with places in it.
pub(crate) type Pieces = &'static [Piece];

/// A part of [`Pieces`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// This text.
    Text(&'static str),
    /// This text, or nothing.
    Maybe(&'static str),
    /// This text, but where the prompt ends with it.
    Opened(&'static str),
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
    /// The ways in which calls are written where they are enforced; none for harmony, which has code of its own.
    pub(crate) fn written(&self) -> &'static [Written] {
        WRITTEN.iter().find(|(name, _)| *name == self.name).map_or(&[], |(_, written)| written)
    }

    /// What stands around a text where one is enforced.
    pub(crate) fn said(&self) -> Said {
        let said = SAID.iter().find(|(name, _)| *name == self.name);
        said.map_or(Said { before: &[], after: "" }, |(_, said)| *said)
    }
}

const fn each(call: Pieces, between: Pieces) -> Written {
    Written { at: At::Anywhere, before: &[], call, between: Some(between), after: &[] }
}

const fn single(call: Pieces) -> Written {
    Written { at: At::Anywhere, before: &[], call, between: None, after: &[] }
}

const fn only(before: Pieces, call: Pieces) -> Written {
    Written { before, ..single(call) }
}

const fn all(before: Pieces, call: Pieces, between: Pieces, after: Pieces) -> Written {
    Written { at: At::Anywhere, before, call, between: Some(between), after }
}

impl Written {
    const fn at(self, at: At) -> Self {
        Self { at, ..self }
    }
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
    (
        "kimi_k3",
        &[
            all(
                &[Maybe("<|open|>response<|sep|>"), Text("<|close|>response<|sep|><|open|>tools<|sep|>")],
                KIMI_K3_CALL,
                &[],
                KIMI_K3_END,
            )
            .at(At::Start),
            all(&[Text("<|open|>tools<|sep|>")], KIMI_K3_CALL, &[], KIMI_K3_END).at(At::Marker),
        ],
    ),
    (
        "minimax_m3",
        &[
            all(&[Maybe("</mm:think>"), Text("]<]minimax[>[<tool_call>")], MINIMAX_M3_CALL, &[], MINIMAX_M3_END)
                .at(At::Start),
            all(&[Text("]<]minimax[>[<tool_call>")], MINIMAX_M3_CALL, &[], MINIMAX_M3_END).at(At::Marker),
        ],
    ),
    (
        "muse",
        &[
            all(
                &[Maybe("<|start|>assistant")],
                &[
                    Text(" to="),
                    Name,
                    Text("<|message|><atem:function_calls>"),
                    Blank,
                    Text("<atem:invoke name=\""),
                    Name,
                    Text("\">"),
                    Arguments,
                    Blank,
                    Text("</atem:invoke>"),
                    Blank,
                    Text("</atem:function_calls>"),
                ],
                &[Text("<|eom|><|start|>assistant")],
                &[],
            )
            .at(At::Start),
            // Whom it is for has been said.
            single(&[
                Text("<atem:function_calls>"),
                Blank,
                Text("<atem:invoke name=\""),
                Name,
                Text("\">"),
                Arguments,
                Blank,
                Text("</atem:invoke>"),
                Blank,
                Text("</atem:function_calls>"),
            ])
            .at(At::Marker),
        ],
    ),
    (
        "functionary_v32",
        &[
            all(&[Opened(">>>")], &[Name, Text("\n"), Arguments], &[Text(">>>")], &[]).at(At::Start),
            each(&[Text(">>>"), Name, Text("\n"), Arguments], &[]).at(At::Marker),
        ],
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
            only(&[Text("<|message_sep|>\n\nfunction call<|role_sep|>"), Blank], OBJECT),
            only(&[Text("function call<|role_sep|>"), Blank], OBJECT),
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
    ("llama3_json", &[single(LLAMA_CALL), only(&[Text("<|python_tag|>")], LLAMA_CALL)]),
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

/// By the formats' names.
static SAID: &[(&str, Said)] = &[
    (
        "kimi_k3",
        Said { before: &["<|open|>response<|sep|>"], after: "<|close|>response<|sep|><|close|>message<|sep|>" },
    ),
    ("minimax_m3", Said { before: &["</mm:think>"], after: "" }),
    ("muse", Said { before: &[" to=user<|message|>", "<|start|>assistant to=user<|message|>"], after: "" }),
    ("functionary_v32", Said { before: &["all\n"], after: "" }),
];

const KIMI_K3_CALL: Pieces = &[
    Text("<|open|>call tool=\""),
    Name,
    Text("\" index=\""),
    Number,
    Text("\"<|sep|>"),
    Arguments,
    Text("<|close|>call<|sep|>"),
];
const KIMI_K3_END: Pieces = &[Text("<|close|>tools<|sep|><|close|>message<|sep|>")];

const MINIMAX_M3_CALL: Pieces =
    &[Blank, Text("]<]minimax[>[<invoke name=\""), Name, Text("\">"), Arguments, Text("]<]minimax[>[</invoke>")];
const MINIMAX_M3_END: Pieces = &[Blank, Text("]<]minimax[>[</tool_call>")];

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
