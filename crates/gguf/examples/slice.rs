//! For `just bench slice`: makes a model file of random bytes, or cuts the middle out of one and says how long it took.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Instant;

use mesh_gguf::{Array, GgmlType, Header, Metadata, SlicePlan, SliceWriter, Source, TensorInfo, Value};
use mesh_types::LayerRange;

const LAYERS: u32 = 10;
const N_EMBD: u64 = 4096;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["make", file, mib] => make(Path::new(file), mib.parse::<u64>()? << 20),
        ["cut", file, target] => cut(Path::new(file), Path::new(target)),
        _ => Err("usage: slice make FILE MIB | slice cut FILE TARGET".into()),
    }
}

/// A llama of ten layers and about `bytes` bytes.
fn make(path: &Path, bytes: u64) -> Result<()> {
    let mut metadata = Metadata::default();
    metadata.set("general.architecture", Value::from("llama"));
    for (key, value) in [
        ("block_count", LAYERS),
        ("context_length", 512),
        ("embedding_length", N_EMBD as u32),
        ("attention.head_count", 32),
    ] {
        metadata.set(&format!("llama.{key}"), Value::U32(value));
    }
    metadata.set("tokenizer.ggml.tokens", Value::Array(Array::of_strs((0..64).map(|token| token.to_string()))));
    let mut tensors = vec![TensorInfo::new("token_embd.weight", &[N_EMBD, 64], GgmlType::F32)?];
    let rows = bytes / u64::from(LAYERS) / (4 * N_EMBD) / 8;
    for tensor in 0..LAYERS * 8 {
        let name = format!("blk.{}.tensor{}.weight", tensor / 8, tensor % 8);
        tensors.push(TensorInfo::new(&name, &[N_EMBD, rows], GgmlType::F32)?);
    }
    let header = Header::build(metadata, tensors)?;
    let mut out = BufWriter::new(File::create(path)?);
    header.write_to(&mut out)?;
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    for _ in 0..header.data_len() / 8 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        out.write_all(&random.to_le_bytes())?;
    }
    Ok(out.flush()?)
}

/// Writes the slice of all layers but the first and the last. Prints its bytes, the seconds until it can be loaded, and
/// those until it is on the disk.
fn cut(path: &Path, target: &Path) -> Result<()> {
    let started = Instant::now();
    let source = Source::open(path)?;
    let range = LayerRange::new(1, LAYERS - 1).ok_or("no layers")?;
    let plan = SlicePlan::new(source.header(), range)?;
    let writer = SliceWriter::create(&plan, &target.with_extension("partial"))?;
    writer.copy_missing(&source, &mut |_| ControlFlow::Continue(()))?;
    let unsynced = writer.publish(target)?;
    let usable = started.elapsed().as_secs_f64();
    unsynced.sync()?;
    println!("{} {usable:.4} {:.4}", plan.file_len(), started.elapsed().as_secs_f64());
    Ok(())
}
