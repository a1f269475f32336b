//! Random weights for a model that is described by metadata alone: material for proofs that need a model of every
//! family, and no download.
//!
//! llama.cpp itself says which tensors such a model has and what shape they are. Start with [`weights`].

use std::collections::HashSet;
use std::ffi::{CStr, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

use llama_cpp_sys_2 as sys;

use crate::backend::Backend;
use crate::log;

/// A tensor of such a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Weight {
    /// Its name, as in `blk.0.attn_q.weight`.
    pub name: String,
    /// One to four dimensions, the innermost first.
    pub dims: Vec<u64>,
    /// Its values (f32), row by row.
    pub values: Vec<f32>,
}

/// Why there are no weights.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SynthError {
    /// The bytes are no GGUF header.
    #[error("the metadata is not a GGUF header")]
    Header,
    /// llama.cpp knows no such model, or wants more keys.
    #[error("llama.cpp makes no model of this metadata: {log}")]
    Refused {
        /// Its error lines.
        log: String,
    },
    /// Rows cannot be stored so.
    #[error("rows of {row} values cannot be stored in ggml's type {type_id}")]
    Type {
        /// The type's number.
        type_id: u32,
        /// Values in a row.
        row: usize,
    },
    /// A tensor is not what weights look like.
    #[error("the tensor `{name}` is not contiguous f32, or its name is not UTF-8")]
    Tensor {
        /// Its name.
        name: String,
    },
}

/// Every tensor, the optional ones as well, that llama.cpp would load for the model with this header (metadata only, no
/// tensors), filled with small random values: the same for the same `seed` and name. Norms lie around one, decays of
/// recurrent layers below zero, factors of rotary frequencies above it.
///
/// Metadata that contradicts itself can trip an assertion inside llama.cpp, which ends the process.
///
/// # Errors
/// [`SynthError`].
pub fn weights(header: &[u8], seed: u64) -> Result<Vec<Weight>, SynthError> {
    Backend::init();
    let metadata = Metadata::parse(header).ok_or(SynthError::Header)?;
    let mut maker = Maker { seed, names: HashSet::new(), weights: Vec::new(), fault: None };
    // SAFETY: returns a struct by value.
    let mut params = unsafe { sys::llama_model_default_params() };
    params.n_gpu_layers = 0;
    params.load_mtp = true;
    // SAFETY: the metadata is live, `maker` outlives the call, and `fill` takes it for what it is.
    let (model, log) = log::capture(|| unsafe {
        let maker = (&raw mut maker).cast();
        sys::llama_model_init_from_user(metadata.0.as_ptr(), Some(fill), maker, params)
    });
    let model = NonNull::new(model).ok_or(SynthError::Refused { log })?;
    // SAFETY: the model was just made and nothing points into it.
    unsafe { sys::llama_model_free(model.as_ptr()) };
    match maker.fault {
        Some(name) => Err(SynthError::Tensor { name }),
        None => Ok(maker.weights),
    }
}

/// The types that values can be turned into.
#[rustfmt::skip]
const STORED: &[sys::ggml_type] = &[
    sys::GGML_TYPE_F32, sys::GGML_TYPE_F16, sys::GGML_TYPE_BF16,
    sys::GGML_TYPE_Q1_0, sys::GGML_TYPE_Q2_0, sys::GGML_TYPE_Q4_0, sys::GGML_TYPE_Q4_1, sys::GGML_TYPE_Q5_0,
    sys::GGML_TYPE_Q5_1, sys::GGML_TYPE_Q8_0, sys::GGML_TYPE_MXFP4, sys::GGML_TYPE_NVFP4,
    sys::GGML_TYPE_Q2_K, sys::GGML_TYPE_Q3_K, sys::GGML_TYPE_Q4_K, sys::GGML_TYPE_Q5_K, sys::GGML_TYPE_Q6_K,
    sys::GGML_TYPE_TQ1_0, sys::GGML_TYPE_TQ2_0,
    sys::GGML_TYPE_IQ1_S, sys::GGML_TYPE_IQ1_M, sys::GGML_TYPE_IQ2_XXS, sys::GGML_TYPE_IQ2_XS, sys::GGML_TYPE_IQ2_S,
    sys::GGML_TYPE_IQ3_XXS, sys::GGML_TYPE_IQ3_S, sys::GGML_TYPE_IQ4_NL, sys::GGML_TYPE_IQ4_XS,
];

/// The values of a tensor in the form in which files store them, row after row.
///
/// # Errors
/// [`SynthError::Type`] where there is no such type, it only exists within computations, or `row` is not a multiple of
/// its blocks.
pub fn quantized(values: &[f32], row: usize, type_id: u32) -> Result<Vec<u8>, SynthError> {
    Backend::init();
    let fault = SynthError::Type { type_id, row };
    #[allow(clippy::unnecessary_cast)] // the enum's type differs between platforms
    let found = STORED.iter().copied().find(|kind| *kind as u32 == type_id);
    let Some(kind) = found else { return Err(fault) };
    // SAFETY: `kind` is one of ggml's types.
    let block = usize::try_from(unsafe { sys::ggml_blck_size(kind) }).unwrap_or(0);
    if block == 0 || row == 0 || !row.is_multiple_of(block) || !values.len().is_multiple_of(row) {
        return Err(fault);
    }
    let (rows, weights) = (values.len() / row, vec![1f32; row]);
    // SAFETY: a row has whole blocks.
    let mut bytes = vec![0u8; rows * unsafe { sys::ggml_row_size(kind, row as i64) }];
    // SAFETY: `values` and `bytes` hold `rows` rows of that length; every column weighs the same.
    let written = unsafe {
        let (from, to) = (values.as_ptr(), bytes.as_mut_ptr().cast());
        sys::ggml_quantize_chunk(kind, from, to, 0, rows as i64, row as i64, weights.as_ptr())
    };
    if written == bytes.len() { Ok(bytes) } else { Err(fault) }
}

/// A parsed header of llama.cpp's own.
struct Metadata(NonNull<sys::gguf_context>);

impl Metadata {
    fn parse(header: &[u8]) -> Option<Self> {
        let params = sys::gguf_init_params { no_alloc: true, ctx: std::ptr::null_mut() };
        // SAFETY: the bytes are live for the call and copied; without a ggml context, only the header is read.
        let raw = unsafe { sys::gguf_init_from_buffer(header.as_ptr().cast(), header.len(), params) };
        NonNull::new(raw).map(Self)
    }
}

impl Drop for Metadata {
    fn drop(&mut self) {
        // SAFETY: made by `gguf_init_from_buffer`, and no model that was made of it is left.
        unsafe { sys::gguf_free(self.0.as_ptr()) };
    }
}

struct Maker {
    seed: u64,
    names: HashSet<String>,
    weights: Vec<Weight>,
    /// The first tensor that could not be filled.
    fault: Option<String>,
}

/// Called by llama.cpp for every tensor; some come up more than once.
unsafe extern "C" fn fill(tensor: *mut sys::ggml_tensor, maker: *mut c_void) {
    let _ = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: `maker` is what `weights` passed, borrowed by nobody else during the call.
        let maker = unsafe { &mut *maker.cast::<Maker>() };
        // SAFETY: llama.cpp passes a live tensor.
        unsafe { maker.fill(tensor) };
    }));
}

impl Maker {
    /// # Safety
    /// `tensor` is live and allocated.
    unsafe fn fill(&mut self, tensor: *mut sys::ggml_tensor) {
        // SAFETY: the caller's promise; a tensor's name is NUL-terminated.
        let (name, fits, dims) = unsafe {
            let name = CStr::from_ptr((*tensor).name.as_ptr()).to_string_lossy().into_owned();
            let fits = (*tensor).type_ == sys::GGML_TYPE_F32 && sys::ggml_is_contiguous(tensor);
            let (dims, n_dims) = ((*tensor).ne, sys::ggml_n_dims(tensor).clamp(1, 4));
            (name, fits, dims[..n_dims as usize].to_vec())
        };
        let dims: Vec<u64> = dims.into_iter().map(|dim| u64::try_from(dim).unwrap_or(0)).collect();
        if !fits || name.contains('\u{fffd}') {
            self.fault.get_or_insert(name);
            return;
        }
        let values = values(self.seed, &name, dims.iter().product());
        // SAFETY: the tensor is contiguous f32 with as many values.
        unsafe { sys::ggml_backend_tensor_set(tensor, values.as_ptr().cast(), 0, values.len() * 4) };
        if self.names.insert(name.clone()) {
            self.weights.push(Weight { name, dims, values });
        }
    }
}

fn values(seed: u64, name: &str, n: u64) -> Vec<f32> {
    // FNV-1a of the name, so that every tensor has a stream of its own.
    let hash = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    let mut state = seed ^ hash;
    // About normal, with a deviation of 0.1.
    let small = move || (0..4).map(|_| uniform(&mut state)).sum::<f32>() * 0.1 * 3f32.sqrt() / 2.0;
    let small = std::iter::repeat_with(small).take(n as usize);
    match name {
        _ if name.contains("ssm_a") => small.map(|value| -value.abs()).collect(),
        _ if name.contains("rope_f") => small.map(|value| 1.0 + value.abs()).collect(),
        _ if name.contains("norm") && name.ends_with(".weight") => small.map(|value| 1.0 + value).collect(),
        _ => small.collect(),
    }
}

/// -1 to 1, by SplitMix64.
fn uniform(state: &mut u64) -> f32 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 40) as f32 / (1u64 << 23) as f32 - 1.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_depend_on_seed_and_name_and_lie_where_they_should() {
        let of = |seed, name| values(seed, name, 4096);
        assert_eq!(of(1, "blk.0.attn_q.weight"), of(1, "blk.0.attn_q.weight"));
        assert_ne!(of(1, "blk.0.attn_q.weight"), of(2, "blk.0.attn_q.weight"));
        assert_ne!(of(1, "blk.0.attn_q.weight"), of(1, "blk.1.attn_q.weight"));
        let small = of(1, "blk.0.attn_q.weight");
        let deviation = (small.iter().map(|value| value * value).sum::<f32>() / small.len() as f32).sqrt();
        assert!((0.09..0.11).contains(&deviation), "{deviation}");
        assert!(of(1, "blk.0.ssm_a").iter().all(|value| *value <= 0.0));
        assert!(of(1, "rope_freqs.weight").iter().all(|value| *value >= 1.0));
        let norm = of(1, "output_norm.weight").iter().sum::<f32>() / 4096.0;
        assert!((0.99..1.01).contains(&norm), "{norm}");
    }

    #[test]
    fn values_are_stored_in_types_of_files() {
        let ones = [1f32; 512];
        assert_eq!(quantized(&ones, 256, sys::GGML_TYPE_F16).unwrap(), [0x00, 0x3c].repeat(512));
        assert_eq!(quantized(&ones, 256, sys::GGML_TYPE_Q8_0).unwrap().len(), 512 / 32 * 34);
        assert_eq!(quantized(&ones, 256, sys::GGML_TYPE_Q4_K).unwrap().len(), 512 / 256 * 144);
        for (row, type_id) in [(32, sys::GGML_TYPE_Q4_K), (100, sys::GGML_TYPE_F16), (0, sys::GGML_TYPE_F16), (256, 4)]
        {
            assert_eq!(quantized(&ones, row, type_id), Err(SynthError::Type { type_id, row }));
        }
    }

    #[test]
    fn what_is_no_header_or_no_model_is_refused() {
        assert_eq!(weights(b"no header", 1), Err(SynthError::Header));
        assert_eq!(weights(b"", 1), Err(SynthError::Header));
        let empty = [b"GGUF".as_slice(), &3u32.to_le_bytes(), &[0; 16]].concat();
        let Err(SynthError::Refused { log }) = weights(&empty, 1) else { panic!("a model of nothing") };
        assert!(!log.is_empty());
    }
}
