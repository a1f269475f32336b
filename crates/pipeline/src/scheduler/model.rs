//! A model of a chain of stages, for tests: it applies frames in order, and insists on all that a stage relies on.

use std::collections::{BTreeSet, VecDeque};

use mesh_engine::{
    Command, DRAWN, DrawFailure, Frame, MicroBatch, Output, Segment, SeqId, StageSpec, StepFailure, StepId, StepResult,
    Want,
};
use mesh_types::{LayerRange, Logprobs, ModelId, TokenId};

use super::Limits;

pub(super) const N_VOCAB: u32 = 1000;

/// What the model draws after `tokens`: never below 10. It often repeats itself.
pub(super) fn drawn(tokens: &[TokenId]) -> TokenId {
    let mix = |hash: u32, token: &TokenId| (hash ^ token.0.cast_unsigned()).wrapping_mul(0x0100_0193).rotate_left(5);
    let hash = |tokens: &[TokenId]| tokens.iter().fold(0x811c_9dc5, mix);
    let (all, last) = (hash(tokens), hash(&tokens[tokens.len().saturating_sub(2)..]));
    TokenId((10 + if all % 8 == 0 { all % (N_VOCAB - 10) } else { last % 3 }) as i32)
}

/// The first `count` tokens that the model draws for `prompt`.
pub(super) fn answer(prompt: &[TokenId], count: u32) -> Vec<TokenId> {
    let mut tokens = prompt.to_vec();
    (0..count).for_each(|_| tokens.push(drawn(&tokens)));
    tokens.split_off(prompt.len())
}

/// How likely it finds the token at `position`, whatever that is.
pub(super) fn score(position: u32) -> Logprobs {
    Logprobs { chosen: -f64::from(position) as f32, top: Vec::new() }
}

pub(super) struct Model {
    spec: StageSpec,
    most_under_way: usize,
    link: VecDeque<Frame>,
    slots: Vec<Slot>,
    /// On the host.
    places: Vec<Place>,
    next_step: u64,
    next_cell: u64,
    /// Slots cannot be cut back, but to checkpoints.
    keeps_states: bool,
    /// A step was failed or a slot spoilt: what is built on it may fail as well.
    is_shaky: bool,
    /// Prompt and other tokens computed.
    pub(super) computed: u32,
}

/// What a slot held, on the host.
#[derive(Clone, Default)]
struct Place {
    held: Vec<TokenId>,
    checkpoints: Vec<(u32, u64)>,
}

#[derive(Clone, Default)]
struct Slot {
    /// Tokens of the positions, and which cells they are in.
    held: Vec<(TokenId, u64)>,
    /// The lengths that it can be cut back to, each with its number.
    checkpoints: Vec<(u32, u64)>,
    prompt_len: Option<u32>,
    stop_tokens: Vec<TokenId>,
    spoilt: bool,
}

impl Model {
    pub(super) fn new(limits: Limits) -> Self {
        let layers = LayerRange::new(0, 4).expect("not empty");
        let spec = StageSpec {
            model: ModelId::new("model"),
            layers,
            n_layer: 4,
            n_embd: 8,
            n_vocab: limits.n_vocab,
            n_ctx: limits.n_ctx,
            n_seq: limits.n_seq,
            n_batch: limits.n_batch,
            n_cells: limits.n_cells,
            cuts_back: limits.cuts_back,
            rolls_back: limits.rolls_back,
            n_parked: limits.n_parked,
            n_states: limits.n_states,
        };
        let slots = vec![Slot::default(); limits.n_seq as usize];
        Self {
            spec,
            most_under_way: limits.depth + usize::from(limits.runs_ahead),
            link: VecDeque::new(),
            slots,
            places: vec![Place::default(); limits.n_places as usize],
            next_step: 0,
            next_cell: 0,
            keeps_states: !limits.cuts_back,
            is_shaky: false,
            computed: 0,
        }
    }

    /// A frame is sent.
    pub(super) fn send(&mut self, frame: Frame) {
        self.link.push_back(frame);
        assert!(self.under_way() <= self.most_under_way, "more than {} micro-batches under way", self.most_under_way);
    }

    /// Micro-batches sent and not computed.
    pub(super) fn under_way(&self) -> usize {
        self.link.iter().filter(|frame| matches!(frame, Frame::Batch(_))).count()
    }

    /// Computes the oldest micro-batch and the commands before it.
    pub(super) fn compute(&mut self) -> Option<Result<StepResult, StepFailure>> {
        let batch = self.next_batch()?;
        let is_over = |segment: &Segment, tokens: &[TokenId]| tokens == [DRAWN] && self.is_over(segment);
        let over: BTreeSet<SeqId> =
            batch.parts().filter(|(segment, own)| is_over(segment, own)).map(|(segment, _)| segment.seq).collect();
        let does_not_follow = |segment: &Segment| {
            let slot = &self.slots[segment.seq.0 as usize];
            !over.contains(&segment.seq) && (slot.spoilt || slot.held.len() != segment.start as usize)
        };
        if let Some(segment) = batch.segments.iter().find(|segment| does_not_follow(segment)) {
            assert!(self.is_shaky, "step {}: {segment:?} does not follow", batch.step.0);
            return Some(Err(StepFailure { step: batch.step, reason: "a gap".to_owned() }));
        }
        let mut outputs = Vec::new();
        let mut tokens = batch.tokens.iter();
        for segment in &batch.segments {
            let slot = &mut self.slots[segment.seq.0 as usize];
            let prompt_len = slot.prompt_len.expect("work for a slot that is not open");
            if over.contains(&segment.seq) {
                tokens.next();
                let (failure, position) = (Some(DrawFailure::Over), segment.start + 1);
                outputs.push(Output { failure, token: None, ..Output::token(segment.seq, position, DRAWN) });
                continue;
            }
            let verifies = segment.want == Want::Verified;
            for (place, token) in (0..).zip(tokens.by_ref().take(segment.len as usize)) {
                let so_far: Vec<TokenId> = slot.held.iter().map(|held| held.0).collect();
                let token = if *token == DRAWN { &drawn(&so_far) } else { token };
                if slot.held.len() >= prompt_len as usize {
                    let is_drawn = *token == drawn(&so_far);
                    assert!(is_drawn || (verifies && place > 0), "another token than was drawn");
                }
                slot.held.push((*token, self.next_cell));
                self.next_cell += 1;
                self.computed += 1;
            }
            let tokens: Vec<TokenId> = slot.held.iter().map(|held| held.0).collect();
            let position = tokens.len() as u32;
            if let Want::Scored(next) = segment.want {
                assert_eq!(next.is_none(), position >= prompt_len, "the token behind is not known");
                let behind = tokens[segment.start as usize + 1..].iter().copied().chain(next);
                for (position, token) in (segment.start + 1..).zip(behind) {
                    let logprobs = Some(score(position));
                    outputs.push(Output { logprobs, ..Output::token(segment.seq, position, token) });
                }
                if next.is_none() {
                    outputs.push(Output::token(segment.seq, position, drawn(&tokens)));
                }
                continue;
            }
            assert_eq!(segment.want != Want::Nothing, position >= prompt_len, "wants {:?}", segment.want);
            assert!(segment.len > 1 || !verifies, "drafts wanted without any");
            let first = if verifies { segment.start + 1 } else { position };
            for position in (first..=position).filter(|_| segment.want != Want::Nothing) {
                let token = drawn(&tokens[..position as usize]);
                outputs.push(Output::token(segment.seq, position, token));
                if tokens.get(position as usize) != Some(&token) {
                    break;
                }
            }
        }
        let cells: BTreeSet<u64> = self.slots.iter().flat_map(|slot| &slot.held).map(|held| held.1).collect();
        assert!(cells.len() <= self.spec.n_cells as usize, "{} cells are taken", cells.len());
        Some(Ok(StepResult { step: batch.step, outputs }))
    }

    /// Whether there is nothing to go on behind, where the token is to be the one drawn before.
    fn is_over(&self, segment: &Segment) -> bool {
        let slot = &self.slots[segment.seq.0 as usize];
        let held: Vec<TokenId> = slot.held.iter().map(|held| held.0).collect();
        held.len() != segment.start as usize || slot.stop_tokens.contains(&drawn(&held))
    }

    /// The same, but the micro-batch fails.
    pub(super) fn fail(&mut self) -> Option<StepFailure> {
        let batch = self.next_batch()?;
        self.is_shaky = true;
        Some(StepFailure { step: batch.step, reason: "told to".to_owned() })
    }

    /// From now on, a slot that is cut back is of no use, as where a sliding window has moved on.
    pub(super) fn spoil_cuts(&mut self) {
        self.is_shaky = true;
        self.spec.cuts_back = false;
    }

    /// From now on, what slots could be set back to is gone.
    pub(super) fn lose_checkpoints(&mut self) {
        self.is_shaky = true;
        self.slots.iter_mut().for_each(|slot| slot.checkpoints.clear());
    }

    /// No slot has a run once the commands sent are applied.
    pub(super) fn is_empty(&mut self) -> bool {
        while let Some(Frame::Command(command)) = self.link.front().cloned() {
            self.link.pop_front();
            self.apply(&command);
        }
        self.link.is_empty() && self.slots.iter().all(|slot| slot.prompt_len.is_none())
    }

    /// What a slot holds, once [`Self::is_empty`].
    pub(super) fn held(&self, seq: u32) -> Vec<TokenId> {
        self.slots[seq as usize].held.iter().map(|held| held.0).collect()
    }

    /// The lengths that a slot can be cut back to, once [`Self::is_empty`].
    pub(super) fn checkpoints(&self, seq: u32) -> Vec<u32> {
        self.slots[seq as usize].checkpoints.iter().map(|held| held.0).collect()
    }

    fn next_batch(&mut self) -> Option<MicroBatch> {
        while let Some(frame) = self.link.pop_front() {
            match frame {
                Frame::Command(command) => self.apply(&command),
                Frame::Batch(batch) => {
                    batch.check(&self.spec).expect("a batch as a stage wants it");
                    assert_eq!(batch.step, StepId(self.next_step));
                    self.next_step += 1;
                    return Some(batch);
                }
                other => panic!("{other:?} sent to a stage"),
            }
        }
        None
    }

    fn apply(&mut self, command: &Command) {
        command.check(&self.spec).expect("a command as a stage wants it");
        match command {
            Command::Open(open) => {
                let slot = self.slot(open.seq);
                assert!(slot.prompt_len.replace(open.prompt_len).is_none(), "slot {} opened twice", open.seq.0);
                assert!(slot.held.len() < open.prompt_len as usize, "slot {} holds the whole prompt", open.seq.0);
                slot.stop_tokens.clone_from(&open.stop_tokens);
            }
            Command::Close { seq } => *self.slot(*seq) = Slot::default(),
            Command::Retain { seq, len } => {
                assert!(self.slot(*seq).prompt_len.take().is_some(), "slot {} retained without a run", seq.0);
                self.cut(*seq, *len);
            }
            Command::Truncate { seq, len } => self.cut(*seq, *len),
            Command::Park { seq, place } => {
                let slot = std::mem::take(self.slot(*seq));
                assert!(slot.prompt_len.is_none(), "slot {} is parked with a run", seq.0);
                assert!(self.is_shaky || !slot.held.is_empty(), "nothing is parked");
                let held = slot.held.into_iter().map(|held| held.0).collect();
                self.places[*place as usize] = Place { held, checkpoints: slot.checkpoints };
                let parked: usize = self.places.iter().map(|place| place.held.len()).sum();
                assert!(parked <= self.spec.n_parked as usize, "{parked} positions on the host");
                self.check_states();
            }
            Command::Fetch { place, seq, len } => {
                let parked = self.places[*place as usize].clone();
                assert!(self.is_shaky || parked.held.len() >= *len as usize, "more is fetched than there is");
                let cells = self.next_cell..;
                self.next_cell += parked.held.len() as u64;
                assert!(self.slot(*seq).held.is_empty(), "slot {} is fetched over", seq.0);
                let (held, checkpoints) = (parked.held.into_iter().zip(cells).collect(), parked.checkpoints);
                *self.slot(*seq) = Slot { held, checkpoints, ..Slot::default() };
                self.cut(*seq, *len);
            }
            Command::Drop { place } => self.places[*place as usize] = Place::default(),
            Command::Checkpoint { seq, len } => {
                assert!(self.keeps_states, "a checkpoint of what can be cut back");
                let number = self.next_cell;
                self.next_cell += 1;
                let slot = self.slot(*seq);
                let is_there = slot.held.len() == *len as usize && !slot.spoilt;
                slot.checkpoints.retain(|held| held.0 != *len);
                slot.checkpoints.extend(is_there.then_some((*len, number)));
                assert!(self.is_shaky || is_there, "a checkpoint of what is not there");
                self.check_states();
            }
            Command::Forget { seq, len } => {
                let held = &mut self.slot(*seq).checkpoints;
                let before = held.len();
                held.retain(|held| held.0 != *len);
                let is_gone = held.len() < before;
                assert!(self.is_shaky || is_gone, "a checkpoint is forgotten that was never taken");
            }
            Command::Copy { from, to, len } => {
                assert!(from != to && self.slot(*to).prompt_len.is_none(), "a copy over a run");
                let copy = Slot { prompt_len: None, ..self.slot(*from).clone() };
                assert!(self.is_shaky || copy.held.len() >= *len as usize, "a copy of more than there is");
                *self.slot(*to) = copy;
                self.cut(*to, *len);
            }
        }
    }

    fn cut(&mut self, seq: SeqId, len: u32) {
        let (cuts_back, rolls_back) = (self.spec.cuts_back, self.spec.rolls_back);
        let slot = self.slot(seq);
        let cuts_back = cuts_back || slot.checkpoints.iter().any(|held| held.0 == len);
        slot.checkpoints.retain(|held| held.0 <= len);
        let cuts_back = cuts_back || (rolls_back && slot.prompt_len.is_some_and(|prompt_len| len >= prompt_len));
        if slot.held.len() > len as usize {
            slot.held.truncate(len as usize);
            slot.spoilt |= !cuts_back && len > 0;
            assert!(cuts_back || self.is_shaky, "a cut where none is possible");
        }
    }

    fn check_states(&self) {
        let of_places = self.places.iter().flat_map(|place| &place.checkpoints);
        let all = self.slots.iter().flat_map(|slot| &slot.checkpoints).chain(of_places);
        let checkpoints: BTreeSet<u64> = all.map(|held| held.1).collect();
        let parked = self.places.iter().filter(|place| !place.held.is_empty()).count();
        let states = if self.keeps_states { checkpoints.len() + parked } else { 0 };
        assert!(states <= self.spec.n_states as usize, "{states} running states on the host");
    }

    fn slot(&mut self, seq: SeqId) -> &mut Slot {
        &mut self.slots[seq.0 as usize]
    }
}
