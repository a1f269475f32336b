//! Writes the model file of a case.

use std::io::Write;
use std::path::Path;

use kernels_ffi::synth::{self, Weight};
use mesh_gguf::{GgmlType, Header, Metadata, TensorInfo, Value};

use crate::recipe::Case;

/// Writes a model with this case's metadata and random weights of `seed` to `path`.
///
/// The metadata is what the case says and nothing more: a period stays a period, as in a real file.
pub(crate) fn write(case: &Case, seed: u64, path: &Path) {
    let metadata = case.metadata();
    let bare = Header::build(metadata.clone(), Vec::new()).unwrap();
    let mut weights = synth::weights(&bare.to_bytes(), seed).unwrap();
    without_experts(case, &metadata, seed, &mut weights);
    // Scales of layers for further tokens are asked for only when those layers are loaded, which is never.
    let further = bare.metadata().u32(&format!("{}.nextn_predict_layers", case.architecture)).unwrap();
    let last = bare.metadata().u32(&format!("{}.block_count", case.architecture)).unwrap().unwrap() - 1;
    let unasked =
        |name: &str| further.is_some() && name.starts_with(&format!("blk.{last}.")) && name.ends_with("scale");
    weights.retain(|weight| !case.without.contains(&weight.name.as_str()) && !unasked(&weight.name));
    let types: Vec<GgmlType> =
        weights.iter().enumerate().map(|(index, weight)| stored_as(case, index, weight)).collect();
    let info = |(weight, kind): (&Weight, &GgmlType)| TensorInfo::new(&weight.name, &weight.dims, *kind).unwrap();
    let header = Header::build(metadata, weights.iter().zip(&types).map(info).collect()).unwrap();
    let mut file = std::io::BufWriter::new(std::fs::File::create(path).unwrap());
    file.write_all(&header.to_bytes()).unwrap();
    for (weight, kind) in weights.iter().zip(&types) {
        let bytes = synth::quantized(&weight.values, weight.dims[0] as usize, kind.id()).unwrap();
        file.write_all(&bytes).unwrap();
        file.write_all(&vec![0; bytes.len().next_multiple_of(header.alignment() as usize) - bytes.len()]).unwrap();
    }
    file.flush().unwrap();
}

/// Gives the case's dense layers the tensors that they would have in a model without experts.
fn without_experts(case: &Case, metadata: &Metadata, seed: u64, weights: &mut Vec<Weight>) {
    let is_dense = |name: &str| case.dense.iter().any(|layer| name.starts_with(&format!("blk.{layer}.")));
    if case.dense.is_empty() {
        return;
    }
    let mut metadata = metadata.clone();
    for key in ["expert_count", "expert_used_count"] {
        metadata.set(&format!("{}.{key}", case.architecture), Value::U32(0));
    }
    let bare = Header::build(metadata, Vec::new()).unwrap();
    weights.retain(|weight| !is_dense(&weight.name));
    let dense = synth::weights(&bare.to_bytes(), seed).unwrap();
    weights.extend(dense.into_iter().filter(|weight| is_dense(&weight.name) && !weight.values.is_empty()));
}

/// Matrices are stored in the case's types, in turn; vectors, and rows that are no whole blocks, as floats, which is
/// what a quantised file does as well.
fn stored_as(case: &Case, index: usize, weight: &Weight) -> GgmlType {
    let named = |name: &str| *GgmlType::all().iter().find(|kind| kind.name() == name).unwrap();
    let matrix = weight.dims.len() > 1
        && weight.name.ends_with(".weight")
        && !FLOATS.iter().any(|part| weight.name.contains(part));
    let experts = weight.name.contains("_exps.");
    let of_experts = case.experts_as.filter(|_| experts).map(named);
    let in_turn = || (!case.stored_as.is_empty()).then(|| named(case.stored_as[index % case.stored_as.len()]));
    let kind =
        of_experts.or_else(in_turn).filter(|kind| matrix && weight.dims[0].is_multiple_of(kind.block_size().into()));
    kind.unwrap_or(GgmlType::F32)
}

/// Parts of the names of matrices that files do not quantise, since llama.cpp computes with them in other ways.
const FLOATS: &[&str] = &["ssm_", "shortconv", "ffn_gate_inp", "_norm", "rope_f", "position_embd"];
