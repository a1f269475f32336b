//! What a slice takes in memory on its way, at both ends. Each end has a process of its own.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)] // a test that cannot go on says where

#[path = "../examples/weights/transfer.rs"]
mod transfer;

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use mesh_gguf::{Array, GgmlType, Header, Metadata, TensorInfo, Value};

const LIMIT: u64 = 64 << 20;
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
    // The harness has the first words of the line.
    let token = line_with(&mut said, "mesh1");
    let token = &token[token.find("mesh1").unwrap()..];
    let worker = child(&["fetch", &at("model.gguf"), &at("worker"), "127.0.0.1:0", token, "1"]);
    let worker = worker.wait_with_output().unwrap();
    drop(holder.stdin.take());
    let of_holder = line_with(&mut said, "").parse::<u64>().unwrap();
    assert!(holder.wait().unwrap().success() && worker.status.success());
    let text = String::from_utf8(worker.stdout).unwrap();
    let line = text.lines().find_map(|line| line.split_once("child_main ... ")).unwrap().1;
    let [bytes, _seconds, of_worker] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
    assert!(bytes.parse::<u64>().unwrap() > BYTES / 2, "{line}");
    let of_worker: u64 = of_worker.parse().unwrap();
    assert!((1..LIMIT).contains(&of_worker), "{of_worker} bytes at the worker");
    assert!((1..LIMIT).contains(&of_holder), "{of_holder} bytes at the holder");
}

fn child(words: &[&str]) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["child_main", "--exact", "--nocapture"]).env(WORDS, words.join("\n"));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}

/// The next line that holds `part`, and is not empty.
fn line_with(said: &mut impl BufRead, part: &str) -> String {
    let mut lines = said.lines().map(Result::unwrap);
    lines.find(|line| !line.is_empty() && line.contains(part)).unwrap()
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
