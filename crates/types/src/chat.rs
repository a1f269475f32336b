//! The canonical chat request: what every dialect of the gateway is turned into, and what a stage-0 node answers.

use serde_json::{Map, Value};

use crate::ids::{ModelId, RequestId, TokenId};

/// A chat completion as a stage-0 node sees it, free of any dialect.
#[derive(Clone, Debug, PartialEq)]
pub struct ChatRequest {
    /// Made by the gateway.
    pub request: RequestId,
    /// The model asked for.
    pub model: ModelId,
    /// The conversation; empty only where there is a `raw` prompt.
    pub messages: Vec<Message>,
    /// A prompt that goes to the model as it is; then there are no messages and no tools.
    pub raw: Option<RawPrompt>,
    /// Ceiling on generated tokens; `None`: up to the context.
    pub max_tokens: Option<u32>,
    /// What the client set of the sampling; unset fields take the model's, then the product's defaults.
    pub sampling: SamplingOverrides,
    /// Added to the logits of tokens; see [`crate::GenerateSpec::logit_bias`].
    pub logit_bias: Vec<(TokenId, f32)>,
    /// How many of the most likely tokens are reported with each drawn one and its log probability; `None`: nothing is.
    pub logprobs: Option<u8>,
    /// Texts that end the answer and are not part of it.
    pub stop: Vec<String>,
    /// The tools that the model may call, no two of one name; empty: none.
    pub tools: Vec<Tool>,
    /// Which of them it may or must call. Names in it are those of `tools`.
    pub tool_choice: ToolChoice,
    /// Whether one answer may hold several calls.
    pub parallel_tool_calls: bool,
    /// What shape the answer's text has.
    pub response_format: ResponseFormat,
    /// A grammar in GBNF that the whole answer is held to; then there are no tools, and `response_format` is text.
    pub grammar: Option<String>,
    /// Whether what is cached of the prompt may be taken over; `None`: yes.
    pub cache_prompt: Option<bool>,
    /// More variables for the chat template, such as `enable_thinking` or `reasoning_effort`.
    pub template_kwargs: Map<String, Value>,
    /// The client's own name for the conversation (a session header, `prompt_cache_key`): its requests go to the same
    /// replica while that is sensible. Stays with the gateway.
    pub conversation: Option<String>,
}

/// A prompt that no chat template is applied to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawPrompt {
    /// What it is.
    pub input: RawInput,
    /// Whether the answer begins with the prompt's text.
    pub echo: bool,
}

/// The prompt as a client wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RawInput {
    /// A text, still to be cut into tokens.
    Text {
        /// The text.
        text: String,
        /// Whether a beginning-of-sequence token is put before it, where the model wants one and it has none.
        add_special: bool,
        /// Whether the texts of special tokens in it stand for those tokens.
        parse_special: bool,
    },
    /// Tokens of the model's vocabulary.
    Tokens(Vec<TokenId>),
}

/// One turn of a conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// `system`, `user`, `assistant`, or another role that the template may know.
    pub role: String,
    /// The turn's text; `None` where the client sent null or nothing.
    pub content: Option<String>,
    /// The participant's name, where given; of a tool's result: the tool's.
    pub name: Option<String>,
    /// What an assistant turn thought before it spoke, where that is known.
    pub reasoning_content: Option<String>,
    /// The calls that an assistant turn makes.
    pub tool_calls: Vec<ToolCall>,
    /// Of a tool's result: the [`ToolCall::id`] that it answers.
    pub tool_call_id: Option<String>,
}

/// One call of a tool by the model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolCall {
    /// Names the call; its result carries the same.
    pub id: String,
    /// The tool's name.
    pub name: String,
    /// The arguments as JSON text, byte for byte as the model wrote them where that is JSON. From a client: anything.
    pub arguments: String,
}

/// A tool that the model may call.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// What it does, in the client's words.
    pub description: Option<String>,
    /// JSON schema of its arguments; `None`: it takes none.
    pub parameters: Option<Value>,
    /// The whole definition as the client sent it; templates get this, with its fields in their order.
    pub definition: Value,
}

/// Which tools the model may or must call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// The model decides.
    #[default]
    Auto,
    /// No call.
    None,
    /// At least one call, of any tool.
    Required,
    /// A call of the tool with this name.
    Named(String),
    /// As [`Self::Auto`] or [`Self::Required`], but only some of the tools may be called. The model is told of all.
    Allowed {
        /// The tools that may be called; at least one.
        names: Vec<String>,
        /// Whether one of them has to be.
        required: bool,
    },
}

impl ToolChoice {
    /// Whether the tool `name` may be called.
    pub fn allows(&self, name: &str) -> bool {
        match self {
            Self::Auto | Self::Required => true,
            Self::None => false,
            Self::Named(named) => named == name,
            Self::Allowed { names, .. } => names.iter().any(|allowed| allowed == name),
        }
    }

    /// Whether the answer has to be a call.
    pub fn forces(&self) -> bool {
        match self {
            Self::Auto | Self::None => false,
            Self::Required | Self::Named(_) => true,
            Self::Allowed { required, .. } => *required,
        }
    }

    /// The tools that it names.
    pub fn names(&self) -> &[String] {
        match self {
            Self::Auto | Self::None | Self::Required => &[],
            Self::Named(name) => std::slice::from_ref(name),
            Self::Allowed { names, .. } => names,
        }
    }
}

/// What shape the text of an answer has.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum ResponseFormat {
    /// Any.
    #[default]
    Text,
    /// One JSON object.
    JsonObject,
    /// JSON that is valid against a schema.
    JsonSchema(ResponseSchema),
}

/// The schema of an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct ResponseSchema {
    /// What the client calls it.
    pub name: String,
    /// A JSON schema: an object or a truth value.
    pub schema: Value,
    /// Whether the request is to be refused where all of the schema cannot be enforced.
    pub strict: bool,
}

impl Tool {
    /// Reads a definition: `{"type": "function", "function": {"name": …}}`, or its inner object alone.
    ///
    /// # Errors
    /// One sentence on what is wrong with it, to follow the definition's place.
    pub fn from_definition(definition: Value) -> Result<Self, &'static str> {
        let function = definition.get("function").unwrap_or(&definition);
        let Value::Object(fields) = function else { return Err("must be an object") };
        let name = match fields.get("name") {
            Some(Value::String(name)) if !name.is_empty() => name.clone(),
            Some(Value::String(_)) => return Err("has an empty `name`"),
            Some(_) => return Err("has a `name` that is no string"),
            None => return Err("has no `name`"),
        };
        let description = match fields.get("description") {
            Some(Value::String(description)) => Some(description.clone()),
            None | Some(Value::Null) => None,
            Some(_) => return Err("has a `description` that is no string"),
        };
        let parameters = match fields.get("parameters") {
            Some(schema @ Value::Object(_)) => Some(schema.clone()),
            None | Some(Value::Null) => None,
            Some(_) => return Err("has `parameters` that are no JSON schema object"),
        };
        Ok(Self { name, description, parameters, definition })
    }

    /// Whether the request is to be refused where all of [`Self::parameters`] cannot be enforced.
    pub fn is_strict(&self) -> bool {
        let function = self.definition.get("function").unwrap_or(&self.definition);
        function.get("strict").and_then(Value::as_bool) == Some(true)
    }
}

/// The sampling fields that a client set, and only those.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SamplingOverrides {
    /// See [`crate::Sampling::temperature`].
    pub temperature: Option<f32>,
    /// See [`crate::Sampling::top_k`].
    pub top_k: Option<u32>,
    /// See [`crate::Sampling::top_p`].
    pub top_p: Option<f32>,
    /// See [`crate::Sampling::min_p`].
    pub min_p: Option<f32>,
    /// See [`crate::Sampling::repeat_penalty`].
    pub repeat_penalty: Option<f32>,
    /// See [`crate::Sampling::repeat_last_n`].
    pub repeat_last_n: Option<u32>,
    /// See [`crate::Sampling::presence_penalty`].
    pub presence_penalty: Option<f32>,
    /// See [`crate::Sampling::frequency_penalty`].
    pub frequency_penalty: Option<f32>,
    /// See [`crate::Sampling::seed`]; unset: drawn at random.
    pub seed: Option<u64>,
    /// See [`crate::Sampling::ignore_eos`].
    pub ignore_eos: Option<bool>,
}
