//! Texts are complete before the tokens run out.

use mesh_types::{After, Thinking};
use proptest::prelude::*;
use serde_json::{Value, json as value};

use super::*;

/// Tokens of the way to the end of a run that has not begun.
fn way(constraint: &Constraint) -> u32 {
    open(constraint, u32::MAX).owed().expect("a way to the end")
}

#[test]
fn the_way_to_the_end_is_short() {
    // In the tokens of this vocabulary; at most one more than the shortest.
    for (schema, most) in [
        (r#"{"type": "integer"}"#, 1),
        (r#"{"type": "boolean"}"#, 1),
        (r#"{"type": "string"}"#, 1),
        (r#"{}"#, 1),
        (r#"{"type": "array", "items": {"type": "string"}}"#, 1),
        (r#"{"type": "array", "minItems": 2, "items": {"type": "boolean"}}"#, 6),
        (r#"{"type": "string", "minLength": 4}"#, 6),
        (r#"{"enum": ["abcdefgh", "x", 12345]}"#, 3),
        (r#"{"type": "object", "properties": {"name": {"type": "null"}}, "required": ["name"]}"#, 5),
    ] {
        let way = way(&json(schema));
        assert!(way <= most, "{schema} takes {way} tokens");
    }
    // Free text that only a certain text ends.
    let free = Constraint::immediately("start: \"<a>\" /(.|\\n)*/ \"</tool_call>\"");
    assert_eq!(way(&free), 4);
    let deep = Constraint::immediately("start: a\na: \"(\" a \")\" | \"x\" b\nb: \"y\" | \"zz\" b");
    assert_eq!(way(&deep), 2);
}

#[test]
fn an_opened_text_is_closed() {
    let constraint =
        json(r#"{"type": "object", "additionalProperties": {"type": "array", "items": {"type": "string"}}}"#);
    let mut constrained = open(&constraint, 1000);
    for (text, closing) in [("{", "}"), ("{\"", "\":[]}"), ("{\"k\": [\"va", "\"]}"), ("{\"k\": [\"va\\", "\"\"]}")] {
        constrained.follow(&spell(text)).expect("a possible text");
        let way = constrained.way_for_tests().expect("a way");
        assert!(way.len() <= closing.len(), "{text}{}", String::from_utf8_lossy(&way));
        let whole = [text.as_bytes(), &way].concat();
        assert!(serde_json::from_slice::<Value>(&whole).is_ok(), "{}", String::from_utf8_lossy(&whole));
    }
}

#[test]
fn thinking_is_ended_in_time() {
    let constraint = |is_open| Constraint {
        thinking: Some(Thinking { open: "<think>".into(), close: "</think>".into(), is_open }),
        control_text: vec!["<think>".into(), "</think>".into()],
        ..json(r#"{"enum": [{"a": true}]}"#)
    };
    let mut enforcer = enforcer();
    let mut thought = 0;
    for is_open in [true, false] {
        for seed in 0..40 {
            for max_tokens in [9, 12, 40] {
                let noise = Noise { seed, temperature: 1.0, max_tokens, lift: (END, 5.0) };
                let outcome = noise.run(&mut enforcer, &constraint(is_open)).expect("a text");
                let answer = outcome.text.rsplit("</think>").next().unwrap_or_default();
                thought += usize::from(answer.len() < outcome.text.len());
                let found: Value = serde_json::from_str(answer).expect(&outcome.text);
                assert_eq!(found, value!({"a": true}));
                assert!(outcome.ended);
            }
        }
    }
    assert!(thought >= 120, "{thought}");
}

#[test]
fn a_budget_that_is_too_small_is_used_up() {
    let constraint = json(r#"{"enum": ["a long text that does not fit"]}"#);
    let noise = Noise { seed: 1, temperature: 1.0, max_tokens: 5, lift: (END, 0.0) };
    let outcome = noise.run(&mut enforcer(), &constraint).expect("a text");
    assert!(!outcome.ended && "\"a long text".starts_with(&outcome.text[..2]), "{}", outcome.text);
}

/// A model that would go on and on: what is complete is ended where no room is left for more.
#[test]
fn a_complete_text_is_ended_where_more_does_not_fit() {
    let call = "<tool_call>{\"name\": true}</tool_call>";
    let grammar = format!("start: call (/[ -;\\n]/ call){{0,9}}\ncall: {}", value!(call));
    for constraint in [
        Constraint::immediately(grammar),
        Constraint { after: After::Repeat, ..Constraint::immediately(format!("start: {}", value!(call))) },
    ] {
        let way = way(&constraint);
        for more in 0..4 * way {
            let noise =
                Noise { seed: u64::from(more), temperature: 1.0, max_tokens: way + 1 + more, lift: (END, -50.0) };
            let outcome = noise.run(&mut enforcer(), &constraint).expect("a text");
            let is_whole = outcome.text.trim_end().ends_with(call) && outcome.text.matches(call).count() > 0;
            assert!(is_whole, "{more} more: {:?}", outcome.text);
        }
    }
}

/// Schemas of a few kinds, with what they ask for.
fn schema() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(value!({"type": "integer"})),
        Just(value!({"type": "boolean"})),
        Just(value!({"type": "null"})),
        (0usize..6).prop_map(|min| value!({"type": "string", "minLength": min})),
        prop::collection::vec("[a-z\\\\\"{é]{0,6}", 1..4).prop_map(|texts| value!({"enum": texts})),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        let properties = prop::collection::btree_map("[a-z\"]{1,6}", (inner.clone(), any::<bool>()), 0..4);
        let object = properties.prop_map(|properties| {
            let required: Vec<_> = properties.iter().filter(|(_, p)| p.1).map(|(name, _)| name.clone()).collect();
            let properties: serde_json::Map<_, _> = properties.into_iter().map(|(name, p)| (name, p.0)).collect();
            value!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
        });
        let array = (inner.clone(), 0usize..3)
            .prop_map(|(items, min)| value!({"type": "array", "items": items, "minItems": min}));
        let either = prop::collection::vec(inner, 1..3).prop_map(|any| value!({"anyOf": any}));
        prop_oneof![3 => object, 2 => array, 1 => either]
    })
}

/// Whether `found` is what `schema` asks for.
fn is_valid(schema: &Value, found: &Value) -> bool {
    if let Some(any) = schema["anyOf"].as_array() {
        return any.iter().any(|schema| is_valid(schema, found));
    }
    if let Some(texts) = schema["enum"].as_array() {
        return texts.contains(found);
    }
    match schema["type"].as_str() {
        Some("integer") => found.is_i64() || found.is_u64() || found.as_f64().is_some_and(|f| f.fract() == 0.0),
        Some("boolean") => found.is_boolean(),
        Some("null") => found.is_null(),
        Some("string") => {
            let min = schema["minLength"].as_u64().unwrap_or(0);
            found.as_str().is_some_and(|text| text.chars().count() as u64 >= min)
        }
        Some("array") => found.as_array().is_some_and(|items| {
            items.len() as u64 >= schema["minItems"].as_u64().unwrap_or(0)
                && items.iter().all(|item| is_valid(&schema["items"], item))
        }),
        _ => found.as_object().is_some_and(|object| {
            let properties = schema["properties"].as_object().expect("an object's schema");
            let required = schema["required"].as_array().expect("an object's schema");
            required.iter().all(|name| object.contains_key(name.as_str().expect("a name")))
                && object.iter().all(|(name, found)| properties.get(name).is_some_and(|s| is_valid(s, found)))
        }),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn whatever_the_schema_the_answer_is_valid_within_its_budget(
        schema in schema(), seed: u64, more in 0u32..12, greedy: bool,
    ) {
        let constraint = json(&schema.to_string());
        let max_tokens = way(&constraint) + more;
        let noise = Noise { seed, temperature: if greedy { 0.0 } else { 1.0 }, max_tokens, lift: (END, 0.0) };
        let outcome = noise.run(&mut enforcer(), &constraint).expect("a text");
        let found = serde_json::from_str::<Value>(&outcome.text);
        let found = found.unwrap_or_else(|error| panic!("{error}: {schema} with {max_tokens} gave {:?}", outcome.text));
        prop_assert!(is_valid(&schema, &found), "{} with {} gave {:?}", schema, max_tokens, outcome.text);
        prop_assert!(outcome.ended || outcome.tokens.len() as u32 == max_tokens);
    }
}
