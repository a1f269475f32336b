//! A model's tokenizer as stage 0 uses it: special tokens, the faster of two encoders, and what is remembered.

use std::sync::{Mutex, PoisonError};

use mesh_gguf::Metadata;

use crate::cache::{self, Cache};
use crate::check;
use crate::partition::{Part, Partition, Special};
use crate::{EncodeError, Encoder, Inseparable, Unsupported};

/// Bytes of tokens that are remembered for a model: about two million of them.
const CACHE: usize = 8 << 20;
/// Bytes from which on the tokens of a text are remembered. Shorter ones are encoded as fast as they are looked up.
const LONG: usize = 512;

/// The tokenizer that decides what is right, and does what [`Encoder`] cannot.
pub trait Reference {
    /// Why it refuses a text.
    type Error: std::fmt::Display;

    /// The ids of `text`. `parse_special`: whether control tokens are looked for in it.
    ///
    /// # Errors
    /// Where the text cannot be tokenised.
    fn tokenize(&self, text: &str, parse_special: bool) -> Result<Vec<i32>, Self::Error>;
}

/// Why a model's text goes to the reference.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fallback {
    /// The vocabulary is not built.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// Its special tokens cannot be told apart in one pass.
    #[error(transparent)]
    Inseparable(#[from] Inseparable),
    /// The two gave different ids.
    #[error("the two tokenizers differ at text {0} of the self-check")]
    Differs(usize),
    /// The reference refused a text of the check.
    #[error("the self-check could not be made: {0}")]
    Check(String),
}

/// Text to ids. Remembers the ids of long texts, by digest and under a limit, for as long as it lives.
#[derive(Debug)]
pub struct Tokenizer<R> {
    reference: R,
    own: Result<Encoder, Fallback>,
    partition: Option<Partition>,
    cache: Mutex<Cache>,
}

impl<R: Reference> Tokenizer<R> {
    /// The tokenizer of the model with this metadata and these special tokens. Takes up to a second for the largest
    /// vocabularies.
    pub fn new(metadata: &Metadata, specials: Vec<Special>, reference: R) -> Self {
        let texts = check::texts(&specials);
        let cache = Mutex::new(Cache::new(CACHE));
        let (own, partition) = match Partition::new(specials) {
            Ok(partition) => (Encoder::of(metadata).map_err(Fallback::Unsupported), Some(partition)),
            Err(why) => (Err(Fallback::Inseparable(why)), None),
        };
        let mut tokenizer = Self { reference, own, partition, cache };
        if let Err(why) = tokenizer.compare(&texts) {
            let with_reference = Self { own: Err(why), ..tokenizer };
            let parted = with_reference.compare(&texts).is_ok();
            tokenizer = Self { partition: with_reference.partition.clone().filter(|_| parted), ..with_reference };
        }
        tokenizer
    }

    /// Why the reference encodes, where it does.
    pub fn fallback(&self) -> Option<&Fallback> {
        self.own.as_ref().err()
    }

    /// The tokenizer that this one is held to.
    pub fn reference(&self) -> &R {
        &self.reference
    }

    /// The ids of `text`, the same that the reference gives. `parse_special`: whether control tokens are looked for.
    ///
    /// # Errors
    /// Those of the reference.
    pub fn tokenize(&self, text: &str, parse_special: bool) -> Result<Vec<i32>, R::Error> {
        self.parted(text, parse_special, |chunk, ids| self.remembered(chunk, ids))
    }

    /// Cuts `text` at control tokens; `encode` appends the ids of what is between them.
    fn parted(
        &self,
        text: &str,
        parse_special: bool,
        encode: impl Fn(&str, &mut Vec<i32>) -> Result<(), R::Error>,
    ) -> Result<Vec<i32>, R::Error> {
        let Some(partition) = &self.partition else { return self.reference.tokenize(text, parse_special) };
        let mut ids = Vec::with_capacity(text.len() / 3);
        let whole = [Part::Text(text)];
        let chunks = if parse_special { &partition.controls(text)[..] } else { &whole[..] };
        for chunk in chunks {
            match chunk {
                Part::Token(id) => ids.push(*id),
                Part::Text(chunk) => encode(chunk, &mut ids)?,
            }
        }
        Ok(ids)
    }

    /// Appends the ids of a text in which no control tokens are looked for.
    fn remembered(&self, chunk: &str, ids: &mut Vec<i32>) -> Result<(), R::Error> {
        if chunk.len() < LONG {
            return self.encode(chunk, ids);
        }
        let key = cache::key(chunk);
        let cache = || self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let known = cache().get(&key);
        if let Some(known) = known {
            ids.extend_from_slice(&known);
            return Ok(());
        }
        let start = ids.len();
        self.encode(chunk, ids)?;
        cache().insert(key, &ids[start..]);
        Ok(())
    }

    fn encode(&self, chunk: &str, ids: &mut Vec<i32>) -> Result<(), R::Error> {
        let start = ids.len();
        if let (Ok(own), Some(partition)) = (&self.own, &self.partition)
            && encode_parts(own, partition, chunk, ids).is_ok()
        {
            return Ok(());
        }
        ids.truncate(start);
        ids.extend(self.reference.tokenize(chunk, false)?);
        Ok(())
    }

    /// Compares the way a text goes here with the reference's own.
    fn compare(&self, texts: &[String]) -> Result<(), Fallback> {
        let refused = |error: R::Error| Fallback::Check(error.to_string());
        for (index, text) in texts.iter().enumerate() {
            for parse_special in [false, true] {
                let ours = self.parted(text, parse_special, |chunk, ids| self.encode(chunk, ids)).map_err(refused)?;
                if ours != self.reference.tokenize(text, parse_special).map_err(refused)? {
                    return Err(Fallback::Differs(index));
                }
            }
        }
        Ok(())
    }
}

fn encode_parts(own: &Encoder, partition: &Partition, chunk: &str, ids: &mut Vec<i32>) -> Result<(), EncodeError> {
    for part in partition.within(chunk) {
        match part {
            Part::Token(id) => ids.push(id),
            Part::Text(text) => ids.extend(own.encode(text)?),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes a byte for a token, and remembers what it was asked.
    #[derive(Default)]
    struct Bytes(Mutex<Vec<String>>);

    const END: &str = "<|end|>";

    impl Reference for Bytes {
        type Error = String;

        fn tokenize(&self, text: &str, parse_special: bool) -> Result<Vec<i32>, String> {
            self.0.lock().unwrap().push(text.to_owned());
            let parts: Vec<&str> = if parse_special { text.split(END).collect() } else { vec![text] };
            let parts = parts.iter().map(|part| part.bytes().map(i32::from).collect::<Vec<_>>());
            Ok(parts.collect::<Vec<_>>().join(&1000))
        }
    }

    /// The vocabulary is of no kind that is built.
    fn tokenizer() -> Tokenizer<Bytes> {
        let mut metadata = Metadata::default();
        metadata.set("tokenizer.ggml.model", mesh_gguf::Value::from("other"));
        metadata.set("tokenizer.ggml.tokens", mesh_gguf::Value::Array(mesh_gguf::Array::of_strs(["a"])));
        let end = Special { id: 1000, text: END.to_owned(), ..Special::default() };
        let tokenizer = Tokenizer::new(&metadata, vec![end], Bytes::default());
        let unsupported = Fallback::Unsupported(Unsupported::Model("other".to_owned()));
        assert_eq!(tokenizer.fallback(), Some(&unsupported));
        tokenizer.reference.0.lock().unwrap().clear();
        tokenizer
    }

    #[test]
    fn the_next_turn_encodes_what_is_new() {
        let tokenizer = tokenizer();
        let asked = || std::mem::take(&mut *tokenizer.reference.0.lock().unwrap());
        let system = "s".repeat(20_000);
        let first = format!("{system}{END}question{END}");
        let ids = tokenizer.tokenize(&first, true).unwrap();
        assert_eq!(asked(), [system.as_str(), "question"]);
        assert_eq!((ids.len(), ids[20_000], ids[20_009]), (20_010, 1000, 1000));

        let result = "r".repeat(3_000);
        let second = format!("{first}answer{END}{result}{END}");
        let ids = tokenizer.tokenize(&second, true).unwrap();
        assert_eq!(asked(), ["question", "answer", result.as_str()]);
        assert_eq!(ids, Bytes::default().tokenize(&second, true).unwrap());

        tokenizer.tokenize(&format!("{second}thanks{END}"), true).unwrap();
        assert_eq!(asked(), ["question", "answer", "thanks"]);
    }

    #[test]
    fn a_text_with_control_tokens_in_it_is_not_taken_for_one_without() {
        let tokenizer = tokenizer();
        let text = format!("{}{END}{}", "a".repeat(600), "b".repeat(600));
        let (apart, whole) = (tokenizer.tokenize(&text, true).unwrap(), tokenizer.tokenize(&text, false).unwrap());
        assert_eq!((apart.len(), whole.len()), (1201, 1200 + END.len()));
        assert_eq!(tokenizer.tokenize(&text, true).unwrap(), apart);
    }

    #[test]
    fn debugging_shows_no_text() {
        let tokenizer = tokenizer();
        tokenizer.tokenize(&"secret".repeat(200), true).unwrap();
        assert!(!format!("{:?}", tokenizer.cache).contains("115"), "the tokens of `s`");
    }
}
