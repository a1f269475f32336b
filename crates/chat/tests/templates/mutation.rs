//! Answers that are nearly calls: whatever comes, nothing panics, no cut matters, and what was written is somewhere.

use std::collections::BTreeMap;

use mesh_chat::{Format, Turn};
use mesh_types::FinishReason;

use crate::calls::{natives, rounds};
use crate::random::Random;

/// A word that means nothing to any format. What of a text is kept shows by it.
const WORD: &str = "Zanzibar";

#[test]
fn mutated_answers_are_kept() {
    let (natives, mut lost, mut count) = (natives(), Vec::new(), 0);
    for seed in 0..rounds(4000) {
        let mut random = Random::new(seed);
        let native = &natives[random.below(natives.len())];
        let Some(answer) = native.answer(seed % 50) else { continue };
        let Some(text) = answer.texts.last() else { continue };
        let text = mutated(&mut random, text, native.format);
        let reason = if random.below(2) == 0 { FinishReason::Stop } else { FinishReason::Length };
        let whole = native.read(&answer.tools, [text.as_str()], reason);
        let pieces = native.read(&answer.tools, cut(&mut random, &text), reason);
        assert_eq!(pieces, whole, "{} (seed {seed}): {text:?}", native.name);
        if reason == FinishReason::Stop {
            for call in &whole.calls {
                let read = serde_json::from_str::<serde_json::Value>(&call.arguments);
                assert!(read.is_ok(), "{} (seed {seed}): {text:?} gives {call:?}", native.name);
            }
        }
        count += 1;
        if text.contains(WORD) && !holds(&whole, WORD) && whole.calls.is_empty() {
            lost.push(format!("{} (seed {seed}): {text:?} gives {whole:?}", native.name));
        }
    }
    assert!(lost.is_empty(), "{} of {count} lose a word\n{}", lost.len(), lost.join("\n"));
}

/// A word at every place of an answer, which ends behind the word, somewhere further on, or where it ends.
#[test]
fn no_word_is_lost_wherever_an_answer_ends() {
    let (mut lost, mut count) = (BTreeMap::<&str, Vec<String>>::new(), 0);
    for native in natives() {
        for seed in 0..rounds(1) {
            let Some(answer) = native.answer(seed) else { continue };
            let Some(text) = answer.texts.last() else { continue };
            let mut random = Random::new(seed);
            for at in text.char_indices().map(|(at, _)| at).chain([text.len()]) {
                let (before, after) = text.split_at(at);
                let later = after.char_indices().nth(random.below(after.chars().count())).map_or(0, |(at, _)| at);
                for (end, reason) in [
                    (0, FinishReason::Length),
                    (0, FinishReason::Stop),
                    (later, FinishReason::Length),
                    (later, FinishReason::Stop),
                    (after.len(), FinishReason::Length),
                    (after.len(), FinishReason::Stop),
                ] {
                    let said = format!("{before}{WORD}{}", &after[..end]);
                    let turn = native.read(&answer.tools, [said.as_str()], reason);
                    count += 1;
                    if !holds(&turn, WORD) && !may_be_left_out(before, after) {
                        let of_format = lost.entry(native.format.name).or_default();
                        of_format.push(format!("{} (seed {seed}), {reason:?}: {said:?} gives {turn:?}\n", native.name));
                    }
                }
            }
        }
    }
    let samples: String = lost
        .iter()
        .map(|(format, lost)| format!("{format}: {}\n{}", lost.len(), lost[..lost.len().min(8)].concat()))
        .collect();
    assert!(lost.is_empty(), "of {count} answers, these lose a word\n{samples}");
}

/// What stands before the ids of calls and the types of their values, which no client has a place for.
const SLOTS: &[&str] = &[
    "\"id\":",
    "\"tool_call_id\":",
    "\"type\":",
    "[CALL_ID]",
    "<|tool_call:begin|>",
    "<\u{ff5c}tool\u{2581}call\u{2581}begin\u{ff5c}>",
    " index=",
    " type=",
    " string=",
];

/// Whether a word between the two is part of such a slot, or of the name of the field that holds a call's arguments.
fn may_be_left_out(before: &str, after: &str) -> bool {
    let is_slot = |c: char| c.is_alphanumeric() || "_-.".contains(c);
    let slot = before.trim_end_matches(is_slot);
    let (begun, rest) = (&before[slot.len()..], &after[..after.len() - after.trim_start_matches(is_slot).len()]);
    let field = [begun, rest].concat();
    SLOTS.iter().any(|opening| slot.trim_end_matches([' ', '"']).ends_with(opening))
        || (slot.ends_with('"') && ["arguments", "parameters"].contains(&field.as_str()))
}

/// Some changes, and a word somewhere.
pub(crate) fn mutated(random: &mut Random, text: &str, format: &Format) -> String {
    let mut characters: Vec<char> = text.chars().collect();
    let markers = format.markers();
    for _ in 0..random.below(4) {
        let (at, to) = (random.below(characters.len() + 1), random.below(characters.len() + 1));
        let (at, to) = (at.min(to), at.max(to));
        match random.below(6) {
            0 => drop(characters.drain(at..to.min(at + 8))),
            1 => characters.truncate(at),
            2 => {
                let copy: Vec<char> = characters[at..to.min(at + 40)].to_vec();
                characters.splice(at..at, copy);
            }
            3 => {
                let marker = random.pick(&markers);
                characters.splice(at..at, marker.chars());
            }
            4 => {
                let piece =
                    random.pick(&["\"", "\\", "}", "{", "]", "\n", "<", "\u{1f980}", "</", "```", "<think>", "'"]);
                characters.splice(at..at, piece.chars());
            }
            _ => {
                if let Some(c) = characters.get_mut(at) {
                    *c = char::from(b' ' + u8::try_from(random.below(95)).expect("small"));
                }
            }
        }
    }
    let at = random.below(characters.len() + 1);
    characters.splice(at..at, WORD.chars());
    characters.into_iter().collect()
}

fn cut<'a>(random: &mut Random, text: &'a str) -> Vec<&'a str> {
    let (mut pieces, mut rest) = (Vec::new(), text);
    while !rest.is_empty() {
        let len = rest.char_indices().nth(1 + random.below(9)).map_or(rest.len(), |(at, _)| at);
        let (piece, after) = rest.split_at(len);
        pieces.push(piece);
        rest = after;
    }
    pieces
}

fn holds(turn: &Turn, word: &str) -> bool {
    let calls = turn.calls.iter().any(|call| {
        let texts = [&call.id, &call.name, &call.arguments];
        texts.into_iter().any(|text| text.contains(word))
    });
    calls || turn.content.contains(word) || turn.reasoning.contains(word)
}
