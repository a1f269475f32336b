//! Processes of the built binaries, and their lines.

use std::io::{BufRead as _, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use crate::PATIENCE;

/// A running program. Killed when dropped.
pub struct Process {
    child: Child,
    out: Lines,
    err: Lines,
}

/// Lines that a program has printed so far.
#[derive(Clone, Default)]
struct Lines(Arc<(Mutex<Vec<String>>, Condvar)>);

/// A node or gateway with a data directory of its own.
pub struct Node {
    /// The program.
    pub process: Process,
    /// Its data directory.
    pub data_dir: PathBuf,
}

/// Path of a binary of this workspace.
///
/// # Panics
/// Where it is not built.
pub fn binary(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    let folder = test.parent().and_then(Path::parent).expect("a test lies in target/PROFILE/deps");
    let path = folder.join(name);
    assert!(path.is_file(), "{} is not built: run `cargo build --workspace --bins` first", path.display());
    path
}

/// Runs a command of `mesh-node` to its end.
///
/// # Panics
/// Where it runs longer than a minute.
pub fn mesh_node(args: &[&str]) -> Output {
    run(Command::new(binary("mesh-node")).args(args))
}

/// Runs a command to its end.
///
/// # Panics
/// Where it runs longer than a minute.
pub fn run(command: &mut Command) -> Output {
    let mut process = Process::spawn(command);
    let status = process.exit(PATIENCE);
    process.out.wait_for_end();
    process.err.wait_for_end();
    Output { status, stdout: process.stdout().into_bytes(), stderr: process.stderr().into_bytes() }
}

impl Node {
    /// `mesh-node ARGS --data-dir DIR/NAME --name NAME`, on loopback ports that the system picks, with one thread unless
    /// they say otherwise.
    pub fn start(folder: &Path, name: &str, args: &[&str]) -> Self {
        let data_dir = folder.join(name);
        let mut command = Command::new(binary("mesh-node"));
        command.args(args).arg("--data-dir").arg(&data_dir).args(["--name", name]);
        if !args.contains(&"--threads") {
            command.args(["--threads", "1"]);
        }
        if !args.contains(&"--listen") {
            command.args(["--listen", "127.0.0.1:0"]);
        }
        if !args.contains(&"--gateway") {
            command.args(["--gateway", "off"]);
        }
        Self { process: Process::spawn(&mut command), data_dir }
    }

    /// The token of its `ready mesh` line.
    pub fn token(&self) -> String {
        field(&self.process.line("ready mesh"), "token=")
    }

    /// What the administering command `what` says in JSON.
    pub fn ask(&self, what: &str) -> serde_json::Value {
        let dir = self.data_dir.display().to_string();
        let output = mesh_node(&[what, "--json", "--data-dir", &dir]);
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{what}: {told}\nthe node's own log:\n{}", self.process.stderr());
        serde_json::from_slice(&output.stdout).expect("--json prints JSON")
    }

    /// Runs `mesh-node ARGS` about its mesh.
    pub fn run(&self, args: &[&str]) -> Output {
        let dir = self.data_dir.display().to_string();
        mesh_node(&[args, &["--data-dir", &dir]].concat())
    }

    /// What `mesh-node ARGS` prints for people.
    pub fn said(&self, args: &[&str]) -> String {
        let output = self.run(args);
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {told}\nthe node's own log:\n{}", self.process.stderr());
        String::from_utf8(output.stdout).expect("output is text")
    }

    /// What `mesh-node ARGS` prints for programs.
    pub fn told(&self, args: &[&str]) -> serde_json::Value {
        serde_json::from_str(&self.said(&[args, &["--json"]].concat())).expect("--json prints JSON")
    }

    /// Why `mesh-node ARGS` fails.
    pub fn refuses(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {}", String::from_utf8_lossy(&output.stdout));
        String::from_utf8(output.stderr).expect("output is text")
    }

    /// Waits until it sees the node `name` ready.
    pub fn sees(&self, name: &str) {
        crate::until(&format!("{name} to be seen"), PATIENCE, || {
            let peers = self.ask("peers");
            let is_it = |peer: &serde_json::Value| peer["name"] == name && peer["state"] == "ready";
            peers["peers"].as_array()?.iter().any(is_it).then_some(())
        });
    }

    /// Process ids of its stages' child processes.
    pub fn stage_processes(&self) -> Vec<u32> {
        children(self.process.id())
    }
}

/// The value behind `key` in a ready line.
///
/// # Panics
/// Where it is not there.
pub fn field(line: &str, key: &str) -> String {
    let value = line.split_whitespace().find_map(|word| word.strip_prefix(key));
    value.unwrap_or_else(|| panic!("no `{key}` in: {line}")).to_owned()
}

/// Ids of the direct children of a process.
pub fn children(parent: u32) -> Vec<u32> {
    let path = format!("/proc/{parent}/task");
    let tasks = std::fs::read_dir(path).into_iter().flatten().flatten();
    tasks
        .filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok())
        .flat_map(|text| text.split_whitespace().filter_map(|id| id.parse().ok()).collect::<Vec<_>>())
        .collect()
}

/// Whether a process runs (a zombie does not).
pub fn is_running(id: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{id}/stat"))
        .is_ok_and(|stat| !stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z')))
}

/// Sends a signal, by number, to a process.
pub fn signal(id: u32, number: u32) {
    let status = Command::new("kill").arg(format!("-{number}")).arg(id.to_string()).status();
    assert!(status.is_ok_and(|status| status.success()), "cannot signal process {id}");
}

impl Process {
    /// Starts a program with its output caught.
    ///
    /// # Panics
    /// Where it cannot be started.
    pub fn spawn(command: &mut Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        let out = Lines::read(child.stdout.take().expect("stdout is piped"));
        let err = Lines::read(child.stderr.take().expect("stderr is piped"));
        Self { child, out, err }
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The first line on stdout that starts with `start`, when it is there.
    ///
    /// # Panics
    /// Where it does not come within a minute, or the program ends before.
    pub fn line(&self, start: &str) -> String {
        self.nth_line(start, 0)
    }

    /// The line number `n` (from 0) of those on stdout that start with `start`.
    ///
    /// # Panics
    /// As [`Self::line`].
    pub fn nth_line(&self, start: &str, n: usize) -> String {
        match self.out.wait(PATIENCE, |lines| lines.iter().filter(|line| line.starts_with(start)).nth(n).cloned()) {
            Some(line) => line,
            None => panic!("no line {n} `{start}`; stdout:\n{}\nstderr:\n{}", self.stdout(), self.stderr()),
        }
    }

    /// What it printed on stdout so far.
    pub fn stdout(&self) -> String {
        self.out.text()
    }

    /// What it printed on stderr so far.
    pub fn stderr(&self) -> String {
        self.err.text()
    }

    /// Kills it as a crash would.
    pub fn kill(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Asks it to end, as Ctrl-C does, and waits until it has.
    ///
    /// # Panics
    /// Where it does not end within half a minute.
    pub fn interrupt(&mut self) -> ExitStatus {
        signal(self.child.id(), 2);
        self.exit(Duration::from_secs(30))
    }

    /// Whether it runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// Where it does not end within `limit`.
    pub fn exit(&mut self, limit: Duration) -> ExitStatus {
        let deadline = Instant::now() + limit;
        loop {
            if let Ok(Some(status)) = self.child.try_wait() {
                return status;
            }
            assert!(Instant::now() < deadline, "still running after {limit:?}; stderr:\n{}", self.stderr());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("what process {} wrote on stderr:\n{}", self.child.id(), self.stderr());
        }
    }
}

impl Lines {
    fn read(from: impl Read + Send + 'static) -> Self {
        let lines = Self::default();
        let into = lines.clone();
        // Ends with the pipe, that is with the program.
        std::thread::spawn(move || {
            for line in BufReader::new(from).lines().map_while(Result::ok) {
                into.0.0.lock().expect("no holder panics").push(line);
                into.0.1.notify_all();
            }
            into.0.0.lock().expect("no holder panics").push(END.to_owned());
            into.0.1.notify_all();
        });
        lines
    }

    fn wait<T>(&self, limit: Duration, find: impl Fn(&[String]) -> Option<T>) -> Option<T> {
        let (lines, changed) = &*self.0;
        let deadline = Instant::now() + limit;
        let mut lines = lines.lock().expect("no holder panics");
        loop {
            if let Some(found) = find(&lines) {
                return Some(found);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || lines.last().is_some_and(|line| line == END) {
                return None;
            }
            lines = changed.wait_timeout(lines, left).expect("no holder panics").0;
        }
    }

    fn wait_for_end(&self) {
        self.wait(PATIENCE, |lines| lines.last().is_some_and(|line| line == END).then_some(()));
    }

    fn text(&self) -> String {
        let lines = self.0.0.lock().expect("no holder panics");
        lines.iter().filter(|line| *line != END).map(|line| format!("{line}\n")).collect()
    }
}

/// Stands behind the last line.
const END: &str = "\0end of output";
