//! Byte-level vocabularies (`tokenizer.ggml.model` = `gpt2`): a text is cut into words, the bytes of a word are written
//! as characters, and neighbours are merged by rank.

use std::fmt;
use std::sync::{PoisonError, RwLock};

use ahash::AHashMap;
use fancy_regex::{Regex, RegexBuilder};
use tokenizers::Model;
use tokenizers::models::bpe::BPE;

use crate::vocabulary::Vocabulary;
use crate::{EncodeError, Unsupported, newer, words};

/// Words whose ids are kept.
const CACHED_WORDS: usize = 1 << 16;
/// Bytes of a word that is kept at most.
const CACHED_WORD: usize = 64;
/// Steps back for one word at most: a run of spaces as long as any request may be.
const BACKTRACKS: usize = 100 << 20;

pub(crate) struct ByteLevel {
    patterns: Vec<Regex>,
    model: BPE,
    /// The character that stands for each byte.
    characters: [char; 256],
    /// Ids of words that came before. The crate's own cache belongs to threads and would outlive the model.
    seen: RwLock<AHashMap<Box<str>, Box<[i32]>>>,
}

/// Says nothing of the words that it has seen.
impl fmt::Debug for ByteLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ByteLevel").field("patterns", &self.patterns).finish_non_exhaustive()
    }
}

impl ByteLevel {
    pub(crate) fn new(vocabulary: &Vocabulary<'_>) -> Result<Self, Unsupported> {
        let words = words::named(vocabulary.pre).ok_or_else(|| Unsupported::PreTokenizer(vocabulary.pre.to_owned()))?;
        let build = |error: String| Unsupported::Build(error);
        let patterns = words.patterns.iter().map(|pattern| {
            RegexBuilder::new(pattern).backtrack_limit(BACKTRACKS).build().map_err(|e| build(e.to_string()))
        });
        let model = BPE::builder()
            .vocab_and_merges(vocabulary.ids.clone(), vocabulary.merges()?)
            .ignore_merges(words.whole_words)
            .cache_capacity(0)
            .build()
            .map_err(|error| build(error.to_string()))?;
        Ok(Self {
            patterns: patterns.collect::<Result<_, _>>()?,
            model,
            characters: characters(),
            seen: RwLock::default(),
        })
    }

    pub(crate) fn encode(&self, text: &str) -> Result<Vec<i32>, EncodeError> {
        if newer::any(text) {
            return Err(EncodeError("it holds characters that are newer than the reference's tables".to_owned()));
        }
        let mut ids = Vec::with_capacity(text.len() / 3);
        let mut missed = AHashMap::new();
        {
            let seen = self.seen.read().unwrap_or_else(PoisonError::into_inner);
            self.cut(text, 0, &mut |word| {
                if let Some(known) = seen.get(word).or_else(|| missed.get(word)) {
                    ids.extend_from_slice(known);
                    return Ok(());
                }
                let own = self.merge(word)?;
                ids.extend_from_slice(&own);
                if word.len() <= CACHED_WORD {
                    missed.insert(Box::<str>::from(word), own.into_boxed_slice());
                }
                Ok(())
            })?;
        }
        if !missed.is_empty() {
            let mut seen = self.seen.write().unwrap_or_else(PoisonError::into_inner);
            if seen.len() + missed.len() > CACHED_WORDS {
                seen.clear();
            }
            seen.extend(missed.into_iter().take(CACHED_WORDS));
        }
        Ok(ids)
    }

    /// Forgets the words that came before.
    pub(crate) fn forget(&self) {
        self.seen.write().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Calls `word` with the words of `text`, cut by the patterns from `pattern` on.
    fn cut(
        &self,
        text: &str,
        pattern: usize,
        word: &mut impl FnMut(&str) -> Result<(), EncodeError>,
    ) -> Result<(), EncodeError> {
        let Some(regex) = self.patterns.get(pattern) else { return word(text) };
        let mut done = 0;
        for found in regex.find_iter(text) {
            let found = found.map_err(|error| EncodeError(error.to_string()))?;
            if found.start() > done {
                self.cut(&text[done..found.start()], pattern + 1, word)?;
            }
            if !found.range().is_empty() {
                self.cut(found.as_str(), pattern + 1, word)?;
            }
            done = found.end();
        }
        if done < text.len() { self.cut(&text[done..], pattern + 1, word) } else { Ok(()) }
    }

    fn merge(&self, word: &str) -> Result<Vec<i32>, EncodeError> {
        let written: String = word.bytes().map(|byte| self.characters[usize::from(byte)]).collect();
        let tokens = self.model.tokenize(&written).map_err(|error| EncodeError(error.to_string()))?;
        Ok(tokens.into_iter().map(|token| token.id.cast_signed()).collect())
    }
}

/// GPT-2's alphabet: bytes that print are themselves, the others follow from U+0100 on.
fn characters() -> [char; 256] {
    let mut next = 0x100;
    std::array::from_fn(|byte| {
        let prints = matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
        let code = if prints { byte as u32 } else { next };
        next += u32::from(!prints);
        char::from_u32(code).unwrap_or_default()
    })
}
