//! Writes the seeds of the fuzz target `gguf` into a folder: a small model of every family, one with every type of value and
//! one with every type of tensor, the first file of a sharded model, and headers that are cut off or lie.

use std::path::{Path, PathBuf};

use mesh_gguf::family::FAMILIES;
use mesh_gguf::{Array, GgmlType, Header, Metadata, TensorInfo, Value};

const LAYERS: u32 = 8;
const N_EMBD: u64 = 8;

fn main() -> std::io::Result<()> {
    let folder = std::env::args_os().nth(1).map(PathBuf::from).expect("usage: fuzz-seeds FOLDER");
    std::fs::create_dir_all(&folder)?;
    for family in FAMILIES {
        save(&folder, family.architecture, &file(model(family.architecture)))?;
    }
    let llama = file(model("llama"));
    save(&folder, "values", &file((values(), Vec::new())))?;
    save(&folder, "tensors", &file((Metadata::default(), tensors_of_all_types())))?;
    for count in [1, 2, 3] {
        let (mut metadata, tensors) = model("llama");
        metadata.set("split.no", Value::U16(0));
        metadata.set("split.count", Value::U16(count));
        metadata.set("split.tensors.count", Value::I32(i32::from(count) - 1 + tensors.len() as i32));
        save(&folder, &format!("sharded-{count}"), &file((metadata, tensors)))?;
    }
    save(&folder, "cut", &llama[..llama.len() / 2])?;
    let mut claims = llama.clone();
    claims[8..16].copy_from_slice(&(1u64 << 60).to_le_bytes());
    save(&folder, "claims", &claims)
}

fn save(folder: &Path, name: &str, bytes: &[u8]) -> std::io::Result<()> {
    std::fs::write(folder.join(format!("seed-{name}")), bytes)
}

fn file((metadata, tensors): (Metadata, Vec<TensorInfo>)) -> Vec<u8> {
    let header = Header::build(metadata, tensors).expect("a sound header");
    let mut bytes = header.to_bytes();
    let len = header.data_offset() + header.data_len();
    bytes.extend((bytes.len() as u64..len).map(|at| at as u8));
    bytes
}

/// Eight layers; a window, a period and experts, for families that have them.
fn model(architecture: &str) -> (Metadata, Vec<TensorInfo>) {
    let mut metadata = Metadata::default();
    metadata.set("general.architecture", Value::from(architecture));
    let mut set = |key: &str, value| metadata.set(&format!("{architecture}.{key}"), value);
    for (key, value) in [
        ("block_count", LAYERS),
        ("context_length", 512),
        ("embedding_length", N_EMBD as u32),
        ("attention.head_count", 2),
        ("attention.sliding_window", 64),
        ("full_attention_interval", 4),
        ("leading_dense_block_count", 1),
        ("expert_count", 2),
    ] {
        set(key, Value::U32(value));
    }
    set("attention.head_count_kv", Value::Array(Array::of_u32s((0..LAYERS).map(|layer| layer % 2))));
    set("attention.sliding_window_pattern", Value::Array(Array::of_bools((0..LAYERS).map(|layer| layer % 4 != 3))));
    set("feed_forward_length", Value::Array(Array::of_u32s(0..LAYERS)));
    metadata.set("tokenizer.ggml.model", Value::from("llama"));
    metadata.set("tokenizer.ggml.tokens", Value::Array(Array::of_strs((0..40).map(|token| format!("t{token}")))));
    let mut tensors = vec![tensor("token_embd.weight", &[N_EMBD, 40], GgmlType::F32)];
    for layer in 0..LAYERS {
        tensors.push(tensor(&format!("blk.{layer}.attn_norm.weight"), &[N_EMBD], GgmlType::F32));
    }
    tensors.push(tensor("output_norm.weight", &[N_EMBD], GgmlType::F32));
    tensors.push(tensor("output.weight", &[N_EMBD, 40], GgmlType::F32));
    (metadata, tensors)
}

fn tensor(name: &str, dims: &[u64], ggml_type: GgmlType) -> TensorInfo {
    TensorInfo::new(name, dims, ggml_type).expect("a tensor")
}

fn values() -> Metadata {
    let mut metadata = Metadata::default();
    let values = [
        Value::U8(1),
        Value::I8(-1),
        Value::U16(2),
        Value::I16(-2),
        Value::U32(3),
        Value::I32(-3),
        Value::F32(0.5),
        Value::Bool(true),
        Value::from("text"),
        Value::U64(4),
        Value::I64(-4),
        Value::F64(0.25),
        Value::Array(Array::of_bools([true, false])),
        Value::Array(Array::of_u32s([1, 2, 3])),
        Value::Array(Array::of_f32s([1.0, 2.0])),
        Value::Array(Array::of_strs(["a", "", "ccc"])),
    ];
    for (number, value) in values.into_iter().enumerate() {
        metadata.set(&format!("key.{number}"), value);
    }
    metadata.set("general.alignment", Value::U32(64));
    metadata
}

fn tensors_of_all_types() -> Vec<TensorInfo> {
    let of = |ggml_type: &GgmlType| {
        let row = u64::from(ggml_type.block_size());
        tensor(&format!("blk.0.{}.weight", ggml_type.name()), &[row, 2], *ggml_type)
    };
    GgmlType::all().iter().map(of).collect()
}
