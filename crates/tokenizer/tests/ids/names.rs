//! Every name of the table of pre-tokenizers, over one vocabulary.

use mesh_tokenizer::{PRE_TOKENIZERS, Reference};

use crate::{archive, hostile};

/// Characters of one kind in a row: more than a pattern that calls itself for each has stack for.
const LONG: usize = 20_000;

#[test]
fn every_pre_tokenizer_cuts_as_the_reference_does() {
    let folder = tempfile::tempdir().unwrap();
    let base = archive::vocabulary("gpt-2");
    for pre in PRE_TOKENIZERS {
        let tokenizer = archive::tokenizer(&archive::renamed(&base, pre, folder.path()));
        assert_eq!(tokenizer.fallback(), None, "{pre}");
        for text in hostile::texts(150, &[]) {
            let expected = tokenizer.reference().tokenize(&text, false).unwrap();
            assert_eq!(tokenizer.tokenize(&text, false).unwrap(), expected, "{pre}: {text:?}");
        }
    }
}

/// llama.cpp's regular expressions call themselves for every character of a word.
#[test]
fn long_words_end_neither_tokenizer() {
    let folder = tempfile::tempdir().unwrap();
    let base = archive::vocabulary("gpt-2");
    for pre in ["deepseek-llm", "deepseek-coder", "deepseek-v3", "tekken", "gpt-4o", "falcon", "default", "bloom"] {
        let tokenizer = archive::tokenizer(&archive::renamed(&base, pre, folder.path()));
        for piece in ["a", "7", " ", "\n", "é", "!", "aB"] {
            let text = piece.repeat(LONG);
            let expected = tokenizer.reference().tokenize(&text, false).unwrap();
            assert_eq!(tokenizer.tokenize(&text, false).unwrap(), expected, "{pre}: {piece:?}");
        }
    }
}

/// Tables of characters differ between versions of Unicode.
#[test]
fn every_character_is_taken_for_the_same() {
    for name in ["qwen35", "deepseek-coder"] {
        let tokenizer = archive::tokenizer(&archive::vocabulary(name));
        let characters = (0..0x3_3500).chain(0xe_0000..0xe_0200).filter_map(char::from_u32).collect::<Vec<_>>();
        for some in characters.chunks(64) {
            let text: String = some.iter().map(|char| format!("?{char}[x {char}1{char} {char}\n")).collect();
            let expected = tokenizer.reference().tokenize(&text, false).unwrap();
            assert_eq!(tokenizer.tokenize(&text, false).unwrap(), expected, "{name}: {text:?}");
        }
    }
}
