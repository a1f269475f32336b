//! Thinking, free text, markers, forbidden texts.

use mesh_types::{After, Start, Thinking};

use super::*;

const CALL: &str = r#"start: "<tool_call>" %json {"enum": [{"a": 1}]} "</tool_call>""#;

fn at_marker(after: After) -> Constraint {
    Constraint { start: Start::AtMarker(vec!["<tool_call>".into()]), after, ..Constraint::immediately(CALL) }
}

fn thinking(is_open: bool) -> Option<Thinking> {
    Some(Thinking { open: "<think>".into(), close: "</think>".into(), is_open })
}

fn joined(texts: &[&str]) -> Vec<TokenId> {
    texts.iter().flat_map(|text| spell(text)).collect()
}

#[test]
fn prose_is_free_until_a_marker() {
    let auto = at_marker(After::Repeat);
    for before in [vec![], spell("Hello <tool"), spell("a < b"), spell("<tool_cal")] {
        assert!(allows(&auto, &before, TokenId(END)));
        assert!(allows(&auto, &before, token(" the")));
        assert!(allows(&auto, &before, token("<|im_start|>")), "control tokens are free as well");
    }
    let begun = joined(&["Hello", "<tool_call>"]);
    assert!(allows(&auto, &begun, token("{")) && allows(&auto, &begun, token("{\"")));
    assert!(!allows(&auto, &begun, token(" the")));
    assert!(!allows(&auto, &begun, TokenId(END)));
}

#[test]
fn what_follows_a_marker_in_its_token_belongs_to_the_grammar() {
    let auto = at_marker(After::Repeat);
    let before = tokens(&["<tool"]);
    assert!(allows(&auto, &before, token("_call>")));
    assert!(allows(&auto, &before, token("_call>{")));
    // A grammar that has no line end behind its marker.
    assert!(!allows(&auto, &spell("<tool_"), token("call>\n")));
    let mut both = before;
    both.push(token("_call>{"));
    assert!(allows(&auto, &both, token("\"")));
    assert!(!allows(&auto, &both, token("}")));
}

#[test]
fn a_marker_may_be_spelt_in_any_tokens() {
    for split in 1..10 {
        let (head, tail) = "<tool_call>".split_at(split);
        let bytes = |text: &str| text.bytes().map(|byte| TokenId(i32::from(byte))).collect::<Vec<_>>();
        let spelt = [bytes(head), bytes(tail)].concat();
        assert!(!allows(&at_marker(After::Free), &spelt, token("x")));
        // A control token in between breaks it.
        let broken = [bytes(head), tokens(&["<|im_start|>"]), bytes(tail)].concat();
        assert!(allows(&at_marker(After::Free), &broken, token("x")));
    }
}

#[test]
fn what_may_follow_a_call_is_as_it_is_said() {
    let call = joined(&["Hi", "<tool_call>", "{\"a\":1}", "</tool_call>"]);
    let again = [call.clone(), spell(" <tool_call>")].concat();
    assert!(allows(&at_marker(After::Repeat), &call, token(" the")));
    assert!(!allows(&at_marker(After::Repeat), &again, token(" the")));
    assert!(allows(&at_marker(After::Free), &call, token(" the")));
    assert!(allows(&at_marker(After::Free), &again, token(" the")));
    assert!(!allows(&at_marker(After::End), &call, token(" the")));
    for after in [After::Repeat, After::Free, After::End] {
        assert!(allows(&at_marker(after), &call, TokenId(END)));
    }
}

#[test]
fn a_text_that_could_go_on_is_left_by_what_it_does_not_go_on_with() {
    let digits = Constraint {
        start: Start::AtMarker(vec!["#".into()]),
        after: After::Free,
        ..Constraint::immediately("start: \"#\" /[0-9]+/")
    };
    assert!(!allows(&digits, &spell("#"), token("a")));
    assert!(allows(&digits, &spell("#1"), token("a")));
    assert!(allows(&digits, &spell("#1"), token("10")));
    assert!(allows(&digits, &spell("#1a#"), token("a")));
}

#[test]
fn forced_calls_may_come_again_and_end() {
    let calls = Constraint { after: After::Repeat, ..Constraint::immediately("start: \"ab\"") };
    assert!(!allows(&calls, &[], TokenId(END)));
    assert!(allows(&calls, &spell("ab"), TokenId(END)));
    assert!(allows(&calls, &spell("ab\n"), token("a")));
    assert!(!allows(&calls, &spell("ab\na"), TokenId(END)));
}

#[test]
fn forbidden_texts_never_come() {
    let none = Constraint::forbidding(vec!["<tool_call>".into(), "abc".into()]);
    assert!(!allows(&none, &[], token("<tool_call>")));
    assert!(!allows(&none, &spell("x <tool"), token("_call>")));
    assert!(!allows(&none, &spell("<tool_call"), token(">\n{\"")));
    assert!(!allows(&none, &spell("xab"), token("c")));
    assert!(allows(&none, &spell("xab"), token("ab")));
    assert!(allows(&none, &[], TokenId(END)));
    let mut enforcer = enforcer();
    let short = Constraint::forbidding(vec!["a".into(), "e".into(), "}".into(), "\"".into()]);
    for seed in 0..40 {
        let noise = Noise { seed, temperature: 1.0, max_tokens: 60, lift: (END, -9.0) };
        let mut tokens = noise.run(&mut enforcer, &short).expect("a text").tokens;
        tokens.retain(|token| matches!(pieces()[token.0 as usize], Piece::Text(_)));
        assert!(!read(&tokens).contains(['a', 'e', '}', '"']), "{:?}", read(&tokens));
    }
}

#[test]
fn thinking_is_free_and_comes_first() {
    let as_text = vec!["<think>".to_owned(), "</think>".to_owned()];
    let forced = |is_open| Constraint {
        thinking: thinking(is_open),
        control_text: as_text.clone(),
        forbid: vec!["abc".into()],
        ..Constraint::immediately(CALL)
    };
    let closed = forced(false);
    assert!(allows(&closed, &[], token("<think>")) && allows(&closed, &[], token("<tool_call>")));
    assert!(allows(&closed, &[], token("\n\n")) && !allows(&closed, &[], token("x")));
    assert!(allows(&closed, &spell("<t"), token("h")) && allows(&closed, &spell("<t"), token("o")));
    assert!(!allows(&closed, &spell("<t"), token("x")));
    assert!(!allows(&closed, &spell("<th"), token("o")), "thinking is being opened");
    for begun in [tokens(&["<think>", "a"]), spell("\n<think>a")] {
        assert!(allows(&closed, &begun, token("<tool_call>")), "no marker is looked for");
        assert!(allows(&closed, &begun, token("abc")), "nothing is forbidden");
        assert!(!allows(&closed, &begun, TokenId(END)), "the call has to come");
        let done = [begun, tokens(&["</think>"])].concat();
        assert!(allows(&closed, &done, token("\n\n")) && allows(&closed, &done, token("<tool_call>")));
        assert!(!allows(&closed, &done, token("x")));
    }
    assert!(allows(&forced(true), &[], token("x")));
    assert!(!allows(&forced(true), &spell("x</think>"), token("x")));
}

#[test]
fn thinking_may_come_before_free_text() {
    let auto = Constraint {
        thinking: thinking(false),
        control_text: vec!["<think>".into(), "</think>".into()],
        ..at_marker(After::Repeat)
    };
    assert!(allows(&auto, &[], token("x")) && allows(&auto, &spell("<t"), token("x")));
    assert!(!allows(&auto, &spell("<tool_call>"), token("x")), "what began like thinking was a marker");
    let thought = tokens(&["<think>", "<tool_call>"]);
    assert!(allows(&auto, &thought, token("x")) && allows(&auto, &thought, TokenId(END)));
    let done = [thought, tokens(&["</think>"])].concat();
    assert!(allows(&auto, &done, token("x")) && allows(&auto, &done, token("<think>")));
    assert!(!allows(&auto, &[done, tokens(&["<tool_call>"])].concat(), token("x")));
}

#[test]
fn noise_never_makes_a_malformed_call() {
    let (mut enforcer, auto) = (enforcer(), at_marker(After::Repeat));
    let mut calls = 0;
    for seed in 0..150 {
        let max_tokens = 5 + seed as u32 % 30;
        let lift = (token("<tool_call>").0, 4.0);
        let noise = Noise { seed, temperature: 1.0, max_tokens, lift };
        let outcome = noise.run(&mut enforcer, &auto).expect("a text");
        let mut rest = outcome.text.as_str();
        while let Some((_, call)) = rest.split_once("<tool_call>") {
            let (arguments, behind) = call.split_once("</tool_call>").expect("a call that is complete");
            assert_eq!(
                serde_json::from_str::<serde_json::Value>(arguments).expect("JSON"),
                serde_json::json!({"a": 1})
            );
            (rest, calls) = (behind, calls + 1);
        }
    }
    assert!(calls > 20, "{calls} calls prove little");
}

#[test]
fn a_marker_may_have_begun_in_the_prompt() {
    let auto = Constraint { begun: "<tool".into(), ..at_marker(After::Repeat) };
    let begun = tokens(&["_call>"]);
    assert!(allows(&auto, &begun, token("{\"")) && !allows(&auto, &begun, token(" the")));
    let broken = tokens(&[" the", "_call>"]);
    assert!(allows(&auto, &broken, token(" the")));
    let none = Constraint { begun: "<tool".into(), ..Constraint::forbidding(vec!["<tool_call>".into()]) };
    assert!(!allows(&none, &[], token("_call>")) && allows(&none, &tokens(&[" the"]), token("_call>")));
}

#[test]
fn a_grammar_and_a_thought_may_begin_with_a_blank() {
    let thinking = Thinking { open: " the".into(), close: "ab".into(), is_open: false };
    let forced = Constraint { thinking: Some(thinking), ..Constraint::immediately("start: \" a\" \"10\"") };
    let byte = |byte: u8| TokenId(i32::from(byte));
    assert!(
        allows(&forced, &[], token(" a")) && allows(&forced, &[], token(" the")) && allows(&forced, &[], byte(b' '))
    );
    assert!(!allows(&forced, &[], token("10")));
    for (before, next) in [
        (tokens(&[" a"]), token("10")),
        (vec![byte(b' ')], byte(b't')),
        (vec![byte(b' ')], byte(b'a')),
        (tokens(&[" the", "ab"]), token(" a")),
    ] {
        assert!(allows(&forced, &before, next), "{}", read(&before));
    }
}
