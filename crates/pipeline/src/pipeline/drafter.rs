//! The second model: what it was asked, and what it says.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures::stream::{BoxStream, StreamExt};
use mesh_engine::{GenerateError, Generation, Generator, TokenEvent};
use mesh_types::{GenerateSpec, RequestId, Sampling, TokenId};
use tokio::time::{Instant, timeout_at};

use crate::scheduler::{DraftCost, DraftRequest, RunId};

/// Of a new measurement; the rest is what was known before.
const WEIGHT: f64 = 0.2;

/// A run waits no longer than this for the next token.
const PATIENCE: Duration = Duration::from_secs(2);

/// Asks a whole model, of the same vocabulary, what comes next. Dropping it cancels all questions.
pub(super) struct Drafter {
    model: Arc<dyn Generator>,
    questions: HashMap<RunId, Question>,
    cost: Option<DraftCost>,
}

struct Question {
    says: BoxStream<'static, Result<(TokenId, f64), GenerateError>>,
    /// When it was asked, or said something.
    since: Instant,
    /// What came of it.
    tokens: u32,
    /// Whether only what followed since the last question had to be read for it.
    is_measured: bool,
    is_waited_for: bool,
}

/// What the second model says.
#[derive(Debug)]
pub(super) enum Said {
    /// It expects this token, with this likelihood.
    Token(TokenId, f64),
    /// That was all.
    Done,
    /// It cannot say anything.
    Failed(GenerateError),
}

impl Drafter {
    pub(super) fn new(model: Arc<dyn Generator>) -> Self {
        Self { model, questions: HashMap::new(), cost: None }
    }

    /// Asks, in place of what it was asked for that run before.
    pub(super) fn ask(&mut self, request: DraftRequest) {
        let DraftRequest { run, tokens, most, is_new, is_waited_for } = request;
        let spec = GenerateSpec {
            max_tokens: most,
            sampling: Sampling::greedy(),
            logprobs: Some(0),
            reuse: Some(true),
            ..GenerateSpec::new(RequestId::new("draft"), tokens)
        };
        let says = says(Arc::clone(&self.model), spec).boxed();
        let question = Question { says, since: Instant::now(), tokens: 0, is_measured: !is_new, is_waited_for };
        self.questions.insert(run, question);
    }

    /// Takes back what was asked for `run`.
    pub(super) fn cancel(&mut self, run: RunId) {
        self.questions.remove(&run);
    }

    /// Keeps only the questions of these runs.
    pub(super) fn retain(&mut self, is_wanted: impl Fn(RunId) -> bool) {
        self.questions.retain(|run, _| is_wanted(*run));
    }

    /// What it takes, once that is known.
    pub(super) fn cost(&self) -> Option<DraftCost> {
        self.cost
    }

    /// The next thing that it says, and of which run. Never, where nothing was asked.
    ///
    /// # Cancel safety
    /// May be dropped.
    pub(super) async fn next(&mut self) -> (RunId, Said) {
        let waits = self.questions.iter().filter(|(_, question)| question.is_waited_for);
        let due = waits.map(|(run, question)| (question.since + PATIENCE, *run)).min();
        let says = poll_fn(|context| {
            for (run, question) in &mut self.questions {
                if let Poll::Ready(said) = question.says.poll_next_unpin(context) {
                    return Poll::Ready((*run, said));
                }
            }
            Poll::Pending
        });
        let (run, said) = match due {
            None => says.await,
            Some((at, run)) => match timeout_at(at, says).await {
                Ok(says) => says,
                Err(_) => (run, Some(Err(GenerateError::Unavailable("the draft model does not answer".to_owned())))),
            },
        };
        let said = match said {
            Some(Ok((token, likelihood))) => {
                self.measure(run);
                Said::Token(token, likelihood)
            }
            Some(Err(error)) => Said::Failed(error),
            None => Said::Done,
        };
        if !matches!(said, Said::Token(..)) {
            self.cancel(run);
        }
        (run, said)
    }

    /// A token came.
    fn measure(&mut self, run: RunId) {
        let Some(question) = self.questions.get_mut(&run) else { return };
        let now = Instant::now();
        let took = (now - std::mem::replace(&mut question.since, now)).as_secs_f64();
        question.tokens += 1;
        if !question.is_measured {
            return;
        }
        let cost = self.cost.get_or_insert(DraftCost { first: took, next: took });
        let known = if question.tokens == 1 { &mut cost.first } else { &mut cost.next };
        *known += WEIGHT * (took - *known);
    }
}

/// The tokens of a run of `model` with their likelihoods.
fn says(
    model: Arc<dyn Generator>,
    spec: GenerateSpec,
) -> impl futures::Stream<Item = Result<(TokenId, f64), GenerateError>> {
    enum State {
        Asks(Arc<dyn Generator>, Box<GenerateSpec>),
        Reads(Generation),
        Over,
    }
    futures::stream::unfold(State::Asks(model, Box::new(spec)), |mut state| async move {
        loop {
            state = match state {
                State::Asks(model, spec) => match model.generate(*spec).await {
                    Ok(generation) => State::Reads(generation),
                    Err(error) => return Some((Err(error), State::Over)),
                },
                State::Reads(mut generation) => match generation.events.recv().await {
                    Some(Ok(TokenEvent::Token { token, logprobs, .. })) => {
                        let likelihood = logprobs.map_or(0.0, |logprobs| f64::from(logprobs.chosen).exp());
                        return Some((Ok((token, likelihood)), State::Reads(generation)));
                    }
                    Some(Ok(TokenEvent::Prompt(_))) => State::Reads(generation),
                    Some(Ok(TokenEvent::Finished { .. })) | None => return None,
                    Some(Err(error)) => return Some((Err(error), State::Over)),
                },
                State::Over => return None,
            };
        }
    })
}
