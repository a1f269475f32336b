//! A short way to the end of a grammar's text.
//!
//! llguidance says what can follow, not how far the end is. So the way is searched for: within a lexeme breadth first
//! over the states of the lexer, which are few; from lexeme to lexeme depth first, what closes before what opens, and
//! with the best way found so far as a bound. What is found is a proof, whatever the order of the search was: these bytes
//! complete the text. It need not be the shortest way, but for JSON it nearly always is.
//!
//! Start with [`shortest`].

use std::collections::HashSet;

use llguidance::derivre::{NextByte, StateID};
use llguidance::earley::ParserRecognizer;
use llguidance::toktrie::Recognizer;

use super::EnforceError;
use super::grammar::Grammar;

/// Longest way that is searched for, in bytes.
const MAX_LEN: usize = 16 << 10;
/// Lexemes entered until a first way is found, and further ones in search of a shorter one.
const LEXEMES: u32 = 8_000;
const MORE_LEXEMES: u32 = 16;
/// Lexer states looked at within one lexeme.
const MAX_STATES: usize = 4_000;
/// Bytes tried within one lexeme once a way out of it is known.
const MORE_BYTES: usize = 600;
/// Ways out of a lexeme that are tried.
const MAX_WAYS: usize = 8;

/// Bytes that complete the text of `grammar`; few of them. `None` where no way was found.
///
/// # Errors
/// [`EnforceError::Grammar`]: the grammar is too complex. Otherwise `grammar` is as before.
pub(super) fn shortest(grammar: &mut Grammar) -> Result<Option<Vec<u8>>, EnforceError> {
    if grammar.may_end()? {
        return Ok(Some(Vec::new()));
    }
    if grammar.can_go_back() {
        return Search::new(grammar).run();
    }
    Search::new(&mut grammar.clone()).run()
}

struct Search<'a> {
    grammar: &'a mut Grammar,
    /// From where the search began.
    path: Vec<u8>,
    best: Option<Vec<u8>>,
    lexemes: u32,
}

/// A place where the search has to choose.
struct Fork {
    /// The path's length there.
    at: usize,
    /// What is still to be tried, the last first.
    ways: Vec<Vec<u8>>,
}

impl<'a> Search<'a> {
    fn new(grammar: &'a mut Grammar) -> Self {
        Self { grammar, path: Vec::new(), best: None, lexemes: LEXEMES }
    }

    fn run(mut self) -> Result<Option<Vec<u8>>, EnforceError> {
        let mut forks = vec![Fork { at: 0, ways: self.ways()? }];
        while let Some(fork) = forks.last_mut() {
            let at = fork.at;
            let way = fork.ways.pop().filter(|_| self.lexemes > 0);
            self.grammar.pop(self.path.len() - at)?;
            self.path.truncate(at);
            let Some(way) = way else {
                forks.pop();
                continue;
            };
            if at + way.len() >= self.limit() || !self.grammar.push(&way)? {
                continue;
            }
            self.lexemes -= 1;
            self.path.extend(way);
            if self.grammar.may_end()? {
                self.lexemes = self.lexemes.min(MORE_LEXEMES);
                self.best = Some(self.path.clone());
            } else {
                let (at, ways) = (self.path.len(), self.ways()?);
                forks.push(Fork { at, ways });
            }
        }
        Ok(self.best)
    }

    /// Only shorter ways are of interest.
    fn limit(&self) -> usize {
        self.best.as_ref().map_or(MAX_LEN, Vec::len)
    }

    /// Ways out of the lexeme that the text is in, the best last.
    fn ways(&mut self) -> Result<Vec<Vec<u8>>, EnforceError> {
        let room = self.limit().saturating_sub(self.path.len() + 1);
        let mut ways = self.grammar.explore(|recognizer| {
            recognizer.trie_started("closing");
            let ways = Walk { recognizer, depth: 0 }.ways(room);
            recognizer.trie_finished();
            ways
        })?;
        // A lexeme may be the last one, and end wherever the lexer says so.
        let looked_at = if ways.out.is_empty() { MAX_STATES } else { MAX_WAYS };
        for way in std::mem::take(&mut ways.inner).into_iter().skip(1).take(looked_at) {
            if self.grammar.ends_behind(&way)? {
                ways.out.push(way);
                break;
            }
        }
        let mut all = ways.out;
        all.sort_by_key(|way| std::cmp::Reverse(cost(way)));
        all.drain(..all.len().saturating_sub(MAX_WAYS));
        Ok(all)
    }
}

/// What a way costs: its bytes, and what its last one entails.
fn cost(way: &[u8]) -> usize {
    let entails = match way.last() {
        Some(b'"' | b'}' | b']' | b'>' | b')') => 0,
        Some(b',') => 3,
        Some(b'{' | b'[') => 5,
        Some(byte) if byte.is_ascii_whitespace() => 4,
        _ => 1,
    };
    way.len() * 2 + entails
}

/// Ways within one lexeme.
#[derive(Default)]
struct Ways {
    /// Those whose last byte ends the lexeme, or begins the next one.
    out: Vec<Vec<u8>>,
    /// Those that stay within it: one for every state of the lexer, the shortest first.
    inner: Vec<Vec<u8>>,
}

/// A walk over bytes, from where a grammar's text is.
struct Walk<'r, 'p> {
    recognizer: &'r mut ParserRecognizer<'p>,
    depth: usize,
}

impl Walk<'_, '_> {
    fn ways(mut self, room: usize) -> Ways {
        let mut seen: HashSet<StateID> = HashSet::from([self.recognizer.lexer_state()]);
        let mut ways = Ways { out: Vec::new(), inner: vec![Vec::new()] };
        let (mut next, mut more) = (0, MORE_BYTES);
        while next < ways.inner.len() && ways.inner.len() < MAX_STATES {
            let from = ways.inner[next].clone();
            next += 1;
            // Ways are found in order of their length: those much longer than the first ones are not needed.
            if from.len() >= room || more == 0 || ways.out.len() >= 2 * MAX_WAYS {
                break;
            }
            self.go_to(&from);
            for candidates in self.candidates() {
                let mut possible = false;
                for byte in candidates {
                    more = if ways.out.is_empty() { MORE_BYTES } else { more.saturating_sub(1) };
                    let rows = self.rows();
                    if !self.recognizer.try_push_byte(byte) {
                        continue;
                    }
                    possible = true;
                    let way = [from.as_slice(), &[byte]].concat();
                    if self.rows() != rows {
                        ways.out.push(way);
                    } else if seen.insert(self.recognizer.lexer_state()) {
                        ways.inner.push(way);
                    }
                    self.recognizer.pop_bytes(1);
                }
                if possible {
                    break;
                }
            }
        }
        self.go_to(&[]);
        ways
    }

    fn go_to(&mut self, way: &[u8]) {
        self.recognizer.pop_bytes(self.depth);
        self.depth = way.iter().take_while(|byte| self.recognizer.try_push_byte(**byte)).count();
    }

    /// Bytes that may follow: what is written in plain letters, what closes first; and where nothing of that is possible,
    /// all else.
    fn candidates(&mut self) -> Vec<Vec<u8>> {
        let state = self.recognizer.lexer_state();
        match self.recognizer.lexer_mut().next_byte(state) {
            NextByte::ForcedByte(byte) => vec![vec![byte]],
            NextByte::Dead => Vec::new(),
            _ => {
                let first = *b"\"}]>)0";
                let is_plain = |byte: &u8| byte.is_ascii_graphic() || matches!(byte, b' ' | b'\n');
                let rest = (0..255u8).filter(|byte| !first.contains(byte));
                let (plain, other): (Vec<u8>, Vec<u8>) = rest.partition(is_plain);
                vec![first.into_iter().chain(plain).collect(), other]
            }
        }
    }

    /// Changes whenever a lexeme ends.
    fn rows(&mut self) -> usize {
        let stats = self.recognizer.stats_mut();
        stats.rows + stats.cached_rows
    }
}
