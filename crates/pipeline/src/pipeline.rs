//! A running pipeline: one task that owns the link to the stages and the scheduler, and a handle to it.
//!
//! The task waits for whatever comes first: a frame from the stages, room in the link, a new run, a client that went
//! away or reads again. It never waits for one client while another could go on.

mod clients;
mod drafter;
mod driver;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use mesh_engine::{GenerateError, Generation, Generator, Stage, StageError, StageSpec};
use mesh_types::GenerateSpec;
use tokio::sync::{Mutex, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::pulse::Pulse;
use crate::scheduler::Limits;
use driver::Driver;

/// Prompt tokens in a micro-batch of a chain of stages. A prompt of n chunks over s stages takes the time of n + s - 1
/// chunks; much smaller ones would be slower to compute.
const CHUNK_OF_SPLIT_PREFILL: u32 = 128;

/// Requests that may wait to be seen by the task; it sees them between two frames.
const SUBMISSIONS: usize = 64;

/// How a pipeline is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Micro-batches under way at the same time: the number of stages, so that all of them have work. Default 1. More
    /// makes a step of each sequence take longer.
    pub depth: usize,
    /// Runs at the same time; `None`, the default: as many as there are KV slots. The slots beyond that keep what was
    /// computed, for prompts that begin with it.
    pub parallel: Option<u32>,
    /// Runs that may wait for a KV slot; more are refused with [`GenerateError::QueueFull`]. Default 64. Each holds its
    /// prompt in memory.
    pub max_queue: usize,
    /// Most prompt tokens in one micro-batch; `None`, the default: as many as the stage takes. Fewer make decoding
    /// sequences wait less for a prompt, and stages behind the first wait less for their first chunk.
    pub prefill_chunk: Option<u32>,
    /// Whether drafts are looked for in what was said before, where the stages can take them back. Default true: the
    /// text stays the same, and nothing is slower.
    pub speculate: bool,
    /// Whether the next token of every sequence is computed without waiting for the one before to come home. Only where
    /// one stage holds the whole model, which has drawn it; and only if it can be taken back. Default false.
    pub runs_ahead: bool,
    /// Events of one run that its client may leave unread before the run is held back. Default 64, at least 1.
    pub unread: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            depth: 1,
            parallel: None,
            max_queue: 64,
            prefill_chunk: None,
            speculate: true,
            runs_ahead: false,
            unread: 64,
        }
    }
}

impl Config {
    /// The defaults for a chain of `stages`. More than one work on a prompt's chunks at the same time, which takes
    /// chunks that are small beside the prompt. One alone runs ahead.
    pub fn for_stages(stages: usize) -> Self {
        let prefill_chunk = (stages > 1).then_some(CHUNK_OF_SPLIT_PREFILL);
        Self { depth: stages.max(1), prefill_chunk, runs_ahead: stages == 1, ..Self::default() }
    }
}

/// A model that runs. Dropping it ends the link and all runs at once; see [`Self::shutdown`].
#[derive(Debug)]
pub struct Pipeline {
    spec: StageSpec,
    submissions: mpsc::Sender<Submission>,
    /// Set: accept nothing more, and be done by then.
    closing: watch::Sender<Option<Instant>>,
    pulse: watch::Receiver<Pulse>,
    ended: watch::Receiver<Option<StageError>>,
    task: Mutex<JoinSet<()>>,
}

/// A run on its way to the task.
struct Submission {
    spec: GenerateSpec,
    reply: oneshot::Sender<Result<Generation, GenerateError>>,
}

impl Pipeline {
    /// Opens a link to `stage`, which must hold all layers of a model, and starts to serve it.
    ///
    /// # Errors
    /// [`StageError`] of the connection; [`StageError::Load`] where layers are missing.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the stage without a link.
    pub async fn start(stage: Arc<dyn Stage>, config: Config) -> Result<Self, StageError> {
        Self::start_with(stage, config, None).await
    }

    /// As [`Self::start`], with a second, smaller model that is asked what is likely to come next: `drafts`, of the same
    /// vocabulary. Nothing is asked where the stages cannot take drafts back, or without [`Config::speculate`].
    ///
    /// # Errors
    /// As [`Self::start`].
    ///
    /// # Cancel safety
    /// As [`Self::start`].
    pub async fn start_with(
        stage: Arc<dyn Stage>,
        config: Config,
        drafts: Option<Arc<dyn Generator>>,
    ) -> Result<Self, StageError> {
        let spec = stage.spec().clone();
        if !(spec.is_first() && spec.is_last()) {
            return Err(StageError::Load(format!(
                "layers {} of {} are not all of the {} that it has",
                spec.layers, spec.model, spec.n_layer
            )));
        }
        let link = stage.connect().await?;
        let limits = Limits::new(&spec, &config);
        let (submissions, submitted) = mpsc::channel(SUBMISSIONS);
        let (closing, close) = watch::channel(None);
        let (show, pulse) = watch::channel(Pulse::default());
        let (end, ended) = watch::channel(None);
        let driver = Driver::new(limits, config.unread, show, drafts);
        let mut task = JoinSet::new();
        task.spawn(async move {
            // The stage lives as long as its link.
            let _stage = stage;
            let error = driver.run(link, submitted, close).await;
            end.send_replace(Some(error));
        });
        Ok(Self { spec, submissions, closing, pulse, ended, task: Mutex::new(task) })
    }

    /// What it runs: all layers of the model.
    pub fn spec(&self) -> &StageSpec {
        &self.spec
    }

    /// Signs of life, kept up to date. Only runs that come or go count as a change; who looks sees all counters.
    pub fn pulse(&self) -> watch::Receiver<Pulse> {
        self.pulse.clone()
    }

    /// Waits until the pipeline is over, and says why: [`StageError::Closed`] after a shutdown.
    ///
    /// # Cancel safety
    /// May be dropped.
    pub async fn ended(&self) -> StageError {
        let mut ended = self.ended.clone();
        // An error: the task was dropped.
        ended.wait_for(Option::is_some).await.ok().and_then(|error| error.clone()).unwrap_or(StageError::Closed)
    }

    /// Accepts nothing more, lets accepted runs finish for at most `within`, fails the rest, and closes the link.
    ///
    /// # Cancel safety
    /// May be dropped: the shutdown goes on.
    pub async fn shutdown(&self, within: Duration) {
        self.closing.send_replace(Some(Instant::now() + within));
        let mut task = self.task.lock().await;
        while task.join_next().await.is_some() {}
    }

    /// Why the task does not answer; it says so in a moment, if it did not yet.
    async fn gone(&self) -> GenerateError {
        unavailable(&self.ended().await)
    }
}

#[async_trait]
impl Generator for Pipeline {
    async fn generate(&self, spec: GenerateSpec) -> Result<Generation, GenerateError> {
        let (reply, answer) = oneshot::channel();
        if self.submissions.send(Submission { spec, reply }).await.is_err() {
            return Err(self.gone().await);
        }
        match answer.await {
            Ok(answer) => answer,
            Err(_) => Err(self.gone().await),
        }
    }
}

/// What the client of a run may know of the end of the link.
fn unavailable(error: &StageError) -> GenerateError {
    GenerateError::Unavailable(match error {
        StageError::Lost { model, layers, host, .. } => format!("layers {layers} of {model} on {host} were lost"),
        StageError::Closed => "the model is not loaded any more".to_owned(),
        StageError::InvalidFrame(_) | StageError::Load(_) => "the model's stages failed".to_owned(),
    })
}

#[cfg(test)]
mod tests;
