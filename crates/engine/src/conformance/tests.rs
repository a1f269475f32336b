//! The kit passes what is right, and catches each way of being wrong.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use mesh_types::{LayerRange, ModelId};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::*;
use crate::chain::Chain;
use crate::error::StageError;
use crate::frame::{Command, Frame};
use crate::scripted::{Script, ScriptedStage};
use crate::stage::{LINK_DEPTH, StageLink, StageSpec};

fn spec(start: u32, end: u32) -> StageSpec {
    StageSpec {
        model: ModelId::from("scripted"),
        layers: LayerRange::new(start, end).unwrap(),
        n_layer: 6,
        n_embd: 24,
        n_vocab: 60,
        n_ctx: 128,
        n_seq: 3,
        n_batch: 16,
        n_cells: 384,
        cuts_back: true,
        rolls_back: true,
        n_parked: 64,
        n_states: 8,
    }
}

fn script(tokens: &[TokenId], index: u32) -> TokenId {
    TokenId(tokens.iter().map(|token| token.0).sum::<i32>() + index as i32)
}

fn kit() -> Kit {
    Kit { deadline: Duration::from_secs(2), ..Kit::new(3..40) }
}

fn stage(start: u32, end: u32) -> Arc<dyn Stage> {
    let script: fn(&[TokenId], u32) -> TokenId = script;
    Arc::new(ScriptedStage::new(spec(start, end), Box::new(script) as Box<dyn Script>))
}

impl Script for Box<dyn Script> {
    fn next(&self, tokens: &[TokenId], index: u32) -> TokenId {
        (**self).next(tokens, index)
    }
}

#[tokio::test]
async fn scripted_stages_of_every_place_pass() {
    for (start, end) in [(0, 6), (0, 2), (2, 4), (4, 6)] {
        assert_eq!(check(&*stage(start, end), &kit()).await, Ok(()), "layers {start}..{end}");
    }
}

#[tokio::test]
async fn a_chain_that_cannot_be_cut_back_passes() {
    let recurrent = |start, end| {
        let spec = StageSpec { cuts_back: false, rolls_back: false, ..spec(start, end) };
        Arc::new(ScriptedStage::new(spec, script)) as Arc<dyn Stage>
    };
    let chain = Chain::new(vec![recurrent(0, 2), recurrent(2, 6)]).unwrap();
    assert_eq!(check(&chain, &kit()).await, Ok(()));
    for wrong in [Wrong::IgnoresCheckpoints, Wrong::IgnoresForget] {
        let violations = check(&Broken::new(recurrent(0, 6), wrong), &kit()).await.expect_err("caught");
        assert!(violations.iter().any(|violation| violation.check.contains("checkpoint")), "{wrong:?}: {violations:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chains_of_scripted_stages_pass() {
    for cuts in [vec![0, 6], vec![0, 3, 6], vec![0, 1, 2, 6], vec![2, 3, 5], vec![0, 2, 4], vec![3, 4, 6]] {
        let stages = cuts.windows(2).map(|ends| stage(ends[0], ends[1])).collect();
        assert_eq!(check(&Chain::new(stages).unwrap(), &kit()).await, Ok(()), "cut at {cuts:?}");
    }
}

/// A way of being wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Wrong {
    SwapsAnswers,
    DropsAnAnswer,
    AnswersTwice,
    SwallowsCommands,
    LeaksCommands,
    AcceptsInvalidFrames,
    EndsInvalidWithoutAWord,
    KeepsTheEarlierLink,
    KeepsSlots,
    LosesWhatIsQueuedAtTheClose,
    FinishesQueuedWork,
    SwallowsFailures,
    FailsGapsHard,
    IgnoresTruncation,
    IgnoresCopies,
    IgnoresClose,
    IgnoresRetain,
    IgnoresCheckpoints,
    IgnoresForget,
    TurnsRows,
}

/// A stage in front of a right one that does it wrong.
struct Broken {
    inner: Arc<dyn Stage>,
    wrong: Wrong,
    /// Of a stage that keeps its slots: the one link that it ever opened.
    kept: tokio::sync::Mutex<Option<Arc<tokio::sync::Mutex<StageLink>>>>,
    links: AtomicU64,
    queue: tokio::sync::Mutex<()>,
}

#[async_trait]
impl Stage for Broken {
    fn spec(&self) -> &StageSpec {
        self.inner.spec()
    }

    async fn connect(&self) -> Result<StageLink, StageError> {
        if self.wrong == Wrong::FinishesQueuedWork && self.links.fetch_add(1, Ordering::Relaxed) % 3 == 2 {
            // As a stage would that computes all that was queued before it looks at the next link.
            let _queue = self.queue.lock().await;
            tokio::time::sleep(Duration::from_secs(3)).await;
        }
        let link = match self.wrong {
            Wrong::KeepsTheEarlierLink => stage(self.spec().layers.start(), self.spec().layers.end()).connect().await?,
            Wrong::KeepsSlots => return self.kept_link().await,
            _ => self.inner.connect().await?,
        };
        let (input, frames) = mpsc::channel(LINK_DEPTH);
        let (results, output) = mpsc::channel(LINK_DEPTH);
        let mut tasks = JoinSet::new();
        tasks.spawn(interfere(self.wrong, self.spec().clone(), link, frames, results));
        Ok(StageLink { input, output, tasks })
    }
}

impl Broken {
    fn new(inner: Arc<dyn Stage>, wrong: Wrong) -> Self {
        Self { inner, wrong, kept: Default::default(), links: Default::default(), queue: Default::default() }
    }

    async fn kept_link(&self) -> Result<StageLink, StageError> {
        let mut kept = self.kept.lock().await;
        if kept.is_none() {
            *kept = Some(Arc::new(tokio::sync::Mutex::new(self.inner.connect().await?)));
        }
        let link = kept.clone().ok_or(StageError::Closed)?;
        let (input, mut frames) = mpsc::channel(LINK_DEPTH);
        let (results, output) = mpsc::channel(LINK_DEPTH);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut link = link.lock().await;
            loop {
                tokio::select! {
                    Some(frame) = frames.recv() => { let _ = link.input.send(frame).await; }
                    Some(answer) = link.output.recv() => { let _ = results.send(answer).await; }
                    else => return,
                }
            }
        });
        Ok(StageLink { input, output, tasks })
    }
}

async fn interfere(
    wrong: Wrong,
    spec: StageSpec,
    link: StageLink,
    mut frames: mpsc::Receiver<Frame>,
    results: mpsc::Sender<Result<Frame, StageError>>,
) {
    let StageLink { input, mut output, tasks: _tasks } = link;
    let mut input = Some(input);
    let mut held: Option<Frame> = None;
    let mut answers = 0u64;
    loop {
        let open = input.is_some();
        tokio::select! {
            frame = frames.recv(), if open => {
                let Some(frame) = frame else {
                    if wrong == Wrong::LosesWhatIsQueuedAtTheClose {
                        return;
                    }
                    input = None;
                    continue;
                };
                let invalid = match &frame {
                    Frame::Batch(batch) => batch.check(&spec).is_err(),
                    Frame::Command(command) => command.check(&spec).is_err(),
                    Frame::Result(_) => true,
                    Frame::Failure(_) => false,
                };
                let swallowed = match (wrong, &frame) {
                    (Wrong::AcceptsInvalidFrames, _) => invalid,
                    (Wrong::EndsInvalidWithoutAWord, _) if invalid => return,
                    (Wrong::SwallowsFailures, Frame::Failure(_)) => true,
                    (Wrong::IgnoresTruncation, Frame::Command(Command::Truncate { .. }))
                    | (Wrong::IgnoresCopies, Frame::Command(Command::Copy { .. }))
                    | (Wrong::IgnoresRetain, Frame::Command(Command::Retain { .. }))
                    | (Wrong::IgnoresCheckpoints, Frame::Command(Command::Checkpoint { .. }))
                    | (Wrong::IgnoresForget, Frame::Command(Command::Forget { .. }))
                    | (Wrong::IgnoresClose, Frame::Command(Command::Close { .. })) => {
                        if !invalid && !spec.is_last() {
                            let _ = results.send(Ok(frame.clone())).await;
                        }
                        !invalid
                    }
                    (Wrong::LeaksCommands, Frame::Command(_)) if !invalid => {
                        let _ = results.send(Ok(frame.clone())).await;
                        false
                    }
                    _ => false,
                };
                if swallowed && wrong == Wrong::AcceptsInvalidFrames {
                    let _ = results.send(Ok(frame)).await;
                } else if !swallowed && let Some(input) = &input {
                    let _ = input.send(frame).await;
                }
            }
            answer = output.recv() => {
                let Some(answer) = answer else { return };
                if matches!(answer, Ok(Frame::Batch(_) | Frame::Result(_))) {
                    answers += 1;
                }
                match (wrong, answer) {
                    (Wrong::SwapsAnswers, Ok(frame)) if answers == 2 && held.is_none() => held = Some(frame),
                    (Wrong::SwapsAnswers, answer) => {
                        let _ = results.send(answer).await;
                        if let Some(frame) = held.take() {
                            let _ = results.send(Ok(frame)).await;
                        }
                    }
                    (Wrong::DropsAnAnswer, Ok(Frame::Batch(_) | Frame::Result(_))) if answers == 3 => {}
                    (Wrong::AnswersTwice, Ok(frame)) if answers == 2 => {
                        answers += 100;
                        let _ = results.send(Ok(frame.clone())).await;
                        let _ = results.send(Ok(frame)).await;
                    }
                    (Wrong::SwallowsCommands, Ok(Frame::Command(_))) => {}
                    (Wrong::FailsGapsHard, Ok(Frame::Failure(failure))) => {
                        let _ = results.send(Err(StageError::InvalidFrame(failure.reason))).await;
                        return;
                    }
                    (Wrong::TurnsRows, Ok(Frame::Batch(mut batch))) => {
                        // Rows of the stage's earlier batches leak into the next: an integrity fault.
                        if let Some(rows) = &mut batch.rows {
                            rows.data.iter_mut().for_each(|value| *value += answers as f32);
                        }
                        let _ = results.send(Ok(Frame::Batch(batch))).await;
                    }
                    (_, answer) => {
                        let _ = results.send(answer).await;
                    }
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn every_way_of_being_wrong_is_caught() {
    use Wrong::*;
    let (whole, middle) = ((0, 6), (2, 4));
    let cases = [
        (SwapsAnswers, whole, "in order"),
        (DropsAnAnswer, whole, "in order"),
        (DropsAnAnswer, middle, "in order"),
        (AnswersTwice, whole, "in order"),
        (SwallowsCommands, middle, "in order"),
        (LeaksCommands, whole, "in order"),
        (AcceptsInvalidFrames, whole, "invalid"),
        (EndsInvalidWithoutAWord, middle, "invalid"),
        (KeepsTheEarlierLink, whole, "replaces"),
        (KeepsSlots, middle, "replaces"),
        (LosesWhatIsQueuedAtTheClose, whole, "before the input closed"),
        (FinishesQueuedWork, whole, "queued work"),
        (SwallowsFailures, middle, "failures"),
        (FailsGapsHard, whole, "gap"),
        (IgnoresTruncation, middle, "truncated"),
        (IgnoresTruncation, whole, "truncated"),
        (IgnoresCopies, middle, "copies"),
        (IgnoresClose, whole, "closed slot"),
        (IgnoresRetain, whole, "retained"),
        (TurnsRows, middle, "copies"),
    ];
    for (wrong, (start, end), expected) in cases {
        let broken = Broken::new(stage(start, end), wrong);
        let violations = check(&broken, &kit()).await.expect_err(&format!("{wrong:?} was not caught"));
        let caught = violations.iter().any(|violation| violation.check.contains(expected));
        assert!(caught, "{wrong:?} was caught, but by other checks: {violations:?}");
    }
}
