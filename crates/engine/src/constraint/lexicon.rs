//! What the tokens of a vocabulary stand for.

use kernels_ffi::Vocab;

use super::automaton::is_blank;

/// What one token stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// These bytes, not always whole characters.
    Text(Box<[u8]>),
    /// No text: it steers the model. This is its name, such as `<|im_start|>`.
    Control(Box<str>),
    /// The end of a generation.
    End,
    /// Nothing uses it.
    Nothing,
}

/// The pieces of a whole vocabulary, by token.
#[derive(Debug)]
pub struct Lexicon {
    pieces: Vec<Piece>,
    /// Tokens that end a generation, ascending.
    ends: Vec<u32>,
    /// Tokens that are white space alone, ascending.
    blanks: Vec<u32>,
}

impl Lexicon {
    /// From the pieces of tokens 0, 1, ….
    pub fn new(pieces: Vec<Piece>) -> Self {
        let which = |is: fn(&Piece) -> bool| (0u32..).zip(&pieces).filter(|(_, p)| is(p)).map(|(t, _)| t).collect();
        let ends = which(|piece| *piece == Piece::End);
        let is_blank = |piece: &Piece| matches!(piece, Piece::Text(text) if text.iter().all(|byte| is_blank(*byte)));
        let blanks = which(is_blank);
        Self { pieces, ends, blanks }
    }

    /// Of a model's vocabulary.
    pub fn of(vocab: &Vocab) -> Self {
        let tokens = 0..i32::try_from(vocab.n_tokens()).unwrap_or(i32::MAX);
        Self::new(tokens.map(|token| piece(vocab, token)).collect())
    }

    /// Every single byte, and an end.
    pub(super) fn of_bytes() -> Self {
        let bytes = (0..=255u8).map(|byte| Piece::Text([byte].into()));
        Self::new(bytes.chain([Piece::End]).collect())
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.pieces.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    pub(super) fn piece(&self, token: u32) -> &Piece {
        self.pieces.get(token as usize).unwrap_or(&Piece::Nothing)
    }

    pub(super) fn ends(&self) -> &[u32] {
        &self.ends
    }

    pub(super) fn blanks(&self) -> &[u32] {
        &self.blanks
    }

    /// Control tokens with one of these names, ascending.
    pub(super) fn control_tokens(&self, names: &[String]) -> Vec<u32> {
        let is_named = |piece: &Piece| matches!(piece, Piece::Control(name) if names.iter().any(|n| **n == **name));
        (0u32..).zip(&self.pieces).filter(|(_, piece)| is_named(piece)).map(|(token, _)| token).collect()
    }
}

fn piece(vocab: &Vocab, token: i32) -> Piece {
    let attr = vocab.attr(token);
    if vocab.is_eog(token) {
        return Piece::End;
    }
    if attr.is_control() {
        return vocab.text(token).map_or(Piece::Nothing, |name| Piece::Control(name.into()));
    }
    match vocab.piece(token, false) {
        bytes if bytes.is_empty() || attr.is_unused() => Piece::Nothing,
        bytes => Piece::Text(bytes.into()),
    }
}
