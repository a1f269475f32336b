//! The test models, as `./dev models` leaves them.

use std::path::PathBuf;

/// SmolLM2-135M-Instruct Q4_1: 30 layers, a template without tools.
pub fn smollm2() -> PathBuf {
    model("SmolLM2-135M-Instruct.Q4_1.gguf")
}

/// gemma-3-270m Q4_K_M, a base model: 18 layers, sliding window.
pub fn gemma3() -> PathBuf {
    model("gemma-3-270m-q4_k_m.gguf")
}

/// The name under which [`smollm2`] is served.
pub const SMOLLM2: &str = "smollm2-135m-instruct.q4_1";

/// A chat template of llama.cpp's source.
pub fn template(name: &str) -> PathBuf {
    let cache = std::env::var_os("MESH_NODE_CACHE").map_or_else(cache, PathBuf::from);
    fetched(cache.join(format!("upstream/0.3.36/llama.cpp/models/templates/{name}.jinja")))
}

fn model(file: &str) -> PathBuf {
    let folder = std::env::var_os("MESH_TEST_MODELS").map(PathBuf::from);
    fetched(folder.unwrap_or_else(|| cache().join("models")).join(file))
}

fn cache() -> PathBuf {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cache");
    cache.unwrap_or_else(home).join("mesh-node")
}

fn fetched(path: PathBuf) -> PathBuf {
    assert!(path.is_file(), "{} is missing: `./dev models` fetches it", path.display());
    path
}
