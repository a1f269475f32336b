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

fn model(file: &str) -> PathBuf {
    let folder = std::env::var_os("MESH_TEST_MODELS").map(PathBuf::from).unwrap_or_else(|| {
        let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
        let cache = cache.unwrap_or_else(|| PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cache"));
        cache.join("mesh-node/models")
    });
    let path = folder.join(file);
    assert!(path.is_file(), "{} is missing: `./dev models` fetches it", path.display());
    path
}
