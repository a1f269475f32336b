//! Stages composed into one.
//!
//! Owns: moving frames from one link to the next, and making one end out of many. Does not own: what a stage does.
//! Start with [`Chain`].

use std::sync::Arc;

use async_trait::async_trait;
use futures::future::try_join_all;
use mesh_types::LayerRange;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::error::StageError;
use crate::frame::Frame;
use crate::stage::{LINK_DEPTH, Stage, StageLink, StageSpec};

/// Consecutive stages as one stage. An error of any of its links is the error of the chain's link; dropping the
/// chain's link drops all of them.
pub struct Chain {
    stages: Vec<Arc<dyn Stage>>,
    spec: StageSpec,
}

impl Chain {
    /// Composes `stages`, in the order of their layers.
    ///
    /// # Errors
    /// [`StageError::Load`] where they do not fit together; see [`merge`].
    pub fn new(stages: Vec<Arc<dyn Stage>>) -> Result<Self, StageError> {
        let spec = merge(stages.iter().map(|stage| stage.spec()))?;
        Ok(Self { stages, spec })
    }
}

/// The spec of consecutive stages as one: all their layers, and the tightest of their limits.
///
/// # Errors
/// [`StageError::Load`] where there is none, where layers do not follow on each other, or where the stages are of
/// different models.
pub fn merge<'a>(specs: impl IntoIterator<Item = &'a StageSpec>) -> Result<StageSpec, StageError> {
    let mut specs = specs.into_iter();
    let mut all = specs.next().cloned().ok_or_else(|| StageError::Load("a chain needs a stage".to_owned()))?;
    for next in specs {
        let (old, new) = (all.layers, next.layers);
        let layers = LayerRange::new(old.start(), new.end()).filter(|_| old.end() == new.start());
        all.layers =
            layers.ok_or_else(|| StageError::Load(format!("layers {new} do not follow on {old} of {}", all.model)))?;
        let shape = |spec: &StageSpec| (spec.model.clone(), spec.n_layer, spec.n_embd, spec.n_vocab);
        if shape(&all) != shape(next) {
            return Err(StageError::Load(format!("the stages with layers {old} and {new} are of different models")));
        }
        all.n_ctx = all.n_ctx.min(next.n_ctx);
        all.n_seq = all.n_seq.min(next.n_seq);
        all.n_batch = all.n_batch.min(next.n_batch);
        all.n_cells = all.n_cells.min(next.n_cells);
        all.cuts_back &= next.cuts_back;
        all.rolls_back &= next.rolls_back;
        all.n_parked = all.n_parked.min(next.n_parked);
        all.n_states = all.n_states.min(next.n_states);
    }
    Ok(all)
}

#[async_trait]
impl Stage for Chain {
    fn spec(&self) -> &StageSpec {
        &self.spec
    }

    async fn connect(&self) -> Result<StageLink, StageError> {
        if let [stage] = &self.stages[..] {
            return stage.connect().await;
        }
        let links = try_join_all(self.stages.iter().map(|stage| stage.connect())).await?;
        let (results, output) = mpsc::channel(LINK_DEPTH);
        let mut tasks = JoinSet::new();
        let over = CancellationToken::new();
        // From the last link to the first: each hands its frames to the one behind it.
        let mut target = Target::Home(results.clone());
        for link in links.into_iter().rev() {
            let pump = Pump { target, results: results.clone(), over: over.clone() };
            tasks.spawn(pump.run(link.output, link.tasks));
            target = Target::Next(link.input);
        }
        match target {
            Target::Next(input) => Ok(StageLink { input, output, tasks }),
            Target::Home(_) => Err(StageError::Closed),
        }
    }
}

enum Target {
    Next(mpsc::Sender<Frame>),
    Home(mpsc::Sender<Result<Frame, StageError>>),
}

/// Moves the frames that come out of one link.
struct Pump {
    target: Target,
    results: mpsc::Sender<Result<Frame, StageError>>,
    /// The chain's link has ended; nothing follows its error.
    over: CancellationToken,
}

impl Pump {
    /// `_tasks` are the link's own: they live as long as its frames are moved.
    async fn run(self, mut output: mpsc::Receiver<Result<Frame, StageError>>, _tasks: JoinSet<()>) {
        let over = self.over.clone();
        tokio::select! {
            biased;
            () = over.cancelled() => {}
            end = self.pump(&mut output) => {
                if !matches!((&end, &self.target), (Ok(()), Target::Next(_))) {
                    self.over.cancel();
                }
                if let Err(error) = end {
                    // Nobody listening is fine: the link was dropped.
                    let _ = self.results.send(Err(error)).await;
                }
            }
        }
    }

    async fn pump(&self, output: &mut mpsc::Receiver<Result<Frame, StageError>>) -> Result<(), StageError> {
        while let Some(frame) = output.recv().await {
            match &self.target {
                Target::Next(input) => {
                    if input.send(frame?).await.is_err() {
                        // The link behind has ended and says why itself; until then this one must not end.
                        self.over.cancelled().await;
                    }
                }
                Target::Home(results) => {
                    if results.send(Ok(frame?)).await.is_err() {
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
