//! Grammars from the first token on, and what is refused.

use mesh_types::Start;

use super::*;

const PERSON: &str = r#"{"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"},
    "tags": {"type": "array", "items": {"enum": ["x", "yy"]}}}, "required": ["name", "age"],
    "additionalProperties": false}"#;

fn is_person(text: &str) -> bool {
    let Ok(value) = serde_json::from_str::<serde_json::Value>(text) else { return false };
    let is_tag = |tag: &serde_json::Value| tag == "x" || tag == "yy";
    let tags = value.get("tags").is_none_or(|tags| tags.as_array().is_some_and(|tags| tags.iter().all(is_tag)));
    value["name"].is_string() && value["age"].as_f64().is_some_and(|age| age.fract() == 0.0) && tags
}

#[test]
fn noise_becomes_valid_json() {
    let (mut enforcer, constraint) = (enforcer(), json(PERSON));
    for seed in 0..60 {
        for temperature in [0.0, 1.0] {
            for max_tokens in [30, 60, 200] {
                let noise = Noise { seed, temperature, max_tokens, lift: (END, 0.0) };
                let outcome = noise.run(&mut enforcer, &constraint).expect("a text");
                assert!(is_person(&outcome.text), "{seed} {temperature} {max_tokens}: {:?}", outcome.text);
                assert!(outcome.ended, "room is kept for the end: {:?}", outcome.text);
            }
        }
    }
}

#[test]
fn a_run_that_goes_on_elsewhere_says_the_same() {
    let (mut one, mut other, constraint) = (enforcer(), enforcer(), json(PERSON));
    for seed in 0..20 {
        let noise = Noise { seed, temperature: 1.0, max_tokens: 50, lift: (END, 0.0) };
        let whole = noise.run(&mut one, &constraint).expect("a text").tokens;
        for cut in [0, 1, whole.len() / 2, whole.len()] {
            let mut here = one.open(&constraint, 50).expect("a constraint");
            here.follow(&whole).expect("its own text");
            here.follow(&whole[..cut]).expect("cut back");
            let mut there = other.open(&constraint, 50).expect("a constraint");
            there.follow(&whole[..cut]).expect("gone on elsewhere");
            let (mut a, mut b) = (vec![0.0; pieces().len()], vec![0.0; pieces().len()]);
            here.restrict_all(&mut a).expect("a mask");
            there.restrict_all(&mut b).expect("a mask");
            assert_eq!(a, b, "behind {:?}", read(&whole[..cut]));
        }
    }
}

#[test]
fn another_history_is_an_error() {
    let mut constrained = open(&json(PERSON), 100);
    assert_eq!(constrained.follow(&spell("[1]")), Err(EnforceError::History));
}

#[test]
fn nothing_but_the_end_follows_a_complete_text() {
    let constraint = json(r#"{"enum": ["ab"]}"#);
    let text = spell("\"ab\"");
    assert!(allows(&constraint, &text, TokenId(END)));
    for other in 0..pieces().len() as i32 {
        assert_eq!(allows(&constraint, &text, TokenId(other)), other == END);
    }
    assert!(!allows(&constraint, &text[..1], TokenId(END)), "not before it is complete");
}

#[test]
fn control_tokens_satisfy_no_text() {
    // `<think>` is a control token of this vocabulary, `<tool_call>` is text.
    let constraint = Constraint::immediately(r#"start: "<think>" | "<tool_call>" | "[CALL]""#);
    assert!(!allows(&constraint, &[], token("<think>")));
    assert!(!allows(&constraint, &[], token("[CALL]")));
    assert!(allows(&constraint, &[], token("<tool_call>")));
    assert!(allows(&constraint, &[], token("<")) && allows(&constraint, &[], token("[")));
    let as_text = Constraint { control_text: vec!["[CALL]".into(), "<|unknown|>".into()], ..constraint };
    assert!(allows(&as_text, &[], token("[CALL]")));
    assert!(!allows(&as_text, &[], token("<think>")));
    assert!(allows(&as_text, &tokens(&["[CALL]"]), TokenId(END)));
}

#[test]
fn what_cannot_be_enforced_is_refused() {
    let refused = |grammar: &str| matches!(check(&Constraint::immediately(grammar)), Err(ConstraintError::Grammar(_)));
    assert!(!refused("start: \"a\" b\nb: /[0-9]+/"));
    assert!(!refused(r#"{"grammars": [{"json_schema": {"type": "integer"}}]}"#));
    assert!(refused("start: b"), "an unknown rule");
    assert!(refused("start: \"a"), "a syntax error");
    assert!(refused(""), "nothing");
    assert!(refused("start: <|im_start|>"), "a control token");
    assert!(refused(r#"start: %json {"type": "nonsense"}"#));
    assert!(refused(r#"{"grammars": 1}"#));
    let marked = |marker: &str| Constraint { start: Start::AtMarker(vec![marker.into()]), ..json("{}") };
    assert!(matches!(check(&marked("<tool_call>")), Err(ConstraintError::Grammar(_))), "it begins with its marker");
    assert_eq!(check(&marked("{")), Ok(()));
    let long = Constraint::immediately("x".repeat(Constraint::MAX_GRAMMAR + 1));
    assert!(matches!(check(&long), Err(ConstraintError::GrammarTooLong { .. })));
}

#[test]
fn hostile_grammars_are_errors_and_not_the_end_of_the_process() {
    let deep = format!("start: {}\"a\"{}", "(".repeat(5_000), ")".repeat(5_000));
    let wide = format!("start: /{}/", "(a|b|c)?".repeat(4_000));
    let schema = format!("start: %json {}{{}}{}", r#"{"items": "#.repeat(600), "}".repeat(600));
    let left = "start: start start | \"a\"".to_owned();
    let repeat = "start: /((a{1,900}){1,900}){1,900}/".to_owned();
    for grammar in [deep, wide, schema, left, repeat] {
        let constraint = Constraint { close_in_time: false, ..Constraint::immediately(grammar) };
        if let Ok(mut constrained) = enforcer().open(&constraint, 10) {
            let mut logits = vec![0.0; pieces().len()];
            let _ = constrained.restrict(&mut logits);
            let _ = constrained.take(token("a"));
        }
    }
}
