use proptest::prelude::*;

use super::*;

/// All of `text`, closed at its end.
fn forced(text: &str) -> String {
    let (mut transcoder, mut out) = (Transcoder::new(), String::new());
    for c in text.chars() {
        if transcoder.push(c, &mut out) != Flow::More {
            break;
        }
    }
    transcoder.close(&mut out);
    out
}

#[test]
fn json_stays_as_it_is() {
    for text in [
        "{}",
        "{ }",
        r#"{"a" : [1, -2.5e+3 ,true],"b":{"c":null}  }"#,
        r#"{"a": "x\"} \\ \u00e9 \ud83d\ude00 é"}"#,
        "[\n  1\n]",
    ] {
        assert_eq!(mended(text).as_deref(), Some(text));
    }
}

#[test]
fn near_json_becomes_json() {
    assert_eq!(mended("{\"a\": \"x\ny\tz\"}").as_deref(), Some(r#"{"a": "x\ny\tz"}"#));
    assert_eq!(
        mended("{'a': True, 'b': [None, 'it\\'s \"x\"']}").as_deref(),
        Some(r#"{"a": true, "b": [null, "it's \"x\""]}"#)
    );
    assert_eq!(mended("{\"a\": [1, 2,],}").as_deref(), Some(r#"{"a": [1, 2]}"#));
    assert_eq!(mended(r#"{"re": "\d+\ud83d."}"#).as_deref(), Some(r#"{"re": "\\d+\ufffd."}"#));
}

#[test]
fn what_python_cannot_print_is_a_character() {
    let text = r"{'\x7f\xe9': '\U0001f980 \ud83d\x41', 'C:\\U': '\xg \x4 \U00110000'}";
    let read = "{\"\u{7f}é\": \"🦀 \\ufffdA\", \"C:\\\\U\": \"\\\\xg \\\\x4 \\\\U00110000\"}";
    assert_eq!(mended(text).as_deref(), Some(read));
    // Python takes double quotes where a text has single ones.
    assert_eq!(mended(r#"{"'\x7f": 'x'}"#).as_deref(), Some("{\"'\u{7f}\": \"x\"}"));
    assert_eq!(mended(r#"["'\U0001f980", True]"#).as_deref(), Some("[\"'🦀\", true]"));
    // In JSON it stays text: code that a model writes there has such escapes itself.
    let code = mended(r#"{"code": "print('\x0a')\U00000041"}"#);
    assert_eq!(code.as_deref(), Some(r#"{"code": "print('\\x0a')\\U00000041"}"#));
    // Cut off within, it is what JSON can go on with.
    for (cut, read) in
        [(r"['a\", r#"["a\"#), (r"['a\x", r#"["a\\x"#), (r"['a\U00", r#"["a\\U00"#), (r"['a\u00", r#"["a\u00"#)]
    {
        let (mut transcoder, mut out) = (Transcoder::new(), String::new());
        assert!(cut.chars().all(|c| transcoder.push(c, &mut out) == Flow::More));
        transcoder.break_off(&mut out);
        assert_eq!(out, read);
    }
}

#[test]
fn a_guess_says_so() {
    assert_eq!(mended("{\"a\": foo}"), None);
    assert_eq!(mended("{\"a\": 1"), None);
    assert_eq!(mended("{} {}"), None);
    assert_eq!(forced("{\"a\": foo bar, b: 007}"), r#"{"a": "foo bar", "b": "007"}"#);
    assert_eq!(forced(r#"{"a": "he said "hi" twice"}"#), r#"{"a": "he said \"hi\" twice"}"#);
    assert_eq!(forced("{\"a\": [\"b"), r#"{"a": ["b"]}"#);
    assert_eq!(forced("{\"a\": \"b\" \"c\""), r#"{"a": "b\" \"c"}"#);
}

#[test]
fn only_a_mark_ends_what_a_mark_began() {
    let (mut transcoder, mut out) = (Transcoder::new(), String::new());
    transcoder.push_mark(&mut out);
    for c in "a\u{1}\n}\\\"".chars() {
        assert_eq!(transcoder.push(c, &mut out), Flow::More);
    }
    transcoder.push_mark(&mut out);
    transcoder.close(&mut out);
    assert_eq!(out, r#""a\u0001\n}\\\"""#);
}

/// All of `text`, in which `~` is the mark, closed at its end.
fn forced_with_mark(text: &str) -> String {
    let (mut transcoder, mut out) = (Transcoder::with_mark("<|\"|>"), String::new());
    for c in text.chars() {
        let flow = if c == '~' { transcoder.push_mark(&mut out) } else { transcoder.push(c, &mut out) };
        if flow != Flow::More {
            break;
        }
    }
    transcoder.close(&mut out);
    out
}

#[test]
fn a_mark_that_is_no_quote_is_a_text() {
    assert_eq!(forced_with_mark("{a:~x~}"), r#"{"a":"x"}"#);
    // In a marked text; in one in other quotes, behind it, behind a backslash; in a bare word and a bare key.
    assert_eq!(forced_with_mark("{a:~x ~ y~}"), r#"{"a":"x <|\"|> y"}"#);
    assert_eq!(forced_with_mark("{a:~x~~}"), r#"{"a":"x<|\"|>"}"#);
    assert_eq!(forced_with_mark("{\"a\":\"x ~ y\"}"), r#"{"a":"x <|\"|> y"}"#);
    assert_eq!(forced_with_mark("{\"a\":\"x\"~\"}"), r#"{"a":"x\"<|\"|>"}"#);
    assert_eq!(forced_with_mark("{\"a\":\"x\\~\"}"), r#"{"a":"x\\<|\"|>"}"#);
    assert_eq!(forced_with_mark("{a:1~}"), r#"{"a":"1<|\"|>"}"#);
    assert_eq!(forced_with_mark("{a~:1}"), r#"{"a<|\"|>":1}"#);
}

proptest! {
    #[test]
    fn whatever_comes_in_json_comes_out(text in "[{}\\[\\]:,\"' \\\\ua0-9truen\n.-]{0,40}") {
        let out = forced(&text);
        prop_assert!(serde_json::from_str::<serde_json::Value>(&out).is_ok(), "{text:?} became {out:?}");
    }

    #[test]
    fn valid_json_comes_out_byte_for_byte(value in value()) {
        for text in [serde_json::to_string(&value).unwrap(), serde_json::to_string_pretty(&value).unwrap()] {
            prop_assert_eq!(mended(&text), Some(text));
        }
    }
}

fn value() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i32>().prop_map(Into::into),
        any::<String>().prop_map(Into::into),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Into::into),
            prop::collection::vec((".{0,6}", inner), 0..4)
                .prop_map(|fields| serde_json::Value::Object(fields.into_iter().collect())),
        ]
    })
}
