//! Micro-batches in which a token is the one that was drawn before: [`DRAWN`].

use mesh_types::TokenId;

use crate::frame::{DRAWN, DrawFailure, MicroBatch, Output, SeqId};

/// Segments behind which nothing goes on.
#[derive(Debug, Default)]
pub(crate) struct Over {
    /// All sequences of the micro-batch, in order; empty where none is over.
    order: Vec<SeqId>,
    outputs: Vec<Output>,
}

/// Puts what was `drawn` for a sequence's position where it is to stand. Segments for which it gives nothing are taken
/// out; there may be none left.
pub(crate) fn fill_in(batch: &mut MicroBatch, drawn: impl Fn(SeqId, u32) -> Option<TokenId>) -> Over {
    if !batch.tokens.contains(&DRAWN) {
        return Over::default();
    }
    let order = batch.segments.iter().map(|segment| segment.seq).collect();
    let mut over = Over { order, outputs: Vec::new() };
    let (mut segments, mut tokens) = (Vec::with_capacity(batch.segments.len()), Vec::with_capacity(batch.tokens.len()));
    for (segment, own) in batch.parts() {
        if !segment.is_drawn(own) {
            tokens.extend_from_slice(own);
        } else if let Some(token) = drawn(segment.seq, segment.start) {
            tokens.push(token);
        } else {
            let position = segment.start + segment.len;
            let failure = Some(DrawFailure::Over);
            over.outputs.push(Output {
                seq: segment.seq,
                position,
                token: None,
                logprobs: None,
                logits: None,
                failure,
            });
            continue;
        }
        segments.push(*segment);
    }
    (batch.segments, batch.tokens) = (segments, tokens);
    over
}

impl Over {
    /// The answer to the whole micro-batch, where `outputs` is that to what was left of it.
    pub(crate) fn among(self, mut outputs: Vec<Output>) -> Vec<Output> {
        if !self.outputs.is_empty() {
            outputs.extend(self.outputs);
            outputs.sort_by_key(|output| self.order.iter().position(|seq| *seq == output.seq));
        }
        outputs
    }
}
