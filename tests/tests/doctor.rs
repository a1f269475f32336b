//! `doctor` names what is wrong: each test breaks something for real and looks for its name.
#![allow(clippy::unwrap_used)] // every one is a check

use std::fs::File;
use std::io::Write as _;
use std::net::{TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;

use mesh_mesh::{Config, DataDir, Identity, JoinToken, LocalStatus, Membership, Mesh};
use mesh_tests::PATIENCE;
use mesh_tests::models::smollm2;
use mesh_tests::netns::Net;
use mesh_tests::process::{Node, Process, binary, run};
use mesh_tests::until;
use mesh_types::ByteSize;
use serde_json::{Value, json};

/// Seconds by which a clock is wrong.
const AHEAD: u32 = 7200;

/// What `doctor` finds, and whether it says by its exit code that something does not work.
struct Found {
    findings: Value,
    failed: bool,
}

impl Found {
    /// By a `mesh-node` of its own environment.
    fn by(mut program: Command, args: &[&str]) -> Self {
        let output = run(program.args(["doctor", "--json"]).args(args));
        let findings = serde_json::from_slice(&output.stdout);
        let findings = findings.unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&output.stderr)));
        Self { findings, failed: output.status.code() == Some(1) }
    }

    /// Where no node runs.
    fn before(args: &[&str]) -> Self {
        Self::by(Command::new(binary("mesh-node")), &[&["--gateway", "off"], args].concat())
    }

    /// About `node` or its mesh.
    fn at(node: &Node, args: &[&str]) -> Self {
        let dir = node.data_dir.display().to_string();
        Self::by(Command::new(binary("mesh-node")), &[&["--data-dir", &dir], args].concat())
    }

    /// The sentence and the advice of the finding of `check` in this state that contains `what`.
    fn names(&self, check: &str, state: &str, what: &str) -> String {
        let all = self.findings["findings"].as_array().unwrap();
        let is_it = |one: &&Value| {
            one["check"] == check && one["state"] == state && one["what"].as_str().is_some_and(|it| it.contains(what))
        };
        let found =
            all.iter().find(is_it).unwrap_or_else(|| panic!("no {state} of {check}, `{what}`: {:#}", self.findings));
        assert!(!found["advice"].as_str().unwrap().is_empty(), "what is to be done? {found}");
        assert_eq!(self.failed, all.iter().any(|one| one["state"] == "failure"), "the exit code: {:#}", self.findings);
        format!("{}; {}", found["what"].as_str().unwrap(), found["advice"].as_str().unwrap())
    }
}

/// Puts the clock of the programs that are given it ahead. `None`, and a loud word, without a C compiler.
fn wrong_clock(folder: &Path) -> Option<PathBuf> {
    let (source, library) = (folder.join("clock.c"), folder.join("clock.so"));
    let text = format!(
        "#define _GNU_SOURCE\n#include <sys/syscall.h>\n#include <time.h>\n#include <unistd.h>\n\
         int clock_gettime(clockid_t id, struct timespec *now) {{\n\
         int failed = syscall(SYS_clock_gettime, id, now);\n\
         if (!failed && id == CLOCK_REALTIME) now->tv_sec += {AHEAD};\n\
         return failed;\n}}\n"
    );
    std::fs::write(&source, text).unwrap();
    let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status();
    if !built.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: a wrong clock takes a C compiler (`cc`)");
        return None;
    }
    Some(library)
}

#[test]
fn nothing_is_wrong_with_two_nodes() {
    let folder = tempfile::tempdir().unwrap();
    let alpha = Node::start(folder.path(), "alpha", &["up", "--memory", "100M"]);
    let beta = Node::start(folder.path(), "beta", &["join", &alpha.token(), "--memory", "100M"]);
    alpha.sees("beta");
    beta.sees("alpha");
    for found in [Found::at(&alpha, &[]), Found::at(&alpha, &["--node", "beta"])] {
        assert!(!found.failed && found.findings["ok"] == true, "{:#}", found.findings);
        let all = found.findings["findings"].as_array().unwrap();
        let both_ways =
            |one: &Value| one["check"] == "reachability" && one["what"].as_str().unwrap().contains("each can open");
        assert!(all.iter().any(both_ways), "{:#}", found.findings);
        for check in ["identity", "ports", "addresses", "clock", "version", "memory", "disk", "devices"] {
            assert!(all.iter().any(|one| one["check"] == check), "{check}: {:#}", found.findings);
        }
    }
    let text = alpha.said(&["doctor"]);
    assert!(text.contains("only this machine itself reaches the node") && text.contains("→"), "{text}");
}

#[test]
fn a_blocked_port() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("d").display().to_string();
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = tcp.local_addr().unwrap().to_string();
    let found = Found::before(&["--data-dir", &dir, "--listen", &at]);
    let port = tcp.local_addr().unwrap().port();
    found.names("ports", "failure", &format!("another program is using port {port}/tcp"));
    drop(tcp);
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let at = udp.local_addr().unwrap();
    let found = Found::before(&["--data-dir", &dir, "--listen", &at.to_string()]);
    found.names("ports", "failure", &format!("another program is using port {}/udp", at.port()));
}

#[test]
fn the_wrong_interface() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("d").display().to_string();
    let found = Found::before(&["--data-dir", &dir, "--listen", "192.0.2.77:9338"]);
    let told = found.names("addresses", "failure", "no interface of this machine has the address 192.0.2.77");
    assert!(told.contains("127.0.0.1 (lo)") && told.contains("--listen"), "{told}");
}

#[test]
fn a_clock_that_is_wrong_and_a_token_that_has_expired() {
    let folder = tempfile::tempdir().unwrap();
    let Some(clock) = wrong_clock(folder.path()) else { return };
    let alpha = Node::start(folder.path(), "alpha", &["up"]);
    let dir = folder.path().join("beta");
    let mut command = Command::new(binary("mesh-node"));
    command.args(["join", &alpha.token(), "--name", "beta", "--listen", "127.0.0.1:0", "--gateway", "off"]);
    command.arg("--data-dir").arg(&dir).env("LD_PRELOAD", &clock);
    let beta = Node { process: Process::spawn(&mut command), data_dir: dir };
    alpha.sees("beta");
    beta.sees("alpha");
    let found = Found::at(&alpha, &[]);
    let told = found.names("clock", "failure", "the clock of beta is 2 h 0 min ahead of this node's");
    assert!(told.contains("timedatectl"), "{told}");
    Found::at(&beta, &[]).names("clock", "failure", "the clock of alpha is 2 h 0 min behind this node's");

    let token = alpha.said(&["token", "--expires", "30m"]);
    let elsewhere = folder.path().join("gamma").display().to_string();
    let good = Found::before(&["--data-dir", &elsewhere, "--listen", "127.0.0.1:0", "--token", token.trim()]);
    assert!(!good.failed, "{:#}", good.findings);
    let mut later = Command::new(binary("mesh-node"));
    later.env("LD_PRELOAD", &clock);
    let found = Found::by(later, &["--data-dir", &elsewhere, "--listen", "127.0.0.1:0", "--token", token.trim()]);
    let told = found.names("token", "failure", "the join token expired 1 h");
    assert!(told.contains("mesh-node token"), "{told}");
}

#[test]
fn an_old_version() {
    let folder = tempfile::tempdir().unwrap();
    let alpha = Node::start(folder.path(), "alpha", &["up"]);
    let token: JoinToken = alpha.token().parse().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let old = runtime.block_on(async {
        let dir = DataDir::open(folder.path().join("old")).unwrap();
        let old = Mesh::start(Config {
            identity: Identity::open(&dir).unwrap(),
            membership: Membership::join(&dir, &token).unwrap(),
            listen: "127.0.0.1:0".parse().unwrap(),
            name: "old".to_owned(),
            version: "0.0.9".to_owned(),
            mdns: false,
        });
        let old = old.await.unwrap();
        old.joined(PATIENCE).await.unwrap();
        old.publish(LocalStatus { memory: ByteSize(1 << 30), ..LocalStatus::default() });
        old
    });
    alpha.sees("old");
    let told = Found::at(&alpha, &[]).names("version", "warning", "old is of version 0.0.9");
    assert!(told.contains("update old to"), "{told}");
    runtime.block_on(old.shutdown());
}

/// A small file system of its own. Taken away when dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// `None`, and a loud word, where this process may not mount.
    fn new(at: PathBuf) -> Option<Self> {
        std::fs::create_dir(&at).unwrap();
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"]).arg(&at).status();
        if !mounted.is_ok_and(|status| status.success()) {
            eprintln!("SKIPPED: a small disk takes root");
            return None;
        }
        Some(Self(at))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // A mount that stays is seen by who looks for it, and by no other test.
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn a_copied_data_directory() {
    let folder = tempfile::tempdir().unwrap();
    let alpha = Node::start(folder.path(), "alpha", &["up"]);
    let token = alpha.token();
    let beta = Node::start(folder.path(), "beta", &["join", &token]);
    alpha.sees("beta");
    let copied = Command::new("cp").arg("-r").arg(&beta.data_dir).arg(folder.path().join("copy")).status();
    assert!(copied.is_ok_and(|status| status.success()));
    let _copy = Node::start(folder.path(), "copy", &["join", &token]);
    let told = until("the copy to be found out", PATIENCE, || {
        let found = Found::at(&alpha, &[]);
        found.failed.then(|| found.names("identity", "failure", "its data directory was copied"))
    });
    assert!(told.contains("two processes use the identity of") && told.contains("remove identity.key"), "{told}");
}

#[test]
fn a_full_disk() {
    let folder = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::new(folder.path().join("disk")) else { return };
    let alpha = Node::start(&disk.0, "alpha", &["up", "--cache", "1M"]);
    alpha.process.line("ready mesh");
    let mut fill = File::create(disk.0.join("fill")).unwrap();
    while fill.write_all(&[0; 4096]).is_ok() {}
    for found in [Found::at(&alpha, &[]), Found::before(&["--data-dir", &disk.0.join("new").display().to_string()])] {
        let told = found.names("disk", "failure", "the disk is full");
        assert!(told.contains("--data-dir"), "{told}");
    }
}

#[test]
fn too_little_memory_and_a_model_file_that_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("small.gguf");
    std::os::unix::fs::symlink(smollm2(), &file).unwrap();
    let model = file.display().to_string();
    let alpha = Node::start(folder.path(), "alpha", &["up", "--model", &model, "--ctx", "256", "--memory", "20M"]);
    alpha.process.line("ready mesh");
    let told = Found::at(&alpha, &[]).names("memory", "failure", "there is too little memory: it takes");
    assert!(told.contains("20.0 MiB") && told.contains("--memory"), "{told}");
    std::fs::remove_file(&file).unwrap();
    Found::at(&alpha, &[]).names("models", "failure", "small.gguf is gone");

    let dir = folder.path().join("d").display().to_string();
    let found = Found::before(&["--data-dir", &dir, "--listen", "127.0.0.1:0", "--model", &model]);
    found.names("models", "failure", "small.gguf");
    let whole = smollm2().display().to_string();
    let small = ["--data-dir", &dir, "--listen", "127.0.0.1:0", "--memory", "20M", "--model", &whole];
    Found::before(&small).names("memory", "warning", "there is too little memory");
}

#[test]
fn one_way_reachability_and_a_port_that_a_firewall_blocks() {
    let Some(net) = Net::pair() else { return };
    let folder = tempfile::tempdir().unwrap();
    net.drop_incoming("beta", "tcp", 9338);
    let alpha = net.node("alpha", folder.path(), &["up", "--gateway", "off"]);
    let beta = net.node("beta", folder.path(), &["join", &alpha.token(), "--gateway", "off"]);
    beta.process.line("ready mesh");
    alpha.sees("beta");
    beta.sees("alpha");
    let found = Found::at(&alpha, &[]);
    let told =
        found.names("reachability", "warning", "one way only: beta reaches this node, this node cannot reach beta");
    assert!(
        told.contains("10.77.0.2:9338: no answer") && told.contains("let 9338/tcp in through the firewall of beta"),
        "{told}"
    );
    let found = Found::at(&alpha, &["--node", "beta"]);
    found.names("reachability", "warning", "one way only: this node reaches alpha, alpha cannot reach this node");

    // Each has the other try its address by itself, and tells what came of it without asking anew.
    let reach = |name: &str, list: &str| {
        let told = alpha.told(&["status", "--node", name])["node"]["reach"][0].clone();
        (told[list].as_array().is_some_and(|members| members.len() == 1)).then_some(told)
    };
    let told = until("alpha has tried beta's address", PATIENCE, || reach("beta", "missed_by"));
    assert_eq!((&told["address"], &told["reached_by"]), (&json!("10.77.0.2:9338"), &json!([])), "{told}");
    until("beta has tried alpha's address", PATIENCE, || reach("alpha", "reached_by"));
    let found = Found::at(&alpha, &["--node", "beta"]);
    let told = found.names("addresses", "warning", "no member that tried it came through (alpha)");
    assert!(told.contains("let 9338/tcp in through this machine's firewall"), "{told}");
    let text = alpha.said(&["doctor"]);
    assert!(text.contains("10.77.0.1:9338: reached by beta here"), "{text}");

    net.drop_incoming("alpha", "udp", 9338);
    net.drop_incoming("beta", "udp", 9338);
    let told = Found::at(&alpha, &[]).names(
        "reachability",
        "failure",
        "blocked: neither reaches the other for stages over udp",
    );
    assert!(told.contains("let 9338/udp in"), "{told}");
}
