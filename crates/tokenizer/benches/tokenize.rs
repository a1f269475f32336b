//! A prompt of 20,000 tokens through llama.cpp's tokenizer and through ours, and the next turn of its conversation, for
//! the vocabularies of llama.cpp's source archive and of the test models that both know. `scripts/upstream` and `./dev
//! models` fetch them.

use std::hint::black_box;
use std::path::Path;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use mesh_tokenizer::{Encoder, Reference};

mod agent;
#[allow(dead_code, clippy::unwrap_used)] // the tests use all of it; a bench that cannot go on says where
#[path = "../tests/ids/archive.rs"]
mod archive;

/// Tokens of the prompt.
const TOKENS: usize = 20_000;
/// Bytes that a turn adds: an answer and what a tool gave back.
const TURN: usize = 2_000;

const VOCABULARIES: [&str; 9] =
    ["command-r", "deepseek-coder", "deepseek-llm", "gemma-4", "gpt-2", "llama-bpe", "llama-spm", "qwen2", "starcoder"];
const MODELS: [&str; 2] = ["SmolLM2-135M-Instruct.Q4_1.gguf", "gemma-3-270m-q4_k_m.gguf"];

fn tokenize(criterion: &mut Criterion) {
    for path in VOCABULARIES.map(archive::vocabulary).iter().chain(&MODELS.map(archive::model)) {
        compare(criterion, path);
    }
}

fn compare(criterion: &mut Criterion, path: &Path) {
    let tokenizer = archive::tokenizer(path);
    let reference = tokenizer.reference();
    let Ok(encoder) = Encoder::of(&archive::metadata(path)) else { return };
    let sample = agent::prompt(40_000);
    let tokens = reference.tokenize(&sample, false).map_or(1, |tokens| tokens.len());
    let text = agent::prompt(sample.len() * TOKENS / tokens);

    let name = path.file_stem().unwrap_or_default().to_string_lossy().replace("ggml-vocab-", "");
    let mut group = criterion.benchmark_group(name);
    group.sample_size(20).throughput(Throughput::Elements(TOKENS as u64));
    group.bench_function("llama.cpp", |bencher| bencher.iter(|| reference.tokenize(black_box(&text), true)));
    group.bench_function("ours, no word seen before", |bencher| {
        bencher.iter(|| {
            encoder.forget();
            encoder.encode(black_box(&text))
        });
    });
    group.bench_function("ours, words seen before", |bencher| bencher.iter(|| encoder.encode(black_box(&text))));
    let end = archive::specials(&reference.0).into_iter().find(|special| !special.always && special.text.len() > 2);
    let Some(end) = end.map(|special| special.text) else { return };
    let mut turn = 0;
    let _ = tokenizer.tokenize(&text, true);
    group.bench_function("ours, the next turn", |bencher| {
        bencher.iter_batched(
            || {
                turn += 1;
                let new = agent::prompt(TURN);
                format!("{text}{end}\n{turn} {new}{end}\nThen {new} again {turn}")
            },
            |conversation| tokenizer.tokenize(&conversation, true),
            criterion::BatchSize::SmallInput,
        );
    });
    group.finish();
}

criterion_group!(benches, tokenize);
criterion_main!(benches);
