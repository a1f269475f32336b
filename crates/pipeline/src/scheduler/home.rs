//! What comes home: the tokens of a micro-batch, or its failure.

use mesh_engine::{
    Command, DrawFailure, GenerateError, Output, SeqId, StageError, StepFailure, StepId, StepResult, TokenEvent, Want,
};
use mesh_types::{FinishReason, Logprobs, TokenId};

use super::run::Run;
use super::{Event, Flight, Part, Progress, RunId, Scheduler};

/// A drawn token.
struct Drawn {
    token: TokenId,
    logprobs: Option<Logprobs>,
}

/// What came of a part.
struct Outcome {
    run: RunId,
    /// Of a run that was begun again: whether this is of its second try.
    afresh: bool,
    seq: SeqId,
    /// Of tokens of the prompt.
    scores: Vec<Logprobs>,
    /// Drawn one after the other; a failure is the last.
    drawn: Vec<Result<Drawn, DrawFailure>>,
    /// Positions that hold what became text.
    held: u32,
    /// Drafts behind them.
    rejected: u32,
}

impl Outcome {
    /// Of a part of which nothing came.
    fn of(part: &Part) -> Self {
        let &Part { run, afresh, seq, position: held, .. } = part;
        Self { run, afresh, seq, scores: Vec::new(), drawn: Vec::new(), held, rejected: 0 }
    }
}

/// The next of `outputs`, which is to be about `position` of the part's sequence.
fn next_output<'a>(
    part: &Part,
    position: u32,
    outputs: &mut impl Iterator<Item = &'a Output>,
) -> Result<&'a Output, String> {
    let Some(output) = outputs.next() else { return Err(format!("no output for sequence {}", part.seq.0)) };
    if (output.seq, output.position) == (part.seq, position) {
        return Ok(output);
    }
    let (seq, found) = (output.seq.0, output.position);
    Err(format!("an output for position {found} of sequence {seq} where {position} of {} belongs", part.seq.0))
}

impl Scheduler {
    /// A micro-batch came home.
    ///
    /// # Errors
    /// [`StageError::InvalidFrame`] where this is not what was asked for; then nothing was changed.
    pub fn result(&mut self, result: StepResult) -> Result<Progress, StageError> {
        let flight = self.expect(result.step)?;
        let wanted = flight.parts.iter().filter(|part| part.want != Want::Nothing);
        let outcomes = self.outcomes(wanted, &result)?;
        let Flight { prompt_tokens, decode_tokens, .. } = *flight;
        self.in_flight.pop_front();
        let generated_tokens = outcomes.into_iter().map(|outcome| self.take_outcome(outcome)).sum();
        self.park_idle(prompt_tokens + decode_tokens);
        Ok(Progress { prompt_tokens, generated_tokens, decode_tokens })
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
    fn outcomes<'a>(
        &self,
        wanted: impl Iterator<Item = &'a Part>,
        result: &StepResult,
    ) -> Result<Vec<Outcome>, StageError> {
        let bad = |what: String| StageError::InvalidFrame(format!("step {}: {what}", result.step.0));
        let mut outputs = result.outputs.iter();
        let outcomes = wanted.map(|part| self.outcome(part, &mut outputs).map_err(bad)).collect::<Result<_, _>>()?;
        match outputs.next() {
            Some(_) => Err(bad("more outputs than were asked for".to_owned())),
            None => Ok(outcomes),
        }
    }

    /// Takes the outputs of a part: one, and one more for every draft that came true or token that was scored. Says what
    /// is wrong with them.
    fn outcome<'a>(&self, part: &Part, outputs: &mut impl Iterator<Item = &'a Output>) -> Result<Outcome, String> {
        if matches!(part.want, Want::Scored(_)) {
            return self.scored(part, outputs);
        }
        let mut drawn = Vec::with_capacity(1);
        let mut drafts = part.expected.iter();
        for position in part.position.. {
            let output = next_output(part, position, outputs)?;
            let is_last = output.token.is_none() || output.token.as_ref() != drafts.next();
            drawn.push(self.drawn(output)?);
            if is_last {
                break;
            }
        }
        let accepted = drawn.len() as u32 - 1; // at most as many as there are drafts
        let rejected = part.expected.len() as u32 - accepted;
        Ok(Outcome { drawn, held: part.position + accepted, rejected, ..Outcome::of(part) })
    }

    /// Takes the scores of a part, and what was drawn behind them where something was to be.
    fn scored<'a>(&self, part: &Part, outputs: &mut impl Iterator<Item = &'a Output>) -> Result<Outcome, String> {
        let mut outcome = Outcome::of(part);
        for (position, token) in (part.position..).zip(&part.expected) {
            let output = next_output(part, position, outputs)?;
            match (&output.failure, &output.logprobs) {
                (Some(failure), _) => {
                    outcome.drawn.push(Err(failure.clone()));
                    return Ok(outcome);
                }
                (None, Some(logprobs)) if output.token == Some(*token) => outcome.scores.push(logprobs.clone()),
                _ => return Err(format!("position {position} is not the token that was to be scored")),
            }
        }
        if part.want == Want::Scored(None) {
            let position = part.position + part.expected.len() as u32; // at most the context
            outcome.drawn.push(self.drawn(next_output(part, position, outputs)?)?);
        }
        Ok(outcome)
    }

    fn drawn(&self, output: &Output) -> Result<Result<Drawn, DrawFailure>, String> {
        match (output.token, &output.failure) {
            (Some(token), None) if self.is_token(token) => Ok(Ok(Drawn { token, logprobs: output.logprobs.clone() })),
            (Some(token), None) => Err(format!("token {} of a vocabulary of {}", token.0, self.limits.n_vocab)),
            (None, Some(failure)) => Ok(Err(failure.clone())),
            _ => Err("an output without a token".to_owned()),
        }
    }

    /// Gives a run what was drawn for it; says how many tokens it took.
    fn take_outcome(&mut self, outcome: Outcome) -> u32 {
        let Outcome { run, afresh, seq, scores, drawn, held, rejected } = outcome;
        let Some(state) = self.runs.get_mut(&run).filter(|state| state.afresh == afresh) else { return 0 };
        state.accepted += (drawn.len() as u32).saturating_sub(1);
        state.rejected += rejected;
        if !matches!(drawn.first(), Some(Err(_))) {
            self.take_scores(run, scores);
        }
        if drawn.is_empty() {
            return 0; // a chunk that is not the prompt's last
        }
        if rejected > 0 {
            self.slots.take_back(seq, held);
        }
        let mut taken = 0;
        for drawn in drawn {
            match drawn {
                Ok(drawn) => self.take_token(run, drawn),
                Err(failure) => self.fail(run, failure.into()),
            }
            if !self.runs.contains_key(&run) {
                return taken + 1; // what is kept of its slot says where that ends
            }
            taken += 1;
        }
        if rejected > 0 {
            self.commands.push_back(Command::Truncate { seq, len: held });
        }
        self.go_on_behind(run);
        taken
    }

    /// Takes scores of a run's prompt, in order, and tells all of them once they are there. A run that draws nothing is
    /// over then.
    pub(super) fn take_scores(&mut self, run: RunId, scores: Vec<Logprobs>) {
        let Some(state) = self.runs.get_mut(&run) else { return };
        let all = state.prompt_len() as usize - 1; // never empty
        let draws_nothing = state.spec.max_tokens == 0;
        if let Some(so_far) = &mut state.scores {
            so_far.extend(scores);
            if so_far.len() < all {
                return;
            }
        }
        if let Some(scores) = state.scores.take() {
            self.events.push_back(Event { run, what: Ok(TokenEvent::Prompt(scores)) });
        }
        if draws_nothing {
            self.finish(run, FinishReason::Length);
        }
    }

    /// What was computed from the failed part on is uncertain, whoever has it now: what is kept of it goes, and runs that
    /// were to build on it begin again.
    fn part_failed(&mut self, part: &Part) {
        for seq in self.slots.holders(part) {
            if self.slots.run(seq).is_none() {
                self.distrust_kept(seq, part.start);
            }
        }
        match self.runs.get(&part.run) {
            Some(run) if run.afresh != part.afresh => {}
            Some(run) if run.may_begin_again() => self.begin_again(part.run),
            Some(_) => {
                self.slots.distrust(part.seq, part.start);
                self.fail(part.run, GenerateError::Step("a stage reported a failure".to_owned()));
            }
            None => {}
        }
        // Each takes its slot along, and whoever comes to build on another meanwhile is next.
        while let Some(run) = self.builds_on(part) {
            self.begin_again(run);
        }
    }

    /// Another run that found a prefix which the failed part was to compute.
    fn builds_on(&self, part: &Part) -> Option<RunId> {
        let others = self.slots.holders(part).into_iter().filter_map(|seq| self.slots.run(seq));
        let begins = |run: &RunId| self.runs.get(run).is_some_and(Run::may_begin_again);
        others.filter(|run| *run != part.run).find(begins)
    }

    /// Gives a drawn token to its run.
    fn take_token(&mut self, run: RunId, drawn: Drawn) {
        let Drawn { token, logprobs } = drawn;
        let Some(state) = self.runs.get_mut(&run) else { return };
        let position = state.draw(token);
        let end = state.end_after(token, self.limits.n_ctx);
        let usage = state.usage();
        self.events.push_back(Event { run, what: Ok(TokenEvent::Token { token, position, logprobs, usage }) });
        if let Some(reason) = end {
            self.finish(run, reason);
        }
    }
}
