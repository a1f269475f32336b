//! Whole vocabularies: same ids, or not taken.

use std::path::Path;

use kernels_ffi::Vocab;
use mesh_tokenizer::{Encoder, Fallback, Reference, Unsupported};

use crate::{archive, hostile};

/// Those that are taken.
const TAKEN: [&str; 15] = [
    "aquila",
    "command-r",
    "deepseek-coder",
    "deepseek-llm",
    "gemma-4",
    "gpt-2",
    "gpt-neox",
    "llama-bpe",
    "llama-spm",
    "mpt",
    "phi-3",
    "qwen2",
    "qwen35",
    "refact",
    "starcoder",
];

/// Texts for each vocabulary; more are asked for by `MESH_ROUNDS`.
fn rounds() -> u64 {
    std::env::var("MESH_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(200)
}

#[test]
fn every_vocabulary_that_is_taken_gives_the_reference_s_ids() {
    let archive = TAKEN.map(archive::vocabulary);
    let models = ["SmolLM2-135M-Instruct.Q4_1.gguf", "gemma-3-270m-q4_k_m.gguf"].map(archive::model);
    for path in archive.iter().chain(&models) {
        let tokenizer = archive::tokenizer(path);
        assert_eq!(tokenizer.fallback(), None, "{}", path.display());
        for text in runs() {
            let expected = tokenizer.reference().tokenize(&text, false).unwrap();
            assert_eq!(tokenizer.tokenize(&text, false).unwrap(), expected, "{}: {text:?}", path.display());
        }
        let specials = archive::specials(&tokenizer.reference().0).into_iter().map(|special| special.text);
        for text in hostile::texts(rounds(), &specials.collect::<Vec<_>>()) {
            for parse_special in [false, true] {
                let expected = tokenizer.reference().tokenize(&text, parse_special).unwrap();
                // The first time it is encoded, the second time remembered, if it is long.
                for time in ["first", "second"] {
                    let ids = tokenizer.tokenize(&text, parse_special).unwrap();
                    assert_eq!(ids, expected, "{}, {parse_special}, {time} time: {text:?}", path.display());
                }
            }
        }
    }
}

#[test]
fn llama_cpp_s_own_vectors_come_out() {
    for name in TAKEN.into_iter().filter(|name| !["aquila", "gpt-neox"].contains(name)) {
        let path = archive::vocabulary(name);
        let tokenizer = archive::tokenizer(&path);
        for (text, ids) in archive::vectors(&path) {
            assert_eq!(tokenizer.tokenize(&text, true).unwrap(), ids, "{name}: {text:?}");
        }
    }
}

/// Pieces of the same score are merged from left to right, and ranks do not say that.
#[test]
fn scores_that_say_too_little_are_refused() {
    let path = archive::vocabulary("baichuan");
    let tokenizer = archive::tokenizer(&path);
    let refused = |why: &Fallback| matches!(why, Fallback::Unsupported(Unsupported::Inexact(_)));
    assert!(tokenizer.fallback().is_some_and(refused), "{:?}", tokenizer.fallback());
    agrees_with_reference(&path);
}

/// The encoder alone, where the whole goes to the reference for another reason.
#[test]
fn falcon_is_refused_for_its_special_tokens_alone() {
    let path = archive::vocabulary("falcon");
    let tokenizer = archive::tokenizer(&path);
    assert!(matches!(tokenizer.fallback(), Some(Fallback::Inseparable(_))), "{:?}", tokenizer.fallback());
    let encoder = Encoder::of(&archive::metadata(&path)).unwrap();
    let mut compared = 0;
    for text in hostile::texts(rounds(), &[]) {
        // Characters newer than llama.cpp's tables are refused.
        if let Ok(ids) = encoder.encode(&text) {
            assert_eq!(ids, tokenizer.tokenize(&text, false).unwrap(), "{text:?}");
            compared += 1;
        }
    }
    assert!(compared > rounds() / 2);
}

#[test]
fn kinds_that_are_not_built_are_named() {
    for (name, kind) in [("bert-bge", "bert"), ("nomic-bert-moe", "t5")] {
        let path = archive::vocabulary(name);
        let tokenizer = archive::tokenizer(&path);
        let unsupported = Fallback::Unsupported(Unsupported::Model(kind.to_owned()));
        assert_eq!(tokenizer.fallback(), Some(&unsupported));
        agrees_with_reference(&path);
    }
}

/// A file that says it is of a kind and is not is found when it is loaded.
#[test]
fn a_vocabulary_that_lies_falls_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = archive::vocabulary("qwen2");
    let vocab = Vocab::load(&path).unwrap();
    let other = archive::renamed(&path, "gpt-2", folder.path());
    let specials = archive::specials(&vocab);
    let tokenizer = mesh_tokenizer::Tokenizer::new(&archive::metadata(&other), specials, archive::LlamaCpp(vocab));
    assert!(matches!(tokenizer.fallback(), Some(Fallback::Differs(_))), "{:?}", tokenizer.fallback());
    let text = "I'LL pay 12345\n\n  <|im_end|>";
    assert_eq!(tokenizer.tokenize(text, true), tokenizer.reference().tokenize(text, true));
}

fn agrees_with_reference(path: &Path) {
    let tokenizer = archive::tokenizer(path);
    for text in hostile::texts(100, &[]) {
        assert_eq!(tokenizer.tokenize(&text, true), tokenizer.reference().tokenize(&text, true), "{text:?}");
    }
}

/// Runs of one character, of every length that a text is likely to hold.
fn runs() -> Vec<String> {
    let lengths = (1..300).step_by(7).chain(1..80);
    lengths.flat_map(|len| [" ", "\n", "\t", "-"].map(|piece| format!("a{}b", piece.repeat(len)))).collect()
}
