//! Every family of the table splits exactly: tiny models with random weights, cut in two and in three at uneven places,
//! against the same model in one piece, logit by logit and bit by bit.
//!
//! The default run proves every family at one cut in two and one in three; `MESH_FAMILIES=all` (`just families`) every
//! family at every cut, `MESH_FAMILIES=qwen3,gemma2` some of them at every cut. `MESH_FAMILIES_DEVICE=Vulkan0` computes
//! on another device, split and whole, and compares that with the processor.
//! `MESH_FAMILIES_FROM=FOLDER` takes the models of a folder. Each model has a process of its own, since an assertion
//! inside llama.cpp ends the process.
#![allow(clippy::unwrap_used)] // a test that cannot go on says where

mod model;
mod proof;
mod recipe;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use kernels_ffi::FlashAttention;
use mesh_engine::llama::Compute;
use mesh_gguf::family::{FAMILIES, REFUSED};
use mesh_gguf::{Family, Source};
use proof::Proof;
use recipe::{Case, cases};

/// Number of the case that a child proves.
const CASE: &str = "MESH_ENGINE_TEST_FAMILY_CASE";
/// The file that a child proves.
const FILE: &str = "MESH_ENGINE_TEST_FAMILY_FILE";
/// Whether it does so at every cut.
const ALL_CUTS: &str = "MESH_ENGINE_TEST_FAMILY_CUTS";
/// On what device the stages compute, where not on the processor.
const DEVICE: &str = "MESH_FAMILIES_DEVICE";
/// Models that are proven on devices beside the plain one of each family: they take other ways there.
const ON_DEVICES: [&str; 3] = ["llama in q4_K and q6_K", "gemma4 with rows for every layer", "gemma2 like the 27B"];
/// Of the random weights.
const SEED: u64 = 20_261_130;
/// How far apart split and whole may be on a device, as a share of the logits' spread. Mostly they are equal bit by bit;
/// but a back end that joins an addition with the norm behind it adds up in another order where a cut lies between them.
const SPLIT_WITHIN: f32 = 0.001;
/// How far apart the logits of two devices may be, or of two ways to cut a prompt into batches on one, as a share of
/// the logits' spread: it multiplies with f16 where the processor does with f32, or rounds blocks of 8 bits otherwise.
const DEVICES_WITHIN: f32 = 0.02;

/// Not a test of its own: what the children run. It prints what it proved.
#[test]
fn child_main() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let all_cuts = std::env::var_os(ALL_CUTS).is_some();
    if let Ok(case) = std::env::var(CASE) {
        let (proven, note) = runtime().block_on(prove(cases()[case.parse::<usize>().unwrap()], all_cuts));
        assert!(proven.iter().any(|cuts| cuts.contains(',')), "it cannot be cut in three: {proven:?}");
        let how = if note.is_empty() { "exact" } else { "the same" };
        println!("PROVEN {how} at {}{note}", proven.join(" | "));
    }
    if let Some(file) = std::env::var_os(FILE) {
        println!("PROVEN {}", runtime().block_on(prove_file(file.into())));
    }
}

/// At which cuts it is proven, and what else was seen.
async fn prove(case: &Case, all_cuts: bool) -> (Vec<String>, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    model::write(case, SEED, &path);
    let compute = Compute { kv_type: case.kv_type, ..Compute::with_threads(1) };
    match std::env::var(DEVICE) {
        Ok(device) => {
            let proof = on_device(path, &compute, &device);
            let note = compare_with_processor(&proof, compute).await;
            (proof.run().await, note)
        }
        Err(_) => {
            let proof = Proof::exact(path, compute, all_cuts);
            proof.assert_reckoned();
            (proof.run().await, String::new())
        }
    }
}

/// On another device, where a split model has to be the one in one piece as well. With all layers there, a
/// stage is one part of a graph; with the head alone there, the graph is divided behind the layers, and the head is
/// computed although the stage is done.
fn on_device(path: PathBuf, compute: &Compute, device: &str) -> Proof {
    let on = |gpu_layers| Compute { device: Some(device.to_owned()), gpu_layers, ..compute.clone() };
    Proof {
        path,
        ways: vec![on(None), on(Some(1))],
        all_cuts: false,
        within: SPLIT_WITHIN,
        kit_within: Some(DEVICES_WITHIN),
    }
}

/// The device computes what the processor does, as far as the model says: some random models, above all those that
/// choose experts, make a different answer of a difference in the last bits. How different is seen on the processor
/// alone, which has two ways to compute attention.
async fn compare_with_processor(proof: &Proof, compute: Compute) -> String {
    let processor = Compute { gpu_layers: Some(0), ..compute };
    let unfused = Compute { flash_attention: FlashAttention::Off, ..processor.clone() };
    let own = proof::apart(&proof.path, &processor, &unfused).await;
    let mut most = 0.0_f32;
    for way in &proof.ways {
        let found = proof::apart(&proof.path, &processor, way).await;
        let allowed = DEVICES_WITHIN.max(2.0 * own);
        assert!(found <= allowed, "{found} of the spread from the processor, which is {own} from itself: {way:?}");
        most = most.max(found);
    }
    format!("; from the processor {most:.4} of the spread, whose own two ways are {own:.4} apart")
}

/// A model that was not made here.
async fn prove_file(path: PathBuf) -> String {
    let source = Source::open(&path).unwrap();
    match Family::of(source.header()) {
        Err(error) => format!("refused: {error}"),
        Ok(_) => match Proof::exact(path, Compute::with_threads(1), true).run().await {
            proven if proven.is_empty() => "cannot be cut anywhere".to_owned(),
            proven => format!("exact at {}", proven.join(" | ")),
        },
    }
}

#[test]
fn families_split_exactly() {
    let wanted = std::env::var("MESH_FAMILIES").unwrap_or_default();
    let names: Vec<&str> = wanted.split(',').filter(|name| !name.is_empty()).collect();
    let all_cuts = !names.is_empty();
    let on_device = std::env::var_os(DEVICE).is_some();
    let chosen = |case: &Case| match names.as_slice() {
        _ if on_device && !case.variant.is_empty() && !ON_DEVICES.contains(&case.name().as_str()) => false,
        [] | ["all"] => true,
        names => names.contains(&case.architecture),
    };
    let cases = cases();
    let chosen: Vec<usize> = (0..cases.len()).filter(|index| chosen(cases[*index])).collect();
    assert!(!chosen.is_empty(), "no such family: {wanted}");
    let jobs = chosen.into_iter().map(|index| (cases[index].name(), (CASE, index.to_string())));
    run_children(jobs.collect(), all_cuts);
}

/// The models of a folder, if one is named, at every cut.
#[test]
fn models_of_others_split_exactly() {
    let Some(folder) = std::env::var_os("MESH_FAMILIES_FROM") else { return };
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = files.filter(|path| path.extension().is_some_and(|it| it == "gguf")).collect();
    files.sort();
    assert!(!files.is_empty(), "the folder has no models");
    let job = |path: PathBuf| {
        let text = path.to_str().unwrap().to_owned();
        (path.file_stem().unwrap().to_string_lossy().into_owned(), (FILE, text))
    };
    run_children(files.into_iter().map(job).collect(), true);
}

/// Runs a child for each job, two at a time, and fails if one of them does.
fn run_children(jobs: Vec<(String, (&str, String))>, all_cuts: bool) {
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some((name, job)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    match run_child(job, all_cuts) {
                        Ok(proof) => eprintln!("{name}: {proof}"),
                        Err(why) => failures.lock().unwrap().push(format!("{name}: {why}")),
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    let (failed, all) = (failures.len(), jobs.len());
    assert!(failures.is_empty(), "{failed} of {all} failed, weights of seed {SEED}\n{}", failures.join("\n"));
    eprintln!("{all} models, seed {SEED}");
}

/// A row of the table is there because a case proves it.
#[test]
fn every_family_has_a_case() {
    for family in FAMILIES {
        assert!(cases().iter().any(|case| case.architecture == family.architecture), "{}", family.architecture);
    }
    for case in cases() {
        assert!(FAMILIES.iter().any(|family| family.architecture == case.architecture), "{}", case.name());
    }
}

/// Every architecture that llama.cpp knows has a row, or is refused with its reason: nobody is told "nobody knows".
#[test]
fn every_architecture_of_llama_cpp_is_in_the_table() {
    let source = std::fs::read_to_string(llama_cpp().join("src/llama-arch.cpp")).unwrap();
    let (_, names) = source.split_once("LLM_ARCH_NAMES = {").unwrap();
    let (names, _) = names.split_once("\n};").unwrap();
    let names = names.lines().filter(|line| !line.contains("LLM_ARCH_UNKNOWN"));
    let theirs: BTreeSet<&str> = names.filter_map(|line| line.split('"').nth(1)).collect();
    let ours: BTreeSet<&str> =
        FAMILIES.iter().map(|row| row.architecture).chain(REFUSED.iter().map(|row| row.0)).collect();
    assert!(theirs.len() > 150, "{theirs:?}");
    let (unknown, gone): (Vec<_>, Vec<_>) = (theirs.difference(&ours).collect(), ours.difference(&theirs).collect());
    assert!(unknown.is_empty() && gone.is_empty(), "new in llama.cpp: {unknown:?}; no longer in it: {gone:?}");
    let exact: BTreeSet<&str> = FAMILIES.iter().map(|row| row.architecture).collect();
    assert!(exact.len() >= 90, "{} families split", exact.len());
}

/// Where cargo has the source of the llama.cpp that this is built with.
fn llama_cpp() -> PathBuf {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let arguments = ["metadata", "--format-version", "1", "--locked", "--offline", "--manifest-path", manifest];
    let output = Command::new(cargo).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let package = packages.iter().find(|package| package["name"] == "llama-cpp-sys-2").unwrap();
    PathBuf::from(package["manifest_path"].as_str().unwrap()).with_file_name("llama.cpp")
}

fn run_child((key, value): &(&str, String), all_cuts: bool) -> Result<String, String> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["child_main", "--exact", "--nocapture"]).env(key, value).stdin(Stdio::null());
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
