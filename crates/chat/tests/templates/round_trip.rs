//! What a template writes for a call, its format reads back to the same call, however it is cut.

use mesh_types::FinishReason;

use crate::calls::{Answer, calls, natives, rounds};

#[test]
fn calls_are_read_back_at_every_cut() {
    let mut wrong = Vec::new();
    for native in natives() {
        let mut tried = 0;
        for seed in 0..rounds(12) {
            let Some(answer) = native.answer(seed) else { continue };
            tried += 1;
            let read = |text: &String| calls(&native.read(&answer.tools, [text.as_str()], FinishReason::Stop));
            let Some(text) = answer.texts.iter().find(|text| read(text) == answer.calls) else {
                wrong.push(report(&native.name, seed, &answer, answer.texts.first().map(read)));
                continue;
            };
            let whole = native.read(&answer.tools, [text.as_str()], FinishReason::Stop);
            let single = native.read(&answer.tools, text.split_inclusive(|_| true), FinishReason::Stop);
            assert_eq!(single, whole, "{} (seed {seed}), in single characters: {text:?}", native.name);
            for (cut, _) in text.char_indices() {
                let (a, b) = text.split_at(cut);
                let cut_in_two = native.read(&answer.tools, [a, b], FinishReason::Stop);
                assert_eq!(cut_in_two, whole, "{} (seed {seed}), cut at {cut}: {text:?}", native.name);
            }
        }
        assert!(tried > 0, "{} renders none of the calls", native.name);
    }
    assert!(wrong.is_empty(), "{} calls are read otherwise\n{}", wrong.len(), wrong.join("\n"));
}

fn report(name: &str, seed: u64, answer: &Answer, read: Option<Vec<(String, serde_json::Value)>>) -> String {
    format!("{name} (seed {seed})\n  text: {:?}\n  made: {:?}\n  read: {read:?}", answer.texts, answer.calls)
}
