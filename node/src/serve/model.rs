//! The models that this node serves as stage 0.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use kernels_ffi::Vocab;
use mesh_chat::{Capability, ChatTemplate, Ledger, SpecialTokens, Strategy, TemplateOrigin};
use mesh_engine::Generator;
use mesh_gguf::{ModelInfo, Source};
use mesh_tokenizer::Tokenizer;
use mesh_types::{ErrorClass, chat::SamplingOverrides};
use mesh_types::{Fault, ModelId, Sampling, TokenId};
use tokio::sync::watch;

use super::tokenizer::LlamaCpp;
use crate::draft::{DraftError, DraftModel};
use crate::script::{ModelScript, ScriptError};
use crate::settings::ModelSettings;

/// Tokens that one sequence can hold where the model could hold more and nobody said otherwise.
pub(crate) const DEFAULT_CONTEXT: u32 = 8192;

/// Bytes of answers that are remembered.
const LEDGER: usize = 32 << 20;

/// A model with all that stage 0 needs to answer: fixed for the life of the node, but for `availability`.
pub struct ServedModel {
    /// The name it is served under.
    pub name: ModelId,
    /// Its file or shards.
    pub source: Arc<Source>,
    /// What the file says about it.
    pub info: ModelInfo,
    /// Its vocabulary.
    pub vocab: Vocab,
    /// Text to its tokens. Remembers those of long texts.
    pub tokenizer: Tokenizer<LlamaCpp>,
    /// Its chat template.
    pub template: ChatTemplate,
    /// How it calls tools.
    pub capability: Capability,
    /// Texts that must not become tokens where people write them.
    pub special: SpecialTokens,
    /// Its answers, remembered for the next prompts of their conversations.
    ledger: Mutex<Ledger>,
    /// Special tokens whose text the reader of its answers has to see.
    structural: BTreeSet<i32>,
    /// What answers instead of its weights.
    pub script: Option<ModelScript>,
    /// What drafts for it.
    pub draft: Option<DraftModel>,
    /// Tokens one sequence can hold.
    pub context: u32,
    /// Whether it answers now; the supervisor writes it.
    pub availability: watch::Sender<Availability>,
}

/// Whether a model answers now.
#[derive(Clone)]
pub enum Availability {
    /// Through this.
    Ready(Arc<dyn Generator>),
    /// Not now: what is missing or going on, for people.
    Waiting(String),
}

/// The models of this node, by name.
#[derive(Clone, Default)]
pub struct ServedModels(Arc<RwLock<BTreeMap<ModelId, Arc<ServedModel>>>>);

/// Why a model cannot be served at all.
#[derive(Debug, thiserror::Error)]
pub enum ServedModelError {
    /// The script that is to answer for it is not usable.
    #[error(transparent)]
    Script(#[from] ScriptError),
    /// The model that is to draft for it cannot.
    #[error(transparent)]
    Draft(#[from] DraftError),
    /// Its file is not usable.
    #[error("cannot serve {path}: {reason}")]
    File {
        /// The file.
        path: PathBuf,
        /// One sentence.
        reason: String,
    },
    /// The template given is not usable.
    #[error("cannot use the chat template {path}: {reason}")]
    Template {
        /// The file, or the model's if the template came with it.
        path: PathBuf,
        /// One sentence.
        reason: String,
    },
}

impl ServedModel {
    /// Reads what stage 0 needs of a model: its header, vocabulary and template; no weights. Blocks on files.
    ///
    /// # Errors
    /// [`ServedModelError`] names the file and says what is wrong with it.
    pub fn open(settings: &ModelSettings, context: Option<u32>) -> Result<Self, ServedModelError> {
        let path = &settings.path;
        let bad = |reason: String| ServedModelError::File { path: path.clone(), reason };
        let source = Arc::new(Source::open(path).map_err(|e| bad(e.to_string()))?);
        let info = ModelInfo::of(source.header()).map_err(|e| bad(e.to_string()))?;
        let vocab = Vocab::load(path).map_err(|e| bad(e.to_string()))?;
        let tokenizer = super::tokenizer::of(&vocab, source.header().metadata());
        match tokenizer.fallback() {
            None => tracing::debug!(model = %settings.name, "text is tokenised by this program"),
            Some(why) => tracing::info!(model = %settings.name, "text is tokenised by llama.cpp: {why}"),
        }
        let template = template(settings, &info, &vocab)?;
        let special = special(&vocab).map_err(|e| bad(e.to_string()))?;
        let probed = Capability::probe(&template);
        let capability = if settings.force_tool_emulation { probed.emulated() } else { probed };
        tracing::info!(model = %settings.name, "tools are {}", capability.strategy);
        let structural = structural(&vocab, &capability.strategy);
        let own = info.context_length;
        // A script is not bound to what weights were trained for.
        let most = if settings.scripted.is_some() { u32::MAX } else { own };
        if let Some(asked) = context.filter(|asked| *asked > most) {
            tracing::warn!(model = %settings.name, asked, "the context is {most} tokens: the model was made for no more");
        }
        let context = context.unwrap_or(own.min(DEFAULT_CONTEXT)).min(most);
        let (availability, _) = watch::channel(Availability::Waiting("starting".to_owned()));
        let script = settings.scripted.as_deref().map(ModelScript::read).transpose()?;
        if script.is_some() {
            tracing::warn!(model = %settings.name, "a script answers instead of the model");
        }
        let draft = settings.draft.as_deref().map(|path| DraftModel::open(path, &vocab)).transpose()?;
        let name = settings.name.clone();
        let ledger = Mutex::new(Ledger::new(LEDGER));
        Ok(Self {
            name,
            source,
            info,
            vocab,
            tokenizer,
            template,
            capability,
            special,
            ledger,
            structural,
            script,
            draft,
            context,
            availability,
        })
    }

    /// The way to run it now.
    ///
    /// # Errors
    /// A fault that says what is missing.
    pub fn generator(&self) -> Result<Arc<dyn Generator>, Fault> {
        match &*self.availability.borrow() {
            Availability::Ready(generator) => Ok(Arc::clone(generator)),
            Availability::Waiting(detail) => {
                Err(Fault::unavailable(format!("the model `{}` is not ready: {detail}", self.name))
                    .with_code("model_not_ready"))
            }
        }
    }

    /// What is in force for a request: its own fields, else the model's, else the product's defaults.
    pub fn sampling(&self, request: &SamplingOverrides) -> Sampling {
        let (model, default) = (&self.info.sampling, Sampling::default());
        Sampling {
            temperature: request.temperature.or(model.temperature).unwrap_or(default.temperature),
            top_k: request.top_k.or(model.top_k).unwrap_or(default.top_k),
            top_p: request.top_p.or(model.top_p).unwrap_or(default.top_p),
            min_p: request.min_p.or(model.min_p).unwrap_or(default.min_p),
            seed: request.seed.unwrap_or_else(random_seed),
            repeat_penalty: request.repeat_penalty.unwrap_or(default.repeat_penalty),
            repeat_last_n: request.repeat_last_n.unwrap_or(default.repeat_last_n),
            presence_penalty: request.presence_penalty.unwrap_or(default.presence_penalty),
            frequency_penalty: request.frequency_penalty.unwrap_or(default.frequency_penalty),
            ignore_eos: request.ignore_eos.unwrap_or(false),
        }
    }

    /// The bytes of a token as the reader of answers sees them: special tokens are none, but for those that make the
    /// structure of an answer.
    pub fn piece(&self, token: TokenId) -> Vec<u8> {
        self.vocab.piece(token.0, self.structural.contains(&token.0))
    }

    /// All bytes of a token, and whether it is a special one. [`SpecialTokens`] passes blank texts over, too.
    pub fn whole_piece(&self, token: TokenId) -> (Vec<u8>, bool) {
        let (bytes, attr) = (self.vocab.piece(token.0, true), self.vocab.attr(token.0));
        let is_special =
            (attr.is_control() || attr.is_user_defined() || attr.is_unknown()) && !bytes.trim_ascii().is_empty();
        (bytes, is_special)
    }

    /// Its ledger. To be held for moments.
    pub fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The texts of the special tokens that make the structure of an answer.
    pub fn control_text(&self) -> Vec<String> {
        let texts = self.structural.iter().filter_map(|token| self.vocab.text(*token));
        texts.filter(|text| !text.is_empty()).collect()
    }

    /// Tokens that end a generation.
    pub fn end_tokens(&self) -> Vec<TokenId> {
        self.vocab.eog_tokens().iter().copied().map(TokenId).collect()
    }
}

impl ServedModels {
    /// These models.
    pub fn new(models: impl IntoIterator<Item = Arc<ServedModel>>) -> Self {
        let served = Self::default();
        models.into_iter().for_each(|model| _ = served.add(model));
        served
    }

    /// Adds a model. Returns whether its name was free.
    pub fn add(&self, model: Arc<ServedModel>) -> bool {
        let mut models = self.0.write().unwrap_or_else(PoisonError::into_inner);
        match models.entry(model.name.clone()) {
            Entry::Occupied(_) => false,
            Entry::Vacant(free) => {
                free.insert(model);
                true
            }
        }
    }

    /// Takes a model away. Returns whether it was there.
    pub fn remove(&self, name: &ModelId) -> bool {
        self.0.write().unwrap_or_else(PoisonError::into_inner).remove(name).is_some()
    }

    /// All of them, by name.
    pub fn all(&self) -> Vec<Arc<ServedModel>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// The model of this name.
    ///
    /// # Errors
    /// Not found.
    pub fn get(&self, name: &ModelId) -> Result<Arc<ServedModel>, Fault> {
        let models = self.0.read().unwrap_or_else(PoisonError::into_inner);
        models.get(name).cloned().ok_or_else(|| {
            Fault::new(ErrorClass::NotFound, format!("the model `{name}` is not served by this node"))
                .with_param("model")
                .with_code("model_not_found")
        })
    }
}

fn template(settings: &ModelSettings, info: &ModelInfo, vocab: &Vocab) -> Result<ChatTemplate, ServedModelError> {
    let text = |token: Option<i32>| token.and_then(|token| vocab.text(token)).unwrap_or_default();
    let (bos, eos) = (text(vocab.bos()), text(vocab.eos()));
    let given = settings.chat_template.as_deref().map(read_template).transpose()?;
    let source = given.as_deref().or(info.chat_template.as_deref());
    let template = ChatTemplate::of_model(source, &bos, &eos).map_err(|e| ServedModelError::Template {
        path: settings.chat_template.clone().unwrap_or_else(|| settings.path.clone()),
        reason: e.to_string(),
    })?;
    if template.origin() == TemplateOrigin::BuiltIn {
        tracing::warn!(
            model = %settings.name,
            "the model brings no chat template: ChatML is used, which it may not know; give one with --chat-template"
        );
    }
    Ok(template)
}

fn read_template(path: &Path) -> Result<String, ServedModelError> {
    std::fs::read_to_string(path)
        .map_err(|e| ServedModelError::Template { path: path.to_owned(), reason: e.to_string() })
}

/// Special tokens whose texts are among the markers of the format in which the model answers.
fn structural(vocab: &Vocab, strategy: &Strategy) -> BTreeSet<i32> {
    let markers = strategy.markers();
    let is_marker = |token: &i32| {
        !vocab.is_eog(*token)
            && vocab.attr(*token).is_control()
            && vocab.text(*token).is_some_and(|text| markers.iter().any(|marker| marker.contains(&text)))
    };
    (0..i32::try_from(vocab.n_tokens()).unwrap_or(i32::MAX)).filter(is_marker).collect()
}

fn special(vocab: &Vocab) -> Result<SpecialTokens, mesh_chat::ChatError> {
    let (mut control, mut user_defined) = (Vec::new(), Vec::new());
    for token in 0..i32::try_from(vocab.n_tokens()).unwrap_or(i32::MAX) {
        let attr = vocab.attr(token);
        if attr.is_user_defined() {
            user_defined.extend(vocab.text(token));
        } else if attr.is_control() || attr.is_unknown() {
            control.extend(vocab.text(token));
        }
    }
    SpecialTokens::new(control.iter().map(String::as_str), user_defined.iter().map(String::as_str))
}

/// Below 2^53, so that it survives a client's JSON numbers.
fn random_seed() -> u64 {
    // A system without randomness cannot run TLS either; then every answer has seed 0.
    getrandom::u64().unwrap_or(0) >> 11
}
