//! What the GGUF keys `tokenizer.ggml.*` say of a vocabulary.

use ahash::AHashMap;
use mesh_gguf::{Array, Metadata};

use crate::Unsupported;

/// The keys that this crate reads.
pub(crate) struct Vocabulary<'a> {
    /// `tokenizer.ggml.model`: `gpt2`, `llama`, …
    pub(crate) model: &'a str,
    /// `tokenizer.ggml.pre`; `default` where it is absent.
    pub(crate) pre: &'a str,
    /// The text of each token, by id.
    pub(crate) tokens: Vec<String>,
    /// Ids by text.
    pub(crate) ids: AHashMap<String, u32>,
    metadata: &'a Metadata,
}

impl<'a> Vocabulary<'a> {
    pub(crate) fn read(metadata: &'a Metadata) -> Result<Self, Unsupported> {
        let model = metadata.require_str("tokenizer.ggml.model")?;
        let pre = metadata.str("tokenizer.ggml.pre")?.unwrap_or("default");
        let texts = metadata.array("tokenizer.ggml.tokens")?.and_then(Array::strings);
        let texts = texts.ok_or(Unsupported::Missing("tokenizer.ggml.tokens"))?;
        let (mut tokens, mut ids) = (Vec::new(), AHashMap::new());
        for (id, text) in texts.enumerate() {
            let text = std::str::from_utf8(text).map_err(|_| Unsupported::NotText(id))?;
            ids.insert(text.to_owned(), u32::try_from(id).map_err(|_| Unsupported::NotText(id))?);
            tokens.push(text.to_owned());
        }
        Ok(Self { model, pre, tokens, ids, metadata })
    }

    /// Pairs to merge, the most urgent first, each once. The first space behind a first character parts a pair; a line
    /// without one is none.
    pub(crate) fn merges(&self) -> Result<Vec<(String, String)>, Unsupported> {
        let lines = self.metadata.array("tokenizer.ggml.merges")?.and_then(Array::strings);
        let lines = lines.ok_or(Unsupported::Missing("tokenizer.ggml.merges"))?;
        let mut seen = ahash::AHashSet::new();
        let mut merges = Vec::new();
        for line in lines {
            let line = std::str::from_utf8(line).map_err(|_| Unsupported::Merge(merges.len()))?;
            let first = line.chars().next().map_or(0, char::len_utf8);
            let Some(space) = line[first..].find(' ') else { continue };
            let (left, right) = (&line[..first + space], &line[first + space + 1..]);
            if seen.insert(line) {
                merges.push((left.to_owned(), right.to_owned()));
            }
        }
        Ok(merges)
    }

    /// The score of each token, by id: the higher, the sooner it is merged.
    pub(crate) fn scores(&self) -> Result<Vec<f32>, Unsupported> {
        let scores = self.metadata.array("tokenizer.ggml.scores")?.and_then(Array::floats);
        let scores: Vec<f32> = scores.ok_or(Unsupported::Missing("tokenizer.ggml.scores"))?.collect();
        if scores.len() < self.tokens.len() { Err(Unsupported::Missing("tokenizer.ggml.scores")) } else { Ok(scores) }
    }

    /// What each token is, as far as the file says.
    pub(crate) fn kinds(&self) -> Kinds {
        let kinds = self.metadata.array("tokenizer.ggml.token_type").ok().flatten().and_then(Array::ints);
        Kinds(kinds.into_iter().flatten().map(|kind| u8::try_from(kind).unwrap_or_default()).collect())
    }

    /// Whether a text begins with a space that it does not have (SentencePiece).
    pub(crate) fn adds_space(&self) -> bool {
        let key = self.metadata.get("tokenizer.ggml.add_space_prefix");
        !matches!(key, Some(mesh_gguf::Value::Bool(false)))
    }
}

/// `tokenizer.ggml.token_type`, by id.
pub(crate) struct Kinds(Vec<u8>);

impl Kinds {
    const NORMAL: u8 = 1;
    const USER_DEFINED: u8 = 4;

    /// Whether text becomes this token.
    pub(crate) fn is_text(&self, token: usize) -> bool {
        self.of(token) == Self::NORMAL || self.of(token) == Self::USER_DEFINED
    }

    /// Whether it comes by merging alone: user-defined ones are found before anything is merged.
    pub(crate) fn is_merged(&self, token: usize) -> bool {
        self.of(token) != Self::USER_DEFINED
    }

    fn of(&self, token: usize) -> u8 {
        self.0.get(token).copied().unwrap_or(Self::NORMAL)
    }
}
