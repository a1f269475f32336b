//! From a conversation to the prompt's token ids.

use mesh_chat::Conversation;
use mesh_chat::prompt::{self, Fragment};
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
        let prepared = conversation(request).prepare(&model.capability)?;
        let mut input = prepared.input(&model.template, true);
        input.extra.clone_from(&request.template_kwargs);
        let fragments = prompt::render(&model.template, &input, &model.special)?;
        let mut tokens = Vec::new();
        for fragment in &fragments {
            tokens.extend(tokenize(model, fragment)?);
        }
        // A template may write the beginning-of-sequence token itself; two of them confuse a model.
        if let (true, Some(bos)) = (model.vocab.adds_bos(), model.vocab.bos())
            && tokens.first() != Some(&bos)
        {
            tokens.insert(0, bos);
        }
        let text = fragments.into_iter().map(|fragment| fragment.text).collect();
        Ok(Self { tokens: tokens.into_iter().map(TokenId).collect(), text })
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
