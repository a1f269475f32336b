//! Answers that end within a call: nothing of them is lost.

use super::*;

#[test]
fn an_answer_that_is_cut_off_keeps_what_there_is() {
    for (format, text) in SAMPLES {
        for (cut, _) in text.char_indices() {
            let turn = pieces(format, "", [&text[..cut]], FinishReason::Stop);
            for call in &turn.calls {
                assert!(
                    serde_json::from_str::<Value>(&call.arguments).is_ok_and(|v| v.is_object()),
                    "{format}: {turn:?}"
                );
            }
            let cut_off = pieces(format, "", [&text[..cut]], FinishReason::Length);
            assert_eq!(cut_off.calls.len(), turn.calls.len(), "{format}, cut at {cut}");
            for (cut_off, closed) in cut_off.calls.iter().zip(&turn.calls) {
                // The last key or value is there as far as it came.
                let settled = cut_off.arguments.rfind([',', '{']).map_or("", |at| &cut_off.arguments[..at]);
                assert!(closed.arguments.starts_with(settled.trim_end()), "{format}: {cut_off:?} and {closed:?}");
            }
        }
    }
}

#[test]
fn a_key_or_value_that_is_cut_off_is_there_as_far_as_it_came() {
    let qwen = |text: &str| format!("<tool_call>\n<function=fetch>\n{text}");
    let hermes = |text: &str| format!("<tool_call>{{\"name\": \"fetch\", \"arguments\": {text}");
    for (format, text, arguments) in [
        ("qwen3_coder_xml", qwen("<parameter=tries>\n12"), "{\"tries\": 12"),
        ("qwen3_coder_xml", qwen("<parameter=tries>\n12\n</param"), "{\"tries\": 12"),
        ("qwen3_coder_xml", qwen("<parameter=tries>\nman"), "{\"tries\": \"man"),
        ("qwen3_coder_xml", qwen("<parameter=deep>\nTr"), "{\"deep\": Tr"),
        ("qwen3_coder_xml", qwen("<parameter=deep>\ntrue\n</parameter>\n<parameter=ur"), "{\"deep\": true, \"ur"),
        (
            "qwen3_coder_xml",
            "<tool_call>\n<function=edit>\n<parameter=lines>\n[1, {'a': tru".to_owned(),
            "{\"lines\": [1, {\"a\": tru",
        ),
        ("glm47", "<tool_call>fetch\n<arg_key>tries</arg_key>\n<arg_va".to_owned(), "{\"tries\": "),
        ("glm47", "<tool_call>fetch\n<arg_key>tries</arg_k".to_owned(), "{\"tries"),
        (
            "minimax_m3",
            "]<]minimax[>[<tool_call>]<]minimax[>[<invoke name=\"edit\">]<]minimax[>[<lines>]<]minimax[>[<item>1"
                .to_owned(),
            "{\"lines\": \"]<]minimax[>[<item>1",
        ),
        ("pythonic", "<|tool_call_start|>[fetch(tries=12, de".to_owned(), "{\"tries\": 12, \"de"),
        ("pythonic", "<|tool_call_start|>[fetch(deep=Tru".to_owned(), "{\"deep\": Tru"),
        ("hermes", hermes("{\"tries\": 12"), "{\"tries\": 12"),
        ("hermes", hermes("{\"url\": \"\\ud83d\\ude"), "{\"url\": \"\\ud83d\\ude"),
        ("hermes", hermes("{\"url\": \"a\" ,"), "{\"url\": \"a\" ,"),
        ("hermes", hermes("\"{\\\"tries\\\": 1"), "\"{\\\"tries\\\": 1"),
        ("harmony", "<|channel|>commentary to=functions.fetch<|message|>{\"tries\": 1".to_owned(), "{\"tries\": 1"),
    ] {
        let turn = pieces(format, "", [text.as_str()], FinishReason::Length);
        assert_eq!(
            (calls(&turn), turn.content.as_str()),
            (vec![(turn.calls[0].name.as_str(), arguments)], ""),
            "{text}"
        );
    }
}

#[test]
fn the_beginning_of_what_closes_a_call_is_no_text() {
    let call = "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}";
    for begun in ["\n<", "</tool_", "\n</tool_call>", "\n"] {
        let turn = pieces("hermes", "", [format!("{call}{begun}").as_str()], FinishReason::Length);
        assert_eq!((turn.content.as_str(), calls(&turn)), ("", vec![("now", "{}")]), "{begun:?}");
    }
    // A model that ends by itself says what it says, and what is closed is not closed again.
    let said = |text: &str, reason| pieces("hermes", "", [format!("{call}{text}").as_str()], reason).content;
    assert_eq!(said("\n</tool_", FinishReason::Stop).trim(), "</tool_");
    assert_eq!(said("</tool_call>\n</too", FinishReason::Length).trim(), "</too");
}

#[test]
fn what_stands_beside_name_and_arguments_is_text() {
    let text =
        "<tool_call>{\"why\": \"so\", \"name\": \"now\", \"arguments\": {}, \"id\": \"x\", \"then\": 1}</tool_call>";
    let turn = parse("hermes", text);
    assert_eq!((turn.content.as_str(), calls(&turn)), ("\"why\": \"so\"\"then\": 1", vec![("now", "{}")]));
    let text = "TOOL_CALL {\"name\": \"now\", \"arguments\": {}, \"then\": 1}";
    assert_eq!(parse("emulated", text).content, "\"then\": 1");
}
