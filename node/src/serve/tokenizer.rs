//! The two tokenizers of a model: llama.cpp's, which decides what is right, and the faster one that is held to it.

use kernels_ffi::{TokenizeError, Vocab};
use mesh_gguf::Metadata;
use mesh_tokenizer::{Reference, Special, Tokenizer};

/// llama.cpp's tokenizer.
#[derive(Debug)]
pub struct LlamaCpp(Vocab);

impl Reference for LlamaCpp {
    type Error = TokenizeError;

    fn tokenize(&self, text: &str, parse_special: bool) -> Result<Vec<i32>, TokenizeError> {
        self.0.tokenize(text, false, parse_special)
    }
}

/// The tokenizer of a model. Blocks for up to a second where the vocabulary is large.
pub(super) fn of(vocab: &Vocab, metadata: &Metadata) -> Tokenizer<LlamaCpp> {
    Tokenizer::new(metadata, specials(vocab), LlamaCpp(vocab.clone()))
}

/// What llama.cpp looks for in a text before it merges anything: user-defined tokens in every text, control tokens and
/// the unknown one where it is asked to.
fn specials(vocab: &Vocab) -> Vec<Special> {
    let special = |id: i32| {
        let attr = vocab.attr(id);
        let on_request = attr.is_control() || attr.is_unknown();
        (on_request || attr.is_user_defined()).then(|| Special {
            id,
            text: vocab.text(id).unwrap_or_default(),
            always: !on_request,
            strips_before: attr.strips_before(),
            strips_behind: attr.strips_behind(),
        })
    };
    (0..i32::try_from(vocab.n_tokens()).unwrap_or(i32::MAX)).filter_map(special).collect()
}
