//! From a conversation to the prompt's token ids.

use mesh_chat::Conversation;
use mesh_chat::prompt::{self, Fragment};
use mesh_types::chat::RawInput;
use mesh_types::{ChatRequest, Fault, TokenId};

use super::model::ServedModel;

/// A prompt, ready for an answer to follow.
pub(super) struct Prompt {
    /// Its tokens.
    pub(super) tokens: Vec<TokenId>,
    /// Its text: the end says how the answer begins.
    pub(super) text: String,
}

impl Prompt {
    /// The prompt of `request`. Blocks for as long as it computes: some milliseconds for a long conversation.
    ///
    /// # Errors
    /// The template's refusal, or a text that cannot be tokenised.
    pub(super) fn of(request: &ChatRequest, model: &ServedModel) -> Result<Self, Fault> {
        if let Some(raw) = &request.raw {
            return Self::raw(&raw.input, model);
        }
        let prepared = conversation(request).prepare(&model.capability)?;
        let mut input = prepared.input(&model.template, true);
        input.extra.clone_from(&request.template_kwargs);
        let fragments = prompt::render(&model.template, &input, &model.special)?;
        let mut tokens = Vec::new();
        for fragment in &fragments {
            tokens.extend(tokenize(model, fragment)?);
        }
        add_bos(model, &mut tokens);
        let text = fragments.into_iter().map(|fragment| fragment.text).collect();
        Ok(Self { tokens: tokens.into_iter().map(TokenId).collect(), text })
    }

    /// The prompt of a client that writes it itself.
    fn raw(input: &RawInput, model: &ServedModel) -> Result<Self, Fault> {
        let invalid = |message: String| Fault::invalid(message).with_param("prompt");
        let (tokens, text) = match input {
            RawInput::Text { text, add_special, parse_special } => {
                let cut = model.vocab.tokenize(text, false, *parse_special);
                let mut tokens = cut.map_err(|error| invalid(format!("the prompt cannot be tokenised: {error}")))?;
                if *add_special {
                    add_bos(model, &mut tokens);
                }
                (tokens, text.clone())
            }
            RawInput::Tokens(tokens) => {
                let tokens: Vec<i32> = tokens.iter().map(|token| token.0).collect();
                let text = text_of(&tokens, model)?;
                (tokens, text)
            }
        };
        if tokens.is_empty() {
            return Err(invalid("the prompt is empty: it needs at least one token".to_owned()));
        }
        Ok(Self { tokens: tokens.into_iter().map(TokenId).collect(), text })
    }
}

/// The text of `tokens`, those of special tokens included.
///
/// # Errors
/// One of them is not in the model's vocabulary.
pub(super) fn text_of(tokens: &[i32], model: &ServedModel) -> Result<String, Fault> {
    let size = model.vocab.n_tokens();
    if let Some(token) = tokens.iter().find(|token| !u32::try_from(**token).is_ok_and(|token| token < size)) {
        let message = format!("the token {token} is not in the vocabulary of `{}`, which has {size}", model.name);
        return Err(Fault::invalid(message));
    }
    Ok(String::from_utf8_lossy(&model.vocab.detokenize(tokens, true)).into_owned())
}

/// Puts the beginning-of-sequence token first where the model wants one. A template may have written it itself; two of
/// them confuse a model.
fn add_bos(model: &ServedModel, tokens: &mut Vec<i32>) {
    if let (true, Some(bos)) = (model.vocab.adds_bos(), model.vocab.bos())
        && tokens.first() != Some(&bos)
    {
        tokens.insert(0, bos);
    }
}

fn conversation(request: &ChatRequest) -> Conversation<'_> {
    Conversation {
        messages: &request.messages,
        tools: &request.tools,
        choice: &request.tool_choice,
        parallel: request.parallel_tool_calls,
    }
}

fn tokenize(model: &ServedModel, fragment: &Fragment) -> Result<Vec<i32>, Fault> {
    model.vocab.tokenize(&fragment.text, false, fragment.parse_special).map_err(|error| {
        Fault::invalid(format!("the conversation cannot be tokenised: {error}")).with_param("messages")
    })
}
