//! A model of a chain of stages, for tests: it applies frames in order, and insists on all that a stage relies on.

use std::collections::VecDeque;

use mesh_engine::{Command, Frame, MicroBatch, Output, SeqId, StageSpec, StepFailure, StepId, StepResult, Want};
use mesh_types::{LayerRange, ModelId, RequestId, TokenId};

use super::Limits;

pub(super) const N_VOCAB: u32 = 1000;

/// What the model draws for `request` at `position`: never below 10.
pub(super) fn drawn(request: &RequestId, position: u32) -> TokenId {
    let seed: u32 = request.as_str().bytes().map(u32::from).sum();
    TokenId((10 + (seed * 31 + position * 7) % (N_VOCAB - 10)) as i32)
}

pub(super) struct Model {
    spec: StageSpec,
    depth: usize,
    link: VecDeque<Frame>,
    slots: Vec<Option<Slot>>,
    next_step: u64,
}

struct Slot {
    request: RequestId,
    prompt_len: u32,
    /// Positions computed.
    len: u32,
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
            n_cells: limits.n_ctx * limits.n_seq,
            cuts_back: true,
        };
        let slots = (0..limits.n_seq).map(|_| None).collect();
        Self { spec, depth: limits.depth, link: VecDeque::new(), slots, next_step: 0 }
    }

    /// A frame is sent.
    pub(super) fn send(&mut self, frame: Frame) {
        self.link.push_back(frame);
        assert!(self.under_way() <= self.depth, "more than {} micro-batches under way", self.depth);
    }

    /// Micro-batches sent and not computed.
    pub(super) fn under_way(&self) -> usize {
        self.link.iter().filter(|frame| matches!(frame, Frame::Batch(_))).count()
    }

    /// Computes the oldest micro-batch and the commands before it.
    pub(super) fn compute(&mut self) -> Option<StepResult> {
        let batch = self.next_batch()?;
        let mut outputs = Vec::new();
        let mut tokens = batch.tokens.as_slice();
        for segment in &batch.segments {
            let slot = self.slots[segment.seq.0 as usize].as_mut().expect("work for a slot that is not open");
            assert_eq!(segment.start, slot.len, "a gap in sequence {}", segment.seq.0);
            let (own, rest) = tokens.split_at(segment.len as usize);
            tokens = rest;
            for (position, token) in (segment.start..).zip(own) {
                if position >= slot.prompt_len {
                    assert_eq!(*token, drawn(&slot.request, position), "another token than was drawn");
                }
            }
            slot.len += segment.len;
            assert_eq!(segment.want == Want::Token, slot.len >= slot.prompt_len, "wants {:?}", segment.want);
            if segment.want == Want::Token {
                outputs.push(Output::token(segment.seq, slot.len, drawn(&slot.request, slot.len)));
            }
        }
        Some(StepResult { step: batch.step, outputs })
    }

    /// The same, but the micro-batch fails.
    pub(super) fn fail(&mut self) -> Option<StepFailure> {
        let batch = self.next_batch()?;
        for segment in &batch.segments {
            // Undefined from here on: whatever follows for this slot in flight is computed on rubbish.
            let slot = self.slots[segment.seq.0 as usize].as_mut().expect("work for a slot that is not open");
            slot.len = segment.start + segment.len;
        }
        Some(StepFailure { step: batch.step, reason: "told to".to_owned() })
    }

    /// All slots are closed once the commands sent are applied.
    pub(super) fn is_empty(&mut self) -> bool {
        while let Some(Frame::Command(command)) = self.link.front().cloned() {
            self.link.pop_front();
            self.apply(&command);
        }
        self.link.is_empty() && self.slots.iter().all(Option::is_none)
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
                assert!(slot.is_none(), "slot {} opened twice", open.seq.0);
                *slot = Some(Slot { request: open.request.clone(), prompt_len: open.prompt_len, len: 0 });
            }
            Command::Close { seq } => {
                assert!(self.slot(*seq).take().is_some(), "slot {} closed twice", seq.0);
            }
            other => panic!("{other:?} is not used"),
        }
    }

    fn slot(&mut self, seq: SeqId) -> &mut Option<Slot> {
        &mut self.slots[seq.0 as usize]
    }
}
