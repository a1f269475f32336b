//! The next token of a sequence is computed before the one it stands behind is home.
//!
//! Between a token's drawing and the micro-batch that holds it lie two ways between processes and what is done at their
//! ends, in which the one stage there is would do nothing. So a second micro-batch is sent behind the one under way,
//! with [`DRAWN`] for the token that is not known yet. A run that ends with that token, which the stage knows by its
//! stop tokens, costs nothing; one that its client ends costs a row or two, which are cut off with the rest.
//!
//! Not while a prompt waits: it would wait for two micro-batches instead of one. Not where drafts are likely to follow:
//! they ride with a token that is known.

use mesh_engine::{DRAWN, MicroBatch, Segment, Want};

use super::run::{Phase, Run};
use super::{Flight, Part, RunId, Scheduler};

impl Scheduler {
    /// Whether all who decode can go on behind the one micro-batch that is under way.
    pub(super) fn may_run_ahead(&self) -> bool {
        if !self.limits.runs_ahead || self.has_draft_model || !self.prefill.is_empty() || self.in_flight.len() != 1 {
            return false;
        }
        let Some(flight) = self.in_flight.front().filter(|flight| flight.prompt_tokens == 0) else { return false };
        let mut runs = self.drawing(flight).peekable();
        runs.peek().is_some() && runs.all(|(part, run)| part.want == Want::Token && !self.may_draft(run))
    }

    /// Whatever is drawn in the micro-batch under way goes on.
    pub(super) fn add_ahead(&mut self, batch: &mut MicroBatch, flight: &mut Flight) {
        if !self.may_run_ahead() {
            return;
        }
        let Some(before) = self.in_flight.front() else { return };
        let next: Vec<(RunId, Segment)> = self
            .drawing(before)
            .map(|(part, run)| {
                let start = run.last_position() + 1;
                (part.run, Segment { seq: part.seq, start, len: 1, want: Want::Token })
            })
            .collect();
        for (id, segment) in next {
            if batch.tokens.len() >= self.limits.n_batch as usize {
                break;
            }
            let Some(run) = self.runs.get_mut(&id) else { continue };
            run.ahead = true;
            let afresh = run.afresh;
            batch.tokens.push(DRAWN);
            flight.decode_tokens += 1;
            self.add(batch, flight, (id, afresh), segment);
        }
    }

    /// A token was drawn for the run, if it is still there: the next one is under way, or can be sent.
    pub(super) fn go_on_behind(&mut self, run: RunId) {
        let Some(state) = self.runs.get_mut(&run) else { return };
        match (std::mem::take(&mut state.ahead), state.phase, state.seq) {
            (true, Phase::Ready(token), Some(seq)) => {
                state.phase = Phase::Drawing;
                self.slots.send_drawn(seq, token);
            }
            _ if state.held => {}
            _ => self.go_on(run),
        }
    }

    /// Runs for which the micro-batch draws a token, and which are sure to have use for another.
    fn drawing<'a>(&'a self, flight: &'a Flight) -> impl Iterator<Item = (&'a Part, &'a Run)> {
        let run = |part: &'a Part| Some((part, self.runs.get(&part.run)?));
        flight.parts.iter().filter_map(run).filter(|(_, run)| {
            let has_room = run.last_position() + 2 < self.limits.n_ctx;
            run.phase == Phase::Drawing && !run.held && run.generated + 1 < run.spec.max_tokens && has_room
        })
    }

    /// Whether drafts would ride with the run's next token, were it known.
    fn may_draft(&self, run: &Run) -> bool {
        let expects = run.lookup.as_ref().is_some_and(|lookup| lookup.expects());
        expects && !self.drafts(run, &mut self.room_for_drafts(self.decoding())).is_empty()
    }
}

#[cfg(test)]
mod tests;
