//! Texts on which a model's two tokenizers are compared when it is loaded. Whole kinds of vocabulary are compared by the
//! tests; this finds the file that says it is of a kind and is not.

use crate::partition::Special;

/// Longest run of one character.
const RUN: usize = 40;
/// Special tokens that the last text holds.
const SPECIALS: usize = 64;

const TEXTS: [&str; 12] = [
    "You're here, I'M there; it's he'd, WE'LL 'Tis don'T.",
    "  two\n\nthree   \n \n\t\tfour\r\nfive     six\n",
    "0 1 12 123 1234 12345 123456 3.14159 1,000,000 0x7fff 2026-11-30T19:15:00Z",
    "fn main() {\n    let x = vec![1u8; 32];\n    if x.len() != 0 && y <= *z { println!(\"{x:?}\"); }\n}\n",
    "{\"type\": \"function\", \"parameters\": {\"a\": [null, true, -1e9], \"b\": {}}, \"text\": \"\\u00e9\\n\"}",
    "| id | name |\n| --- | ---: |\n| 7 | `x` |\n\n- *one*\n- __two__ [link](https://example.org/a?b=c#d)\n",
    "Fußgänger überqueren die Straße; où est la bibliothèque? ¿Dónde está el niño?",
    "Быстрая коричневая лиса прыгает. Η γρήγορη αλεπού. השועל המהיר. الثعلب السريع",
    "敏捷的棕色狐狸跳过了懒狗。素早い茶色の狐。빠른 갈색 여우가 뛰어넘는다. สุนัขจิ้งจอก तेज़ भूरी लोमड़ी",
    "😀👩‍👩‍👧‍👦🏳️‍🌈🇩🇪 e\u{301}\u{323} \u{1d400}\u{1f1e6} \u{200b}\u{feff}\u{a0}\u{2003}\u{2028}x\u{85}y",
    "\u{0}\u{1}\u{7f}\u{80}\u{ad}\u{fffd}\u{10ffff} \u{e000}",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa ================ ........... \u{2581}\u{2581} <0x0A> Ġx ▁y",
];

/// The texts, one with special tokens of this vocabulary.
pub(crate) fn texts(specials: &[Special]) -> Vec<String> {
    let mut texts: Vec<String> = TEXTS.iter().map(|text| (*text).to_owned()).collect();
    for char in [' ', '\n', '\t', '=', '-'] {
        texts.push((1..=RUN).map(|len| char.to_string().repeat(len) + "a").collect());
    }
    let step = specials.len().div_ceil(SPECIALS).max(1);
    let beside = ["", " ", "a", "\n", " b\n", "  "];
    let between = specials.iter().step_by(step).enumerate().map(|(index, special)| {
        let (before, behind) = (beside[index % beside.len()], beside[(index / beside.len()) % beside.len()]);
        format!("{before}{}{behind}", special.text)
    });
    texts.push(between.collect());
    texts
}
