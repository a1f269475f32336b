//! Vocabularies, and both tokenizers of one.

use std::path::{Path, PathBuf};

use kernels_ffi::{TokenizeError, Vocab};
use mesh_gguf::{Header, Metadata, Source, Value};
use mesh_tokenizer::{Reference, Special, Tokenizer};

pub(crate) struct LlamaCpp(pub(crate) Vocab);

impl Reference for LlamaCpp {
    type Error = TokenizeError;

    fn tokenize(&self, text: &str, parse_special: bool) -> Result<Vec<i32>, TokenizeError> {
        self.0.tokenize(text, false, parse_special)
    }
}

fn cache() -> PathBuf {
    std::env::var_os("MESH_NODE_CACHE").map(PathBuf::from).unwrap_or_else(|| {
        let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
        let home = || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cache");
        cache.unwrap_or_else(home).join("mesh-node")
    })
}

/// A vocabulary of the archive.
pub(crate) fn vocabulary(name: &str) -> PathBuf {
    let path = cache().join(format!("upstream/0.3.36/llama.cpp/models/ggml-vocab-{name}.gguf"));
    assert!(path.exists(), "{} is missing: `scripts/upstream` fetches it", path.display());
    path
}

/// A test model.
pub(crate) fn model(file: &str) -> PathBuf {
    let folder = std::env::var_os("MESH_TEST_MODELS").map(PathBuf::from).unwrap_or_else(|| cache().join("models"));
    let path = folder.join(file);
    assert!(path.exists(), "{} is missing: `./dev models` fetches it", path.display());
    path
}

pub(crate) fn metadata(path: &Path) -> Metadata {
    Source::open(path).unwrap().header().metadata().clone()
}

/// A file of these keys and no tensors.
pub(crate) fn write(path: &Path, metadata: Metadata) {
    let header = Header::build(metadata, Vec::new()).unwrap();
    header.write_to(std::fs::File::create(path).unwrap()).unwrap();
}

/// The vocabulary of `from` with another pre-tokenizer.
pub(crate) fn renamed(from: &Path, pre: &str, folder: &Path) -> PathBuf {
    let mut metadata = metadata(from);
    metadata.set("tokenizer.ggml.pre", Value::from(pre));
    let path = folder.join("renamed.gguf");
    write(&path, metadata);
    path
}

pub(crate) fn specials(vocab: &Vocab) -> Vec<Special> {
    let tokens = (0..vocab.n_tokens().cast_signed()).map(|id| (id, vocab.attr(id)));
    let special = |(id, attr): (i32, kernels_ffi::TokenAttr)| Special {
        id,
        text: vocab.text(id).unwrap(),
        always: !attr.is_control() && !attr.is_unknown(),
        strips_before: attr.strips_before(),
        strips_behind: attr.strips_behind(),
    };
    tokens.filter(|(_, attr)| attr.is_control() || attr.is_user_defined() || attr.is_unknown()).map(special).collect()
}

/// The tokenizer of the vocabulary at `path`, with llama.cpp's as its reference.
pub(crate) fn tokenizer(path: &Path) -> Tokenizer<LlamaCpp> {
    let vocab = Vocab::load(path).unwrap();
    Tokenizer::new(&metadata(path), specials(&vocab), LlamaCpp(vocab))
}

/// Texts and ids that llama.cpp keeps beside a vocabulary.
pub(crate) fn vectors(path: &Path) -> Vec<(String, Vec<i32>)> {
    let beside = |end: &str| std::fs::read_to_string(format!("{}.{end}", path.display())).unwrap();
    let (texts, ids) = (beside("inp"), beside("out"));
    let texts: Vec<&str> = texts.split("\n__ggml_vocab_test__\n").collect();
    let ids = ids.lines().map(|line| line.split_whitespace().map(|id| id.parse().unwrap()).collect());
    let vectors: Vec<_> = texts.into_iter().map(str::to_owned).zip(ids).collect();
    assert!(vectors.len() > 40);
    vectors
}
