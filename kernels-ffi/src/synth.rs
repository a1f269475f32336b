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
    fn what_is_no_header_or_no_model_is_refused() {
        assert_eq!(weights(b"no header", 1), Err(SynthError::Header));
        assert_eq!(weights(b"", 1), Err(SynthError::Header));
        let empty = [b"GGUF".as_slice(), &3u32.to_le_bytes(), &[0; 16]].concat();
        let Err(SynthError::Refused { log }) = weights(&empty, 1) else { panic!("a model of nothing") };
        assert!(!log.is_empty());
    }
}
