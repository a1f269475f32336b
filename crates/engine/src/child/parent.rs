//! The parent's side: spawns, supervises and reaps the process.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::Serialize;
use tokio::io::BufReader;
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::sync::{Mutex, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::pipes::{self, NewLink};
use super::{CONFIG_MAX, FromChild, ToChild};
use crate::codec::{self, Limits, Message};
use crate::error::StageError;
use crate::frame::Frame;
use crate::stage::{LINK_DEPTH, Stage, StageLink, StageSpec};

/// How long a child that has closed its socket may take to exit before it is killed.
const EXIT_GRACE: Duration = Duration::from_secs(1);

/// What to run. The program must call [`super::serve`]; its standard input is the socket, its standard output is null,
/// and its standard error is this process's (for logs).
#[derive(Clone, Debug)]
pub struct ChildCommand {
    /// Usually [`std::env::current_exe`].
    pub program: PathBuf,
    /// Arguments that lead to [`super::serve`].
    pub args: Vec<OsString>,
    /// Environment variables set on top of this process's.
    pub env: Vec<(OsString, OsString)>,
}

/// Is told of the frames of a link, by the tasks that move them: what it does takes no time.
pub trait Observer: Send + Sync + 'static {
    /// A frame is about to be written to the child.
    fn sent(&self, frame: &Frame);

    /// A frame came from the child.
    fn came(&self, frame: &Frame);
}

/// Observes nothing.
impl Observer for () {
    fn sent(&self, _: &Frame) {}

    fn came(&self, _: &Frame) {}
}

/// A stage that a child process runs. Dropping it kills the process; [`ChildStage::shutdown`] waits until it is gone.
#[derive(Debug)]
pub struct ChildStage {
    spec: StageSpec,
    weight_bytes: u64,
    process_id: u32,
    links: mpsc::Sender<NewLink>,
    lost: watch::Receiver<Option<StageError>>,
    stop: CancellationToken,
    tasks: Mutex<JoinSet<()>>,
}

impl ChildStage {
    /// Starts the process, gives it `config` (as JSON) and waits until it has loaded its stage, however long that takes.
    ///
    /// # Errors
    /// [`StageError::Load`] where the process cannot be started, says that it cannot load, or ends before it has.
    ///
    /// # Cancel safety
    /// Dropping the future kills the process.
    pub async fn spawn<C: Serialize + Sync>(command: ChildCommand, config: &C) -> Result<Self, StageError> {
        let load = |what: &str, error: &dyn std::fmt::Display| StageError::Load(format!("{what}: {error}"));
        let config = serde_json::to_string(config).map_err(|error| load("its configuration is no JSON", &error))?;
        let (mut child, socket) = start(command).map_err(|error| load("its process cannot be started", &error))?;
        let process_id = child.id().unwrap_or_default();
        let (reader, mut writer) = socket.into_split();
        let mut reader = BufReader::with_capacity(pipes::BUFFER, reader);
        let hello = Message::Control(ToChild::Config(config));
        let ready = match codec::write(&mut writer, &hello, 0).await {
            Ok(()) => codec::read::<FromChild, _>(&mut reader, Limits::control_of(CONFIG_MAX)).await,
            Err(error) => Err(error.into()),
        };
        let (spec, weight_bytes) = match ready {
            Ok(Some((_, Message::Control(FromChild::Ready { spec, weight_bytes })))) => (spec, weight_bytes),
            Ok(Some((_, Message::Control(FromChild::Failed(error))))) => return Err(error),
            Ok(Some(_)) => return Err(StageError::Load("its process speaks another language".to_owned())),
            Ok(None) | Err(_) => return Err(StageError::Load(reap(&mut child).await)),
        };

        let stop = CancellationToken::new();
        let (lost_tx, lost) = watch::channel(None);
        let (links, new_links) = mpsc::channel(1);
        let (broken, broken_rx) = oneshot::channel();
        let mut tasks = JoinSet::new();
        tasks.spawn(supervise(Supervised { child, spec: spec.clone(), stop: stop.clone(), lost: lost_tx, broken_rx }));
        let (down, up) = pipes::pair(spec.clone(), lost.clone());
        tasks.spawn(down.run(writer, new_links));
        tasks.spawn(up.run(reader, broken));
        Ok(Self { spec, weight_bytes, process_id, links, lost, stop, tasks: Mutex::new(tasks) })
    }

    /// Bytes of weights that the child reported.
    pub fn weight_bytes(&self) -> u64 {
        self.weight_bytes
    }

    /// The process's id, while it runs.
    pub fn process_id(&self) -> u32 {
        self.process_id
    }

    /// [`Stage::connect`], with somebody who is told of all frames.
    ///
    /// # Errors
    /// As [`Stage::connect`].
    ///
    /// # Cancel safety
    /// As [`Stage::connect`].
    pub async fn connect_observed(&self, observer: Arc<dyn Observer>) -> Result<StageLink, StageError> {
        let (input, frames) = mpsc::channel(LINK_DEPTH);
        let (results, output) = mpsc::channel(LINK_DEPTH);
        let (opened, open) = oneshot::channel();
        if self.links.send(NewLink { frames, results, opened, observer }).await.is_err() {
            return Err(self.lost().await);
        }
        match open.await {
            Ok(Ok(())) => Ok(StageLink { input, output, tasks: JoinSet::new() }),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(self.lost().await),
        }
    }

    /// Waits for the process's end, whatever its cause, and says how it came.
    ///
    /// # Cancel safety
    /// May be dropped, and called again.
    pub async fn lost(&self) -> StageError {
        wait_lost(self.lost.clone()).await
    }

    /// Kills the process, and waits until it is reaped and everything around it has ended.
    ///
    /// # Cancel safety
    /// May be dropped: the process is killed all the same.
    pub async fn shutdown(&self) {
        self.stop.cancel();
        let mut tasks = self.tasks.lock().await;
        while tasks.join_next().await.is_some() {}
    }
}

#[async_trait]
impl Stage for ChildStage {
    fn spec(&self) -> &StageSpec {
        &self.spec
    }

    async fn connect(&self) -> Result<StageLink, StageError> {
        self.connect_observed(Arc::new(())).await
    }
}

impl Drop for ChildStage {
    fn drop(&mut self) {
        // The supervisor's task is aborted with the set; its `Child` kills the process when it is dropped.
        self.stop.cancel();
    }
}

/// The process, and its socket.
pub(crate) fn start(command: ChildCommand) -> std::io::Result<(Child, UnixStream)> {
    let (ours, theirs) = StdUnixStream::pair()?;
    ours.set_nonblocking(true)?;
    let child = Command::new(command.program)
        .args(command.args)
        .envs(command.env)
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .stderr(Stdio::inherit())
        .kill_on_drop(true)
        .spawn()?;
    Ok((child, UnixStream::from_std(ours)?))
}

pub(super) async fn wait_lost(mut lost: watch::Receiver<Option<StageError>>) -> StageError {
    match lost.wait_for(Option::is_some).await.as_deref() {
        Ok(Some(error)) => error.clone(),
        // The supervisor is gone without a word only when this side was dropped.
        _ => StageError::Closed,
    }
}

struct Supervised {
    child: Child,
    spec: StageSpec,
    stop: CancellationToken,
    lost: watch::Sender<Option<StageError>>,
    /// Resolves with what is wrong with the socket, if that is seen before the process's end.
    broken_rx: oneshot::Receiver<String>,
}

async fn supervise(mut it: Supervised) {
    let reason = tokio::select! {
        status = it.child.wait() => describe(status),
        () = it.stop.cancelled() => {
            let _ = it.child.kill().await;
            "it was shut down".to_owned()
        }
        Ok(what) = &mut it.broken_rx => match what.as_str() {
            "" => reap(&mut it.child).await,
            what => {
                let _ = it.child.kill().await;
                format!("its process broke the protocol: {what}")
            }
        }
    };
    let StageSpec { model, layers, .. } = it.spec;
    tracing::info!(%model, %layers, %reason, "child stage ended");
    it.lost.send_replace(Some(StageError::Lost { model, layers, host: "this node".to_owned(), reason }));
}

/// The end of a process whose socket is closed.
pub(crate) async fn reap(child: &mut Child) -> String {
    match tokio::time::timeout(EXIT_GRACE, child.wait()).await {
        Ok(status) => describe(status),
        Err(_) => {
            let _ = child.kill().await;
            "its process closed its socket without ending, and was killed".to_owned()
        }
    }
}

/// How a process ended, for people.
pub(crate) fn describe(status: std::io::Result<ExitStatus>) -> String {
    const NAMES: [(i32, &str); 8] = [
        (4, "SIGILL"),
        (5, "SIGTRAP"),
        (6, "SIGABRT"),
        (7, "SIGBUS"),
        (8, "SIGFPE"),
        (9, "SIGKILL"),
        (11, "SIGSEGV"),
        (15, "SIGTERM"),
    ];
    match status {
        Err(error) => format!("its process cannot be watched: {error}"),
        Ok(status) => match (status.code(), status.signal()) {
            (Some(code), _) => format!("its process exited with code {code}"),
            (None, Some(signal)) => {
                let name = NAMES.iter().find(|row| row.0 == signal).map_or("a signal", |row| row.1);
                format!("its process was killed by {name} ({signal})")
            }
            (None, None) => "its process ended".to_owned(),
        },
    }
}
