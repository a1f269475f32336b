//! Grammars over bytes and token masks: all that is used of `llguidance`.
//!
//! Texts are fed byte by byte, through 256 tokens of one byte each that are appended to the vocabulary: so a text can
//! begin or be cut anywhere, and be taken back byte by byte, however the model splits it into tokens.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use llguidance::api::TopLevelGrammar;
use llguidance::earley::{ParserRecognizer, SlicedBiasComputer};
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, SimpleVob, TokEnv, TokRxInfo, TokTrie};
use llguidance::{ParserFactory, TokenParser};

use super::EnforceError;
use super::lexicon::{Lexicon, Piece};

/// Longest token that a grammar's text is made of, in bytes: a trie of llguidance is at most 1024 deep.
const MAX_WORD: usize = 1000;

/// Compiles grammars for one vocabulary, of which certain control tokens count as text.
pub(super) struct Compiler {
    factory: ParserFactory,
    /// Tokens of the vocabulary; the byte tokens and the end follow.
    n_tokens: u32,
    as_text: Vec<u32>,
}

impl Compiler {
    pub(super) fn new(lexicon: &Lexicon, as_text: Vec<u32>) -> Result<Self, String> {
        let mut words: Vec<Vec<u8>> = (0..lexicon.len() as u32).map(|token| word(lexicon, token, &as_text)).collect();
        let n_tokens = words.len() as u32;
        words.extend((0..=255).map(|byte| vec![byte]));
        words.push(b"\xFF<end>".to_vec());
        let end = words.len() as u32 - 1;
        let trie = TokTrie::from(&TokRxInfo::new(words.len() as u32, end), &words);
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        // Slices make the masks of JSON strings cheap.
        let slices = SlicedBiasComputer::general_slices();
        let factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices);
        let mut factory = factory.map_err(|error| tidy(&error))?;
        factory.quiet();
        factory.limits_mut().verbose_errors = false;
        Ok(Self { factory, n_tokens, as_text })
    }

    /// The control tokens that count as text.
    pub(super) fn as_text(&self) -> &[u32] {
        &self.as_text
    }

    /// A grammar at its beginning.
    pub(super) fn compile(self: &Arc<Self>, text: &str) -> Result<Grammar, String> {
        let grammar = TopLevelGrammar::from_lark_or_grammar_list(text).map_err(|error| tidy(&error))?;
        let mut parser = self.factory.create_parser(grammar).map_err(|error| tidy(&error))?;
        parser.start_without_prompt();
        Ok(Grammar { parser, compiler: Arc::clone(self), broken: None })
    }

    /// The bytes that a token stands for; none for what is no text.
    pub(super) fn text<'a>(&self, lexicon: &'a Lexicon, token: u32) -> Option<&'a [u8]> {
        text(lexicon, token, &self.as_text)
    }

    /// `bytes` as tokens of the vocabulary, each the longest that fits; `None` where it has no token for a byte.
    pub(super) fn tokenize(&self, bytes: &[u8]) -> Option<Vec<u32>> {
        let trie = self.factory.tok_env().tok_trie();
        let tokens = trie.greedy_tokenize(bytes);
        let len: usize = tokens.iter().map(|token| trie.token_len(*token)).sum();
        (len == bytes.len() && tokens.iter().all(|token| *token < self.n_tokens)).then_some(tokens)
    }

    fn byte(&self, byte: u8) -> u32 {
        self.n_tokens + u32::from(byte)
    }

    fn end(&self) -> u32 {
        self.n_tokens + 256
    }
}

fn text<'a>(lexicon: &'a Lexicon, token: u32, as_text: &[u32]) -> Option<&'a [u8]> {
    match lexicon.piece(token) {
        Piece::Text(bytes) => Some(bytes),
        Piece::Control(name) if as_text.binary_search(&token).is_ok() => Some(name.as_bytes()),
        _ => None,
    }
}

/// A token as llguidance wants it: what is no text begins with a byte that no text has.
fn word(lexicon: &Lexicon, token: u32, as_text: &[u32]) -> Vec<u8> {
    match text(lexicon, token, as_text) {
        Some([TokTrie::SPECIAL_TOKEN_MARKER, ..]) | None => Vec::new(),
        Some(bytes) if bytes.len() > MAX_WORD => Vec::new(),
        Some(bytes) => bytes.to_vec(),
    }
}

/// The first line of an error: what follows is a dump of the grammar.
fn tidy(error: &impl std::fmt::Display) -> String {
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    line.strip_suffix("<non-verbose/>").unwrap_or(line).trim().chars().take(300).collect()
}

/// A text of a grammar, as far as it has come.
pub(super) struct Grammar {
    parser: TokenParser,
    compiler: Arc<Compiler>,
    /// Why nothing more can be done with it.
    broken: Option<String>,
}

impl Clone for Grammar {
    /// Shares the lexer's tables.
    fn clone(&self) -> Self {
        Self { parser: self.parser.clone(), compiler: Arc::clone(&self.compiler), broken: self.broken.clone() }
    }
}

impl Grammar {
    /// A copy that shares nothing which one of the two could exhaust.
    pub(super) fn detached(&self) -> Self {
        let (compiler, broken) = (Arc::clone(&self.compiler), self.broken.clone());
        Self { parser: self.parser.deep_clone(), compiler, broken }
    }

    /// The tokens that the text can go on with, by bit; and whether it may end here.
    pub(super) fn mask(&mut self) -> Result<(SimpleVob, bool), EnforceError> {
        let end = self.compiler.end();
        let mask = self.guarded(|parser| parser.compute_mask().map_err(|error| tidy(&error)))?;
        let may_end = mask.is_allowed(end);
        Ok((mask, may_end))
    }

    /// Whether the text can go on with `bytes`.
    pub(super) fn accepts(&mut self, bytes: &[u8]) -> Result<bool, EnforceError> {
        let tokens: Vec<u32> = bytes.iter().map(|byte| self.compiler.byte(*byte)).collect();
        let valid = self.guarded(|parser| Ok(parser.parser.validate_tokens(&tokens)))?;
        Ok(valid == tokens.len())
    }

    /// Whether the text is complete behind `bytes`.
    pub(super) fn ends_behind(&mut self, bytes: &[u8]) -> Result<bool, EnforceError> {
        let mut tokens: Vec<u32> = bytes.iter().map(|byte| self.compiler.byte(*byte)).collect();
        tokens.push(self.compiler.end());
        let valid = self.guarded(|parser| Ok(parser.parser.validate_tokens(&tokens)))?;
        Ok(valid == tokens.len())
    }

    /// Goes on with `bytes`, if that is possible; else nothing is changed.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Result<bool, EnforceError> {
        if !self.accepts(bytes)? {
            return Ok(false);
        }
        let tokens: Vec<u32> = bytes.iter().map(|byte| self.compiler.byte(*byte)).collect();
        self.guarded(|parser| {
            tokens.iter().try_for_each(|token| match parser.consume_token(*token) {
                Ok(0) => Ok(()),
                Ok(_) => Err("a part of it takes back what was generated".to_owned()),
                Err(error) => Err(tidy(&error)),
            })
        })?;
        Ok(true)
    }

    /// Takes the last `bytes` bytes back, where [`Self::can_go_back`].
    pub(super) fn pop(&mut self, bytes: usize) -> Result<(), EnforceError> {
        self.guarded(|parser| parser.rollback(bytes).map_err(|error| tidy(&error)))
    }

    /// Whether [`Self::pop`] is possible.
    pub(super) fn can_go_back(&self) -> bool {
        self.parser.parser.grammar().lexer_spec().can_rollback()
    }

    /// Whether the text is complete.
    pub(super) fn may_end(&mut self) -> Result<bool, EnforceError> {
        self.guarded(|parser| Ok(parser.is_accepting()))
    }

    /// Whether the text is complete and cannot go on.
    pub(super) fn is_over(&mut self) -> Result<bool, EnforceError> {
        self.guarded(|parser| Ok(parser.is_accepting() && !parser.parser.can_advance()))
    }

    /// Lets `look` walk on byte by byte and back, without a trace.
    pub(super) fn explore<T>(&mut self, look: impl FnOnce(&mut ParserRecognizer<'_>) -> T) -> Result<T, EnforceError> {
        self.guarded(|parser| Ok(parser.parser.with_recognizer(look)))
    }

    /// Runs llguidance behind a wall: a panic or an error in it is the end of this text, not of the stage.
    fn guarded<T>(&mut self, f: impl FnOnce(&mut TokenParser) -> Result<T, String>) -> Result<T, EnforceError> {
        if let Some(reason) = &self.broken {
            return Err(EnforceError::Grammar(reason.clone()));
        }
        let parser = &mut self.parser;
        let result = std::panic::catch_unwind(AssertUnwindSafe(|| f(parser)));
        let result = result.unwrap_or_else(|_| Err("its parser failed".to_owned()));
        result.map_err(|reason| {
            self.broken = Some(reason.clone());
            EnforceError::Grammar(reason)
        })
    }
}
