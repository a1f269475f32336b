//! What needs a real model: SmolLM2-135M-Instruct, whose tokenizer is a byte-level BPE and whose head is tied.
#![allow(clippy::unwrap_used)] // a test that cannot go on says where

use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use kernels_ffi::{
    AbortHandle, Context, ContextError, ContextParams, DecodeError, DecodeInput, FlashAttention, Input, KvType,
    LoadError, Model, ModelParams, Place, TokenizeError, Vocab, VocabError,
};

fn model_path() -> PathBuf {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")));
    let folder = std::env::var_os("MESH_TEST_MODELS").map(PathBuf::from);
    let folder = folder.unwrap_or_else(|| cache.unwrap_or_default().join("mesh-node/models"));
    let path = folder.join("SmolLM2-135M-Instruct.Q4_1.gguf");
    assert!(path.exists(), "{} is missing: `./dev models` fetches it", path.display());
    path
}

fn model() -> Model {
    Model::load(&model_path(), &ModelParams::default()).unwrap()
}

fn params() -> ContextParams {
    ContextParams {
        n_cells: 256,
        n_seq: 4,
        n_batch: 64,
        n_outputs: 64,
        threads: 2,
        kv_type: KvType::F16,
        flash_attention: FlashAttention::Auto,
        tap: None,
        inject: None,
        query_factor: None,
    }
}

fn places(seq: u32, start: u32, len: u32) -> Vec<Place> {
    (start..start + len).map(|pos| Place { pos, seq, output: true }).collect()
}

fn decode(context: &mut Context, seq: u32, start: u32, tokens: &[i32]) -> Result<(), DecodeError> {
    let places = places(seq, start, tokens.len() as u32);
    context.decode(&DecodeInput { input: Input::Tokens(tokens), places: &places })
}

fn greedy(context: &mut Context, index: usize) -> i32 {
    let logits = context.logits(index).unwrap();
    (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap() as i32
}

#[test]
fn text_survives_the_tokenizer() {
    let vocab = Vocab::load(&model_path()).unwrap();
    for text in ["Hello, world!", "", " naïve  café\n\t", "日本語 🦀🦀", "<|im_start|>user\nhi<|im_end|>", "a\0b"]
    {
        for parse_special in [false, true] {
            let tokens = vocab.tokenize(text, false, parse_special).unwrap();
            assert_eq!(String::from_utf8(vocab.detokenize(&tokens, true)).unwrap(), text, "{tokens:?}");
        }
    }
    // Characters may be divided between tokens; the pieces are bytes.
    let crab = vocab.tokenize("🦀", false, false).unwrap();
    assert!(crab.len() > 1 && std::str::from_utf8(&vocab.piece(crab[0], false)).is_err());
}

#[test]
fn control_tokens_are_parsed_and_rendered_only_on_request() {
    let vocab = Vocab::load(&model_path()).unwrap();
    assert_eq!(vocab.n_tokens(), 49152);
    let start = vocab.tokenize("<|im_start|>", false, true).unwrap();
    assert_eq!(start.len(), 1);
    assert!(vocab.tokenize("<|im_start|>", false, false).unwrap().len() > 1);
    assert_eq!(vocab.piece(start[0], true), b"<|im_start|>");
    assert_eq!(vocab.piece(start[0], false), b"");
    assert!(vocab.attr(start[0]).is_control());
    assert_eq!(vocab.text(start[0]).as_deref(), Some("<|im_start|>"));

    let end = vocab.tokenize("<|im_end|>", false, true).unwrap()[0];
    assert_eq!(vocab.eos(), Some(end));
    assert!(vocab.is_eog(end) && vocab.eog_tokens().contains(&end));
    let letter = vocab.tokenize("a", false, false).unwrap()[0];
    assert!(!vocab.is_eog(letter) && !vocab.attr(letter).is_control());
    assert!(!vocab.adds_bos() && vocab.bos().is_some());

    // Outside of the vocabulary there is nothing, not an abort.
    for token in [-1, 49152, i32::MAX, i32::MIN] {
        assert_eq!((vocab.piece(token, true), vocab.text(token), vocab.is_eog(token)), (vec![], None, false));
        assert!(!vocab.attr(token).is_control());
    }
}

#[test]
fn a_vocabulary_is_shared_between_threads_and_outlives_its_model() {
    let model = model();
    let vocab = Vocab::of(&model).unwrap();
    drop(model);
    let expected = vocab.tokenize("The quick brown fox", true, true).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..100 {
                    assert_eq!(vocab.tokenize("The quick brown fox", true, true).unwrap(), expected);
                }
            });
        }
    });
}

#[test]
fn what_is_no_model_is_refused_with_a_reason() {
    let load = |bytes: &[u8]| {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        Model::load(file.path(), &ModelParams::default()).unwrap_err()
    };
    assert!(matches!(load(b""), LoadError::NotGguf { .. }));
    assert!(matches!(load(b"PK\x03\x04 something else"), LoadError::NotGguf { .. }));
    let missing = Model::load("/nonexistent.gguf".as_ref(), &ModelParams::default()).unwrap_err();
    assert!(matches!(missing, LoadError::Read { .. }), "{missing}");

    let whole = std::fs::read(model_path()).unwrap();
    for len in [100, whole.len() / 2] {
        match load(&whole[..len]) {
            LoadError::Refused { log, .. } => assert!(!log.is_empty()),
            other => panic!("{other}"),
        }
    }
    let devices = vec!["Abacus0".to_owned()];
    let unknown = Model::load(&model_path(), &ModelParams { devices, ..ModelParams::default() }).unwrap_err();
    assert!(unknown.to_string().contains("no device Abacus0 here; there are: CPU"), "{unknown}");
    let no_vocab = Vocab::load("/nonexistent.gguf".as_ref()).unwrap_err();
    assert!(matches!(no_vocab, VocabError::Load(_)));
    assert_eq!(TokenizeError::NoTokenizer.to_string(), "this file has no tokenizer");
}

#[test]
fn a_model_says_what_it_is() {
    let model = model();
    assert_eq!((model.n_layer(), model.n_embd(), model.n_embd_inp(), model.n_vocab()), (30, 576, 576, 49152));
    assert_eq!((model.positions_per_row(), model.n_ctx_train(), model.is_recurrent()), (1, 8192, false));
    assert!((90_000_000..98_400_000).contains(&model.size_bytes()));
    let vocab_only = Model::load(&model_path(), &ModelParams { vocab_only: true, ..ModelParams::default() }).unwrap();
    assert!(matches!(Context::new(&vocab_only, params()), Err(ContextError::Invalid(_))));
    for bad in [
        ContextParams { n_seq: 257, ..params() },
        ContextParams { n_seq: 0, ..params() },
        ContextParams { threads: 0, ..params() },
        ContextParams { tap: Some("x".repeat(64)), ..params() },
    ] {
        assert!(matches!(Context::new(&model, bad), Err(ContextError::Invalid(_))));
    }
}

#[test]
fn sequences_are_cut_shared_and_cleared() {
    let (model, vocab) = (model(), Vocab::load(&model_path()).unwrap());
    let mut context = Context::new(&model, params()).unwrap();
    drop(model); // the context keeps it
    let prompt = vocab.tokenize("The capital of France is", false, false).unwrap();
    decode(&mut context, 0, 0, &prompt).unwrap();
    let n = prompt.len() as u32;
    assert_eq!(vocab.piece(greedy(&mut context, prompt.len() - 1), false), b" Paris");
    assert_eq!(context.seq_len(0), n);

    // A copied prefix goes on as the original does.
    context.copy_seq(0, 1, n - 1);
    assert_eq!(context.seq_len(1), n - 1);
    decode(&mut context, 1, n - 1, &prompt[prompt.len() - 1..]).unwrap();
    assert_eq!(vocab.piece(greedy(&mut context, 0), false), b" Paris");

    // Cutting one back leaves the other.
    assert!(context.truncate(1, 2));
    assert_eq!((context.seq_len(0), context.seq_len(1)), (n, 2));
    context.clear_seq(0);
    assert_eq!((context.seq_len(0), context.seq_len(1)), (0, 2));
    context.clear();
    assert_eq!(context.seq_len(1), 0);
    // Sequences that do not exist have nothing.
    assert!(context.truncate(99, 0));
    context.clear_seq(99);
    context.copy_seq(0, 99, 1);
    assert_eq!(context.seq_len(99), 0);
}

#[test]
fn a_bad_decode_is_an_error_and_leaves_the_cache_alone() {
    let model = model();
    let mut context = Context::new(&model, params()).unwrap();
    decode(&mut context, 0, 0, &[1, 2, 3]).unwrap();
    assert!(context.logits(2).is_some() && context.logits(3).is_none());

    let invalid =
        |result: Result<(), DecodeError>| assert!(matches!(result, Err(DecodeError::Invalid(_))), "{result:?}");
    invalid(decode(&mut context, 0, 3, &[]));
    invalid(decode(&mut context, 0, 3, &[49152]));
    invalid(decode(&mut context, 0, 3, &[-1]));
    invalid(decode(&mut context, 4, 0, &[1]));
    invalid(decode(&mut context, 0, 3, &[1; 65]));
    invalid(context.decode(&DecodeInput { input: Input::Rows(&[0.0; 575]), places: &places(0, 3, 1) }));
    invalid(context.decode(&DecodeInput { input: Input::Tokens(&[1]), places: &places(0, 3, 2) }));
    assert!(context.logits(0).is_none(), "there is nothing to read after an error");

    // A gap, and a position that is taken: llama.cpp's own check.
    for start in [5, 1] {
        let result = decode(&mut context, 0, start, &[4]);
        assert!(matches!(&result, Err(DecodeError::Rejected { log }) if log.contains("sequence")), "{result:?}");
        assert_eq!(context.seq_len(0), 3);
    }
    // A batch larger than the cache is an error, not an assertion.
    let mut small = Context::new(&model, ContextParams { n_batch: 1024, ..params() }).unwrap();
    assert_eq!(small.params().n_batch, 256);
    invalid(decode(&mut small, 0, 0, &[1; 257]));

    // 256 cells: four sequences of 64 fill them.
    for (seq, start) in [(0, 3), (1, 0), (2, 0), (3, 0)] {
        decode(&mut context, seq, start, &vec![7; 64 - start as usize]).unwrap();
    }
    assert_eq!(decode(&mut context, 0, 64, &[1]), Err(DecodeError::NoRoom { tokens: 1 }));
    assert_eq!(context.seq_len(0), 64);
    context.clear_seq(3);
    decode(&mut context, 0, 64, &[1]).unwrap();
}

#[test]
fn rows_are_tapped_or_it_is_an_error() {
    let model = model();
    let tapped = |name: &str| Context::new(&model, ContextParams { tap: Some(name.to_owned()), ..params() }).unwrap();
    let mut context = tapped("l_out-29");
    decode(&mut context, 0, 0, &[1, 2, 3]).unwrap();
    assert!(context.logits(0).is_none());
    let rows = context.take_rows();
    assert_eq!(rows.len(), 3 * 576);
    assert!(rows.iter().all(|value| value.is_finite()) && rows.iter().any(|value| *value != 0.0));

    let mut partly = places(0, 3, 2);
    partly[0].output = false;
    let error = context.decode(&DecodeInput { input: Input::Tokens(&[4, 5]), places: &partly }).unwrap_err();
    assert!(error.to_string().contains("is not 2 contiguous f32 rows of 576, but has 576"), "dropped: {error}");

    // No such tensor; and one of another shape.
    for (name, problem) in [("l_out-30", "came up 0 times"), ("Kcur-0", "is not 2 contiguous f32 rows of 576")] {
        let mut context = tapped(name);
        let error = decode(&mut context, 0, 0, &[1, 2]).unwrap_err();
        assert!(error.to_string().contains(problem), "{error}");
        assert_eq!(context.seq_len(0), 0, "the positions are forgotten");
    }
}

#[test]
fn a_factor_that_no_query_is_multiplied_with_is_an_error() {
    let model = model();
    let mut context = Context::new(&model, ContextParams { query_factor: Some(0.5), ..params() }).unwrap();
    let error = decode(&mut context, 0, 0, &[1, 2]).unwrap_err();
    assert!(error.to_string().contains("the queries of 0 layers"), "a llama has no such factor: {error}");
    assert_eq!(context.seq_len(0), 0, "the positions are forgotten");
}

#[test]
fn injected_rows_replace_what_the_graph_computed() {
    let model = model();
    let mut plain = Context::new(&model, params()).unwrap();
    let mut tap = Context::new(&model, ContextParams { tap: Some("l_out-3".to_owned()), ..params() }).unwrap();
    let inject = ContextParams { inject: Some("l_out-3".to_owned()), ..params() };
    let mut inject = Context::new(&model, inject).unwrap();
    decode(&mut plain, 0, 0, &[10, 20, 30]).unwrap();
    decode(&mut tap, 0, 0, &[10, 20, 30]).unwrap();
    let rows = tap.take_rows();
    // The rows go in twice: as embeddings, from which the first four layers make nonsense, and in its place.
    let places = places(0, 0, 3);
    inject.decode(&DecodeInput { input: Input::Rows(&rows), places: &places }).unwrap();
    for i in 0..3 {
        assert_eq!(inject.logits(i).unwrap(), plain.logits(i).unwrap());
    }
    let error = decode(&mut inject, 0, 3, &[1]).unwrap_err();
    assert!(error.to_string().contains("takes rows"), "{error}");
    // Once more over placeholder tokens: here the first four layers make something of those.
    inject.clear();
    inject.decode(&DecodeInput { input: Input::Covered(&rows), places: &places }).unwrap();
    for i in 0..3 {
        assert_eq!(inject.logits(i).unwrap(), plain.logits(i).unwrap());
    }
    let error = plain.decode(&DecodeInput { input: Input::Covered(&rows), places: &places }).unwrap_err();
    assert!(error.to_string().contains("none is injected"), "{error}");
    let short = DecodeInput { input: Input::Covered(&rows[1..]), places: &places };
    assert!(matches!(inject.decode(&short), Err(DecodeError::Invalid(_))));
}

#[test]
fn a_decode_is_aborted_from_another_thread() {
    let model = model();
    let params = ContextParams { n_cells: 4096, n_batch: 2048, n_outputs: 1, threads: 1, ..params() };
    let mut context = Context::new(&model, params).unwrap();
    decode(&mut context, 1, 0, &[1]).unwrap();
    let abort = AbortHandle::new();
    context.set_abort(abort.clone());
    let tokens: Vec<i32> = (0..2048).map(|i| i % 1000).collect();
    let mut places = places(0, 0, 2048);
    places.iter_mut().for_each(|place| place.output = false);
    let input = DecodeInput { input: Input::Tokens(&tokens), places: &places };
    let (result, late) = std::thread::scope(|scope| {
        let raised = scope.spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            abort.abort();
            Instant::now()
        });
        let result = context.decode(&input);
        (result, Instant::now().saturating_duration_since(raised.join().unwrap()))
    });
    assert_eq!(result, Err(DecodeError::Aborted));
    assert!(late < Duration::from_secs(5), "{late:?}");
    assert_eq!((context.seq_len(0), context.seq_len(1)), (0, 1), "only this batch's positions are gone");
    // It stays raised until it is replaced.
    assert_eq!(decode(&mut context, 0, 0, &[1]), Err(DecodeError::Aborted));
    context.set_abort(AbortHandle::new());
    decode(&mut context, 0, 0, &[1]).unwrap();
}

#[test]
fn contexts_of_one_model_run_on_several_threads() {
    let model = model();
    let expected = {
        let mut context = Context::new(&model, params()).unwrap();
        decode(&mut context, 0, 0, &[5, 6, 7]).unwrap();
        context.logits(2).unwrap().to_vec()
    };
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut context = Context::new(&model, params()).unwrap();
                decode(&mut context, 0, 0, &[5, 6, 7]).unwrap();
                assert_eq!(context.logits(2).unwrap(), expected);
            });
        }
    });
}
