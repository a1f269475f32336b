//! Where the templates are.

use std::fs;
use std::path::PathBuf;

/// The folder of the templates.
pub(crate) fn folder() -> PathBuf {
    let cache = std::env::var_os("MESH_NODE_CACHE").map(PathBuf::from).unwrap_or_else(|| {
        let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
        let home = || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cache");
        cache.unwrap_or_else(home).join("mesh-node")
    });
    cache.join("upstream/0.3.36/llama.cpp/models/templates")
}

/// Names and sources of all templates, by name.
pub(crate) fn templates() -> Vec<(String, String)> {
    let folder = folder();
    let files = fs::read_dir(&folder)
        .unwrap_or_else(|_| panic!("{} is missing: `scripts/upstream` fetches it", folder.display()))
        .map(|file| file.expect("a folder").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "jinja"));
    let mut templates: Vec<(String, String)> = files
        .map(|path| {
            let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
            (name, fs::read_to_string(path).expect("a template"))
        })
        .collect();
    templates.sort();
    templates
}
