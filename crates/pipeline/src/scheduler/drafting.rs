//! A second model that drafts: which runs it is asked for, how far, and what its answers change.
//!
//! It is asked when a run's next token is drawn, and the run waits for it: so it is asked only where what it promises is
//! worth its time, and goes on only as long as the next token is (`scheduler/speculate.rs`). It reads a run's prompt when
//! the first token is there, beside the run, which goes on without it until then.

use mesh_types::TokenId;

use super::run::{Phase, Run};
use super::{RunId, Scheduler};

/// Prompts of fewer tokens than this are read with the first question.
const READ_AHEAD: u32 = 32;
/// Tokens that are asked for while it is not known what they take.
const FIRST: u32 = 4;

/// What the second model is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DraftRequest {
    /// For whom. A question replaces the one before.
    pub run: RunId,
    /// The text so far.
    pub tokens: Vec<TokenId>,
    /// Most tokens that are wanted behind it.
    pub most: u32,
    /// Whether nothing was asked for this run before.
    pub is_new: bool,
    /// Whether the run waits for the answer.
    pub is_waited_for: bool,
}

/// What the second model takes, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DraftCost {
    /// From a question to its first token.
    pub first: f64,
    /// For each token behind that.
    pub next: f64,
}

/// What the second model does for a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Drafting {
    /// It does not know the prompt.
    Unread,
    /// It reads what there is; the run goes on.
    Reading,
    /// It can be asked.
    Idle,
    /// It was asked, and the run waits.
    Asked,
    /// It cannot follow this run.
    Never,
}

impl Scheduler {
    /// From now on there is a second model, which is asked by [`Self::next_draft_request`].
    pub fn with_draft_model(mut self) -> Self {
        self.has_draft_model = true;
        self
    }

    /// What the second model takes.
    pub fn set_draft_cost(&mut self, cost: DraftCost) {
        self.draft_cost = Some(cost);
    }

    /// The next question to the second model. Each is answered by any number of [`Self::draft`], and then by
    /// [`Self::drafted`] or [`Self::not_drafted`]; unless [`Self::is_asked`] does not hold any more.
    pub fn next_draft_request(&mut self) -> Option<DraftRequest> {
        let run = self.draft_requests.pop_front()?;
        let state = self.runs.get_mut(&run)?;
        let is_new = !std::mem::replace(&mut state.is_known_to_drafter, true);
        if state.drafting == Drafting::Asked && self.draft_cost.is_none() {
            state.guesses.try_out();
        }
        let state = self.runs.get(&run)?;
        let tokens = state.lookup.as_ref().map(|lookup| lookup.tokens().to_vec()).unwrap_or_default();
        let most = match state.drafting {
            Drafting::Asked => self.most_drafts(state).min(self.draft_cost.map_or(FIRST, |_| u32::MAX)),
            _ => 1,
        };
        Some(DraftRequest { run, tokens, most, is_new, is_waited_for: state.drafting == Drafting::Asked })
    }

    /// Whether the second model is at work for `run`.
    pub fn is_asked(&self, run: RunId) -> bool {
        self.runs.get(&run).is_some_and(|state| matches!(state.drafting, Drafting::Asked | Drafting::Reading))
    }

    /// The second model expects `token` next, with this likelihood (0 to 1). Whether it is to go on.
    pub fn draft(&mut self, run: RunId, token: TokenId, likelihood: f64) -> bool {
        let is_token = self.is_token(token);
        let Some(state) = self.runs.get_mut(&run) else { return false };
        if state.drafting != Drafting::Asked || !is_token {
            return false;
        }
        state.guesses.add(token, likelihood);
        self.runs.get(&run).is_some_and(|state| self.is_worth_going_on(state))
    }

    /// The second model is done with `run`.
    pub fn drafted(&mut self, run: RunId) {
        self.end_drafting(run, Drafting::Idle);
    }

    /// The second model cannot follow `run`, and is not asked again.
    pub fn not_drafted(&mut self, run: RunId) {
        self.end_drafting(run, Drafting::Never);
    }

    fn end_drafting(&mut self, run: RunId, then: Drafting) {
        let Some(state) = self.runs.get_mut(&run) else { return };
        let waited = state.drafting == Drafting::Asked;
        if matches!(state.drafting, Drafting::Asked | Drafting::Reading) {
            state.drafting = then;
        }
        if waited && !state.held && matches!(state.phase, Phase::Ready(_)) {
            self.ready.push_back(run);
        }
    }

    /// The run, whose next token is drawn and which nobody holds back, goes on, or the second model is asked first.
    pub(super) fn go_on(&mut self, run: RunId) {
        let Some(state) = self.runs.get(&run) else { return };
        let asks = self.has_draft_model && state.lookup.is_some();
        let drafting = match state.drafting {
            Drafting::Unread if asks && state.prompt_len() >= READ_AHEAD => Drafting::Reading,
            Drafting::Unread | Drafting::Idle if asks && self.is_worth_asking(state) => Drafting::Asked,
            now => now,
        };
        let is_asked = drafting != state.drafting;
        if let Some(state) = self.runs.get_mut(&run) {
            state.drafting = drafting;
        }
        if is_asked {
            self.draft_requests.push_back(run);
        }
        if !(is_asked && drafting == Drafting::Asked) {
            self.ready.push_back(run);
        }
    }

    /// Most drafts that may ride with the run's next token.
    pub(super) fn most_drafts(&self, run: &Run) -> u32 {
        // Each draft may come true, and is followed by one token that is drawn.
        let left = run.spec.max_tokens.saturating_sub(run.generated + 1);
        let places = self.limits.n_ctx.saturating_sub(run.last_position() + 2);
        super::speculate::LONGEST.min(left).min(places)
    }
}
