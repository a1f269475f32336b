//! Every code that an error carries is in the table that `docs/errors.md` is made from.
#![allow(clippy::unwrap_used)] // every one is a check

use std::path::{Path, PathBuf};

fn sources(folder: &Path, out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        match path.is_dir() {
            true => sources(&path, out),
            false if path.extension().is_some_and(|extension| extension == "rs") => out.push(path),
            false => {}
        }
    }
}

#[test]
fn codes_in_sources_are_documented() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let page = std::fs::read_to_string(root.join("docs/errors.md")).unwrap();
    let mut files = Vec::new();
    for room in ["crates", "gateway/src", "node/src", "proto/src"] {
        sources(&root.join(room), &mut files);
    }
    let mut seen = 0;
    for file in files {
        let source = std::fs::read_to_string(&file).unwrap();
        for rest in source.split("with_code(\"").skip(1) {
            let code = rest.split('"').next().unwrap();
            assert!(page.contains(&format!("`{code}`")), "{} gives the code `{code}`", file.display());
            seen += 1;
        }
    }
    assert!(seen > 5, "codes were found at all");
}
