//! Drafts of a second model for one run: what it expects to come next, and how far it is to be believed.
//!
//! Each expectation comes with the likelihood that the second model gives it. What that is worth is learnt by holding it
//! against what the first model draws: two models that agree on the obvious may not agree on anything else.
//!
//! Owns: expectations and their record. Does not own: when the second model is asked, and how many of its tokens are worth
//! their computation (`scheduler/speculate.rs`). Start with [`Guesses::add`].

use std::collections::VecDeque;

use mesh_types::TokenId;

use crate::record::Record;

/// Kinds of expectation: of at least this likelihood, with what is taken to be known of them at first, how many came true
/// of how many.
const KINDS: [(f64, (f64, f64)); 4] = [(0.0, (0.5, 2.0)), (0.4, (1.0, 2.0)), (0.7, (1.5, 2.0)), (0.9, (2.8, 3.0))];
/// The same of any expectation.
const ANY: (f64, f64) = (2.4, 4.0);
/// Weight of what was known, at each token for which nothing was expected: after some hundreds the second model is tried
/// again.
const FADING: f64 = 0.995;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Guesses {
    /// What is expected behind the text, in order: tokens and their kinds.
    ahead: VecDeque<(TokenId, usize)>,
    records: [Record; KINDS.len()],
    all: Record,
    /// They are computed in any case.
    on_trial: bool,
}

impl Guesses {
    /// Behind all that is expected, `token` is; the second model gives it this likelihood, 0 to 1.
    pub(crate) fn add(&mut self, token: TokenId, likelihood: f64) {
        let kind = KINDS.iter().rposition(|(from, _)| likelihood >= *from).unwrap_or(0);
        self.ahead.push_back((token, kind));
    }

    /// What is added until the next token comes is to be tried, for nothing is known of it.
    pub(crate) fn try_out(&mut self) {
        self.on_trial = true;
    }

    /// Whether what is expected is to be tried.
    pub(crate) fn on_trial(&self) -> bool {
        self.on_trial
    }

    /// The next token of the text came.
    pub(crate) fn push(&mut self, token: TokenId) {
        self.on_trial = false;
        match self.ahead.pop_front() {
            Some((expected, kind)) => {
                let came_true = expected == token;
                self.records[kind].note(came_true);
                self.all.note(came_true);
                if !came_true {
                    self.ahead.clear();
                }
            }
            None => self.all.fade(FADING),
        }
    }

    /// Whether nothing is expected.
    pub(crate) fn is_empty(&self) -> bool {
        self.ahead.is_empty()
    }

    /// How likely the token is to come that is expected behind `index` others, given that those do; `None`: there is none.
    pub(crate) fn trust(&self, index: usize) -> Option<f64> {
        let (_, kind) = self.ahead.get(index)?;
        Some(self.records[*kind].share(KINDS[*kind].1))
    }

    /// How likely a token is to come that the second model would expect, were it asked now.
    pub(crate) fn promise(&self) -> f64 {
        self.all.share(ANY)
    }

    /// The first `count` expected tokens, or as many as there are.
    pub(crate) fn drafts(&self, count: usize) -> Vec<TokenId> {
        self.ahead.iter().take(count).map(|(token, _)| *token).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_come_true_takes_the_rest_with_it() {
        let mut guesses = Guesses::default();
        [5, 6, 7].into_iter().for_each(|token| guesses.add(TokenId(token), 0.95));
        assert_eq!(guesses.drafts(2), [TokenId(5), TokenId(6)]);
        guesses.push(TokenId(5));
        assert_eq!(guesses.drafts(9), [TokenId(6), TokenId(7)]);
        guesses.push(TokenId(1));
        assert!(guesses.is_empty() && guesses.trust(0).is_none());
    }

    #[test]
    fn each_kind_is_believed_as_far_as_it_came_true() {
        let mut guesses = Guesses::default();
        for i in 0..100 {
            guesses.add(TokenId(1), 0.5);
            guesses.push(TokenId(i % 4 / 3)); // one of four
            guesses.add(TokenId(1), 0.99);
            guesses.push(TokenId(1));
        }
        guesses.add(TokenId(1), 0.5);
        guesses.add(TokenId(1), 0.99);
        let [unsure, sure] = [0, 1].map(|index| guesses.trust(index).unwrap_or_default());
        assert!((0.1..0.4).contains(&unsure) && sure > 0.95, "{unsure} {sure}");
        assert!((0.5..0.75).contains(&guesses.promise()), "{}", guesses.promise());
    }

    #[test]
    fn who_was_wrong_long_ago_is_asked_again() {
        let mut guesses = Guesses::default();
        let first = guesses.promise();
        for _ in 0..50 {
            guesses.add(TokenId(1), 0.9);
            guesses.push(TokenId(2));
        }
        assert!(guesses.promise() < 0.2);
        (0..1000).for_each(|_| guesses.push(TokenId(2)));
        assert!(guesses.promise() > 0.9 * first, "{} {first}", guesses.promise());
    }
}
