//! What comes home: the tokens of a micro-batch, or its failure.

use mesh_engine::{DrawFailure, GenerateError, StageError, StepFailure, StepId, StepResult, TokenEvent, Want};
use mesh_types::{Logprobs, TokenId};

use super::{Event, Flight, Part, Progress, RunId, Scheduler};

/// A drawn token.
struct Drawn {
    token: TokenId,
    logprobs: Option<Logprobs>,
}

/// What came of a part, whose it was, and whether of its second try.
type Outcome = (RunId, bool, Result<Drawn, DrawFailure>);

impl Scheduler {
    /// A micro-batch came home.
    ///
    /// # Errors
    /// [`StageError::InvalidFrame`] where this is not what was asked for; then nothing was changed.
    pub fn result(&mut self, result: StepResult) -> Result<Progress, StageError> {
        let flight = self.expect(result.step)?;
        let wanted = flight.parts.iter().filter(|part| part.want != Want::Nothing);
        let drawn = self.drawn(wanted, &result)?;
        let mut progress = Progress { prompt_tokens: flight.prompt_tokens, generated_tokens: 0 };
        self.in_flight.pop_front();
        for (run, afresh, drawn) in drawn {
            match drawn {
                _ if self.runs.get(&run).is_none_or(|state| state.afresh != afresh) => {}
                Ok(drawn) => {
                    self.take_token(run, drawn);
                    progress.generated_tokens += 1;
                }
                Err(failure) => self.fail(run, failure.into()),
            }
        }
        Ok(progress)
    }

    /// A micro-batch could not be computed: its runs fail, or are begun again where that may help. The others go on.
    ///
    /// # Errors
    /// [`StageError::InvalidFrame`] where it is not the one whose turn it is; then nothing was changed.
    pub fn failure(&mut self, failure: &StepFailure) -> Result<(), StageError> {
        self.expect(failure.step)?;
        let parts = self.in_flight.pop_front().map(|flight| flight.parts).unwrap_or_default();
        for part in parts {
            self.part_failed(&part);
        }
        Ok(())
    }

    /// The oldest micro-batch under way, if it is `step`.
    fn expect(&self, step: StepId) -> Result<&Flight, StageError> {
        match self.in_flight.front() {
            Some(flight) if flight.step == step => Ok(flight),
            Some(flight) => {
                Err(StageError::InvalidFrame(format!("step {} came home where {} belongs", step.0, flight.step.0)))
            }
            None => Err(StageError::InvalidFrame(format!("step {} came home, and none is under way", step.0))),
        }
    }

    /// Checks all outputs of a result against what was asked for.
    fn drawn<'a>(
        &self,
        mut wanted: impl Iterator<Item = &'a Part>,
        result: &StepResult,
    ) -> Result<Vec<Outcome>, StageError> {
        let bad = |what: String| Err(StageError::InvalidFrame(format!("step {}: {what}", result.step.0)));
        let mut drawn = Vec::with_capacity(result.outputs.len());
        for output in &result.outputs {
            let Some(part) = wanted.next() else { return bad("more outputs than were asked for".to_owned()) };
            if (output.seq, output.position) != (part.seq, part.position) {
                let (seq, position) = (output.seq.0, output.position);
                return bad(format!(
                    "an output for position {position} of sequence {seq} where {} of {} belongs",
                    part.position, part.seq.0
                ));
            }
            let logprobs = output.logprobs.clone();
            let what = match (output.token, &output.failure) {
                (Some(token), None) if self.is_token(token) => Ok(Drawn { token, logprobs }),
                (Some(token), None) => {
                    return bad(format!("token {} of a vocabulary of {}", token.0, self.limits.n_vocab));
                }
                (None, Some(failure)) => Err(failure.clone()),
                _ => return bad("an output without a token".to_owned()),
            };
            drawn.push((part.run, part.afresh, what));
        }
        match wanted.next() {
            Some(part) => bad(format!("no output for sequence {}", part.seq.0)),
            None => Ok(drawn),
        }
    }

    /// What the slot holds from the failed part on is uncertain.
    fn part_failed(&mut self, part: &Part) {
        if self.slots.owner(part.seq) != Some(part.run) {
            return; // whoever has the slot now and built on this fails in turn
        }
        match self.runs.get(&part.run) {
            Some(run) if run.afresh != part.afresh => {}
            Some(run) if run.may_begin_again() => self.begin_again(part.run),
            Some(_) => {
                self.slots.distrust(part.seq, part.start);
                self.fail(part.run, GenerateError::Step("a stage reported a failure".to_owned()));
            }
            None => self.distrust_kept(part),
        }
    }

    /// Gives a drawn token to its run.
    fn take_token(&mut self, run: RunId, drawn: Drawn) {
        let Drawn { token, logprobs } = drawn;
        let Some(state) = self.runs.get_mut(&run) else { return };
        let position = state.draw(token);
        let end = state.end_after(token, self.limits.n_ctx);
        let is_held = state.held;
        self.events.push_back(Event { run, what: Ok(TokenEvent::Token { token, position, logprobs }) });
        match end {
            Some(reason) => self.finish(run, reason),
            None if is_held => {}
            None => self.ready.push_back(run),
        }
    }
}
