//! Scripts: what a model says where a script answers instead of its weights (`--scripted FILE`).
//!
//! For tests of clients, and to try one out without a model that is good enough. Only the weights are left out: prompts
//! go through the model's own template and vocabulary, and answers through its parser. `/v1/models` says that a script
//! answers.
//!
//! A script is a TOML file. The first rule whose conditions hold for the prompt, special tokens' texts included, says
//! what the model writes:
//!
//! ```toml
//! token_ms = 5              # how long each token takes; 0 unless given
//! otherwise = "Hello."      # what is written where no rule holds; nothing unless given
//!
//! [[rules]]
//! contains = ["notes.txt"]  # all of these are in the prompt
//! lacks = ["<tool_response>"]
//! say = "<tool_call>\n{\"name\": \"read\", \"arguments\": {\"path\": \"notes.txt\"}}\n</tool_call>"
//! ```

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kernels_ffi::Vocab;
use mesh_engine::scripted::Script;
use mesh_types::TokenId;
use serde::Deserialize;

/// Prompts whose answers are remembered, so that each is found once and not for every token: more than sequences run.
const REMEMBERED: usize = 512;

/// A script.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelScript {
    rules: Vec<Rule>,
    otherwise: String,
    token_ms: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Rule {
    contains: Vec<String>,
    lacks: Vec<String>,
    say: String,
}

/// Why a script cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot use the script {path}: {reason}")]
pub struct ScriptError {
    path: PathBuf,
    reason: String,
}

impl ModelScript {
    /// Reads the script at `path`. Blocks.
    ///
    /// # Errors
    /// Says what is wrong with it.
    pub fn read(path: &Path) -> Result<Self, ScriptError> {
        let failed = |reason: String| ScriptError { path: path.to_owned(), reason };
        let text = std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
        toml::from_str(&text).map_err(|error| failed(error.to_string()))
    }

    /// How long each token takes.
    pub fn token_time(&self) -> Duration {
        Duration::from_millis(self.token_ms)
    }

    /// All that the model may write.
    fn answers(&self) -> impl Iterator<Item = &str> {
        self.rules.iter().map(|rule| rule.say.as_str()).chain([self.otherwise.as_str()])
    }

    /// Which of the answers the model writes after `prompt`.
    fn choose(&self, prompt: &str) -> usize {
        let holds = |rule: &Rule| {
            rule.contains.iter().all(|text| prompt.contains(text))
                && !rule.lacks.iter().any(|text| prompt.contains(text))
        };
        self.rules.iter().position(holds).unwrap_or(self.rules.len())
    }
}

/// A script in a model's tokens.
pub struct Voice {
    script: ModelScript,
    vocab: Vocab,
    /// Those of the script, in its order.
    answers: Vec<Arc<[TokenId]>>,
    /// Ends an answer.
    end: TokenId,
    remembered: Mutex<VecDeque<(u64, Arc<[TokenId]>)>>,
}

impl Voice {
    /// `script` in the tokens of `vocab`.
    pub fn new(script: ModelScript, vocab: Vocab) -> Self {
        let end = vocab.eog_tokens().first().copied().or(vocab.eos()).unwrap_or_default();
        // It fails for texts beyond 2 GiB alone.
        let cut = |text: &str| vocab.tokenize(text, false, true).unwrap_or_default().into_iter().map(TokenId);
        let answers = script.answers().map(|text| cut(text).collect()).collect();
        Self { script, vocab, answers, end: TokenId(end), remembered: Mutex::default() }
    }

    fn answer(&self, prompt: &[TokenId]) -> Arc<[TokenId]> {
        let mut hasher = DefaultHasher::new();
        prompt.hash(&mut hasher);
        let key = hasher.finish();
        let mut remembered = self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, answer)) = remembered.iter().find(|(of, _)| *of == key) {
            return Arc::clone(answer);
        }
        let ids: Vec<i32> = prompt.iter().map(|token| token.0).collect();
        let text = String::from_utf8_lossy(&self.vocab.detokenize(&ids, true)).into_owned();
        let answer = self.answers.get(self.script.choose(&text)).map(Arc::clone).unwrap_or_default();
        remembered.push_back((key, Arc::clone(&answer)));
        if remembered.len() > REMEMBERED {
            remembered.pop_front();
        }
        answer
    }
}

impl Script for Voice {
    fn next(&self, tokens: &[TokenId], index: u32) -> TokenId {
        let prompt = tokens.len().saturating_sub(index as usize);
        let answer = self.answer(tokens.get(..prompt).unwrap_or_default());
        answer.get(index as usize).copied().unwrap_or(self.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_rule_that_holds_answers() {
        let script: ModelScript = toml::from_str(
            r#"
            otherwise = "?"
            [[rules]]
            contains = ["a", "b"]
            lacks = ["c"]
            say = "both"
            [[rules]]
            contains = ["b"]
            say = "one"
            "#,
        )
        .unwrap();
        for (prompt, said) in [("a b", "both"), ("a b c", "one"), ("b", "one"), ("a", "?"), ("", "?")] {
            assert_eq!(script.answers().nth(script.choose(prompt)), Some(said), "{prompt}");
        }
        assert_eq!(script.token_time(), Duration::ZERO);
    }

    #[test]
    fn a_script_that_is_none_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.toml");
        std::fs::write(&path, "rule = []").unwrap();
        for path in [path, dir.path().join("none.toml")] {
            let error = ModelScript::read(&path).unwrap_err().to_string();
            assert!(error.contains(path.to_str().unwrap()), "{error}");
        }
    }
}
