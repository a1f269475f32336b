//! What a slice takes in memory on its way, at both ends. Each end has a process of its own.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)] // a test that cannot go on says where

#[path = "../examples/weights/transfer.rs"]
mod transfer;

use std::fs::File;
use std::io::{BufRead as _, BufReader, BufWriter, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use mesh_gguf::{Array, GgmlType, Header, Metadata, TensorInfo, Value};

const LIMIT: f64 = (64 << 20) as f64;
/// Four times the limit, so that whoever keeps it all is found out.
const BYTES: u64 = 256 << 20;
const LAYERS: u32 = 8;
/// The words of a child's command, a line each.
const WORDS: &str = "MESH_WEIGHTS_TEST_WORDS";

/// Not a test of its own: what the children run.
#[test]
fn child_main() {
    let Ok(words) = std::env::var(WORDS) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(transfer::run(&words.lines().collect::<Vec<_>>())).unwrap();
}

#[test]
fn a_slice_on_its_way_takes_little_memory() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    write_model(Path::new(&at("model.gguf")));
    let mut holder = child(&["hold", &at("model.gguf"), &at("holder"), "127.0.0.1:0"]);
    let mut said = BufReader::new(holder.stdout.take().unwrap());
    // What a child says may stand behind words of the test harness.
    let token = said.by_ref().lines().find_map(|line| Some(line.unwrap().split_once("mesh1")?.1.to_owned()));
    let token = format!("mesh1{}", token.unwrap());
    let worker = child(&["fetch", &at("model.gguf"), &at("worker"), "127.0.0.1:0", &token, "1"]);
    let worker = worker.wait_with_output().unwrap();
    drop(holder.stdin.take());
    // To the end, or it writes into a closed pipe.
    let [of_holder] = said.lines().filter_map(|line| last_numbers(&line.unwrap())).last().unwrap();
    assert!(holder.wait().unwrap().success() && worker.status.success());
    let text = String::from_utf8(worker.stdout).unwrap();
    let [bytes, _seconds, of_worker] = text.lines().find_map(last_numbers).unwrap();
    assert!(bytes > BYTES as f64 / 2.0, "{text}");
    assert!((1.0..LIMIT).contains(&of_worker), "{of_worker} bytes at the worker");
    assert!((1.0..LIMIT).contains(&of_holder), "{of_holder} bytes at the holder");
}

fn child(words: &[&str]) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["child_main", "--exact", "--nocapture"]).env(WORDS, words.join("\n"));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}

/// The last words of `line`, if they are as many numbers.
fn last_numbers<const N: usize>(line: &str) -> Option<[f64; N]> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let numbers: Vec<f64> =
        words.get(words.len().checked_sub(N)?..)?.iter().filter_map(|word| word.parse().ok()).collect();
    numbers.try_into().ok()
}

/// A llama of bytes that are no holes.
fn write_model(path: &Path) {
    let mut metadata = Metadata::default();
    metadata.set("general.architecture", Value::from("llama"));
    for (key, value) in
        [("block_count", LAYERS), ("context_length", 512), ("embedding_length", 4096), ("attention.head_count", 32)]
    {
        metadata.set(&format!("llama.{key}"), Value::U32(value));
    }
    metadata.set("tokenizer.ggml.tokens", Value::Array(Array::of_strs((0..64).map(|token| token.to_string()))));
    let rows = BYTES / u64::from(LAYERS) / (4 * 4096);
    let tensor = |name: &str, rows| TensorInfo::new(name, &[4096, rows], GgmlType::F32).unwrap();
    let mut tensors = vec![tensor("token_embd.weight", 64)];
    tensors.extend((0..LAYERS).map(|layer| tensor(&format!("blk.{layer}.ffn.weight"), rows)));
    let header = Header::build(metadata, tensors).unwrap();
    let mut out = BufWriter::new(File::create(path).unwrap());
    header.write_to(&mut out).unwrap();
    (1..=header.data_len() / 8).for_each(|value| out.write_all(&value.to_le_bytes()).unwrap());
    out.flush().unwrap();
}
