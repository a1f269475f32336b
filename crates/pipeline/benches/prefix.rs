//! Looking a prompt up among the sequences that are held.

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use mesh_engine::SeqId;
use mesh_pipeline::prefix::PrefixIndex;
use mesh_types::TokenId;

/// Tokens of the system prompt that all conversations share.
const SHARED: i32 = 4_000;
/// Tokens of each conversation behind it.
const OWN: i32 = 4_000;
const SEQUENCES: u32 = 64;

fn conversation(seq: u32) -> Vec<TokenId> {
    let own = (0..OWN).map(|at| TokenId(10_000 + at * 7 + seq.cast_signed()));
    (0..SHARED).map(TokenId).chain(own).collect()
}

fn filled() -> PrefixIndex {
    let mut index = PrefixIndex::default();
    for seq in 0..SEQUENCES {
        index.insert(SeqId(seq), &conversation(seq));
    }
    index
}

fn prefix(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("prefix index");
    let index = filled();
    let mut next_turn = conversation(40);
    next_turn.extend((0..200).map(TokenId));
    group.throughput(Throughput::Elements(next_turn.len() as u64));
    group.bench_function("find the next turn of one of 64 conversations", |bencher| {
        bencher.iter(|| index.common(&next_turn));
    });
    group.bench_function("insert a conversation", |bencher| {
        let conversation = conversation(SEQUENCES);
        bencher.iter_batched_ref(filled, |index| index.insert(SeqId(SEQUENCES), &conversation), BatchSize::LargeInput);
    });
    group.throughput(Throughput::Elements(1));
    group.bench_function("append a drawn token", |bencher| {
        let mut index = filled();
        bencher.iter(|| index.push(SeqId(7), TokenId(3)));
    });
    group.finish();
}

criterion_group!(benches, prefix);
criterion_main!(benches);
