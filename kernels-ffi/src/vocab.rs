//! A model's vocabulary: text to tokens and back.

use std::ffi::CStr;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;

use llama_cpp_sys_2 as sys;

use crate::model::{LoadError, Model, ModelParams};

/// A vocabulary. Cheap to clone, usable from any thread; keeps its model alive.
#[derive(Clone, Debug)]
pub struct Vocab {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    raw: NonNull<sys::llama_vocab>,
    n_tokens: i32,
    eog: Vec<i32>,
    /// Owns what `raw` points into.
    _model: Model,
}

// SAFETY: a llama_vocab is only read after the model is loaded; llama.h calls the tokenisation API thread-safe.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

/// Characters of one word that llama.cpp's regular expressions cut on any stack.
const SHORT_WORD: usize = 1 << 10;
/// Stack that they take for a character: they call themselves for each, and 2 MiB end between 4,000 and 8,000 of them.
const STACK_PER_CHARACTER: usize = 1 << 10;
/// Stack that a text may take.
const MAX_STACK: usize = 1 << 30;

/// Why a text could not be tokenised, or a model has no vocabulary to do it with.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenizeError {
    /// A middle slice carries no tokenizer.
    #[error("this file has no tokenizer")]
    NoTokenizer,
    /// llama.cpp counts bytes and tokens in 32 bits.
    #[error("a text of {bytes} bytes is too long to tokenise")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// llama.cpp would take more stack for it than there is.
    #[error("a word of {characters} characters is too long to tokenise")]
    LongWord {
        /// Its length.
        characters: usize,
    },
}

/// Why no vocabulary could be had from a file.
#[derive(Debug, thiserror::Error)]
pub enum VocabError {
    /// The file could not be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The file has none.
    #[error(transparent)]
    Tokenizer(#[from] TokenizeError),
}

impl Vocab {
    /// Loads only the vocabulary of the GGUF file at `path`. Blocks while it reads.
    ///
    /// # Errors
    /// [`VocabError`]: the file is no model, or one without tokenizer.
    pub fn load(path: &Path) -> Result<Self, VocabError> {
        let params = ModelParams { vocab_only: true, ..ModelParams::default() };
        Ok(Self::of(&Model::load(path, &params)?)?)
    }

    /// The vocabulary of a loaded model.
    ///
    /// # Errors
    /// [`TokenizeError::NoTokenizer`] for a slice that carries none.
    pub fn of(model: &Model) -> Result<Self, TokenizeError> {
        // SAFETY: the model is live, and the vocabulary it returns is a part of it.
        let raw = unsafe { sys::llama_model_get_vocab(model.raw()) };
        let raw = NonNull::new(raw.cast_mut()).ok_or(TokenizeError::NoTokenizer)?;
        // SAFETY: `raw` is live, for `model` is. A vocabulary of type NONE would assert on everything but these two.
        let (kind, n_tokens) =
            unsafe { (sys::llama_vocab_type(raw.as_ptr()), sys::llama_vocab_n_tokens(raw.as_ptr())) };
        if kind == sys::LLAMA_VOCAB_TYPE_NONE {
            return Err(TokenizeError::NoTokenizer);
        }
        // SAFETY: every token is in range, and the type is not NONE.
        let eog = (0..n_tokens).filter(|token| unsafe { sys::llama_vocab_is_eog(raw.as_ptr(), *token) }).collect();
        Ok(Self { inner: Arc::new(Inner { raw, n_tokens, eog, _model: model.clone() }) })
    }

    /// Number of tokens; ids are `0..n_tokens`.
    pub fn n_tokens(&self) -> u32 {
        self.inner.n_tokens as u32
    }

    /// Text to tokens. `add_special` puts BOS and EOS where the model wants them; `parse_special` reads the text of
    /// control tokens, such as `<|im_start|>`, as those tokens: right for a rendered template, wrong for user text alone.
    ///
    /// # Errors
    /// [`TokenizeError::TooLong`] beyond 2 GiB, and [`TokenizeError::LongWord`] beyond a million characters in a row
    /// that are all blank or none is, where the vocabulary cuts text into words.
    pub fn tokenize(&self, text: &str, add_special: bool, parse_special: bool) -> Result<Vec<i32>, TokenizeError> {
        let characters = if self.cuts_words() { longest_word(text) } else { 0 };
        if characters <= SHORT_WORD {
            return self.tokenize_here(text, add_special, parse_special);
        }
        let too_long = TokenizeError::LongWord { characters };
        let stack = characters.saturating_mul(STACK_PER_CHARACTER);
        if stack > MAX_STACK {
            return Err(too_long);
        }
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("long-word".to_owned()).stack_size(stack + (1 << 20));
            let tokens = thread.spawn_scoped(scope, || self.tokenize_here(text, add_special, parse_special));
            tokens.map_err(|_| too_long.clone())?.join().unwrap_or(Err(too_long))
        })
    }

    /// Whether llama.cpp cuts a text into words first, which it does for many vocabularies by `std::regex`.
    fn cuts_words(&self) -> bool {
        // SAFETY: the vocabulary is live.
        unsafe { sys::llama_vocab_type(self.raw()) == sys::LLAMA_VOCAB_TYPE_BPE }
    }

    fn tokenize_here(&self, text: &str, add_special: bool, parse_special: bool) -> Result<Vec<i32>, TokenizeError> {
        let too_long = || TokenizeError::TooLong { bytes: text.len() };
        let len = i32::try_from(text.len()).map_err(|_| too_long())?;
        // A token is at least a byte in nearly all vocabularies; where it is not, the second round has the exact size.
        let mut tokens = vec![0; text.len().saturating_add(8).min(i32::MAX as usize)];
        loop {
            // SAFETY: the text is `len` bytes and the buffer holds `tokens.len()` tokens, which fits an i32.
            let n = unsafe {
                sys::llama_tokenize(
                    self.raw(),
                    text.as_ptr().cast(),
                    len,
                    tokens.as_mut_ptr(),
                    tokens.len() as i32,
                    add_special,
                    parse_special,
                )
            };
            match usize::try_from(n) {
                Ok(n) => {
                    tokens.truncate(n);
                    return Ok(tokens);
                }
                Err(_) if n == i32::MIN => return Err(too_long()),
                Err(_) if n.unsigned_abs() as usize <= tokens.len() => return Err(too_long()),
                Err(_) => tokens.resize(n.unsigned_abs() as usize, 0),
            }
        }
    }

    /// Appends the bytes of `token` to `out`: not always whole characters. Control tokens are rendered only if
    /// `special`. A token outside of the vocabulary appends nothing.
    pub fn append_piece(&self, token: i32, special: bool, out: &mut Vec<u8>) {
        if !self.contains(token) {
            return;
        }
        let start = out.len();
        let mut room = 64;
        loop {
            out.resize(start + room, 0);
            // SAFETY: the token is in range, and `room` bytes from `start` on are ours to write.
            let n = unsafe {
                let buffer = out.as_mut_ptr().add(start).cast();
                sys::llama_token_to_piece(self.raw(), token, buffer, room as i32, 0, special)
            };
            match usize::try_from(n) {
                Ok(n) => return out.truncate(start + n.min(room)),
                Err(_) if n.unsigned_abs() as usize > room && n != i32::MIN => room = n.unsigned_abs() as usize,
                Err(_) => return out.truncate(start),
            }
        }
    }

    /// The bytes of `token`; see [`Vocab::append_piece`].
    pub fn piece(&self, token: i32, special: bool) -> Vec<u8> {
        let mut out = Vec::new();
        self.append_piece(token, special, &mut out);
        out
    }

    /// The bytes of `tokens` in a row.
    pub fn detokenize(&self, tokens: &[i32], special: bool) -> Vec<u8> {
        let mut out = Vec::with_capacity(tokens.len() * 4);
        tokens.iter().for_each(|token| self.append_piece(*token, special, &mut out));
        out
    }

    /// Whether `token` ends a generation.
    pub fn is_eog(&self, token: i32) -> bool {
        self.inner.eog.binary_search(&token).is_ok()
    }

    /// All tokens that end a generation, ascending.
    pub fn eog_tokens(&self) -> &[i32] {
        &self.inner.eog
    }

    /// The token that begins a text, where there is one.
    pub fn bos(&self) -> Option<i32> {
        // SAFETY: the vocabulary is live.
        self.known(unsafe { sys::llama_vocab_bos(self.raw()) })
    }

    /// The token that ends a text, where there is one.
    pub fn eos(&self) -> Option<i32> {
        // SAFETY: the vocabulary is live.
        self.known(unsafe { sys::llama_vocab_eos(self.raw()) })
    }

    /// Whether the model wants BOS before a text.
    pub fn adds_bos(&self) -> bool {
        // SAFETY: the vocabulary is live.
        unsafe { sys::llama_vocab_get_add_bos(self.raw()) }
    }

    /// Whether the model wants EOS after a text.
    pub fn adds_eos(&self) -> bool {
        // SAFETY: the vocabulary is live.
        unsafe { sys::llama_vocab_get_add_eos(self.raw()) }
    }

    /// The token as it stands in the file, before byte decoding (`Ġthe`, `<|im_end|>`).
    pub fn text(&self, token: i32) -> Option<String> {
        if !self.contains(token) {
            return None;
        }
        // SAFETY: the token is in range; the string is a part of the vocabulary and copied here.
        let text = unsafe { sys::llama_vocab_get_text(self.raw(), token) };
        // SAFETY: NUL-terminated where not null.
        (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    }

    /// What kind of token it is; empty outside of the vocabulary.
    pub fn attr(&self, token: i32) -> TokenAttr {
        if !self.contains(token) {
            return TokenAttr(0);
        }
        // SAFETY: the token is in range and the type is not NONE.
        TokenAttr(unsafe { sys::llama_vocab_get_attr(self.raw(), token) })
    }

    fn contains(&self, token: i32) -> bool {
        (0..self.inner.n_tokens).contains(&token)
    }

    fn known(&self, token: i32) -> Option<i32> {
        self.contains(token).then_some(token)
    }

    fn raw(&self) -> *const sys::llama_vocab {
        self.inner.raw.as_ptr()
    }
}

/// Most characters in a row that are all blank, or none of which is.
fn longest_word(text: &str) -> usize {
    if text.len() <= SHORT_WORD {
        return text.len();
    }
    let (mut longest, mut length, mut blank) = (0, 0, false);
    for character in text.chars() {
        length = if character.is_whitespace() == blank { length + 1 } else { 1 };
        blank = character.is_whitespace();
        longest = longest.max(length);
    }
    longest
}

/// Kinds that a token belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenAttr(sys::llama_token_attr);

impl TokenAttr {
    /// Steers the model and is not text, such as `<|im_end|>`.
    pub fn is_control(self) -> bool {
        self.0 & sys::LLAMA_TOKEN_ATTR_CONTROL != 0
    }

    /// Added to the vocabulary after training; text, but matched before anything else.
    pub fn is_user_defined(self) -> bool {
        self.0 & sys::LLAMA_TOKEN_ATTR_USER_DEFINED != 0
    }

    /// Stands for what the vocabulary does not have, such as `<unk>`.
    pub fn is_unknown(self) -> bool {
        self.0 & sys::LLAMA_TOKEN_ATTR_UNKNOWN != 0
    }

    /// Takes the spaces before it along, where it is found in a text.
    pub fn strips_before(self) -> bool {
        self.0 & sys::LLAMA_TOKEN_ATTR_LSTRIP != 0
    }

    /// Takes the spaces behind it along, where it is found in a text.
    pub fn strips_behind(self) -> bool {
        self.0 & sys::LLAMA_TOKEN_ATTR_RSTRIP != 0
    }

    /// A single raw byte.
    pub fn is_byte(self) -> bool {
        self.0 & sys::LLAMA_TOKEN_ATTR_BYTE != 0
    }

    /// A place in the vocabulary that nothing uses.
    pub fn is_unused(self) -> bool {
        self.0 & sys::LLAMA_TOKEN_ATTR_UNUSED != 0
    }
}
