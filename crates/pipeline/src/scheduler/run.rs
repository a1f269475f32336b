//! One run, as the scheduler sees it.

use std::collections::VecDeque;

use mesh_engine::{Open, SeqId};
use mesh_types::{FinishReason, GenerateSpec, Logprobs, Sampling, TokenId, Usage};

use super::drafting::Drafting;
use crate::guesses::Guesses;
use crate::lookup::Lookup;

#[derive(Debug)]
pub(super) struct Run {
    pub(super) spec: GenerateSpec,
    /// Its KV slot; `None` while it is queued.
    pub(super) seq: Option<SeqId>,
    pub(super) phase: Phase,
    /// Its client takes its time.
    pub(super) held: bool,
    /// The token behind the one that is being drawn is under way as well.
    pub(super) ahead: bool,
    /// Prompt tokens that were there already.
    pub(super) cached: u32,
    /// The place on the host that its prefix came from.
    pub(super) fetched: Option<SeqId>,
    /// Where checkpoints of its prompt are still to be taken, in order.
    pub(super) checkpoints: VecDeque<u32>,
    /// Its next micro-batch is for it alone.
    pub(super) alone: bool,
    /// Whether it was begun again, without a prefix: what it found did not hold.
    pub(super) afresh: bool,
    pub(super) generated: u32,
    /// How likely the prompt's tokens were, as far as that came home; `None` where it is not asked for, or was told.
    pub(super) scores: Option<Vec<Logprobs>>,
    /// What may come next; `None` where nothing is drafted.
    pub(super) lookup: Option<Lookup>,
    /// What the second model says of that.
    pub(super) guesses: Guesses,
    /// Whether the second model was asked for it before.
    pub(super) is_known_to_drafter: bool,
    /// What the second model does for it.
    pub(super) drafting: Drafting,
    /// Drafts that came true.
    pub(super) accepted: u32,
    /// Drafts that did not.
    pub(super) rejected: u32,
}

/// What is to be computed next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Nothing: it has no slot.
    Queued,
    /// Nothing: a prefix of the prompt is being computed on another slot, and is copied as soon as it is sent.
    Following {
        /// The other slot.
        from: SeqId,
        /// Tokens of the prefix.
        len: u32,
    },
    /// The prompt from this token on.
    Prefill {
        /// Prompt tokens that are computed or under way.
        sent: u32,
    },
    /// Nothing: a token is being drawn.
    Drawing,
    /// This token, drawn last.
    Ready(TokenId),
}

impl Run {
    pub(super) fn new(spec: GenerateSpec, drafts: bool) -> Self {
        Self {
            // How many ride depends on what steps took, and the size of a batch on that.
            lookup: (drafts && !spec.repeatable).then(|| Lookup::new(&spec.prompt)),
            scores: spec.score_prompt.then(Vec::new),
            guesses: Guesses::default(),
            is_known_to_drafter: false,
            drafting: Drafting::Unread,
            accepted: 0,
            rejected: 0,
            spec,
            seq: None,
            phase: Phase::Queued,
            held: false,
            ahead: false,
            cached: 0,
            fetched: None,
            checkpoints: VecDeque::new(),
            alone: false,
            afresh: false,
            generated: 0,
        }
    }

    /// Below the context's size: see `Scheduler::submit`.
    pub(super) fn prompt_len(&self) -> u32 {
        self.spec.prompt.len() as u32
    }

    /// Prompt tokens that are computed. Where nothing is drawn, the last one is of no use.
    pub(super) fn computed_len(&self) -> u32 {
        self.prompt_len() - u32::from(self.spec.max_tokens == 0)
    }

    /// Whether it begins on an empty cache if it runs alone, so that its rows lie where they lie each time.
    pub(super) fn wants_empty_cache(&self) -> bool {
        self.spec.repeatable && self.spec.reuse != Some(true)
    }

    /// Whether no prefix may be taken over: what is scored has to be computed.
    pub(super) fn computes_all(&self) -> bool {
        self.afresh || self.spec.score_prompt || self.spec.reuse == Some(false)
    }

    /// What the stages are told of it.
    pub(super) fn open(&self, seq: SeqId) -> Open {
        let spec = &self.spec;
        let look_back = spec.sampling.repeat_last_n.min(Sampling::MAX_LAST_N) as usize;
        Open {
            max_tokens: spec.max_tokens,
            logit_bias: spec.logit_bias.clone(),
            logprobs: spec.logprobs,
            constraint: spec.constraint.clone(),
            stop_tokens: spec.stop_tokens.clone(),
            prompt_tail: spec.prompt[spec.prompt.len().saturating_sub(look_back)..].to_vec(),
            ..Open::new(seq, spec.request.clone(), self.prompt_len(), spec.sampling)
        }
    }

    /// Most positions that it may come to hold.
    pub(super) fn need(&self, n_ctx: u32) -> u32 {
        self.prompt_len().saturating_add(self.spec.max_tokens).min(n_ctx)
    }

    /// Whether a failure of its step may come from the prefix that it found.
    pub(super) fn may_begin_again(&self) -> bool {
        self.cached > 0 && self.generated == 0 && !self.afresh
    }

    /// Puts it back to where nothing was computed.
    pub(super) fn begin_again(&mut self) {
        (self.seq, self.phase, self.cached, self.alone, self.afresh) = (None, Phase::Queued, 0, false, true);
    }

    /// Position of the token drawn last.
    pub(super) fn last_position(&self) -> u32 {
        (self.prompt_len() + self.generated).saturating_sub(1)
    }

    /// Takes a drawn token; gives its position.
    pub(super) fn draw(&mut self, token: TokenId) -> u32 {
        self.generated += 1;
        self.lookup.iter_mut().for_each(|lookup| lookup.push(token));
        self.guesses.push(token);
        self.phase = Phase::Ready(token);
        self.last_position()
    }

    /// Whether the run is over with `token`, drawn last.
    pub(super) fn end_after(&self, token: TokenId, n_ctx: u32) -> Option<FinishReason> {
        if self.spec.stop_tokens.contains(&token) {
            return Some(FinishReason::Stop);
        }
        let is_full = self.last_position() + 1 >= n_ctx;
        (is_full || self.generated >= self.spec.max_tokens).then_some(FinishReason::Length)
    }

    pub(super) fn usage(&self) -> Usage {
        Usage {
            prompt_tokens: self.prompt_len(),
            completion_tokens: self.generated,
            cached_tokens: self.cached,
            accepted_tokens: self.accepted,
            rejected_tokens: self.rejected,
            ..Usage::default()
        }
    }
}
