//! The pages that are made from this crate's tables say what the tables say.
#![allow(clippy::unwrap_used)] // every one is a check

use std::path::Path;

/// Set to 1: the pages are written instead of compared.
const WRITE: &str = "MESH_WRITE_DOCS";

fn current(name: &str, page: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
    if std::env::var(WRITE).is_ok_and(|value| value == "1") {
        std::fs::write(&path, page).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(written == page, "docs/{name} is not what the tables say: write it with `just docs`");
}

#[test]
fn the_page_about_parameters_is_current() {
    current("parameters.md", &mesh_openai::docs::parameters());
}

#[test]
fn the_page_about_errors_is_current() {
    current("errors.md", &mesh_openai::docs::errors());
}
