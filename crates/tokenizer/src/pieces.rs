//! Vocabularies of pieces: the whole text is merged at once, without words, a space being a character of its own, and
//! bytes stand for what no piece covers. SentencePiece's (`tokenizer.ggml.model` = `llama`) merge by score; Gemma 4's
//! (`gemma4`) by rank, line by line.

use tokenizers::Model;
use tokenizers::models::bpe::BPE;

use crate::partition::run;
use crate::vocabulary::Vocabulary;
use crate::{EncodeError, Unsupported};

/// What stands for a space in a piece.
const SPACE: &str = "\u{2581}";

#[derive(Debug)]
pub(crate) struct Pieces {
    model: BPE,
    /// Whether a text begins with a space that it does not have.
    adds_space: bool,
    /// Whether newlines are kept apart from the rest.
    by_lines: bool,
}

impl Pieces {
    /// SentencePiece's.
    pub(crate) fn scored(vocabulary: &Vocabulary<'_>) -> Result<Self, Unsupported> {
        let model = build(vocabulary, merges_by_score(vocabulary)?)?;
        Ok(Self { model, adds_space: vocabulary.adds_space(), by_lines: false })
    }

    /// Gemma 4's.
    pub(crate) fn ranked(vocabulary: &Vocabulary<'_>) -> Result<Self, Unsupported> {
        Ok(Self { model: build(vocabulary, vocabulary.merges()?)?, adds_space: false, by_lines: true })
    }

    pub(crate) fn encode(&self, text: &str) -> Result<Vec<i32>, EncodeError> {
        let mut ids = Vec::with_capacity(text.len() / 3);
        if text.is_empty() {
            return Ok(ids);
        }
        let mut escaped = String::with_capacity(text.len() + text.len() / 2);
        if self.adds_space {
            escaped.push_str(SPACE);
        }
        for (index, part) in text.split(' ').enumerate() {
            if index > 0 {
                escaped.push_str(SPACE);
            }
            escaped.push_str(part);
        }
        if !self.by_lines {
            self.merge(&escaped, &mut ids)?;
            return Ok(ids);
        }
        let mut rest = escaped.as_str();
        while let Some(first) = rest.chars().next() {
            let end = rest.find(|char| (char == '\n') != (first == '\n')).unwrap_or(rest.len());
            let (part, behind) = rest.split_at(end);
            match self.model.token_to_id(part).filter(|_| first == '\n') {
                Some(id) => ids.push(id.cast_signed()),
                None => self.merge(part, &mut ids)?,
            }
            rest = behind;
        }
        Ok(ids)
    }

    fn merge(&self, text: &str, ids: &mut Vec<i32>) -> Result<(), EncodeError> {
        let tokens = self.model.tokenize(text).map_err(|error| EncodeError(error.to_string()))?;
        ids.extend(tokens.into_iter().map(|token| token.id.cast_signed()));
        Ok(())
    }
}

fn build(vocabulary: &Vocabulary<'_>, merges: Vec<(String, String)>) -> Result<BPE, Unsupported> {
    BPE::builder()
        .vocab_and_merges(vocabulary.ids.clone(), merges)
        .byte_fallback(true)
        // The crate's own cache belongs to threads and would outlive the model.
        .cache_capacity(0)
        .build()
        .map_err(|error| Unsupported::Build(error.to_string()))
}

/// SentencePiece merges whichever two neighbours make the piece with the highest score, and the leftmost of several: as
/// ranked pairs, every way to part a piece in two others, in the order of the pieces' scores.
fn merges_by_score(vocabulary: &Vocabulary<'_>) -> Result<Vec<(String, String)>, Unsupported> {
    let scores = vocabulary.scores()?;
    let kinds = vocabulary.kinds();
    let mut order: Vec<usize> = (0..vocabulary.tokens.len()).collect();
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
    let mut merges = Vec::new();
    // The last piece that can be merged, to find those of the same score.
    let mut last: Option<usize> = None;
    for token in order {
        let piece = &vocabulary.tokens[token];
        // No text holds a space when it is merged.
        if piece.contains(' ') {
            continue;
        }
        let before = merges.len();
        for (at, _) in piece.char_indices().skip(1) {
            let (left, right) = piece.split_at(at);
            // A single character needs not be a piece to be merged by SentencePiece. It does here.
            let known = |part: &str| vocabulary.ids.contains_key(part);
            match (known(left), known(right)) {
                (true, true) => merges.push((left.to_owned(), right.to_owned())),
                (l, r) if (l || is_char(left)) && (r || is_char(right)) && kinds.is_text(token) => {
                    let why = format!("the piece `{piece}` is made of a character that is no piece");
                    return Err(Unsupported::Inexact(why));
                }
                _ => {}
            }
        }
        if merges.len() == before || !kinds.is_merged(token) {
            continue;
        }
        // Ranks part what scores do not. Runs of one character come out the same; the self-check sees to them.
        if let Some(other) = last.replace(token).filter(|other| scores[*other] == scores[token]) {
            let other = &vocabulary.tokens[other];
            if run(piece).is_none() || run(piece) != run(other) {
                let why = format!("the pieces `{other}` and `{piece}` have the same score");
                return Err(Unsupported::Inexact(why));
            }
        }
    }
    Ok(merges)
}

fn is_char(text: &str) -> bool {
    text.chars().nth(1).is_none()
}
