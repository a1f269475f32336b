//! Answers that are nearly calls: whatever comes, nothing panics, no cut matters, and what was written is somewhere.

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
    let calls = turn.calls.iter().any(|call| call.name.contains(word) || call.arguments.contains(word));
    calls || turn.content.contains(word) || turn.reasoning.contains(word)
}
