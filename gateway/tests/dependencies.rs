//! The gateway runs no model: nothing that could is linked into it.

use std::process::Command;

#[test]
fn the_gateway_links_nothing_that_runs_models() {
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--offline", "--prefix", "none", "-e", "normal", "--manifest-path", manifest])
        .output()
        .expect("cargo runs");
    let tree = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(tree.contains("mesh-openai"), "this is the gateway's tree: {tree}");
    let forbidden = ["mesh-engine", "mesh-pipeline", "mesh-transport", "mesh-chat", "kernels-ffi", "mesh-node"];
    for line in tree.lines() {
        let name = line.split(' ').next().unwrap_or_default();
        assert!(!forbidden.contains(&name) && !name.starts_with("llama-cpp"), "the gateway depends on {name}");
    }
}
