//! What does not change while a run goes on.

use std::sync::Arc;

use aho_corasick::AhoCorasick;
use mesh_types::{After, Constraint, ConstraintError, Start, Thinking, TokenId};

use super::{MAX_GAP, Phase, Text};
use crate::constraint::EnforceError;
use crate::constraint::closing::shortest;
use crate::constraint::grammar::{Compiler, Grammar};
use crate::constraint::lexicon::{Lexicon, Piece};

/// What does not change while a run goes on.
pub(in crate::constraint) struct Plan {
    pub(super) lexicon: Arc<Lexicon>,
    pub(super) compiler: Arc<Compiler>,
    pub(super) thinking: Option<Thinking>,
    pub(super) immediately: bool,
    /// What of a marker or of a forbidden text stands at the prompt's end.
    pub(super) begun: Vec<u8>,
    pub(super) after: After,
    /// Markers, then forbidden texts.
    pub(super) prose: Option<AhoCorasick>,
    pub(super) n_markers: usize,
    pub(super) forbidden: Option<AhoCorasick>,
    /// Longest of these texts.
    pub(super) longest: usize,
    /// Tokens that the run may generate.
    pub(super) budget: u32,
    pub(super) close_in_time: bool,
    /// By how many tokens the way to the end may grow at once.
    pub(super) margin: u32,
}

impl Plan {
    pub(in crate::constraint) fn new(
        constraint: &Constraint,
        lexicon: &Arc<Lexicon>,
        compiler: &Arc<Compiler>,
        budget: u32,
    ) -> Result<Arc<Self>, ConstraintError> {
        let search = |texts: Vec<&String>| match texts.is_empty() {
            true => Ok(None),
            false => AhoCorasick::new(texts).map(Some),
        };
        let failed = |_| ConstraintError::Texts("the texts of a constraint are too many");
        let markers = if constraint.grammar.is_some() { constraint.markers() } else { &[] };
        let longest = markers.iter().chain(&constraint.forbid).map(String::len).max();
        let grammar_len = constraint.grammar.as_ref().map_or(0, String::len);
        Ok(Arc::new(Self {
            lexicon: Arc::clone(lexicon),
            compiler: Arc::clone(compiler),
            thinking: constraint.thinking.clone(),
            immediately: constraint.grammar.is_some() && constraint.start == Start::Immediately,
            begun: constraint.begun.clone().into_bytes(),
            after: constraint.after,
            prose: search(markers.iter().chain(&constraint.forbid).collect()).map_err(failed)?,
            n_markers: markers.len(),
            forbidden: search(constraint.forbid.iter().collect()).map_err(failed)?,
            longest: longest.unwrap_or(1),
            budget,
            close_in_time: constraint.close_in_time && constraint.grammar.is_some(),
            // What the grammar spells out is part of its text.
            margin: u32::try_from(grammar_len / 2 + 32).unwrap_or(u32::MAX),
        }))
    }

    /// The first phase.
    pub(super) fn start(&self) -> Phase {
        match &self.thinking {
            Some(thinking) if thinking.is_open => Phase::Thinking(Vec::new()),
            Some(_) => Phase::Opening(Vec::new()),
            None if self.immediately => Phase::Gap { room: 0, may_end: false },
            None => Phase::Prose(self.begun.clone()),
        }
    }

    pub(super) fn behind_thinking(&self) -> Phase {
        match self.immediately {
            true => Phase::Gap { room: MAX_GAP, may_end: false },
            false => Phase::Prose(Vec::new()),
        }
    }

    pub(super) fn text(&self, token: TokenId) -> Option<&[u8]> {
        self.compiler.text(&self.lexicon, token.0.cast_unsigned())
    }

    pub(super) fn is_end(&self, token: TokenId) -> bool {
        *self.lexicon.piece(token.0.cast_unsigned()) == Piece::End
    }

    /// `tail` and `bytes`, and the first text of `search` that ends within `bytes`: which, and how many of `bytes` are
    /// behind it.
    pub(super) fn find(search: Option<&AhoCorasick>, tail: &[u8], bytes: &[u8]) -> Option<(usize, usize)> {
        let all = [tail, bytes].concat();
        let found = search?.find(&all)?;
        Some((found.pattern().as_usize(), all.len() - found.end()))
    }

    /// The last bytes of `tail` and `bytes`, which a text that is still to come may begin with.
    pub(super) fn tail(&self, tail: &[u8], bytes: &[u8]) -> Vec<u8> {
        let all = [tail, bytes].concat();
        all[all.len().saturating_sub(self.longest - 1)..].to_vec()
    }
}

/// The grammar at its beginning.
pub(in crate::constraint) struct Primed {
    /// For [`Start::Immediately`] with nothing generated; for markers, behind each of them.
    pub(super) starts: Vec<Grammar>,
    /// Bytes that complete each of them.
    pub(super) ways: Vec<Option<Vec<u8>>>,
}

impl Primed {
    pub(in crate::constraint) fn new(constraint: &Constraint, grammar: &Grammar) -> Result<Self, ConstraintError> {
        let wrong = |error: EnforceError| ConstraintError::Grammar(error.to_string());
        let mut starts = Vec::new();
        let markers = constraint.markers().iter().map(String::as_str);
        let immediately = matches!(constraint.start, Start::Immediately).then_some("");
        for marker in immediately.into_iter().chain(markers) {
            let mut start = grammar.clone();
            if !start.push(marker.as_bytes()).map_err(wrong)? {
                return Err(ConstraintError::Grammar(format!("it cannot begin with its marker {marker:?}")));
            }
            starts.push(start);
        }
        let way = |start: &mut Grammar| match constraint.close_in_time {
            true => shortest(start).map_err(wrong),
            false => Ok(None),
        };
        let ways = starts.iter_mut().map(way).collect::<Result<_, _>>()?;
        Ok(Self { starts, ways })
    }

    /// A copy for another run, which shares nothing that one of them could exhaust.
    pub(in crate::constraint) fn detached(&self) -> Self {
        Self { starts: self.starts.iter().map(Grammar::detached).collect(), ways: self.ways.clone() }
    }

    /// A text behind start `which`.
    pub(super) fn text(&self, which: usize) -> Box<Text> {
        Box::new(Text { grammar: self.starts[which].clone(), way: self.ways[which].clone() })
    }
}
