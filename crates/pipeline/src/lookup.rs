//! Drafts from a run's own text: what followed the last time that its latest tokens were there.
//!
//! Answers repeat what was said before: code that is edited, names, quotes, lists. Where the last [`GRAM`] tokens stood
//! earlier in prompt or answer, what followed them there is expected to follow again. Every token that comes is held
//! against what was expected, whether it was sent as a draft or not, so that how far to trust the expectation is known
//! at no cost. It is known by how much the two places have in common: in the middle of a copy hardly anything else comes,
//! behind three tokens that were there before much does. An edit exchanges words within a copy: behind one, the copy is
//! expected to go on.
//!
//! Owns: the text and its index. Does not own: how many drafts are worth their computation (`scheduler/speculate.rs`).
//! Start with [`Lookup::drafts`].

use std::collections::HashMap;

use mesh_types::TokenId;

use crate::record::Record;

/// Tokens that have to stand before a place for it to be found.
const GRAM: usize = 3;
/// Earlier places that are compared; the one with the longest text in common is followed.
const PLACES: usize = 8;
/// Tokens that are compared before each.
const CONTEXT: usize = 32;
const NOWHERE: u32 = u32::MAX;
/// A copy that was as long as this, in tokens, is expected to go on behind a token that was exchanged.
const COPY: usize = 6;
/// Kinds of expectation: behind so many tokens in common or more, with what is taken to be known of them at first, how many
/// came true of how many.
const KINDS: [(usize, (f64, f64)); 4] = [(0, (0.7, 1.5)), (GRAM, (0.5, 1.5)), (COPY, (1.5, 2.5)), (12, (3.0, 3.5))];

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Lookup {
    tokens: Vec<TokenId>,
    /// For the tokens of a gram: where the text goes on behind them, the latest place.
    latest: HashMap<[TokenId; GRAM], u32>,
    /// For every place: an earlier one behind the same gram.
    before: Vec<u32>,
    /// Where the next token is expected to be found.
    source: Option<usize>,
    /// Tokens in common before it; less than a gram behind one that was exchanged.
    common: usize,
    records: [Record; KINDS.len()],
}

impl Lookup {
    /// Of a prompt.
    pub(crate) fn new(prompt: &[TokenId]) -> Self {
        let mut lookup = Self {
            tokens: Vec::with_capacity(prompt.len()),
            latest: HashMap::new(),
            before: vec![NOWHERE],
            source: None,
            common: 0,
            records: Default::default(),
        };
        prompt.iter().for_each(|token| lookup.enter(*token));
        lookup.find();
        lookup
    }

    /// The next token came.
    pub(crate) fn push(&mut self, token: TokenId) {
        let (source, common) = (self.source, self.common);
        let held = source.map(|source| self.tokens[source] == token);
        if let Some(held) = held {
            self.records[kind(common)].note(held);
        }
        self.enter(token);
        if held == Some(true) {
            (self.source, self.common) = (source.map(|source| source + 1), common + 1);
            return;
        }
        self.find();
        if self.source.is_none() && common >= COPY {
            self.source = source.map(|source| source + 1);
        }
    }

    /// At most `count` tokens that are expected to come next; none where nothing is.
    pub(crate) fn drafts(&self, count: usize) -> Vec<TokenId> {
        let Some(source) = self.source else { return Vec::new() };
        let mut drafts: Vec<TokenId> = Vec::with_capacity(count);
        for place in (source..).take(count) {
            // Behind the end of the text come the drafts themselves: a text that repeats itself goes on doing so.
            let token = self.tokens.get(place).or_else(|| drafts.get(place - self.tokens.len()));
            let Some(token) = token.copied() else { break };
            drafts.push(token);
        }
        drafts
    }

    /// How likely the token is to come that is expected behind `ahead` others, given that those do.
    pub(crate) fn trust(&self, ahead: usize) -> f64 {
        let kind = kind(self.common + ahead);
        self.records[kind].share(KINDS[kind].1)
    }

    /// Whether anything is expected.
    pub(crate) fn expects(&self) -> bool {
        self.source.is_some()
    }

    /// The whole text so far.
    pub(crate) fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    fn enter(&mut self, token: TokenId) {
        self.tokens.push(token);
        let place = u32::try_from(self.tokens.len()).unwrap_or(NOWHERE);
        let before = self.gram().and_then(|gram| self.latest.insert(gram, place));
        self.before.push(before.unwrap_or(NOWHERE));
    }

    fn gram(&self) -> Option<[TokenId; GRAM]> {
        self.tokens.last_chunk().copied()
    }

    /// Expects what follows the earlier place with the longest text in common with the end; of equals the latest.
    fn find(&mut self) {
        let places = std::iter::successors(self.earlier(self.tokens.len()), |place| self.earlier(*place));
        let mut best = None;
        for place in places.take(PLACES) {
            let common = self.common(place);
            if best.is_none_or(|(longest, _)| common > longest) {
                best = Some((common, place));
            }
        }
        self.common = best.map_or(0, |(common, _)| common);
        self.source = best.map(|(_, place)| place);
    }

    fn earlier(&self, place: usize) -> Option<usize> {
        self.before.get(place).filter(|earlier| **earlier != NOWHERE).map(|earlier| *earlier as usize)
    }

    /// How many tokens before `place` are those before the end.
    fn common(&self, place: usize) -> usize {
        let (there, here) = (self.tokens[..place].iter().rev(), self.tokens.iter().rev());
        there.zip(here).take(CONTEXT).take_while(|(there, here)| there == here).count()
    }
}

/// The kind of an expectation behind so many tokens in common.
fn kind(common: usize) -> usize {
    KINDS.iter().rposition(|(from, ..)| common >= *from).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(ids: &[i32]) -> Vec<TokenId> {
        ids.iter().copied().map(TokenId).collect()
    }

    fn drafts(prompt: &[i32], count: usize) -> Vec<i32> {
        Lookup::new(&tokens(prompt)).drafts(count).into_iter().map(|token| token.0).collect()
    }

    #[test]
    fn what_followed_before_is_expected_again() {
        assert_eq!(drafts(&[1, 2, 3, 4, 5, 9, 1, 2, 3], 3), [4, 5, 9]);
        assert_eq!(drafts(&[1, 2, 3, 4, 9, 2, 3], 3), [0; 0], "two tokens are too few to go by");
        assert_eq!(drafts(&[], 3), [0; 0]);
        assert_eq!(drafts(&[1, 2, 3, 4, 1, 2, 3], 0), [0; 0]);
    }

    #[test]
    fn of_several_places_the_one_with_most_in_common_counts() {
        // Behind 7 1 2 3 came 4; behind 8 1 2 3, later, came 5.
        assert_eq!(drafts(&[7, 1, 2, 3, 4, 8, 1, 2, 3, 5, 7, 1, 2, 3], 1), [4]);
        assert_eq!(drafts(&[7, 1, 2, 3, 4, 8, 1, 2, 3, 5, 6, 1, 2, 3], 1), [5], "of equals the latest");
    }

    #[test]
    fn a_text_that_repeats_itself_goes_on() {
        assert_eq!(drafts(&[1, 2, 1, 2, 1, 2], 5), [1, 2, 1, 2, 1]);
        assert_eq!(drafts(&[3, 3, 3, 3], 3), [3, 3, 3]);
    }

    #[test]
    fn a_source_is_followed_until_it_fails() {
        let mut lookup = Lookup::new(&tokens(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3]));
        lookup.push(TokenId(4));
        assert_eq!(lookup.drafts(2), tokens(&[5, 6]));
        lookup.push(TokenId(0));
        assert_eq!(lookup.drafts(2), []);
        [1, 2, 3].into_iter().for_each(|token| lookup.push(TokenId(token)));
        assert_eq!(lookup.drafts(2), tokens(&[4, 0]), "the latest of two places that are alike");
    }

    #[test]
    fn a_copy_goes_on_behind_a_token_that_was_exchanged() {
        let line: Vec<i32> = (1..20).collect();
        let mut lookup = Lookup::new(&tokens(&[&line[..], &[1, 2, 3]].concat()));
        (4..9).for_each(|token| lookup.push(TokenId(token)));
        lookup.push(TokenId(90)); // for 9
        assert_eq!(lookup.drafts(2), tokens(&[10, 11]));
        lookup.push(TokenId(10));
        assert_eq!(lookup.drafts(2), tokens(&[11, 12]));
        lookup.push(TokenId(91)); // for 11, too soon to be one word of a copy
        assert_eq!(lookup.drafts(2), []);
        let mut lookup = Lookup::new(&tokens(&[&line[..], &[1, 2, 3]].concat()));
        lookup.push(TokenId(90)); // for 4, and nothing was copied yet
        assert_eq!(lookup.drafts(2), []);
    }

    #[test]
    fn trust_follows_what_comes_true() {
        let mut lookup = Lookup::new(&tokens(&[1, 2, 3, 4, 1, 2, 3, 4]));
        let first = lookup.trust(0);
        (0..40).for_each(|i| lookup.push(TokenId(1 + i % 4)));
        assert!(first < 0.5 && lookup.trust(0) > 0.9, "{first} {}", lookup.trust(0));
        for i in 0..200 {
            // Beginnings that were there, and always another end.
            [1, 2, 3].into_iter().for_each(|token| lookup.push(TokenId(token)));
            if i == 199 {
                assert!(lookup.trust(0) < 0.2, "{}", lookup.trust(0));
            }
            lookup.push(TokenId(100 + i));
        }
    }

    #[test]
    fn the_middle_of_a_copy_is_trusted_more_than_its_beginning() {
        let line: Vec<i32> = (1..40).collect();
        let mut lookup = Lookup::new(&tokens(&[&line[..], &[1, 2, 3]].concat()));
        let (near, far) = (lookup.trust(0), lookup.trust(20));
        assert!(near < 0.5 && far > 0.8, "{near} {far}");
        // Of eight expectations that far into the copy one fails, always the last.
        for i in 0..50 {
            (4..20).chain([100 + i]).chain(1..4).for_each(|token| lookup.push(TokenId(token)));
        }
        assert!((0.8..0.93).contains(&lookup.trust(20)), "{}", lookup.trust(20));
    }
}
