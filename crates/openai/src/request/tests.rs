use mesh_types::TokenId;
use mesh_types::chat::SamplingOverrides;
use proptest::prelude::*;
use serde_json::json;

use super::*;

mod calling;

fn parse_bytes(body: &[u8]) -> Result<ParsedChat, Fault> {
    read(json::body(body)?, RequestId::new("r"))
}

fn parse_value(value: &Value) -> Result<ParsedChat, Fault> {
    parse_bytes(value.to_string().as_bytes())
}

/// A smallest request with `extra` laid over it.
fn with(extra: Value) -> Value {
    let mut request = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
    if let (Some(request), Value::Object(extra)) = (request.as_object_mut(), extra) {
        request.extend(extra);
    }
    request
}

fn ok(extra: Value) -> ParsedChat {
    parse_value(&with(extra)).unwrap()
}

/// The `param` and `code` of the refusal of `extra`.
fn refused(extra: Value) -> (String, Option<String>) {
    let fault = parse_value(&with(extra.clone())).expect_err(&extra.to_string());
    assert_eq!(fault.class, mesh_types::ErrorClass::InvalidRequest, "{extra}");
    (fault.param.unwrap_or_default(), fault.code)
}

#[test]
fn a_plain_request_is_read() {
    let parsed = ok(json!({}));
    assert_eq!(parsed.chat.model.as_str(), "m");
    assert_eq!(parsed.chat.request.as_str(), "r");
    assert_eq!(parsed.chat.messages[0].content.as_deref(), Some("hi"));
    assert_eq!(parsed.chat.max_tokens, None);
    assert_eq!(parsed.chat.sampling, SamplingOverrides::default());
    assert!(!parsed.stream && !parsed.include_usage && parsed.ignored.is_empty());
}

#[test]
fn every_setting_arrives() {
    let parsed = ok(json!({
        "stream": true, "stream_options": {"include_usage": true, "include_obfuscation": false},
        "max_tokens": 9, "max_completion_tokens": 7, "temperature": 0.5, "top_p": 1, "top_k": 20, "min_p": 0,
        "seed": -1, "stop": ["a", "b", "c", "d", "e"], "ignore_eos": true, "n": 1,
        "repetition_penalty": 1.2, "repeat_penalty": 1.5, "repeat_last_n": 32, "presence_penalty": -2,
        "frequency_penalty": 0.5, "logit_bias": {"5": 1, "0": -100}, "logprobs": true, "top_logprobs": 20,
    }));
    assert!(parsed.stream && parsed.include_usage);
    assert_eq!(parsed.chat.max_tokens, Some(7));
    assert_eq!(parsed.chat.stop, ["a", "b", "c", "d", "e"]);
    let expected = SamplingOverrides {
        temperature: Some(0.5),
        top_k: Some(20),
        top_p: Some(1.0),
        min_p: Some(0.0),
        seed: Some(u64::MAX),
        ignore_eos: Some(true),
        repeat_penalty: Some(1.5),
        repeat_last_n: Some(32),
        presence_penalty: Some(-2.0),
        frequency_penalty: Some(0.5),
    };
    assert_eq!(parsed.chat.sampling, expected);
    assert_eq!(parsed.chat.logit_bias, [(TokenId(5), 1.0), (TokenId(0), -100.0)]);
    assert_eq!(parsed.chat.logprobs, Some(20));
    assert_eq!(ok(json!({"logprobs": true})).chat.logprobs, Some(0));
    assert_eq!(ok(json!({"repeat_last_n": -1, "repetition_penalty": 1.2})).chat.sampling.repeat_penalty, Some(1.2));
    assert_eq!(ok(json!({"stop": "x", "max_tokens": 3})).chat.stop, ["x"]);
    assert_eq!(ok(json!({"top_k": -1})).chat.sampling.top_k, Some(0));
}

#[test]
fn a_bias_names_its_token() {
    for (bias, param) in [
        (json!({"x": 1}), "logit_bias.x"),
        (json!({"-1": 1}), "logit_bias.-1"),
        (json!({"5": 101}), "logit_bias.5"),
        (json!({"5": "1"}), "logit_bias.5"),
        (json!([[5, 1]]), "logit_bias"),
    ] {
        assert_eq!(refused(json!({"logit_bias": bias})).0, param, "{bias}");
    }
}

#[test]
fn null_means_not_set() {
    let parsed = ok(json!({
        "stream": null, "stream_options": null, "max_tokens": null, "temperature": null, "stop": null, "seed": null,
        "n": null, "tools": null, "response_format": null, "logprobs": null, "user": null,
    }));
    assert_eq!(parsed, ok(json!({})));
}

#[test]
fn bytes_that_are_no_json_are_named() {
    for body in [&b""[..], b"{", b"hello", b"{\"model\": \"\xff\"}", b"{} {}"] {
        let fault = parse_bytes(body).unwrap_err();
        assert!(fault.message.contains("not valid JSON"), "{}", fault.message);
    }
    let deep = "[".repeat(100_000);
    assert!(parse_bytes(deep.as_bytes()).is_err());
    assert!(parse_bytes(b"[]").unwrap_err().message.contains("JSON object"));
}

#[test]
fn a_wrong_type_names_its_place() {
    let cases = [
        (json!({"model": 3}), "model"),
        (json!({"messages": "hi"}), "messages"),
        (json!({"messages": ["hi"]}), "messages[0]"),
        (json!({"messages": [{"role": 1, "content": "x"}]}), "messages[0].role"),
        (json!({"messages": [{"role": "user", "content": 5}]}), "messages[0].content"),
        (json!({"messages": [{"role": "user", "content": ["x"]}]}), "messages[0].content[0]"),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]}),
            "messages[0].content[0].text",
        ),
        (json!({"temperature": "hot"}), "temperature"),
        (json!({"max_tokens": 1.5}), "max_tokens"),
        (json!({"max_tokens": "10"}), "max_tokens"),
        (json!({"seed": 1e40}), "seed"),
        (json!({"stop": 1}), "stop"),
        (json!({"stop": ["a", 2]}), "stop[1]"),
        (json!({"stream": "yes"}), "stream"),
        (json!({"stream": true, "stream_options": {"include_usage": 1}}), "stream_options.include_usage"),
        (json!({"n": "one"}), "n"),
        (json!({"parallel_tool_calls": 1}), "parallel_tool_calls"),
        (json!({"response_format": "json"}), "response_format"),
        (json!({"chat_template_kwargs": "x"}), "chat_template_kwargs"),
        (json!({"reasoning_effort": 3}), "reasoning_effort"),
    ];
    for (extra, param) in cases {
        assert_eq!(refused(extra.clone()).0, param, "{extra}");
    }
    let fault = parse_value(&with(json!({"temperature": "hot"}))).unwrap_err();
    assert_eq!(fault.message, "`temperature` must be a number from 0 to 2, not a string.");
}

#[test]
fn a_value_out_of_range_is_refused() {
    let cases = [
        json!({"temperature": 2.1}),
        json!({"temperature": -0.1}),
        json!({"top_p": 1.5}),
        json!({"min_p": -1}),
        json!({"presence_penalty": 2.5}),
        json!({"frequency_penalty": -3}),
        json!({"repeat_penalty": 0}),
        json!({"repetition_penalty": 11}),
        json!({"repeat_last_n": -2}),
        json!({"top_logprobs": 1}),
        json!({"top_logprobs": 21, "logprobs": true}),
        json!({"top_k": -2}),
        json!({"max_tokens": 0}),
        json!({"max_completion_tokens": -1}),
        json!({"n": 0}),
        json!({"n": settings::MAX_CHOICES + 1}),
        json!({"stop": ""}),
        json!({"stop": ["a", ""]}),
        json!({"stop": vec!["x"; settings::MAX_STOPS + 1]}),
        json!({"model": ""}),
        json!({"messages": []}),
        json!({"stream_options": {"include_usage": true}}),
    ];
    for extra in cases {
        let name = extra.as_object().unwrap().keys().next().unwrap().clone();
        assert_eq!(refused(extra), (name, None));
    }
    assert_eq!(ok(json!({"max_tokens": 99_999_999_999_i64})).chat.max_tokens, Some(u32::MAX));
}

#[test]
fn what_is_missing_is_named() {
    for (request, param) in [
        (json!({"messages": [{"role": "user", "content": "x"}]}), "model"),
        (json!({"model": "m"}), "messages"),
        (json!({"model": "m", "messages": [{"content": "x"}]}), "messages[0].role"),
        (json!({"model": "m", "messages": [{"role": "user"}]}), "messages[0].content"),
        (json!({"model": "m", "messages": [{"role": "system", "content": null}]}), "messages[0].content"),
        (
            json!({"model": "m", "messages": [{"role": "user", "content": [{"text": "x"}]}]}),
            "messages[0].content[0].type",
        ),
        (
            json!({"model": "m", "messages": [{"role": "user", "content": [{"type": "text"}]}]}),
            "messages[0].content[0].text",
        ),
    ] {
        assert_eq!(parse_value(&request).unwrap_err().param.as_deref(), Some(param), "{request}");
    }
}

#[test]
fn messages_keep_their_roles_names_and_joined_text() {
    let parsed = ok(json!({"messages": [
        {"role": "developer", "content": "be kind", "name": "ops"},
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
        {"role": "assistant", "content": null, "refusal": null, "tool_calls": []},
        {"role": "user", "content": []},
    ]}));
    let message = |role: &str, content: Option<&str>, name: Option<&str>| Message {
        role: role.into(),
        content: content.map(Into::into),
        name: name.map(Into::into),
        ..Message::default()
    };
    let expected = [
        message("developer", Some("be kind"), Some("ops")),
        message("user", Some("one\ntwo"), None),
        message("assistant", None, None),
        message("user", Some(""), None),
    ];
    assert_eq!(parsed.chat.messages, expected);
}

#[test]
fn a_grammar_is_taken_and_holds_alone() {
    let grammar = "root ::= \"yes\" | \"no\"";
    let asked = |extra: Value| {
        let mut extra = extra;
        extra["grammar"] = json!(grammar);
        extra
    };
    assert_eq!(ok(asked(json!({}))).chat.grammar.as_deref(), Some(grammar));
    let text = json!({"response_format": {"type": "text"}, "tools": []});
    assert_eq!(ok(asked(text)).chat.grammar.as_deref(), Some(grammar));
    assert_eq!(ok(json!({"grammar": ""})).chat.grammar, None);
    let tool = json!({"type": "function", "function": {"name": "f"}});
    for other in [json!({"tools": [tool]}), json!({"response_format": {"type": "json_object"}})] {
        assert_eq!(refused(asked(other)), ("grammar".to_owned(), None));
    }
    assert_eq!(refused(json!({"grammar": 3})).0, "grammar");
}

#[test]
fn what_is_not_supported_is_refused_by_name() {
    let unsupported = Some("unsupported_parameter".to_owned());
    for extra in [
        json!({"functions": [{}]}),
        json!({"function_call": "auto"}),
        json!({"modalities": ["text", "audio"]}),
        json!({"audio": {}}),
        json!({"web_search_options": {}}),
        json!({"guided_regex": "x"}),
    ] {
        let name = extra.as_object().unwrap().keys().next().unwrap().clone();
        assert_eq!(refused(extra), (name, unsupported.clone()));
    }
    for (message, param) in [
        (json!({"role": "assistant", "function_call": {"name": "f"}}), "messages[0].function_call"),
        (json!({"role": "function", "name": "f", "content": "x"}), "messages[0].role"),
        (json!({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}), "messages[0].content[0].type"),
        (json!({"role": "user", "content": [{"type": "input_audio"}]}), "messages[0].content[0].type"),
    ] {
        assert_eq!(refused(json!({"messages": [message]})), (param.to_owned(), unsupported.clone()));
    }
}

#[test]
fn what_asks_for_nothing_is_accepted() {
    let parsed = ok(json!({
        "tools": [], "tool_choice": "auto", "functions": [], "logprobs": false, "top_logprobs": 0,
        "response_format": {"type": "text"}, "logit_bias": {},
        "modalities": ["text"], "parallel_tool_calls": true,
    }));
    assert_eq!(parsed, ok(json!({})));
}

#[test]
fn what_has_no_effect_is_accepted_and_named() {
    let parsed = ok(json!({
        "user": "u", "metadata": {"a": "b"}, "store": false, "service_tier": "auto", "safety_identifier": null,
        "messages": [{"role": "assistant", "refusal": null}, {"role": "user", "content": "hi", "annotations": []}],
    }));
    assert_eq!(parsed.ignored, ["user", "metadata", "store", "service_tier", "messages[].annotations"]);
}

#[test]
fn choices_share_a_request_and_differ_in_their_seeds() {
    let context = crate::testkit::context();
    let body = with(json!({"n": 3, "seed": -1})).to_string();
    let parsed = parse(body.as_bytes(), &context).unwrap();
    let seeds: Vec<_> = parsed.runs.iter().map(|run| run.sampling.seed).collect();
    assert_eq!(seeds, [Some(u64::MAX), Some(0), Some(1)]);
    let same =
        |run: &ChatRequest| ChatRequest { sampling: SamplingOverrides::default(), cache_prompt: None, ..run.clone() };
    assert!(parsed.runs.iter().all(|run| same(run) == same(&parsed.runs[0])));
}

#[test]
fn unknown_fields_are_reported() {
    let parsed = ok(json!({
        "foo": 1,
        "messages": [{"role": "user", "content": "x", "cache_control": {}}],
        "temprature": 1,
    }));
    assert_eq!(parsed.ignored, ["foo", "temprature", "messages[0].cache_control"]);
}

proptest! {
    #[test]
    fn any_bytes_give_an_answer(body in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = parse_bytes(&body);
    }

    #[test]
    fn any_content_survives(text in ".*") {
        let parsed = ok(json!({"messages": [{"role": "user", "content": text.clone()}]}));
        prop_assert_eq!(parsed.chat.messages[0].content.as_ref(), Some(&text));
    }
}

#[test]
fn what_has_to_be_an_object_is_no_array_of_its_fields() {
    let message = json!(["user", "hi", null, null, null, null]);
    assert_eq!(refused(json!({"messages": [message]})), ("messages[0]".into(), None));
    let fault = parse_value(&with(json!({"messages": [0]}))).unwrap_err();
    assert_eq!(fault.message, "`messages[0]` must be an object, not 0.");
    let calls = json!([["call_1", "function", {"name": "f", "arguments": "{}"}]]);
    let turns = json!([{"role": "assistant", "tool_calls": calls}]);
    assert_eq!(refused(json!({"messages": turns})), ("messages[0].tool_calls[0]".into(), None));
    let parts = json!([{"role": "user", "content": [["text", "hi", null]]}]);
    assert_eq!(refused(json!({"messages": parts})), ("messages[0].content[0]".into(), None));
}

#[test]
fn a_refusal_says_what_a_value_must_be() {
    let said = |extra: Value| parse_value(&with(extra)).unwrap_err().message;
    assert_eq!(said(json!({"seed": 1.5})), "`seed` must be an integer, not 1.5.");
    assert_eq!(said(json!({"n": 17})), "`n` must be at most 16, not 17.");
}

#[test]
fn choices_behind_the_first_take_over_its_prompt() {
    let context = crate::testkit::context();
    let runs = |extra: Value| parse(with(extra).to_string().as_bytes(), &context).unwrap().runs;
    let cached = |extra: Value| runs(extra).iter().map(|run| run.cache_prompt).collect::<Vec<_>>();
    assert_eq!(cached(json!({"n": 2})), [None, Some(true)]);
    assert_eq!(cached(json!({"n": 3, "cache_prompt": false})), [Some(false), Some(true), Some(true)]);
}
