//! How a micro-batch is put together.

use mesh_engine::{MAX_EXTRA_ROWS, MicroBatch, Segment, StepId, Want};

use super::run::Phase;
use super::{Flight, Part, RunId, Scheduler};

impl Scheduler {
    /// Ready tokens first, up to a fair share of one micro-batch; then prompt chunks. Not empty where
    /// `Scheduler::has_batch` holds.
    pub(super) fn form_batch(&mut self) -> MicroBatch {
        let step = StepId(self.next_step);
        self.next_step += 1;
        let mut batch = MicroBatch { step, segments: Vec::new(), tokens: Vec::new(), rows: None };
        let mut flight = Flight { step, parts: Vec::new(), prompt_tokens: 0, decode_tokens: 0 };
        let alone = self.prefill.front().is_some_and(|run| self.runs.get(run).is_some_and(|run| run.alone));
        // One that rides alone makes the others wait for its chunk, and then it is their turn.
        if alone && (!self.was_alone || self.ready.is_empty()) {
            self.add_alone(&mut batch, &mut flight);
        } else {
            self.add_decode(!alone && !self.prefill.is_empty(), &mut batch, &mut flight);
            self.add_prefill(&mut batch, &mut flight);
            self.add_ahead(&mut batch, &mut flight);
            self.was_alone = false;
        }
        self.in_flight.push_back(flight);
        batch
    }

    /// The first chunk behind a prefix that was found. A stage may turn out not to have it: then no other run is to
    /// fail with it.
    fn add_alone(&mut self, batch: &mut MicroBatch, flight: &mut Flight) {
        self.was_alone = true;
        if let Some(id) = self.prefill.pop_front() {
            let room = self.chunk();
            self.add_chunk(id, room, batch, flight);
        }
    }

    /// The share leaves work for the other stages: all at once would make them wait for each other in turn. Where
    /// prompts wait, half of the micro-batch is theirs (of one token: every other one), should it ever come to that.
    fn add_decode(&mut self, prompts_wait: bool, batch: &mut MicroBatch, flight: &mut Flight) {
        let n_batch = self.limits.n_batch as usize;
        let most = if prompts_wait { (n_batch + usize::from(self.rounds_up)) / 2 } else { n_batch };
        self.rounds_up ^= prompts_wait;
        let share = self.decoding().div_ceil(self.limits.depth).min(most);
        let mut room = self.room_for_drafts(share);
        while flight.parts.len() < share {
            let Some(id) = self.ready.pop_front() else { break };
            let Some(run) = self.runs.get(&id) else { continue };
            let (Some(seq), Phase::Ready(token)) = (run.seq, run.phase) else { continue };
            // Beside a chunk of somebody's prompt, a step is long as it is.
            let drafts = if prompts_wait { Vec::new() } else { self.drafts(run, &mut room) };
            let (start, afresh, len) = (run.last_position(), run.afresh, 1 + drafts.len() as u32);
            for token in [token].iter().chain(&drafts) {
                batch.tokens.push(*token);
                self.slots.send_drawn(seq, *token);
            }
            flight.decode_tokens += len;
            let want = if drafts.is_empty() { Want::Token } else { Want::Verified };
            self.add(batch, flight, (id, afresh), Segment { seq, start, len, want });
            if let Some(part) = flight.parts.last_mut() {
                (part.position, part.expected) = (start + 1, drafts);
            }
            if let Some(run) = self.runs.get_mut(&id) {
                run.phase = Phase::Drawing;
            }
        }
    }

    fn add_prefill(&mut self, batch: &mut MicroBatch, flight: &mut Flight) {
        let room = self.limits.n_batch - batch.tokens.len() as u32;
        let mut room = room.min(self.chunk());
        // Each once: a chunk that is scored may leave room, and goes to the end of the line.
        for _ in 0..self.prefill.len() {
            let Some(&id) = self.prefill.front().filter(|_| room > 0) else { break };
            if self.runs.get(&id).is_some_and(|run| run.alone) {
                break;
            }
            self.prefill.pop_front();
            room -= self.add_chunk(id, room, batch, flight);
        }
    }

    fn chunk(&self) -> u32 {
        if self.decoding() > 0 { self.shared_chunk } else { self.limits.prefill_chunk }
    }

    /// Adds up to `room` prompt tokens of a run, fewer where they are scored; says how many. A run with more of them goes
    /// to the end of the line.
    fn add_chunk(&mut self, id: RunId, room: u32, batch: &mut MicroBatch, flight: &mut Flight) -> u32 {
        let Some(run) = self.runs.get_mut(&id) else { return 0 };
        let (Some(seq), Phase::Prefill { sent }) = (run.seq, run.phase) else { return 0 };
        let scored = run.spec.score_prompt;
        let room = if scored { room.min(1 + MAX_EXTRA_ROWS.saturating_sub(batch.extra_rows())) } else { room };
        // A checkpoint is of what is held behind a chunk.
        let stop = run.checkpoints.front().copied().unwrap_or(run.computed_len());
        let len = room.min(stop - sent);
        let end = sent + len;
        batch.tokens.extend_from_slice(&run.spec.prompt[sent as usize..end as usize]);
        flight.prompt_tokens += len;
        let is_last = end == run.computed_len();
        let is_kept = run.checkpoints.front() == Some(&end);
        if is_kept {
            run.checkpoints.pop_front();
        }
        run.phase = if is_last { Phase::Drawing } else { Phase::Prefill { sent: end } };
        run.alone = false;
        let want = match is_last {
            _ if scored => Want::Scored(run.spec.prompt.get(end as usize).copied()),
            true => Want::Token,
            false => Want::Nothing,
        };
        let afresh = run.afresh;
        let expected =
            scored.then(|| run.spec.prompt.iter().skip(sent as usize + 1).take(len as usize).copied().collect());
        self.add(batch, flight, (id, afresh), Segment { seq, start: sent, len, want });
        if let (Some(expected), Some(part)) = (expected, flight.parts.last_mut()) {
            (part.position, part.expected) = (sent + 1, expected);
        }
        if !is_last {
            self.prefill.push_back(id);
        }
        self.slots.send(seq, len);
        if is_kept {
            self.keep_checkpoint(seq);
        }
        self.join_followers(seq);
        len
    }

    /// Sequences past their prompt that go on: ready, or with a token being drawn.
    pub(super) fn decoding(&self) -> usize {
        let runs = self.slots.runs().filter_map(|run| self.runs.get(&run));
        runs.filter(|run| match run.phase {
            Phase::Ready(_) => !run.held,
            Phase::Drawing => true,
            Phase::Queued | Phase::Following { .. } | Phase::Prefill { .. } => false,
        })
        .count()
    }

    pub(super) fn add(
        &self,
        batch: &mut MicroBatch,
        flight: &mut Flight,
        (run, afresh): (RunId, bool),
        segment: Segment,
    ) {
        let Segment { seq, start, len, want } = segment;
        let origin = self.slots.origin(seq);
        batch.segments.push(segment);
        flight.parts.push(Part { run, afresh, seq, origin, want, start, position: start + len, expected: Vec::new() });
    }
}
