//! Every family of the table splits exactly: tiny models with random weights, cut in two and in three at uneven places,
//! against the same model in one piece, logit by logit and bit by bit.
//!
//! The default run proves every family at one cut in two and one in three; `MESH_FAMILIES=all` (`just families`) every
//! family at every cut, `MESH_FAMILIES=qwen3,gemma2` some of them at every cut. Each case has a process of its own,
//! since an assertion inside llama.cpp ends the process.
#![allow(clippy::unwrap_used)] // a test that cannot go on says where

mod model;
mod recipe;

use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use mesh_engine::chain::Chain;
use mesh_engine::llama::{Compute, Limits, LlamaStage};
use mesh_engine::testkit::{Script, Split, compare, load_all};
use mesh_engine::{Frame, Output, Stage, Want};
use mesh_gguf::family::{FAMILIES, Recurrent};
use mesh_gguf::{Family, Header, ModelInfo, Source};
use mesh_types::LayerRange;
use recipe::{CASES, Case};

/// Number of the case that a child proves.
const CASE: &str = "MESH_ENGINE_TEST_FAMILY_CASE";
/// Whether it does so at every cut.
const ALL_CUTS: &str = "MESH_ENGINE_TEST_FAMILY_CUTS";
/// Of the random weights.
const SEED: u64 = 20_261_130;

/// Not a test of its own: what the children run. It prints what it proved.
#[test]
fn child_main() {
    let Ok(case) = std::env::var(CASE) else { return };
    let case = &CASES[case.parse::<usize>().unwrap()];
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let all = std::env::var_os(ALL_CUTS).is_some();
    println!("PROVEN {}", runtime.block_on(prove(case, all)));
}

#[test]
fn families_split_exactly() {
    let wanted = std::env::var("MESH_FAMILIES").unwrap_or_default();
    let names: Vec<&str> = wanted.split(',').filter(|name| !name.is_empty()).collect();
    let all_cuts = !names.is_empty();
    let chosen = |case: &Case| match names.as_slice() {
        [] | ["all"] => true,
        names => names.contains(&case.architecture),
    };
    let chosen: Vec<usize> = (0..CASES.len()).filter(|index| chosen(&CASES[*index])).collect();
    assert!(!chosen.is_empty(), "no such family: {wanted}");
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(index) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
                    match run_child(*index, all_cuts) {
                        Ok(proof) => eprintln!("{}: exact at {proof}", CASES[*index].name()),
                        Err(why) => failures.lock().unwrap().push(format!("{}: {why}", CASES[*index].name())),
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "weights of seed {SEED}\n{}", failures.join("\n"));
}

/// A row of the table is there because a case proves it.
#[test]
fn every_family_has_a_case() {
    for family in FAMILIES {
        assert!(CASES.iter().any(|case| case.architecture == family.architecture), "{}", family.architecture);
    }
    for case in CASES {
        assert!(FAMILIES.iter().any(|family| family.architecture == case.architecture), "{}", case.name());
    }
}

fn run_child(index: usize, all_cuts: bool) -> Result<String, String> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["child_main", "--exact", "--nocapture"]).env(CASE, index.to_string()).stdin(Stdio::null());
    // An assertion says its line; a debugger's word on it takes seconds and says nothing more.
    command.env("GGML_NO_BACKTRACE", "1").env("RUST_BACKTRACE", "0");
    if all_cuts {
        command.env(ALL_CUTS, "1");
    }
    let output = command.output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    let proof = stdout.lines().find_map(|line| line.split_once("PROVEN ").map(|found| found.1.to_owned()));
    match proof {
        Some(proof) if output.status.success() => Ok(proof),
        _ => {
            let stderr = String::from_utf8_lossy(&output.stderr);
            let lines: Vec<&str> = stderr.lines().filter(|line| !line.trim().is_empty()).collect();
            Err(format!("{}: {}", output.status, lines[lines.len().saturating_sub(12)..].join("\n    ")))
        }
    }
}

/// Proves a case, and says at which cuts.
async fn prove(case: &Case, all_cuts: bool) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    model::write(case, SEED, &path);
    let limits = Limits { n_ctx: 64, n_seq: 4, n_batch: 32, n_cells: 256 };
    let compute = Compute { max_logits_rows: limits.n_batch, ..Compute::with_threads(1) };
    let split = Split { path, limits, compute };
    let source = Source::open(&split.path).unwrap();
    assert_allowed_cuts_fit(source.header());
    let whole = LlamaStage::load(split.unsplit().unwrap()).unwrap();
    let recurrent = Family::of(source.header()).unwrap().recurrent != Recurrent::Never;
    assert_eq!(whole.spec().cuts_back, !recurrent, "{}", case.name());
    let script = if recurrent { onward(false) } else { Script::thorough(limits.n_seq, whole.spec().n_vocab) };
    assert_tells_tokens_apart(&whole, &script).await;

    let mut proven = Vec::new();
    for cuts in cuts_to_try(source.header(), all_cuts) {
        let slices = tempfile::tempdir().unwrap();
        let stages = load_all(split.at(&cuts, slices.path()).unwrap()).unwrap();
        let chain = Chain::new(stages).unwrap();
        match recurrent {
            true => assert_same_outputs(&whole, &chain, &format!("cut at {cuts:?}")).await,
            false => {
                let found = compare(&whole, &chain, script.frames()).await.unwrap();
                let rows = found.logits / whole.spec().n_vocab as usize;
                assert_eq!(found.mismatch, None, "cut at {cuts:?}: {found:?}");
                assert_eq!((found.steps, found.tokens, rows), (14, 14, 25), "cut at {cuts:?}: {found:?}");
            }
        }
        let cuts: Vec<String> = cuts.iter().map(u32::to_string).collect();
        proven.push(cuts.join(","));
    }
    proven.join(" | ")
}

/// What recurrent layers can do: prefill in chunks, decode, sequences of unequal length, copying whole ones, starting
/// over; but no cutting back. Several sequences share a micro-batch, or every one comes in its own.
fn onward(shared: bool) -> Script {
    use Want::{Logits, Nothing, Token};
    let mut script = Script::new(4, recipe::N_VOCAB);
    let add = |script: &mut Script, segments: &[(u32, u32, Want)]| {
        segments.chunks(if shared { segments.len() } else { 1 }).for_each(|part| {
            script.batch(part);
        });
    };
    script.open(0, 24);
    add(&mut script, &[(0, 16, Nothing)]);
    add(&mut script, &[(0, 7, Logits)]);
    add(&mut script, &[(0, 1, Token)]);
    script.open(1, 8).open(2, 3).open(3, 11);
    add(&mut script, &[(3, 11, Token), (1, 8, Nothing), (0, 1, Token), (2, 3, Logits)]);
    add(&mut script, &[(2, 1, Token), (0, 1, Logits), (3, 1, Nothing), (1, 2, Token)]);
    script.close(2).open(2, 26).copy(0, 2, 26);
    add(&mut script, &[(2, 1, Logits), (0, 1, Logits), (1, 5, Logits)]);
    script.close(0).open(0, 9);
    add(&mut script, &[(1, 1, Token), (0, 9, Logits), (2, 2, Logits), (3, 1, Logits)]);
    script
}

/// Recurrent layers in a split are computed sequence by sequence, so that is what the whole model is given.
async fn assert_same_outputs(whole: &dyn Stage, split: &dyn Stage, what: &str) {
    let expected = outputs(whole, &onward(false)).await;
    let found = outputs(split, &onward(true)).await;
    assert_eq!((expected.len(), found.len()), (15, 15), "{what}");
    for (a, b) in expected.iter().zip(&found) {
        assert_eq!((a.seq, a.position, a.token), (b.seq, b.position, b.token), "{what}");
        let bits = |output: &Output| output.logits.iter().flatten().map(|it| it.to_bits()).collect::<Vec<_>>();
        assert!(bits(a) == bits(b), "{what}: other logits at {} of slot {}", a.position, a.seq.0);
        assert!(a.logits.iter().flatten().all(|logit| logit.is_finite()), "{what}");
    }
}

async fn outputs(stage: &dyn Stage, script: &Script) -> Vec<Output> {
    let frames = mesh_engine::testkit::run(stage, script.frames()).await.unwrap();
    let outputs = |frame| match frame {
        Frame::Result(result) => result.outputs,
        other => panic!("{other:?}"),
    };
    frames.into_iter().flat_map(outputs).collect()
}

/// Every way to cut in two, and many to cut in three, that the table allows; or one of each.
fn cuts_to_try(header: &Header, all: bool) -> Vec<Vec<u32>> {
    let n_layer = ModelInfo::of(header).unwrap().n_layer;
    let fits = |cuts: &[u32]| {
        let ends = cuts.iter().copied().chain([n_layer]);
        let mut stages = std::iter::once(0).chain(cuts.iter().copied()).zip(ends);
        stages.all(|(start, end)| mesh_gguf::check_range(header, LayerRange::new(start, end).unwrap()).is_ok())
    };
    let mut single: Vec<Vec<u32>> = (1..n_layer).map(|cut| vec![cut]).filter(|cuts| fits(cuts)).collect();
    let pairs = (1..n_layer).flat_map(|first| (first + 1..n_layer).map(move |second| vec![first, second]));
    let mut double: Vec<Vec<u32>> = pairs.filter(|cuts| fits(cuts) && uneven(cuts, n_layer)).collect();
    assert!(!single.is_empty() && !double.is_empty(), "it cannot be cut in two and in three");
    if !all {
        single = vec![single.swap_remove(single.len() / 3)];
        double = vec![double.swap_remove(double.len() / 2)];
    }
    let step = double.len().div_ceil(24);
    single.into_iter().chain(double.into_iter().step_by(step)).collect()
}

/// Whether not all three stages have the same number of layers.
fn uneven(cuts: &[u32], n_layer: u32) -> bool {
    cuts[1] != 2 * cuts[0] || n_layer != 3 * cuts[0]
}

/// Whatever stages are made of the cuts that a planner is told, the slicer makes them (but for forbidden sizes).
fn assert_allowed_cuts_fit(header: &Header) {
    let n_layer = ModelInfo::of(header).unwrap().n_layer;
    let family = Family::of(header).unwrap();
    let mut edges = mesh_gguf::allowed_cuts(header).unwrap();
    edges.extend([0, n_layer]);
    let pairs = edges.iter().flat_map(|start| edges.iter().map(move |end| (*start, *end)));
    for range in pairs.filter_map(|(start, end)| LayerRange::new(start, end)) {
        let fits = mesh_gguf::check_range(header, range);
        assert!(fits.is_ok() || family.no_stage_of.contains(&range.len()), "{range}: {fits:?}");
    }
}

/// Equal logits prove nothing of a model whose logits are all the same.
async fn assert_tells_tokens_apart(stage: &dyn Stage, script: &Script) {
    let logits: Vec<f32> = outputs(stage, script).await.into_iter().filter_map(|it| it.logits).flatten().collect();
    let rows: Vec<&[f32]> = logits.chunks_exact(stage.spec().n_vocab as usize).collect();
    let spread = |values: &mut dyn Iterator<Item = f32>| {
        let (low, high) = values.fold((f32::MAX, f32::MIN), |(low, high), v| (low.min(v), high.max(v)));
        high - low
    };
    assert!(spread(&mut rows[0].iter().copied()) > 1e-3, "its logits are flat");
    assert!(spread(&mut rows.iter().map(|row| row[0])) > 1e-4, "its logits do not depend on what it reads");
}
