//! The frame codec: what a micro-batch costs on its way into a socket and out of it.

use std::hint::black_box;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use mesh_engine::codec::{self, Limits, Message};
use mesh_engine::{Frame, MicroBatch, Rows, Segment, SeqId, StageSpec, StepId, Want};
use mesh_types::{LayerRange, ModelId, TokenId};

/// Values in a row, as in a model of 8 billion parameters.
const N_EMBD: u32 = 4096;

fn spec() -> StageSpec {
    let layers = LayerRange::new(16, 32).expect("a range");
    StageSpec {
        model: ModelId::new("bench"),
        layers,
        n_layer: 32,
        n_embd: N_EMBD,
        n_vocab: 128_256,
        n_ctx: 8192,
        n_seq: 16,
        n_batch: 512,
        n_cells: 8192,
        cuts_back: true,
        rolls_back: true,
        n_parked: 0,
        n_states: 0,
    }
}

/// `sequences` of `len` tokens each, with their rows.
fn batch(sequences: u32, len: u32) -> MicroBatch {
    let tokens = sequences * len;
    let segment = |seq| Segment { seq: SeqId(seq), start: 1000, len, want: Want::Token };
    MicroBatch {
        step: StepId(7),
        segments: (0..sequences).map(segment).collect(),
        tokens: (0..tokens as i32).map(TokenId).collect(),
        rows: Some(Rows { n_embd: N_EMBD, data: vec![0.5; (tokens * N_EMBD) as usize] }),
    }
}

fn codec(criterion: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    for (name, sequences, len) in [("decode of 8 sequences", 8, 1), ("prefill chunk of 128 tokens", 1, 128)] {
        let message = Message::<()>::Frame(Frame::Batch(batch(sequences, len)));
        let limits = Limits::into_stage(&spec());
        let mut bytes = Vec::new();
        runtime.block_on(codec::write(&mut bytes, &message, 1)).expect("a buffer takes all");
        let mut group = criterion.benchmark_group(name);
        group.throughput(Throughput::Bytes(bytes.len() as u64));
        group.bench_function("encode without a copy", |bencher| {
            let encode = |message| codec::encode_owned::<()>(message, 1).expect("it fits");
            bencher.iter_batched(|| message.clone(), encode, BatchSize::SmallInput);
        });
        group.bench_function("decode", |bencher| {
            bencher.iter(|| {
                let mut socket = black_box(bytes.as_slice());
                runtime.block_on(codec::read::<(), _>(&mut socket, limits)).expect("as written")
            });
        });
        group.finish();
    }
}

criterion_group!(benches, codec);
criterion_main!(benches);
