//! Text to a model's token ids: as llama.cpp cuts it, and faster.
//!
//! Owns: the [`Encoder`] that is built with the `tokenizers` crate from a file's keys, and which kinds of vocabulary can be
//! built so; where a text is parted at special tokens ([`Partition`]); which of the two tokenizers a model uses, and what
//! is remembered of long texts ([`Tokenizer`]). Does not own: llama.cpp, which comes in as the [`Reference`]; templates,
//! and which of a prompt's texts may hold special tokens.
//!
//! Start with [`Tokenizer::new`]. Pure: no file is read. What is remembered of texts goes with the tokenizer.
#![forbid(unsafe_code)]

mod byte_level;
mod cache;
mod check;
mod newer;
mod partition;
mod pieces;
mod tokenizer;
mod vocabulary;
mod words;

pub use partition::{Inseparable, Part, Partition, Special};
pub use tokenizer::{Fallback, Reference, Tokenizer};
pub use words::PRE_TOKENIZERS;

use mesh_gguf::Metadata;

use crate::byte_level::ByteLevel;
use crate::pieces::Pieces;
use crate::vocabulary::Vocabulary;

/// Why no tokenizer can be built from a file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsupported {
    /// The vocabulary is of a kind that is not built here.
    #[error("vocabularies of the kind `{0}` are not built")]
    Model(String),
    /// The pre-tokenizer is not in the table.
    #[error("the pre-tokenizer `{0}` is not in the table")]
    PreTokenizer(String),
    /// A key is missing, or not what it should be.
    #[error("the key `{0}` is missing or of another type")]
    Missing(&'static str),
    /// The header is not readable.
    #[error(transparent)]
    Header(#[from] mesh_gguf::HeaderError),
    /// A token is not UTF-8.
    #[error("token {0} is not text")]
    NotText(usize),
    /// A line of the merges is not UTF-8.
    #[error("line {0} of the merges is not text")]
    Merge(usize),
    /// The pieces cannot be merged by rank alone.
    #[error("{0}")]
    Inexact(String),
    /// The `tokenizers` crate refuses the vocabulary.
    #[error("the tokenizer cannot be built: {0}")]
    Build(String),
}

/// Why a text could not be encoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the text cannot be encoded: {0}")]
pub struct EncodeError(String);

/// Text to ids, as one vocabulary has it.
#[derive(Debug)]
pub struct Encoder(Kind);

#[derive(Debug)]
enum Kind {
    ByteLevel(Box<ByteLevel>),
    Pieces(Box<Pieces>),
}

impl Encoder {
    /// The tokenizer of the file with these keys.
    ///
    /// # Errors
    /// [`Unsupported`] says which part of the vocabulary is not built here.
    pub fn of(metadata: &Metadata) -> Result<Self, Unsupported> {
        let vocabulary = Vocabulary::read(metadata)?;
        match vocabulary.model {
            "gpt2" => Ok(Self(Kind::ByteLevel(Box::new(ByteLevel::new(&vocabulary)?)))),
            "llama" => Ok(Self(Kind::Pieces(Box::new(Pieces::scored(&vocabulary)?)))),
            "gemma4" => Ok(Self(Kind::Pieces(Box::new(Pieces::ranked(&vocabulary)?)))),
            other => Err(Unsupported::Model(other.to_owned())),
        }
    }

    /// Forgets the words of all texts that came before.
    pub fn forget(&self) {
        if let Kind::ByteLevel(encoder) = &self.0 {
            encoder.forget();
        }
    }

    /// The ids of a text. No special token is looked for in it.
    ///
    /// # Errors
    /// [`EncodeError`] where the pre-tokenizer gives up on it.
    pub fn encode(&self, text: &str) -> Result<Vec<i32>, EncodeError> {
        match &self.0 {
            Kind::ByteLevel(encoder) => encoder.encode(text),
            Kind::Pieces(encoder) => encoder.encode(text),
        }
    }
}
