mod broken_off;

use mesh_types::{FinishReason, Tool, ToolChoice};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::capability::Reason;
use crate::capability::Strategy;
use crate::format::Format;

fn tools() -> Vec<Tool> {
    let tool = |name: &str, properties: Value| {
        json!({"type": "function", "function": {
            "name": name,
            "parameters": {"type": "object", "properties": properties},
        }})
    };
    let definitions = [
        tool("fetch", json!({"url": {"type": "string"}, "tries": {"type": "integer"}, "deep": {"type": "boolean"}})),
        tool("now", json!({})),
        tool("edit", json!({"path": {"type": "string"}, "old": {"type": "string"}, "lines": {"type": "array"}})),
    ];
    definitions.into_iter().map(|definition| Tool::from_definition(definition).expect("the test's own tool")).collect()
}

fn strategy(format: &str) -> Strategy {
    match format {
        "emulated" => Strategy::Emulated(Reason::Forced),
        name => Strategy::Native(Format::named(name).expect("a format")),
    }
}

/// Parses the pieces of one answer.
fn pieces<'a>(format: &str, prompt: &str, pieces: impl IntoIterator<Item = &'a str>, reason: FinishReason) -> Turn {
    let tools = tools();
    let mut parser = TurnParser::new(&TurnOptions {
        strategy: strategy(format),
        tools: &tools,
        choice: &ToolChoice::Auto,
        any_tool: false,
        parallel: true,
        prompt,
        seed: "test",
    });
    let mut turn = Turn::default();
    for piece in pieces {
        turn.extend(parser.push(piece));
    }
    turn.extend(parser.finish(reason));
    turn
}

fn parse(format: &str, text: &str) -> Turn {
    pieces(format, "", [text], FinishReason::Stop)
}

/// The names and arguments of the calls.
fn calls(turn: &Turn) -> Vec<(&str, &str)> {
    turn.calls.iter().map(|call| (call.name.as_str(), call.arguments.as_str())).collect()
}

/// A file that holds an answer, and a newline that is not part of it.
macro_rules! sample {
    ($name:literal) => {
        include_str!(concat!("samples/", $name, ".txt")).trim_ascii_end()
    };
}

/// An answer of each format, with two calls in it.
const SAMPLES: &[(&str, &str)] = &[
    ("hermes", sample!("hermes")),
    ("qwen3_coder_xml", sample!("qwen3_coder_xml")),
    ("seed_oss", sample!("seed_oss")),
    ("glm47", sample!("glm47")),
    ("mistral_v11", sample!("mistral_v11")),
    ("mistral_json", sample!("mistral_json")),
    ("harmony", sample!("harmony")),
    ("kimi_k2", sample!("kimi_k2")),
    ("deepseek_v31", sample!("deepseek_v31")),
    ("deepseek_r1", sample!("deepseek_r1")),
    ("deepseek_dsml", sample!("deepseek_dsml")),
    ("minimax_m2", sample!("minimax_m2")),
    ("tool_calls", sample!("tool_calls")),
    ("functionary_v31", sample!("functionary_v31")),
    ("minicpm5", sample!("minicpm5")),
    ("hunyuan3", sample!("hunyuan3")),
    ("command_r7b", sample!("command_r7b")),
    ("command_r_plus", sample!("command_r_plus")),
    ("nemotron_nano", sample!("nemotron_nano")),
    ("granite3", sample!("granite3")),
    ("gigachat31", sample!("gigachat31")),
    ("gigachat3", sample!("gigachat3")),
    ("solar_open", sample!("solar_open")),
    ("apertus", sample!("apertus")),
    ("gemma4", sample!("gemma4")),
    ("pythonic", sample!("pythonic")),
    ("llama3_json", sample!("llama3_json")),
    ("kimi_k3", sample!("kimi_k3")),
    ("minimax_m3", sample!("minimax_m3")),
    ("muse", sample!("muse")),
    ("functionary_v32", sample!("functionary_v32")),
    ("firefunction_v2", sample!("firefunction_v2")),
    ("emulated", sample!("emulated")),
];

#[test]
fn each_format_is_read() {
    for format in Format::all() {
        assert!(SAMPLES.iter().any(|(name, _)| *name == format.name), "no sample of {}", format.name);
    }
    for (format, text) in SAMPLES {
        let turn = parse(format, text);
        assert_eq!(turn.content, "Let me see.", "{format}");
        let arguments = "{\"url\": \"u/</tool_call>\", \"tries\": 2}";
        let arguments = if *format == "gemma4" { &arguments.replace(": ", ":").replace(", ", ",") } else { arguments };
        assert_eq!(calls(&turn), [("fetch", arguments), ("now", "{}")], "{format}");
        assert_ne!(turn.calls[0].id, turn.calls[1].id, "{format}");
    }
}

#[test]
fn the_cut_into_pieces_does_not_matter() {
    for (format, text) in SAMPLES {
        for reason in [FinishReason::Stop, FinishReason::Length] {
            let whole = pieces(format, "", [*text], reason);
            assert_eq!(pieces(format, "", text.split_inclusive(|_| true), reason), whole, "{format}");
            for (cut, _) in text.char_indices() {
                let (a, b) = text.split_at(cut);
                assert_eq!(pieces(format, "", [a, b], reason), whole, "{format}, cut at {cut}");
            }
        }
    }
}

#[test]
fn prose_goes_out_at_once_but_for_what_may_be_a_marker() {
    let tools = tools();
    let mut parser = TurnParser::new(&TurnOptions {
        strategy: strategy("emulated"),
        tools: &tools,
        choice: &ToolChoice::Auto,
        any_tool: false,
        parallel: true,
        prompt: "",
        seed: "",
    });
    let content = |text: &str| vec![TurnEvent::Content(text.to_owned())];
    assert_eq!(parser.push("My TOOL"), content("My"));
    assert_eq!(parser.push("BELT is"), content(" TOOLBELT is"));
    assert_eq!(parser.push(" new.\n"), content(" new."));
    assert_eq!(parser.push("```rust\n"), content("\n```rust"));
    assert_eq!(parser.push("fn\n```js"), content("\nfn"));
    assert_eq!(parser.push("x"), content("\n```jsx"));
    assert_eq!(parser.finish(FinishReason::Stop), vec![]);
}

#[test]
fn arguments_come_as_they_are_generated() {
    let tools = tools();
    let mut parser = TurnParser::new(&TurnOptions {
        strategy: strategy("hermes"),
        tools: &tools,
        choice: &ToolChoice::Auto,
        any_tool: false,
        parallel: true,
        prompt: "",
        seed: "",
    });
    let arguments = |text: &str| TurnEvent::Arguments { index: 0, fragment: text.to_owned() };
    let id = "call_".to_owned();
    let events = parser.push("<tool_call>\n{\"name\": \"fetch\", \"arguments\": {\"url\": \"ab");
    assert!(
        matches!(&events[0], TurnEvent::Call { index: 0, id: own, name } if name == "fetch" && own.starts_with(&id))
    );
    assert_eq!(events[1..], [arguments("{\"url\": \"ab")]);
    assert_eq!(parser.push("cd"), [arguments("cd")]);
    assert_eq!(parser.push("\"}"), [arguments("\"}")]);
    assert_eq!(parser.push("}\n</tool_call>"), []);
}

#[test]
fn what_is_no_call_is_text() {
    for (format, text) in [
        ("hermes", "<tool_call>\n{\"name\": \"unknown\", \"arguments\": {}}\n</tool_call>"),
        ("hermes", "<tool_call>nonsense</tool_call> and more"),
        ("hermes", "a < b, a <tool b, <tool_call"),
        ("llama3_json", "{\"name\": \"my-app\", \"version\": 1}"),
        ("llama3_json", "  {\"a\": [1, 2]} is JSON"),
        ("mistral_v11", "[TOOL_CALLS] are markers"),
        ("qwen3_coder_xml", "<function=unknown>\n</function>"),
        ("emulated", "TOOL_CALL {\"name\": \"fetch\", \"arguments\": {\"url\": }}"),
        ("emulated", "TOOL_CALL {\"name\": \"fetch\", \"arguments\": {\"url\": \"a\""),
        ("emulated", "A TOOL_CALL begins a call. ```json\nTOOL_CALL ```"),
        ("emulated", "{\"name\": \"fetch\", \"arguments\": {}}"),
    ] {
        let turn = parse(format, text);
        assert_eq!((turn.content.as_str(), calls(&turn)), (text, vec![]), "{format}");
    }
    assert_eq!(parse("harmony", "<|channel|>final<|message|>Yes.<|return|>").content, "Yes.");
    assert_eq!(parse("harmony", "Just text<|end|>").content, "Just text");
    let unknown = parse("harmony", "<|channel|>commentary to=browser.open<|message|>{}<|call|>");
    assert_eq!(unknown.content, "to=browser.open {}");
    assert_eq!(parse("harmony", "<|channel|>commentary to=functions.fet").content, "");
}

#[test]
fn near_misses_are_calls() {
    for (format, text, arguments) in [
        ("hermes", "<tool_call>{'name': 'now', 'id': 'a'}</tool_call>", Some("{}")),
        (
            "hermes",
            "<tool_call>{\"name\": \"fetch\", \"arguments\": \"{\\\"url\\\": 1}\"}</tool_call>",
            Some("{\"url\": 1}"),
        ),
        ("hermes", "<tool_call>{\"name\": \"now\", \"arguments\": null}</tool_call>", Some("{}")),
        (
            "hermes",
            "<tool_call>{\"arguments\": {\"url\": \"a\"}, \"name\": \"fetch\"}</tool_call>",
            Some("{\"url\": \"a\"}"),
        ),
        (
            "hermes",
            "<tool_call>{\"name\": \"fetch\", \"arguments\": {\"url\": \"a\"</tool_call>",
            Some("{\"url\": \"a\"}"),
        ),
        (
            "hermes",
            "<tool_call>{\"name\": \"fetch\", \"arguments\": {\"url\": \"a\nb\", \"deep\": True,}}</tool_call>",
            Some("{\"url\": \"a\\nb\", \"deep\": true}"),
        ),
        (
            "qwen3_coder_xml",
            "<function=edit>\n<parameter=old>\n  x\n\n</parameter>\n</function>",
            Some("{\"old\": \"  x\\n\"}"),
        ),
        (
            "qwen3_coder_xml",
            "<tool_call>\n<function=edit>\n<parameter=old>\na </parameter> b\n</parameter>\n<parameter=lines>\n[1\n\
             </parameter>\n\
             </function>\n</tool_call>",
            Some("{\"old\": \"a </parameter> b\", \"lines\": \"[1\"}"),
        ),
    ] {
        let turn = parse(format, text);
        let expected: Vec<&str> = arguments.into_iter().collect();
        assert_eq!(turn.calls.iter().map(|call| call.arguments.as_str()).collect::<Vec<_>>(), expected, "{text}");
    }
}

#[test]
fn an_emulated_call_may_stand_in_a_fence_and_ends_the_answer() {
    for text in [
        "Yes.\n```json\nTOOL_CALL {\"name\": \"now\", \"arguments\": {}}\n```\nIt is noon.",
        "Yes. TOOL_CALL: {\"name\": \"now\"} and so it goes",
        "Yes.\nTOOL_CALL ```json\n{\"arguments\": {}, \"name\": \"now\"}\n```",
        "Yes.\n```tool_call\nTOOL_CALL {\"name\": \"now\", \"arguments\": {}}\n```",
        "Yes.\nTOOL_CALL {\"name\": \"now\", \"arguments\": \"{}\"}\nTOOL_CALL {\"name\": \"unknown\"}",
    ] {
        let turn = parse("emulated", text);
        assert_eq!((turn.content.as_str(), calls(&turn)), ("Yes.", vec![("now", "{}")]), "{text}");
    }
}

#[test]
fn generation_can_end_when_no_call_can_follow() {
    let tools = tools();
    let complete_after = |format: &str, parallel: bool, text: &str| {
        let mut parser = TurnParser::new(&TurnOptions {
            strategy: strategy(format),
            tools: &tools,
            choice: &ToolChoice::Auto,
            any_tool: false,
            parallel,
            prompt: "",
            seed: "",
        });
        parser.push(text);
        parser.is_complete()
    };
    let call = "TOOL_CALL {\"name\": \"now\"}";
    assert!(!complete_after("emulated", true, call));
    assert!(!complete_after("emulated", true, &format!("{call}\nTOOL")));
    assert!(complete_after("emulated", true, &format!("{call}\nTool")));
    assert!(complete_after("emulated", false, call));
    assert!(complete_after("hermes", false, "<tool_call>{\"name\": \"now\"}"));
    assert!(!complete_after("hermes", true, "<tool_call>{\"name\": \"now\"}</tool_call>"));
}

#[test]
fn what_a_prompt_has_begun_is_part_of_the_answer() {
    let spoken = pieces("functionary_v32", "<|assistant|>\n\n>>>", ["all\nHello >>> there"], FinishReason::Stop);
    assert_eq!((spoken.content.as_str(), spoken.calls.len()), ("Hello >>> there", 0));
    let unaddressed = pieces("functionary_v32", "<|assistant|>\n\n>>>", ["He", "llo"], FinishReason::Stop);
    assert_eq!(unaddressed.content, "Hello");
    let called = pieces("functionary_v32", "<|assistant|>\n\n>>>", ["fetch\n{\"url\": \"a\"}"], FinishReason::Stop);
    assert_eq!((called.content.as_str(), calls(&called)), ("", vec![("fetch", "{\"url\": \"a\"}")]));
}

#[test]
fn strings_may_stand_in_cdata() {
    let text = "<function name=\"edit\"><param name=\"old\"><![CDATA[<a>\n]]></param><param name=\"path\"><![CDAT</param>\
        </function>";
    assert_eq!(calls(&parse("minicpm5", text)), [("edit", "{\"old\": \"<a>\\n\", \"path\": \"<![CDAT\"}")]);
}

/// At every cut: what a JSON string holds closes nothing, unless it turns out to be none.
#[test]
fn a_closing_tag_in_a_json_string_is_a_part_of_it() {
    let call = |lines: &str| {
        format!(
            "<tool_call>\n<function=edit>\n<parameter=lines>\n{lines}\n</parameter>\n<parameter=path>\nx \"y\"\n\
             </parameter>\n</function>\n</tool_call>"
        )
    };
    let inner = "a</parameter>\n<parameter=old>\nb</parameter>\n</function>\n</tool_call>";
    for (lines, read) in [
        (json!([inner, 1, {"k": inner}]).to_string(), json!([inner, 1, {"k": inner}])),
        ("[\"a".to_owned(), json!("[\"a")),
        ("[\"a\"b\"".to_owned(), json!("[\"a\"b\"")),
    ] {
        let text = call(&lines).replace("\\n", "");
        let read: Value = serde_json::from_str(&read.to_string().replace("\\n", "")).unwrap();
        for cut in (0..=text.len()).filter(|cut| text.is_char_boundary(*cut)) {
            let turn = pieces("qwen3_coder_xml", "", [&text[..cut], &text[cut..]], FinishReason::Stop);
            let [call] = &turn.calls[..] else { panic!("{cut}: {turn:?}") };
            let arguments: Value = serde_json::from_str(&call.arguments).unwrap();
            assert_eq!(arguments, json!({"lines": read, "path": "x \"y\""}), "{cut}");
        }
    }
}

#[test]
fn attributes_are_read_with_their_entities_and_elements_as_values() {
    let text = "<|open|>call tool=\"edit\" index=\"1\"<|sep|><|open|>argument key=\"a&quot;&amp;\" type=\"array\"<|sep|>[1]\
        <|close|>argument<|sep|><|close|>call<|sep|>";
    assert_eq!(calls(&parse("kimi_k3", text)), [("edit", "{\"a\\\"&\": [1]}")]);
    let mark = "]<]minimax[>[";
    let text =
        "~<tool_call>~<invoke name=\"edit\">~<lines>~<item>1~</item>~<item>2~</item>~</lines>~</invoke>~</tool_call>";
    assert_eq!(calls(&parse("minimax_m3", &text.replace('~', mark))), [("edit", "{\"lines\": [\"1\", \"2\"]}")]);
    // An element within one of the same name.
    let text = "~<tool_call>~<invoke name=\"edit\">~<or>~<or>~<or>a~</or>~</or>~</or>~<a>b~</a>~</invoke>~</tool_call>";
    let turn = parse("minimax_m3", &text.replace('~', mark));
    assert_eq!(calls(&turn), [("edit", "{\"or\": {\"or\": {\"or\": \"a\"}}, \"a\": \"b\"}")]);
}

#[test]
fn between_marks_all_is_text() {
    let text = "<|tool_call>call:edit{old:<|\"|>a\\n \"b\", {c}: <|\"|>,lines:[1,{x:<|\"|><|\"|>}]}<tool_call|>";
    assert_eq!(calls(&parse("gemma4", text)), [("edit", r#"{"old":"a\\n \"b\", {c}: ","lines":[1,{"x":""}]}"#)]);
}

#[test]
fn long_calls_take_no_longer_than_their_length() {
    let long = "word ".repeat(100_000);
    for text in [
        format!("TOOL_CALL {{\"name\": \"fetch\", \"arguments\": {{\"url\": \"{long}\"}}}}"),
        format!("<tool_call>{{\"arguments\": {{\"url\": \"{long}\"}}, \"name\": \"fetch\"}}</tool_call>"),
        format!("<function=edit><parameter=lines>[\"{long}\"]</parameter></function>"),
        format!("<function=fetch><parameter=url>{long}</parameter></function>"),
    ] {
        let format = match &text[..5] {
            "TOOL_" => "emulated",
            "<tool" => "hermes",
            _ => "qwen3_coder_xml",
        };
        let pieces = pieces(format, "", text.split_inclusive(' '), FinishReason::Stop);
        assert_eq!(pieces, parse(format, &text), "{format}");
        assert!(pieces.calls[0].arguments.len() > long.len());
    }
}

#[test]
fn thinking_is_reasoning_and_holds_no_calls() {
    for format in ["hermes", "emulated", "glm47", "llama3_json"] {
        let text = "<think>\nTOOL_CALL {\"name\": \"now\"} <tool_call>now</tool_call>\n</think>\n\nNo.";
        let turn = parse(format, text);
        assert_eq!(turn.reasoning, "TOOL_CALL {\"name\": \"now\"} <tool_call>now</tool_call>");
        assert_eq!((turn.content.as_str(), turn.calls.len()), ("No.", 0));
        let opened = pieces(format, "<|assistant|><think>\n", [&text[8..]], FinishReason::Stop);
        assert_eq!(opened, turn, "{format}");
        let repeated = pieces(format, "<|assistant|><think>\n", [text], FinishReason::Stop);
        assert_eq!(repeated, turn, "{format}");
    }
    let unopened = pieces("glm47", "<|assistant|><think>", ["<tool_call>now</tool_call>"], FinishReason::Stop);
    assert_eq!((calls(&unopened), unopened.reasoning.as_str()), (vec![("now", "{}")], ""));
    assert_eq!(parse("hermes", "\n</think>\n\nYes.").content, "Yes.");
    assert_eq!(parse("hermes", "</thin").content, "</thin");
    assert_eq!(parse("hermes", "Write `<think>` first.").content, "Write `<think>` first.");
    assert_eq!(parse("mistral_v11", "[THINK]a[/THINK]b").reasoning, "a");
}

#[test]
fn blanks_are_text_where_no_call_follows() {
    assert_eq!(parse("hermes", "  a\n\nb \n").content, "  a\n\nb \n");
    assert_eq!(parse("hermes", " \n").content, " \n");
    let call = "<tool_call>{\"name\": \"now\"}</tool_call>";
    assert_eq!(parse("hermes", &format!("a\n\n{call}\n\nb\n")).content, "a\n\nb");
    assert_eq!(parse("hermes", &format!("\n{call}\n\nb")).content, "b");
}

#[test]
fn only_what_the_choice_allows_is_a_call() {
    let tools = tools();
    let text = "<tool_call>{\"name\": \"now\"}</tool_call>";
    let parse = |choice: ToolChoice, any_tool: bool| {
        let options = TurnOptions {
            strategy: strategy("hermes"),
            tools: if any_tool { &[] } else { &tools },
            choice: &choice,
            any_tool,
            parallel: true,
            prompt: "",
            seed: "",
        };
        Turn::parse(&options, text, FinishReason::Stop).calls.len()
    };
    assert_eq!(parse(ToolChoice::Required, false), 1);
    assert_eq!(parse(ToolChoice::Named("now".to_owned()), false), 1);
    assert_eq!(parse(ToolChoice::Named("fetch".to_owned()), false), 0);
    assert_eq!(parse(ToolChoice::None, false), 0);
    assert_eq!(parse(ToolChoice::Auto, true), 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn no_cut_matters_in_any_mixture(
        format in 0usize..100,
        parts in prop::collection::vec((0usize..60, "[ \n,{}\"a:\\\\]{0,2}"), 0..14),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..5),
        opened in any::<bool>(),
        is_stop in any::<bool>(),
    ) {
        let (format, sample) = SAMPLES[format % SAMPLES.len()];
        let words = words(format, sample);
        let text: String = parts.iter().flat_map(|(word, glue)| [words[word % words.len()].as_str(), glue]).collect();
        let reason = if is_stop { FinishReason::Stop } else { FinishReason::Length };
        let prompt = if opened { "<think>" } else { "" };
        let whole = pieces(format, prompt, [text.as_str()], reason);
        let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len() + 1)).collect();
        places.retain(|place| text.is_char_boundary(*place));
        places.extend([0, text.len()]);
        places.sort_unstable();
        let cut = pieces(format, prompt, places.windows(2).map(|pair| &text[pair[0]..pair[1]]), reason);
        prop_assert_eq!(&cut, &whole, "{} of {:?}", format, text);
        let single = pieces(format, prompt, text.split_inclusive(|_| true), reason);
        prop_assert_eq!(&single, &whole, "{} of {:?}", format, text);
        if is_stop {
            for call in &whole.calls {
                let read = serde_json::from_str::<Value>(&call.arguments);
                prop_assert!(read.is_ok(), "{} of {:?}: {:?}", format, text, call);
            }
        }
        let is_structured = ["harmony", "kimi_k3", "minimax_m3", "muse", "functionary_v32"].contains(&format);
        let has_thoughts = opened || ["hink", "THINK", "thought", "channel", "seed:"].iter().any(|mark| text.contains(mark));
        if whole.calls.is_empty() && !has_thoughts && !is_structured {
            prop_assert_eq!(&whole.content, &text, "something of it is lost");
        }
    }
}

/// What answers in a format are made of.
fn words(format: &str, sample: &str) -> Vec<String> {
    let mut words: Vec<String> = match strategy(format) {
        Strategy::Native(format) => format.markers().into_iter().map(str::to_owned).collect(),
        Strategy::Emulated(_) => ["TOOL_CALL", "```json\n", "```", "<think>", "</think>"].map(str::to_owned).to_vec(),
    };
    let halves: Vec<String> = words.iter().map(|word| word.chars().take(word.chars().count() / 2).collect()).collect();
    words.extend(halves);
    words.extend(
        ["fetch", "now", "text", "{\"name\": \"fetch\", \"arguments\": {", "{\"url\": \"a", "\"}", "}", "\n"]
            .map(str::to_owned),
    );
    words.push(sample.to_owned());
    words
}
