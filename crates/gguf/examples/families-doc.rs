//! Writes `docs/families.md` from the family table.

use std::path::Path;

fn main() -> std::io::Result<()> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/families.md");
    std::fs::write(path, mesh_gguf::family::page())
}
