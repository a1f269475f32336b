//! A client that is not there is never a pass: `scripts/clients` says NOT RUN, and with `--require` fails.

use std::path::Path;
use std::process::Command;

use mesh_tests::models::smollm2;
use mesh_tests::process::{binary, run};

/// The packages that `scripts/clients` installs, with their versions, stand in the page that says they were tried.
#[test]
fn what_is_said_to_be_tried_is() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let script = std::fs::read_to_string(root.join("scripts/clients")).unwrap();
    let page = std::fs::read_to_string(root.join("docs/agents.md")).unwrap();
    let rows: Vec<&str> = script.lines().filter_map(|line| line.trim().strip_prefix("Client(\"")).collect();
    assert_eq!(rows.len(), 13);
    for row in rows {
        // A name, a kind, and the packages. Zod is a helper of one of them.
        let packages = row.split('"').skip(4).step_by(2).filter(|package| !package.starts_with("zod"));
        for package in packages {
            assert!(page.contains(&format!("`{package}`")), "{package} is not in docs/agents.md");
        }
    }
}

#[test]
fn a_client_that_cannot_be_installed_is_not_run_and_fails_where_it_is_required() {
    let folder = tempfile::tempdir().unwrap();
    let models = smollm2();
    for (require, fails) in [(false, false), (true, true)] {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/clients");
        let mut command = Command::new(script);
        command.arg("py_llm").arg("--binary").arg(binary("mesh-node")).args(require.then_some("--require"));
        // Nothing is in the cache, and the registry is nowhere.
        command.env("MESH_NODE_CACHE", folder.path()).env("MESH_TEST_MODELS", models.parent().unwrap());
        command.env("PIP_INDEX_URL", "http://127.0.0.1:9/").env("PIP_RETRIES", "0").env("PIP_NO_CACHE_DIR", "1");
        let output = run(&mut command);
        let told = String::from_utf8_lossy(&output.stdout);
        assert!(told.contains("NOT RUN  py_llm") && told.contains("it could not be installed"), "{output:?}");
        assert!(told.contains("0 ok, 0 FAILED, 1 NOT RUN"), "{told}");
        assert_eq!(output.status.success(), !fails, "{told}");
    }
}
