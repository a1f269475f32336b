//! The parent's side: spawns and reaps the process, and asks it.

use mesh_types::ErrorClass;
use tokio::net::UnixStream;
use tokio::process::Child;
use tokio::sync::{Mutex, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{FromChild, MESSAGE_MAX, PoolerConfig, PoolerSpec, ToChild};
use crate::child::{ChildCommand, describe, reap, start};
use crate::codec::{self, Limits, Message};
use crate::error::StageError;

/// Texts that may wait for their turn; more wait to be let in.
const WAITING: usize = 64;

/// A model that pools, in a process of its own. Dropping it kills the process.
#[derive(Debug)]
pub struct Pooler {
    spec: PoolerSpec,
    process_id: u32,
    asks: mpsc::Sender<Ask>,
    lost: watch::Receiver<Option<String>>,
    stop: CancellationToken,
    tasks: Mutex<JoinSet<()>>,
}

/// Why there is no vector.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// More tokens than a text may have.
    #[error("the text has {tokens} tokens, and the model takes {most}")]
    TooLong {
        /// Tokens of the text.
        tokens: usize,
        /// Most that a text may have.
        most: u32,
    },
    /// The model's process is gone.
    #[error("the model's process was lost: {0}")]
    Lost(String),
    /// The computation failed.
    #[error("the model gave no vector")]
    Failed,
}

impl PoolError {
    /// The class of this error.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::TooLong { .. } => ErrorClass::InvalidRequest,
            Self::Lost(_) => ErrorClass::Unavailable,
            Self::Failed => ErrorClass::Internal,
        }
    }
}

/// A text, and where its vector goes.
#[derive(Debug)]
struct Ask {
    tokens: Vec<i32>,
    answer: oneshot::Sender<Result<Vec<f32>, PoolError>>,
}

impl Pooler {
    /// Starts the process, gives it `config`, and waits until it has loaded its model, however long that takes.
    ///
    /// # Errors
    /// [`StageError::Load`] where the process cannot be started, says that it cannot load, or ends before it has.
    ///
    /// # Cancel safety
    /// Dropping the future kills the process.
    pub async fn spawn(command: ChildCommand, config: &PoolerConfig) -> Result<Self, StageError> {
        let load = |what: &str, error: &dyn std::fmt::Display| StageError::Load(format!("{what}: {error}"));
        let config = serde_json::to_string(config).map_err(|error| load("its configuration is no JSON", &error))?;
        let (mut child, mut socket) = start(command).map_err(|error| load("its process cannot be started", &error))?;
        let process_id = child.id().unwrap_or_default();
        let spec = match exchange(&mut socket, ToChild::Config(config)).await {
            Some(FromChild::Ready(spec)) => spec,
            Some(FromChild::Failed(reason)) => return Err(StageError::Load(reason)),
            Some(_) => return Err(StageError::Load("its process speaks another language".to_owned())),
            None => return Err(StageError::Load(reap(&mut child).await)),
        };
        let (stop, (lost_tx, lost)) = (CancellationToken::new(), watch::channel(None));
        let (asks, waiting) = mpsc::channel(WAITING);
        let mut tasks = JoinSet::new();
        let process = Process { child, socket, waiting, stop: stop.clone() };
        tasks.spawn(async move {
            let reason = process.run().await;
            tracing::info!(reason, "the process of a model that pools ended");
            lost_tx.send_replace(Some(reason));
        });
        Ok(Self { spec, process_id, asks, lost, stop, tasks: Mutex::new(tasks) })
    }

    /// What the model says of itself.
    pub fn spec(&self) -> &PoolerSpec {
        &self.spec
    }

    /// The process's id, while it runs.
    pub fn process_id(&self) -> u32 {
        self.process_id
    }

    /// The vector of a text, not scaled to a length. Texts are answered in the order in which they come.
    ///
    /// # Errors
    /// [`PoolError`].
    ///
    /// # Cancel safety
    /// May be dropped; a text that has begun is computed to its end.
    pub async fn embed(&self, tokens: Vec<i32>) -> Result<Vec<f32>, PoolError> {
        if tokens.len() > self.spec.n_ctx as usize {
            return Err(PoolError::TooLong { tokens: tokens.len(), most: self.spec.n_ctx });
        }
        let (answer, answered) = oneshot::channel();
        let gone = || async { PoolError::Lost(self.lost().await) };
        if self.asks.send(Ask { tokens, answer }).await.is_err() {
            return Err(gone().await);
        }
        match answered.await {
            Ok(answer) => answer,
            Err(_) => Err(gone().await),
        }
    }

    /// Waits for the process's end, whatever its cause, and says how it came.
    ///
    /// # Cancel safety
    /// May be dropped, and called again.
    pub async fn lost(&self) -> String {
        let mut lost = self.lost.clone();
        let reason = lost.wait_for(Option::is_some).await;
        reason.ok().and_then(|reason| reason.clone()).unwrap_or_else(|| "it was shut down".to_owned())
    }

    /// Kills the process, and waits until it is reaped.
    ///
    /// # Cancel safety
    /// May be dropped: the process is killed all the same.
    pub async fn shutdown(&self) {
        self.stop.cancel();
        let mut tasks = self.tasks.lock().await;
        while tasks.join_next().await.is_some() {}
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        // The task is aborted with the set; its `Child` kills the process when it is dropped.
        self.stop.cancel();
    }
}

/// The process, for as long as it runs.
struct Process {
    child: Child,
    socket: UnixStream,
    waiting: mpsc::Receiver<Ask>,
    stop: CancellationToken,
}

impl Process {
    /// Passes texts on; how the process ended.
    async fn run(self) -> String {
        let Self { mut child, mut socket, mut waiting, stop } = self;
        let answering = async {
            while let Some(Ask { tokens, answer }) = waiting.recv().await {
                // Nobody waits for it any more.
                if answer.is_closed() {
                    continue;
                }
                let vector = match exchange(&mut socket, ToChild::Embed(tokens)).await {
                    Some(FromChild::Vector(vector)) => Ok(vector),
                    Some(FromChild::Refused(reason)) => {
                        tracing::error!(reason, "a text without a vector");
                        Err(PoolError::Failed)
                    }
                    // The sender is dropped without a word: the process's end says more.
                    _ => return,
                };
                // Whoever asked may have gone.
                let _ = answer.send(vector);
            }
        };
        tokio::select! {
            () = answering => reap(&mut child).await,
            status = child.wait() => describe(status),
            () = stop.cancelled() => {
                // It ends at the latest when its handle is dropped.
                let _ = child.kill().await;
                "it was shut down".to_owned()
            }
        }
    }
}

/// What the child answers; `None`: nothing, or nothing that can be read.
async fn exchange(socket: &mut UnixStream, what: ToChild) -> Option<FromChild> {
    codec::write(socket, &Message::Control(what), 0).await.ok()?;
    match codec::read(socket, Limits::control_of(MESSAGE_MAX)).await {
        Ok(Some((_, Message::Control(answer)))) => Some(answer),
        _ => None,
    }
}
