//! The demo, as a person runs it: three processes, one model over two of them, one question; and nothing left behind.

use std::path::Path;
use std::process::Command;

use mesh_tests::process::{binary, run};

#[test]
fn the_demo_answers_from_a_split_model_and_leaves_nothing_behind() {
    // The demo makes its folder in here; whoever still names it afterwards was left running.
    let folder = tempfile::tempdir().expect("a temporary folder");
    let programs = binary("mesh-node");
    let output = run(Command::new(repository().join("scripts/demo"))
        .args(["--once", "--ask", "What is the capital of Germany?", "--programs"])
        .arg(programs.parent().expect("programs lie in a folder"))
        .env("TMPDIR", folder.path()));
    let told = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));

    assert!(output.status.success(), "{told}");
    for expected in ["2 stages on alpha and beta", "0-14", "15-29", "Berlin", "tokens a second"] {
        assert!(told.contains(expected), "the demo did not say `{expected}`:\n{told}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).expect("it is there").count(), 0, "files were left behind:\n{told}");
    let left = processes_naming(folder.path());
    assert!(left.is_empty(), "still running: {left:?}");
}

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("this package lies in the repository")
}

/// Command lines that contain `path`.
fn processes_naming(path: &Path) -> Vec<String> {
    let processes = std::fs::read_dir("/proc").expect("/proc is there").flatten();
    processes
        .filter_map(|process| std::fs::read_to_string(process.path().join("cmdline")).ok())
        .filter(|command| command.contains(&path.display().to_string()))
        .collect()
}
