//! A model, or a slice of one, loaded from a GGUF file.

use std::ffi::CString;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use llama_cpp_sys_2 as sys;

use crate::backend::Backend;
use crate::log;

/// How a model is loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelParams {
    /// Layers whose weights go to a GPU; `None` means all that there are. Without effect where there is no GPU.
    pub gpu_layers: Option<u32>,
    /// Map the file instead of reading it: pages are shared between processes and can be dropped under pressure.
    pub use_mmap: bool,
    /// Devices that may hold weights, by [`crate::Device::name`]; empty means all GPUs.
    pub devices: Vec<String>,
    /// Load only the vocabulary: enough for a [`crate::Vocab`], not for a context.
    pub vocab_only: bool,
}

impl Default for ModelParams {
    fn default() -> Self {
        Self { gpu_layers: None, use_mmap: true, devices: Vec::new(), vocab_only: false }
    }
}

/// Why a model could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file does not begin with `GGUF`.
    #[error("{} is not a GGUF file", path.display())]
    NotGguf {
        /// The file.
        path: PathBuf,
    },
    /// llama.cpp takes paths as C strings of UTF-8.
    #[error("{} cannot be passed to llama.cpp: its path is not UTF-8 or has a NUL in it", path.display())]
    Path {
        /// The file.
        path: PathBuf,
    },
    /// No such device.
    #[error("there is no device {name} here; there are: {known}")]
    UnknownDevice {
        /// What was asked for.
        name: String,
        /// The devices that exist.
        known: String,
    },
    /// llama.cpp did not take it.
    #[error("llama.cpp refused {}: {log}", path.display())]
    Refused {
        /// The file.
        path: PathBuf,
        /// Its error lines.
        log: String,
    },
}

/// Weights, immutable once loaded; cheap to clone. Freed with the last clone, context and vocabulary of it.
#[derive(Clone, Debug)]
pub struct Model {
    handle: Arc<Handle>,
}

#[derive(Debug)]
struct Handle {
    raw: NonNull<sys::llama_model>,
    vocab_only: bool,
    /// `llama_init_from_model` may adjust the model's trained context size: one at a time.
    init: Mutex<()>,
}

// SAFETY: a llama_model is not bound to the thread that made it, and llama.cpp only reads it after loading (contexts of
// one model run on different threads). The one exception, `llama_init_from_model`, is called under `init`.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: `raw` came from llama_model_load_from_file, and nothing that points into it is left: contexts and
        // vocabularies hold a clone of the Arc around this handle.
        unsafe { sys::llama_model_free(self.raw.as_ptr()) };
    }
}

impl Model {
    /// Loads the GGUF file at `path`: a whole model (the first shard of a sharded one), or a slice.
    ///
    /// Blocks while it reads. A file whose tensors do not fit its own metadata can still trip an assertion inside
    /// llama.cpp, which ends the process: check files from elsewhere with `mesh-gguf` first.
    ///
    /// # Errors
    /// [`LoadError`] says which file, and why.
    pub fn load(path: &Path, params: &ModelParams) -> Result<Self, LoadError> {
        let backend = Backend::init();
        check_magic(path)?;
        let c_path = path.to_str().and_then(|text| CString::new(text).ok());
        let c_path = c_path.ok_or_else(|| LoadError::Path { path: path.to_owned() })?;
        let mut devices = find_devices(backend, &params.devices)?;

        // SAFETY: returns a struct by value.
        let mut raw = unsafe { sys::llama_model_default_params() };
        raw.n_gpu_layers = params.gpu_layers.map_or(-1, |n| i32::try_from(n).unwrap_or(i32::MAX));
        raw.load_mode = if params.use_mmap { sys::LLAMA_LOAD_MODE_MMAP } else { sys::LLAMA_LOAD_MODE_NONE };
        raw.vocab_only = params.vocab_only;
        if !devices.is_empty() {
            devices.push(std::ptr::null_mut());
            raw.devices = devices.as_mut_ptr();
        }
        // SAFETY: `c_path` and the NULL-terminated `devices` outlive the call; llama.cpp copies both.
        let (model, log) = log::capture(|| unsafe { sys::llama_model_load_from_file(c_path.as_ptr(), raw) });
        let model = NonNull::new(model).ok_or_else(|| LoadError::Refused { path: path.to_owned(), log })?;
        let handle = Handle { raw: model, vocab_only: params.vocab_only, init: Mutex::new(()) };
        Ok(Self { handle: Arc::new(handle) })
    }

    /// Whether only the vocabulary was loaded.
    pub fn is_vocab_only(&self) -> bool {
        self.handle.vocab_only
    }

    /// Layers in this file.
    pub fn n_layer(&self) -> u32 {
        // SAFETY: `raw` is a live model; so in all accessors below.
        count(unsafe { sys::llama_model_n_layer(self.raw()) })
    }

    /// Values in a hidden row.
    pub fn n_embd(&self) -> u32 {
        // SAFETY: see `n_layer`.
        count(unsafe { sys::llama_model_n_embd(self.raw()) })
    }

    /// Values in a row that is fed in: more than [`Model::n_embd`] where a family takes further features beside it.
    pub fn n_embd_inp(&self) -> u32 {
        // SAFETY: see `n_layer`.
        count(unsafe { sys::llama_model_n_embd_inp(self.raw()) })
    }

    /// Tokens in this file's vocabulary; a slice without tokenizer has a few for form's sake.
    pub fn n_vocab(&self) -> u32 {
        // SAFETY: see `n_layer`; a model always has a vocabulary object.
        count(unsafe { sys::llama_vocab_n_tokens(sys::llama_model_get_vocab(self.raw())) })
    }

    /// Positions that the model was trained on.
    pub fn n_ctx_train(&self) -> u32 {
        // SAFETY: see `n_layer`.
        count(unsafe { sys::llama_model_n_ctx_train(self.raw()) })
    }

    /// Positions that go with a hidden row: 4 where the family uses M-RoPE, else 1.
    pub fn positions_per_row(&self) -> u32 {
        // SAFETY: see `n_layer`.
        match unsafe { sys::llama_model_rope_type(self.raw()) } {
            sys::LLAMA_ROPE_TYPE_MROPE | sys::LLAMA_ROPE_TYPE_IMROPE => 4,
            _ => 1,
        }
    }

    /// Whether some layers keep a running state instead of a cell per position. Such a sequence cannot be cut back.
    pub fn is_recurrent(&self) -> bool {
        // SAFETY: see `n_layer`.
        unsafe { sys::llama_model_is_recurrent(self.raw()) || sys::llama_model_is_hybrid(self.raw()) }
    }

    /// Positions that layers with a sliding window attend to; 0 where there is none.
    pub fn sliding_window(&self) -> u32 {
        // SAFETY: see `n_layer`.
        count(unsafe { sys::llama_model_n_swa(self.raw()) })
    }

    /// Bytes of all tensors.
    pub fn size_bytes(&self) -> u64 {
        // SAFETY: see `n_layer`.
        unsafe { sys::llama_model_size(self.raw()) }
    }

    pub(crate) fn raw(&self) -> *mut sys::llama_model {
        self.handle.raw.as_ptr()
    }

    /// Held around `llama_init_from_model`.
    pub(crate) fn init_lock(&self) -> &Mutex<()> {
        &self.handle.init
    }
}

fn count(n: i32) -> u32 {
    u32::try_from(n).unwrap_or(0)
}

fn check_magic(path: &Path) -> Result<(), LoadError> {
    let read = |source| LoadError::Read { path: path.to_owned(), source };
    let mut magic = [0; 4];
    let mut file = std::fs::File::open(path).map_err(read)?;
    match file.read_exact(&mut magic) {
        Ok(()) if &magic == b"GGUF" => Ok(()),
        Ok(()) => Err(LoadError::NotGguf { path: path.to_owned() }),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(LoadError::NotGguf { path: path.to_owned() }),
        Err(error) => Err(read(error)),
    }
}

fn find_devices(backend: Backend, names: &[String]) -> Result<Vec<sys::ggml_backend_dev_t>, LoadError> {
    let find = |name: &String| {
        // SAFETY: the name is a C string for the call; the back end is initialised, so the registry is filled.
        let device = CString::new(name.as_str()).ok().map(|c| unsafe { sys::ggml_backend_dev_by_name(c.as_ptr()) });
        device.filter(|device| !device.is_null()).ok_or_else(|| LoadError::UnknownDevice {
            name: name.clone(),
            known: backend.devices().iter().map(|d| d.name.as_str()).collect::<Vec<_>>().join(", "),
        })
    };
    names.iter().map(find).collect()
}
