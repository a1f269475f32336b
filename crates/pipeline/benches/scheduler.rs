//! A step of the scheduler: what one micro-batch of decoding sequences costs beside its computation.

use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use mesh_engine::{Frame, MicroBatch, Output, Segment, StageSpec, StepResult, Want};
use mesh_pipeline::Config;
use mesh_pipeline::scheduler::{Limits, Scheduler};
use mesh_types::{GenerateSpec, LayerRange, ModelId, RequestId, Sampling, TokenId};

const N_CTX: u32 = 1 << 20;
const PROMPT: i32 = 16;

fn scheduler(sequences: u32, depth: usize) -> Scheduler {
    let spec = StageSpec {
        model: ModelId::new("bench"),
        layers: LayerRange::new(0, 4).expect("a range"),
        n_layer: 4,
        n_embd: 8,
        n_vocab: 1000,
        n_ctx: N_CTX,
        n_seq: sequences,
        n_batch: 512,
        n_cells: N_CTX * sequences,
        cuts_back: true,
        rolls_back: true,
        n_parked: 0,
        n_states: 0,
    };
    let mut scheduler = Scheduler::new(Limits::new(&spec, &Config { depth, max_queue: 0, ..Config::default() }));
    for run in 0..sequences {
        let prompt = (0..PROMPT).map(|token| TokenId(token + run as i32)).collect();
        let spec = GenerateSpec {
            max_tokens: u32::MAX,
            sampling: Sampling::greedy(),
            ..GenerateSpec::new(RequestId::new(run.to_string()), prompt)
        };
        scheduler.submit(spec).expect("a slot for each");
    }
    scheduler
}

/// What the last stage says to a micro-batch.
fn result(batch: &MicroBatch) -> StepResult {
    let wanted = batch.segments.iter().filter(|segment| segment.want == Want::Token);
    let output = |segment: &Segment| Output {
        seq: segment.seq,
        position: segment.start + segment.len,
        token: Some(TokenId(500)),
        logits: None,
        logprobs: None,
        failure: None,
    };
    StepResult { step: batch.step, outputs: wanted.map(output).collect() }
}

/// Takes `steps` micro-batches home, `depth` of them under way at a time, and tells the clients.
fn run(scheduler: &mut Scheduler, steps: u64) {
    let mut under_way = std::collections::VecDeque::new();
    for _ in 0..steps {
        while let Some(frame) = scheduler.next_frame() {
            if let Frame::Batch(batch) = frame {
                under_way.push_back(batch);
            }
        }
        let batch: MicroBatch = under_way.pop_front().expect("sequences decode for ever");
        scheduler.result(result(&batch)).expect("as asked for");
        while scheduler.next_event().is_some() {}
    }
    for batch in under_way {
        scheduler.result(result(&batch)).expect("as asked for");
    }
}

fn step(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("scheduler");
    for (sequences, depth) in [(1, 1), (16, 1), (16, 2), (64, 4)] {
        group.throughput(Throughput::Elements(u64::from(sequences) / depth as u64));
        group.bench_function(format!("step of {sequences} sequences over {depth} stages"), |bencher| {
            bencher.iter_custom(|iterations| {
                let mut took = Duration::ZERO;
                // In parts, since a sequence's context ends some time.
                for part in 0..iterations.div_ceil(10_000) {
                    let steps = (iterations - part * 10_000).min(10_000);
                    let mut scheduler = scheduler(sequences, depth);
                    run(&mut scheduler, 4);
                    let begun = Instant::now();
                    run(&mut scheduler, steps);
                    took += begun.elapsed();
                }
                took
            });
        });
    }
    group.finish();
}

criterion_group!(benches, step);
criterion_main!(benches);
