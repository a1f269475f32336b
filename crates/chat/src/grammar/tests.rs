//! Whatever is generated under a grammar is read back as complete calls: random walks through the enforcer's matcher,
//! byte by byte, for every format. A few of them for each choice, new ones in every run; `MESH_ROUNDS` times as many
//! (`just mutations`).

use std::sync::Arc;

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv};
use llguidance::{Matcher, ParserFactory};
use mesh_types::chat::ResponseSchema;
use mesh_types::{FinishReason, ToolChoice};
use proptest::prelude::{ProptestConfig, any, proptest};
use serde_json::{Value, json};

use super::*;
use crate::capability::Reason;
use crate::format::Marked;
use crate::parse::{Turn, TurnOptions};

/// Longest walk, in bytes. Those that end do it within a quarter of that, nearly all of them.
const MAX_WALK: usize = 3000;
/// Walks of each format under each choice.
const WALKS: u64 = 3;

fn tool(name: &str, parameters: Value) -> Tool {
    let function = json!({"name": name, "parameters": parameters});
    Tool::from_definition(json!({"type": "function", "function": function})).expect("a tool")
}

/// Tools whose schemas use what schemas have.
fn tools() -> Vec<Tool> {
    let stop = json!({"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}, "nights": {"type":
        "integer", "minimum": 1, "maximum": 30}}, "required": ["city"], "additionalProperties": false});
    let filter = json!({"type": "object", "properties": {"filter": {"$ref": "#/$defs/Filter"}, "least": {"type":
        "integer", "minimum": 1}}, "additionalProperties": false});
    vec![
        tool("now", json!(null)),
        tool(
            "look_up",
            json!({"type": "object", "properties": {
            "city": {"type": "string"},
            "unit": {"enum": ["celsius", "fahrenheit"]},
            "days": {"type": "integer"},
            "exact": {"type": "boolean"},
        }, "required": ["city", "exact"]}),
        ),
        tool(
            "look_up_all",
            json!({"type": "object", "properties": {
            "name": {"type": ["string", "null"]},
            "limit": {"anyOf": [{"type": "integer", "minimum": 3, "maximum": 99}, {"type": "null"}], "default": null},
            "kind": {"enum": ["town", "city", null, 7]},
            "code": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]+$"},
            "day": {"type": "string", "format": "date"},
            "ratio": {"type": "number"},
            "either": {"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 5}]},
        }, "required": ["name", "kind"], "additionalProperties": false}),
        ),
        tool(
            "plan-trip",
            json!({"type": "object", "$defs": {"Stop": stop, "Filter": filter}, "properties": {
            "stops": {"type": "array", "items": {"$ref": "#/$defs/Stop"}, "minItems": 1, "maxItems": 3},
            "grid": {"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
            "const": {"const": {"a": [1, "x"]}},
            "filter": {"anyOf": [{"$ref": "#/$defs/Filter"}, {"type": "string"}]},
            "pair": {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "items": false},
        }, "required": ["stops"]}),
        ),
    ]
}

fn template(source: &str) -> ChatTemplate {
    ChatTemplate::parse(source, "", "").expect("a template")
}

struct Asked {
    strategy: Strategy,
    tools: Vec<Tool>,
    choice: ToolChoice,
    parallel: bool,
    response: ResponseFormat,
}

impl Asked {
    fn of(strategy: Strategy, choice: ToolChoice) -> Self {
        Self { strategy, tools: tools(), choice, parallel: true, response: ResponseFormat::Text }
    }

    fn enforced(&self) -> Enforced {
        self.try_enforced("", self.prompt()).expect("enforceable")
    }

    /// What its template always ends a prompt with, as far as it matters.
    fn prompt(&self) -> &'static str {
        match &self.strategy {
            Strategy::Native(format) if format.name == "functionary_v32" => ">>>",
            _ => "",
        }
    }

    fn try_enforced(&self, source: &str, prompt: &str) -> Result<Enforced, Unenforceable> {
        let Self { strategy, tools, choice, parallel, response } = self;
        let template = &template(source);
        Demand { strategy, template, prompt, tools, choice, parallel: *parallel, response }.enforced()
    }

    fn read(&self, text: &str) -> Turn {
        self.read_after(self.prompt(), text)
    }

    fn read_after(&self, prompt: &str, text: &str) -> Turn {
        let options = TurnOptions {
            strategy: self.strategy.clone(),
            tools: &self.tools,
            choice: &self.choice,
            any_tool: false,
            parallel: self.parallel,
            prompt,
            seed: "",
        };
        Turn::parse(&options, text, FinishReason::Stop)
    }
}

fn strategies() -> Vec<Strategy> {
    Format::all().map(Strategy::Native).chain([Strategy::Emulated(Reason::Forced)]).collect()
}

fn matcher(grammar: &str) -> Result<Matcher, String> {
    let environment: TokEnv = ApproximateTokEnv::single_byte_env();
    let factory = Arc::new(ParserFactory::new_simple(&environment).expect("a factory"));
    let matcher = Matcher::new(factory.create_parser(TopLevelGrammar::from_lark(grammar.to_owned())));
    match matcher.get_error() {
        Some(error) => Err(format!("{error}\n{grammar}")),
        None => Ok(matcher),
    }
}

/// Numbers that look random.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }
}

/// Where a walk led.
enum Walked {
    ToTheEnd(String),
    OnAndOn(String),
}

impl Walked {
    fn ended(self) -> Option<String> {
        if let Self::ToTheEnd(text) = self { Some(text) } else { None }
    }
}

/// A text that the grammar of `matcher` allows, chosen by `seed`; `phrases` are what a text may end with.
fn walk(mut matcher: Matcher, phrases: &[&str], seed: u64) -> Result<Walked, String> {
    let mut dice = Dice(seed);
    let mut text: Vec<u8> = Vec::new();
    while text.len() < MAX_WALK {
        let so_far = || String::from_utf8_lossy(&text).into_owned();
        let failed = |error: &dyn std::fmt::Display| format!("{error:.300}, after {:?}", so_far());
        let is_accepting = matcher.is_accepting().map_err(|error| failed(&error))?;
        if matcher.is_stopped() || (is_accepting && dice.below(2) == 0) {
            return Ok(Walked::ToTheEnd(so_far()));
        }
        let mask = matcher.compute_mask().map_err(|error| failed(&error))?;
        let allowed: Vec<u8> = (0..=255u8).filter(|byte| mask.is_allowed(u32::from(*byte))).collect();
        if allowed.is_empty() {
            return if is_accepting { Ok(Walked::ToTheEnd(so_far())) } else { Err(failed(&"stuck")) };
        }
        // Where much is allowed, text is: it may end.
        let is_text = allowed.len() > 40;
        let phrase = phrases[dice.below(phrases.len())];
        if is_text && dice.below(3) == 0 && allowed.contains(&phrase.as_bytes()[0]) {
            let tokens: Vec<u32> = phrase.bytes().map(u32::from).collect();
            let taken = matcher.try_consume_tokens(&tokens).map_err(|error| failed(&error))?;
            text.extend(&phrase.as_bytes()[..taken]);
            continue;
        }
        let ending: Vec<u8> = allowed.iter().copied().filter(|byte| b"]})\"".contains(byte)).collect();
        let byte = match dice.below(3) {
            0 if !ending.is_empty() => ending[dice.below(ending.len())],
            _ => allowed[dice.below(allowed.len())],
        };
        matcher.consume_token(u32::from(byte)).map_err(|error| failed(&error))?;
        text.push(byte);
    }
    Ok(Walked::OnAndOn(String::from_utf8_lossy(&text).into_owned()))
}

/// Texts that end something in a format.
fn phrases(strategy: &Strategy) -> Vec<&'static str> {
    let mut phrases = match strategy {
        Strategy::Native(format) => format.markers(),
        Strategy::Emulated(_) => Vec::new(),
    };
    if let Strategy::Native(Format { syntax: Syntax::Marked(marked), .. }) = strategy
        && let Body::Tagged(tagged) = &marked.body
    {
        phrases.extend([tagged.close; 8]);
    }
    phrases.extend(["\"", "'", "\"}", "007", "true", "\n", "</", "é", "<|\"|>"]);
    phrases
}

/// Whether `text` is read as nothing but complete calls of allowed tools with valid arguments.
fn check_calls(asked: &Asked, text: &str) -> Result<(), String> {
    let turn = asked.read(text);
    if turn.calls.is_empty() || !turn.content.trim().is_empty() {
        return Err(format!("{turn:?} of {text:?}"));
    }
    for call in &turn.calls {
        let tool = asked.tools.iter().find(|tool| tool.name == call.name && asked.choice.allows(&tool.name));
        let tool = tool.ok_or_else(|| format!("a call of {} in {text:?}", call.name))?;
        let arguments: Value = serde_json::from_str(&call.arguments)
            .map_err(|error| format!("{error} in {:?} of {text:?}", call.arguments))?;
        let schema = tool.parameters.clone().unwrap_or_else(|| json!({"type": "object"}));
        let validator = jsonschema::validator_for(&schema).expect("a schema");
        let errors: Vec<String> = validator.iter_errors(&arguments).map(|error| error.to_string()).collect();
        if !errors.is_empty() {
            return Err(format!("{errors:?} in {arguments} of {text:?}"));
        }
    }
    Ok(())
}

/// Walks of one format under a choice.
fn check_walks(strategy: &Strategy, choice: &ToolChoice, parallel: bool, seed: u64) -> Result<(), String> {
    let asked = Asked { parallel, ..Asked::of(strategy.clone(), choice.clone()) };
    let constraint = asked.enforced().constraint.expect("a constraint");
    let grammar = constraint.grammar.expect("a grammar");
    let (phrases, fresh) = (phrases(strategy), matcher(&grammar)?);
    let (mut ended, mut last) = (0, String::new());
    // A walk that does not come to an end shows nothing: others have to.
    for step in 0..8 * WALKS {
        if ended == WALKS {
            break;
        }
        let text = match walk(fresh.deep_clone(), &phrases, seed.wrapping_add(step))? {
            Walked::ToTheEnd(text) => text,
            Walked::OnAndOn(text) => {
                last = text;
                continue;
            }
        };
        ended += 1;
        check_calls(&asked, &text)?;
        if let Start::AtMarker(markers) = &constraint.start
            && !text.starts_with('{')
            && !markers.iter().any(|marker| text.contains(marker.as_str()))
        {
            return Err(format!("{text:?} begins with none of {markers:?}"));
        }
        let is_one = !parallel || matches!(choice, ToolChoice::Named(_));
        if is_one && asked.read(&text).calls.len() != 1 {
            return Err(format!("more than one call in {text:?}"));
        }
    }
    if ended == 0 { Err(format!("no walk came to its end: {last:.600?}\n{grammar}")) } else { Ok(()) }
}

/// Walks of every format under a choice.
fn walk_all(choice: &ToolChoice, parallel: bool, seed: u64) {
    let failures: Vec<String> = strategies()
        .iter()
        .filter_map(|strategy| {
            let failed = check_walks(strategy, choice, parallel, seed).err()?;
            Some(format!("{strategy}, {choice:?}: {failed}\n"))
        })
        .collect();
    assert!(failures.is_empty(), "{}", failures.concat());
}

fn rounds() -> u32 {
    std::env::var("MESH_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(1)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: rounds(), ..ProptestConfig::default() })]

    #[test]
    fn what_is_generated_is_read_back_as_valid_calls(seed in any::<u64>(), parallel in any::<bool>()) {
        let names = vec!["look_up".to_owned(), "now".to_owned()];
        for choice in [
            ToolChoice::Auto,
            ToolChoice::Required,
            ToolChoice::Named("look_up_all".to_owned()),
            ToolChoice::Allowed { names, required: true },
        ] {
            walk_all(&choice, parallel, seed);
        }
    }
}

#[test]
fn every_format_that_is_read_says_how_it_is_written() {
    for format in Format::all().filter(|format| format.syntax != Syntax::Harmony) {
        for elsewhere in [At::Start, At::Marker] {
            assert!(format.written().iter().any(|written| written.at != elsewhere), "{}", format.name);
        }
    }
}

#[test]
fn a_choice_says_where_a_grammar_holds_and_what_follows() {
    let hermes = || Strategy::Native(Format::named("hermes").expect("a format"));
    let constraint = |choice| Asked::of(hermes(), choice).enforced().constraint.expect("a constraint");
    let auto = constraint(ToolChoice::Auto);
    assert_eq!(auto.start, Start::AtMarker(vec!["<tool_call>".to_owned()]));
    assert_eq!((auto.after, auto.close_in_time), (After::Repeat, true));
    let one = Asked { parallel: false, ..Asked::of(hermes(), ToolChoice::Auto) };
    assert_eq!(one.enforced().constraint.expect("a constraint").after, After::End);
    let forced = constraint(ToolChoice::Required);
    assert_eq!((forced.start, forced.after), (Start::Immediately, After::End));
    let none = constraint(ToolChoice::None);
    assert_eq!((none.grammar, none.forbid), (None, vec!["<tool_call>".to_owned()]));
    let without_tools = Asked { tools: Vec::new(), ..Asked::of(hermes(), ToolChoice::Auto) };
    assert_eq!(without_tools.enforced().constraint, None);
    for strategy in strategies() {
        let none = Asked::of(strategy, ToolChoice::None).enforced().constraint.expect("a constraint");
        assert!(none.grammar.is_none() && none.check().is_ok());
    }
}

#[test]
fn thinking_comes_first_where_the_model_thinks() {
    let asked = Asked::of(Strategy::Emulated(Reason::Forced), ToolChoice::Required);
    let thinking = |source: &str, prompt: &str| {
        asked.try_enforced(source, prompt).expect("enforceable").constraint.expect("a constraint").thinking
    };
    assert_eq!(thinking("{{ messages }}", "hi"), None);
    let is_open = |is_open| Some(Thinking { open: "<think>".into(), close: "</think>".into(), is_open });
    assert_eq!(thinking("<think>", "hi"), is_open(false));
    assert_eq!(thinking("<think>", "<|assistant|><think>\n"), is_open(true));
}

#[test]
fn what_a_strict_tool_asks_beyond_is_refused_and_else_reported() {
    let parameters = json!({"type": "object", "properties": {"a": {"type": "string", "not": {"const": ""}}}});
    let mut asked = Asked::of(Strategy::Emulated(Reason::Forced), ToolChoice::Auto);
    asked.tools.push(tool("odd", parameters.clone()));
    assert_eq!(asked.enforced().relaxed, ["tools[4].function.parameters.properties.a.not"]);
    let function = json!({"name": "odd", "strict": true, "parameters": parameters});
    asked.tools[4] = Tool::from_definition(json!({"type": "function", "function": function})).expect("a tool");
    let refused = asked.try_enforced("", "").expect_err("a refusal");
    let (name, path) = ("odd".to_owned(), "properties.a.not".to_owned());
    assert_eq!(refused, Unenforceable::Arguments { index: 4, name, path });
}

#[test]
fn a_marker_may_begin_in_the_prompt() {
    // Its template opens a message, and whom it is for tells text and calls apart.
    let functionary = || Strategy::Native(Format::named("functionary_v32").expect("a format"));
    for (choice, forbids) in [(ToolChoice::Auto, false), (ToolChoice::None, true)] {
        let constraint = Asked::of(functionary(), choice).try_enforced("", "<|x|>\n\n>>>").expect("enforceable");
        let constraint = constraint.constraint.expect("a constraint");
        assert_eq!(constraint.begun, ">>>");
        let texts = if forbids { &constraint.forbid[..] } else { constraint.markers() };
        assert_eq!(texts, [">>>now\n", ">>>look_up\n", ">>>look_up_all\n", ">>>plan-trip\n"]);
    }
}

/// A string may look like a number, a list or `null`, and is read as that where the schema also has such types.
#[test]
fn texts_that_look_like_other_values_are_written_where_those_are_valid() {
    let mut parameters = json!({"type": "object", "properties": {
        "short_or_many": {"type": ["string", "integer"], "maxLength": 3, "minimum": 500},
        "digit_or_one": {"enum": ["1", "2", 3]},
        "word_or_false": {"enum": ["true", "yes", false]},
        "any_or_bounded": {"anyOf": [{"type": "string"}, {"type": "number", "exclusiveMaximum": 0}]},
        "short_or_null": {"type": ["string", "null"], "maxLength": 4},
        "short_or_list": {"anyOf": [{"type": "string", "maxLength": 4}, {"type": "array", "items": {"const": 1}}]},
        "word_or_object": {"oneOf": [{"type": "string", "pattern": "^[a-z{}]*$"}, {"type": "object", "properties": {"a": {"type":
            "integer"}}, "required": ["a"]}]},
    }});
    let names: Vec<Value> =
        parameters["properties"].as_object().expect("some").keys().cloned().map(Value::from).collect();
    parameters["required"] = names.into();
    let tagged = |format: &&Format| matches!(&format.syntax, Syntax::Marked(Marked { body: Body::Tagged(_), .. }));
    for format in Format::all().filter(tagged) {
        let strategy = Strategy::Native(format);
        let mut phrases = phrases(&strategy);
        phrases.extend(["7", "1", "-1.5", "true", "null", "None", "[1]", "[]", "{}", " 7", "{\"a\": 1}"]);
        let asked = Asked { tools: vec![tool("f", parameters.clone())], ..Asked::of(strategy, ToolChoice::Required) };
        let grammar = asked.enforced().constraint.and_then(|held| held.grammar).expect("a grammar");
        let fresh = matcher(&grammar).expect("a grammar");
        let walks = (0..60).map(|seed| {
            walk(fresh.deep_clone(), &phrases, seed).unwrap_or_else(|why| panic!("{}: {why}", format.name))
        });
        let ended: Vec<String> = walks.filter_map(Walked::ended).collect();
        assert!(ended.len() > 5, "{}: {} walks ended", format.name, ended.len());
        for text in ended {
            check_calls(&asked, &text).unwrap_or_else(|failed| panic!("{}: {failed}", format.name));
        }
    }
}

/// Nothing is both a single digit and no number: such a parameter is left out, and said.
#[test]
fn a_text_that_can_only_be_read_as_something_else_is_left_out() {
    let parameters = json!({"type": "object", "properties": {
        "digit": {"anyOf": [{"type": "string", "pattern": "^[0-9]$"}, {"type": "integer", "minimum": 10}]},
        "city": {"type": "string"},
    }});
    let strategy = Strategy::Native(Format::named("qwen3_coder_xml").expect("a format"));
    let asked = Asked { tools: vec![tool("f", parameters)], ..Asked::of(strategy, ToolChoice::Required) };
    let enforced = asked.enforced();
    assert_eq!(enforced.relaxed, ["tools[0].function.parameters.properties.digit"]);
    matcher(&enforced.constraint.and_then(|held| held.grammar).expect("a grammar")).expect("a grammar");
}

/// Constants that no reader could tell from texts are left out, and said.
#[test]
fn what_elements_cannot_say_is_left_out() {
    let parameters = json!({"type": "object", "properties": {
        "numbers": {"const": {"a": [1]}},
        "words": {"const": {"a": ["b"]}},
        "marked": {"const": "]<]minimax[>["},
        "any": {"enum": [{"a": 1}, "all"]},
        "list": {"type": "array", "items": {"const": [[]]}},
        "pair": {"type": "array", "minItems": 1, "prefixItems": [{"const": [1]}]},
    }, "required": ["numbers", "words"]});
    let strategy = Strategy::Native(Format::named("minimax_m3").expect("a format"));
    let asked = Asked { tools: vec![tool("f", parameters)], ..Asked::of(strategy, ToolChoice::Required) };
    let enforced = asked.enforced();
    let relaxed = ["numbers", "marked", "list.items", "pair.prefixItems[0]", "pair"];
    assert_eq!(enforced.relaxed, relaxed.map(|path| format!("tools[0].function.parameters.properties.{path}")));
    let fresh = matcher(&enforced.constraint.and_then(|held| held.grammar).expect("a grammar")).expect("a grammar");
    for seed in 0..8 {
        let text = walk(fresh.deep_clone(), &["]"], seed).expect("a walk").ended().expect("an end");
        for call in asked.read(&text).calls {
            let arguments: Value = serde_json::from_str(&call.arguments).expect("JSON");
            assert_eq!(arguments["words"], json!({"a": ["b"]}), "{text}");
            let others = arguments.as_object().expect("an object").iter().filter(|(name, _)| *name != "words");
            let allowed = [("any", json!("all")), ("list", json!([]))];
            others.for_each(|(name, value)| assert!(allowed.contains(&(name, value.clone())), "{arguments} of {text}"));
        }
    }
}

/// The reader gets a prompt's end too, where it opens what the answer goes on with.
#[test]
fn forced_calls_go_on_with_what_the_prompt_opens() {
    for (format, prompt, said) in [
        ("functionary_v32", ">>>", "now\n{}>>>look_up\n{\"city\": \"Oslo\", \"exact\": true}"),
        (
            "muse",
            "<|start|>assistant",
            " to=now<|message|><atem:function_calls>\n<atem:invoke name=\"now\">\n</atem:invoke>\n\
            </atem:function_calls><|eom|><|start|>assistant to=look_up<|message|><atem:function_calls>\n\
            <atem:invoke name=\"look_up\">\n<atem:parameter name=\"city\">Oslo</atem:parameter>\n\
            <atem:parameter name=\"exact\">true</atem:parameter>\n</atem:invoke>\n</atem:function_calls>",
        ),
        (
            "kimi_k3",
            "<|open|>response<|sep|>",
            "<|close|>response<|sep|><|open|>tools<|sep|>\
            <|open|>call tool=\"now\" index=\"1\"<|sep|><|close|>call<|sep|><|open|>call tool=\"look_up\" index=\"2\"<|sep|>\
            <|open|>argument key=\"city\" type=\"string\"<|sep|>Oslo<|close|>argument<|sep|>\
            <|open|>argument key=\"exact\" type=\"boolean\"<|sep|>true<|close|>argument<|sep|><|close|>call<|sep|>\
            <|close|>tools<|sep|><|close|>message<|sep|>",
        ),
        (
            "minimax_m3",
            "]~b]ai\n",
            "</mm:think>]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name=\"now\">]<]minimax[>[</invoke>\n\
            ]<]minimax[>[<invoke name=\"look_up\">]<]minimax[>[<city>Oslo]<]minimax[>[</city>]<]minimax[>[<exact>true\
            ]<]minimax[>[</exact>]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>",
        ),
    ] {
        let asked = Asked::of(Strategy::Native(Format::named(format).expect("a format")), ToolChoice::Required);
        let constraint = asked.try_enforced("", prompt).expect("enforceable").constraint.expect("a constraint");
        let mut matcher = matcher(&constraint.grammar.expect("a grammar")).expect("a grammar");
        let tokens: Vec<u32> = said.bytes().map(u32::from).collect();
        let taken = matcher.try_consume_tokens(&tokens).expect("a grammar");
        assert_eq!(taken, said.len(), "{format}: {:?} is not allowed behind {:?}", &said[taken..], &said[..taken]);
        assert!(matcher.is_accepting().expect("a grammar"), "{format}");
        let turn = asked.read_after(prompt, said);
        let calls: Vec<(&str, &str)> =
            turn.calls.iter().map(|call| (call.name.as_str(), call.arguments.as_str())).collect();
        assert_eq!(calls, [("now", "{}"), ("look_up", "{\"city\": \"Oslo\", \"exact\": true}")], "{format}");
        assert_eq!((turn.content.as_str(), turn.reasoning.as_str()), ("", ""), "{format}");
    }
}

#[test]
fn an_answer_has_the_shape_that_is_asked_for() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "array", "items": {
        "enum": ["x", null]}}}, "required": ["b"]});
    let validator = jsonschema::validator_for(&schema).expect("a schema");
    let shape = ResponseSchema { name: "n".into(), schema, strict: false };
    for strategy in strategies() {
        let response = ResponseFormat::JsonSchema(shape.clone());
        let asked = Asked { tools: Vec::new(), response, ..Asked::of(strategy.clone(), ToolChoice::Auto) };
        let constraint = asked.enforced().constraint.expect("a constraint");
        assert_eq!(constraint.start, Start::Immediately);
        let matcher = matcher(&constraint.grammar.expect("a grammar")).expect("a grammar");
        let text = walk(matcher, &["\"", "}"], 7).expect("a walk").ended().expect("an end");
        let turn = asked.read(&text);
        let answer: Value = serde_json::from_str(&turn.content).expect(&text);
        assert!(validator.is_valid(&answer), "{strategy}: {text}");
    }
}

#[test]
fn either_calls_or_an_answer_of_the_shape_where_both_are_asked_for() {
    let response = ResponseFormat::JsonObject;
    for strategy in strategies() {
        let asked = Asked { response: response.clone(), ..Asked::of(strategy.clone(), ToolChoice::Auto) };
        let constraint = asked.enforced().constraint.expect("a constraint");
        assert_eq!(constraint.start, Start::Immediately);
        let fresh = matcher(&constraint.grammar.expect("a grammar")).expect("a grammar");
        for seed in 0..8 {
            let walked = walk(fresh.deep_clone(), &["\"", "}", "\n"], seed).expect("a walk");
            let Some(text) = walked.ended() else { continue };
            let turn = asked.read(&text);
            if turn.calls.is_empty() {
                let answer: Value = serde_json::from_str(&turn.content).expect(&text);
                assert!(answer.is_object(), "{strategy}: {text}");
            } else {
                check_calls(&asked, &text).unwrap_or_else(|failed| panic!("{strategy}: {failed}"));
            }
        }
    }
}
