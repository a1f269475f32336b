//! A stage that llama.cpp computes.
//!
//! ```text
//! LlamaStage::connect ──link──▶ compute thread: takes frames ─▶ Engine::apply ─▶ hands frames on
//! ```
//!
//! One named thread owns the model and its context for as long as the stage lives; it serves one link at a time. The
//! thread never waits inside llama.cpp for anything but the computation, and that is aborted when its link goes.
//!
//! Owns: the thread, its links and their ends (`llama/worker.rs`), and what a frame does to the context
//! (`llama/engine.rs`, `llama/sequences.rs`). Does not own: the process around it ([`crate::child`]), cutting models (`mesh-gguf`).
//! Start with [`LlamaStageConfig`], then [`LlamaStage::load`].

mod config;
mod engine;
mod sequences;
mod worker;

use std::thread::JoinHandle;

use async_trait::async_trait;
use kernels_ffi::{AbortHandle, Allocated};
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::task::JoinSet;

use crate::error::StageError;
use crate::stage::{LINK_DEPTH, Stage, StageLink, StageSpec};
use engine::Engine;
use worker::Link;

pub use config::{Compute, EmbeddingPlace, Fed, Injection, Limits, LlamaStageConfig, SliceOf};

/// A contiguous range of a model's layers, loaded into llama.cpp in this process.
///
/// Dropping it aborts what it computes, waits for its thread, and frees the model.
#[derive(Debug)]
pub struct LlamaStage {
    spec: StageSpec,
    weight_bytes: u64,
    allocated: Allocated,
    /// Held while a link is handed over, so that links are served in the order in which they abort each other.
    current: Mutex<Current>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Current {
    /// Of the link opened last.
    abort: AbortHandle,
    /// `None` once the stage is being dropped.
    links: Option<mpsc::Sender<Link>>,
}

impl LlamaStage {
    /// Loads the stage on its own thread and waits for it: blocks for as long as the model takes to load.
    ///
    /// # Errors
    /// [`StageError::Load`]: the file is no such stage, or it does not fit in memory.
    pub fn load(config: LlamaStageConfig) -> Result<Self, StageError> {
        let spec = config.spec.clone();
        let (loaded, wait) = std::sync::mpsc::sync_channel(1);
        let (links, queue) = mpsc::channel(1);
        let thread = std::thread::Builder::new()
            .name(format!("llama {}", spec.layers))
            .spawn(move || {
                let engine = match Engine::load(&config) {
                    Ok(engine) => engine,
                    Err(error) => return drop(loaded.send(Err(error))),
                };
                if loaded.send(Ok((engine.weight_bytes(), engine.allocated()))).is_ok() {
                    worker::run(engine, queue);
                }
            })
            .map_err(|error| StageError::Load(format!("no thread: {error}")))?;
        // The thread answers, or ends; either way it does not keep this waiting.
        let answer = wait.recv().unwrap_or_else(|_| Err(StageError::Load("its thread panicked".to_owned())));
        let (weight_bytes, allocated) = match answer {
            Ok(sizes) => sizes,
            Err(error) => {
                let _ = thread.join();
                return Err(error);
            }
        };
        let current = Current { abort: AbortHandle::new(), links: Some(links) };
        Ok(Self { spec, weight_bytes, allocated, current: Mutex::new(current), thread: Some(thread) })
    }

    /// Bytes of its weights.
    pub fn weight_bytes(&self) -> u64 {
        self.weight_bytes
    }

    /// What llama.cpp allocated beside its weights.
    pub fn allocated(&self) -> Allocated {
        self.allocated
    }

    fn lost(&self) -> StageError {
        StageError::Lost {
            model: self.spec.model.clone(),
            layers: self.spec.layers,
            host: "this node".to_owned(),
            reason: "its compute thread ended".to_owned(),
        }
    }
}

#[async_trait]
impl Stage for LlamaStage {
    fn spec(&self) -> &StageSpec {
        &self.spec
    }

    async fn connect(&self) -> Result<StageLink, StageError> {
        let mut current = self.current.lock().await;
        let abort = AbortHandle::new();
        std::mem::replace(&mut current.abort, abort.clone()).abort();
        let (input, frames) = mpsc::channel(LINK_DEPTH);
        let (results, output) = mpsc::channel(LINK_DEPTH);
        let (served, over) = oneshot::channel();
        let link = Link { frames, results: results.clone(), abort: abort.clone(), _served: served };
        let Some(links) = &current.links else { return Err(StageError::Closed) };
        links.send(link).await.map_err(|_| self.lost())?;
        let mut tasks = JoinSet::new();
        let abort = AbortOnDrop(abort);
        tasks.spawn(async move {
            let _abort = abort;
            // Keeps a sender only until the thread is done with the link: `output` then ends.
            tokio::select! {
                () = results.closed() => {}
                _ = over => {}
            }
        });
        Ok(StageLink { input, output, tasks })
    }
}

impl Drop for LlamaStage {
    fn drop(&mut self) {
        let current = self.current.get_mut();
        current.abort.abort();
        current.links = None;
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has said so; there is nothing left to free.
            let _ = thread.join();
        }
    }
}

/// Aborts a link's computation when the link goes, whichever way it does.
struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
