//! The task that drives a pipeline.

use std::ops::ControlFlow;
use std::sync::Arc;

use mesh_engine::{Frame, GenerateError, Generator, StageError, StageLink};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::clients::{Clients, Delivery, Notice};
use super::drafter::{Drafter, Said};
use super::{Submission, unavailable};
use crate::pace::Pace;
use crate::pulse::{Pulse, Rate};
use crate::scheduler::{Limits, Progress, RunId, Scheduler};

pub(super) struct Driver {
    scheduler: Scheduler,
    /// The second model, if there is one.
    drafter: Option<Drafter>,
    clients: Clients,
    pulse: Pulse,
    rate: Rate,
    pace: Pace,
    show: watch::Sender<Pulse>,
}

/// Why the loop ended.
enum End {
    /// All runs were finished after the pipeline was told to close, by this deadline.
    Drained(Instant),
    /// The deadline passed first.
    Late,
    /// The link broke.
    Broken(StageError),
}

impl Driver {
    pub(super) fn new(
        limits: Limits,
        unread: usize,
        show: watch::Sender<Pulse>,
        drafts: Option<Arc<dyn Generator>>,
    ) -> Self {
        let scheduler = Scheduler::new(limits);
        Self {
            scheduler: if drafts.is_some() { scheduler.with_draft_model() } else { scheduler },
            drafter: drafts.map(Drafter::new),
            clients: Clients::new(unread),
            pulse: Pulse::default(),
            rate: Rate::default(),
            pace: Pace::default(),
            show,
        }
    }

    /// Serves until the link breaks or the pipeline is told to close; says which.
    pub(super) async fn run(
        mut self,
        mut link: StageLink,
        submissions: mpsc::Receiver<Submission>,
        close: watch::Receiver<Option<Instant>>,
    ) -> StageError {
        let error = match self.serve(&mut link, submissions, close).await {
            End::Drained(deadline) => {
                if timeout_at(deadline, closed(link)).await.is_err() {
                    tracing::warn!("the stages did not close in time");
                }
                return StageError::Closed;
            }
            End::Late => {
                let late = "the model was unloaded before the answer was complete".to_owned();
                self.scheduler.fail_all(&GenerateError::Unavailable(late));
                StageError::Closed
            }
            End::Broken(error) => {
                tracing::warn!(%error, "the link to the stages is over");
                self.scheduler.fail_all(&unavailable(&error));
                error
            }
        };
        drop(link);
        self.deliver();
        self.publish();
        error
    }

    async fn serve(
        &mut self,
        link: &mut StageLink,
        mut submissions: mpsc::Receiver<Submission>,
        mut close: watch::Receiver<Option<Instant>>,
    ) -> End {
        let mut deadline: Option<Instant> = None;
        // A closed input is explained by what `output` says next.
        let mut accepts_frames = true;
        loop {
            self.deliver();
            self.publish();
            self.ask_drafter();
            if let Some(deadline) = deadline.filter(|_| self.scheduler.is_idle()) {
                return End::Drained(deadline);
            }
            tokio::select! {
                biased;
                frame = link.output.recv() => {
                    if let ControlFlow::Break(error) = self.take(frame) {
                        return End::Broken(error);
                    }
                }
                (run, said) = drafted(&mut self.drafter) => self.take_draft(run, said),
                Some(notice) = self.clients.next() => self.heed(notice),
                permit = link.input.reserve(), if accepts_frames && self.scheduler.has_frame() => match permit {
                    // Formed only now, so that it holds all that became ready in the meantime.
                    Ok(permit) => {
                        if let Some(frame) = self.scheduler.next_frame() {
                            if matches!(frame, Frame::Batch(_)) {
                                self.pace.sent(Instant::now().into_std());
                            }
                            permit.send(frame);
                        }
                    }
                    Err(_) => accepts_frames = false,
                },
                // An error: the handle is gone, and this task is about to be.
                Ok(()) = close.changed(), if deadline.is_none() => deadline = *close.borrow_and_update(),
                () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => return End::Late,
                Some(submission) = submissions.recv() => self.submit(submission, deadline.is_some()),
            }
        }
    }

    fn submit(&mut self, submission: Submission, is_closing: bool) {
        let Submission { spec, reply } = submission;
        if is_closing {
            let closing = GenerateError::Unavailable("the model is being unloaded".to_owned());
            return drop(reply.send(Err(closing)));
        }
        let request = spec.request.clone();
        let answer = self.scheduler.submit(spec).map(|run| {
            let (events, generation) = self.clients.stream();
            self.clients.insert(run, events);
            generation
        });
        match &answer {
            Ok(_) => tracing::debug!(%request, "run queued"),
            Err(error) => tracing::debug!(%request, %error, "run refused"),
        }
        // Where the caller is gone, the stream goes with it, and that cancels the run.
        drop(reply.send(answer));
    }

    /// Applies what came from the stages.
    fn take(&mut self, frame: Option<Result<Frame, StageError>>) -> ControlFlow<StageError> {
        let progress = match frame {
            Some(Ok(Frame::Result(result))) => self.scheduler.result(result),
            Some(Ok(Frame::Failure(failure))) => {
                tracing::warn!(step = failure.step.0, reason = %failure.reason, "a step could not be computed");
                self.scheduler.failure(&failure).map(|()| Progress::default())
            }
            Some(Ok(Frame::Batch(_) | Frame::Command(_))) => {
                Err(StageError::InvalidFrame("the last stage sent work".to_owned()))
            }
            Some(Err(error)) => Err(error),
            None => Err(StageError::Closed),
        };
        match progress {
            Ok(progress) => {
                self.pace.home(progress, Instant::now().into_std());
                if let Some(chunk) = self.pace.chunk() {
                    self.scheduler.set_shared_chunk(chunk);
                }
                if let Some(cost) = self.pace.cost() {
                    self.scheduler.set_cost(cost);
                }
                self.count(progress);
                ControlFlow::Continue(())
            }
            Err(error) => ControlFlow::Break(error),
        }
    }

    /// Passes on what the second model is to be asked, and takes back what nobody waits for any more.
    fn ask_drafter(&mut self) {
        let Some(drafter) = &mut self.drafter else { return };
        while let Some(request) = self.scheduler.next_draft_request() {
            drafter.ask(request);
        }
        drafter.retain(|run| self.scheduler.is_asked(run));
    }

    fn take_draft(&mut self, run: RunId, said: Said) {
        let Some(drafter) = &mut self.drafter else { return };
        if let Some(cost) = drafter.cost() {
            self.scheduler.set_draft_cost(cost);
        }
        match said {
            Said::Token(token, likelihood) if self.scheduler.draft(run, token, likelihood) => {}
            Said::Token(..) => {
                drafter.cancel(run);
                self.scheduler.drafted(run);
            }
            Said::Done => self.scheduler.drafted(run),
            Said::Failed(error) => {
                tracing::debug!(%error, "the draft model does not follow a run");
                self.scheduler.not_drafted(run);
            }
        }
    }

    fn count(&mut self, progress: Progress) {
        if progress == Progress::default() {
            return;
        }
        let now = Instant::now().into_std();
        self.pulse.last_forward = Some(now);
        self.pulse.prompt_tokens += u64::from(progress.prompt_tokens);
        self.pulse.generated_tokens += u64::from(progress.generated_tokens);
        self.rate.count(progress.generated_tokens, now);
        self.pulse.decode_rate = self.rate.per_second();
    }

    fn heed(&mut self, notice: Notice) {
        match notice {
            Notice::Gone(run) => {
                self.clients.remove(run);
                self.scheduler.cancel(run);
            }
            Notice::Reads(run) => self.scheduler.release(run),
        }
    }

    /// Passes on what the scheduler has to say.
    fn deliver(&mut self) {
        while let Some(event) = self.scheduler.next_event() {
            let run = event.run;
            match self.clients.deliver(event) {
                Delivery::Delivered => {}
                Delivery::Full => self.scheduler.hold(run),
                Delivery::Gone => self.heed(Notice::Gone(run)),
            }
        }
    }

    /// Whoever waits for a change is woken where runs come or go, and not by every token.
    fn publish(&mut self) {
        self.pulse.active = self.scheduler.active();
        self.pulse.queued = self.scheduler.queued();
        if self.pulse.active > 0 {
            self.rate.resume(Instant::now().into_std());
        } else {
            self.rate.pause();
        }
        let pulse = self.pulse;
        let runs = |pulse: &Pulse| (pulse.active, pulse.queued);
        self.show.send_if_modified(|shown| runs(&std::mem::replace(shown, pulse)) != runs(&pulse));
    }
}

/// What the second model says next. Never, where there is none.
async fn drafted(drafter: &mut Option<Drafter>) -> (RunId, Said) {
    match drafter {
        Some(drafter) => drafter.next().await,
        None => std::future::pending().await,
    }
}

/// Closes a link gracefully: what was sent is still applied.
async fn closed(link: StageLink) {
    let StageLink { input, mut output, mut tasks } = link;
    drop(input);
    while let Some(Ok(_)) = output.recv().await {}
    while tasks.join_next().await.is_some() {}
}
