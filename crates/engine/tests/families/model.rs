//! Writes the model file of a case.

use std::io::Write;
use std::path::Path;

use kernels_ffi::synth;
use mesh_gguf::{GgmlType, Header, TensorInfo};

use crate::recipe::Case;

/// Writes a model with this case's metadata and random weights of `seed` to `path`.
///
/// The metadata is what the case says and nothing more: a period stays a period, as in a real file.
pub(crate) fn write(case: &Case, seed: u64, path: &Path) {
    let metadata = case.metadata();
    let bare = Header::build(metadata.clone(), Vec::new()).unwrap();
    let mut weights = synth::weights(&bare.to_bytes(), seed).unwrap();
    // Scales of layers for further tokens are asked for only when those layers are loaded, which is never.
    let further = bare.metadata().u32(&format!("{}.nextn_predict_layers", case.architecture)).unwrap();
    let last = bare.metadata().u32(&format!("{}.block_count", case.architecture)).unwrap().unwrap() - 1;
    let unasked =
        |name: &str| further.is_some() && name.starts_with(&format!("blk.{last}.")) && name.ends_with("scale");
    weights.retain(|weight| !case.without.contains(&weight.name.as_str()) && !unasked(&weight.name));
    let f32 = GgmlType::from_id(0).unwrap();
    let tensors = weights.iter().map(|weight| TensorInfo::new(&weight.name, &weight.dims, f32).unwrap()).collect();
    let header = Header::build(metadata, tensors).unwrap();
    let mut file = std::io::BufWriter::new(std::fs::File::create(path).unwrap());
    file.write_all(&header.to_bytes()).unwrap();
    for weight in &weights {
        let bytes: Vec<u8> = weight.values.iter().flat_map(|value| value.to_le_bytes()).collect();
        file.write_all(&bytes).unwrap();
        file.write_all(&vec![0; bytes.len().next_multiple_of(header.alignment() as usize) - bytes.len()]).unwrap();
    }
    file.flush().unwrap();
}
