//! From a conversation to the prompt's token ids.

use mesh_chat::prompt::{self, Fragment};
use mesh_types::{Fault, Message, TokenId};
use serde_json::{Map, Value};

use super::model::ServedModel;

/// The token ids of a conversation's prompt, ready for an answer to follow; `kwargs` are more variables for the template.
/// Blocks for as long as it computes: some milliseconds for a long conversation.
///
/// # Errors
/// The template's refusal, or a text that cannot be tokenised.
pub(super) fn tokens(
    model: &ServedModel,
    messages: &[Message],
    kwargs: Map<String, Value>,
) -> Result<Vec<TokenId>, Fault> {
    let mut input = model.template.input(messages, true);
    input.extra = kwargs;
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
    Ok(tokens.into_iter().map(TokenId).collect())
}

fn tokenize(model: &ServedModel, fragment: &Fragment) -> Result<Vec<i32>, Fault> {
    model.vocab.tokenize(&fragment.text, false, fragment.parse_special).map_err(|error| {
        Fault::invalid(format!("the conversation cannot be tokenised: {error}")).with_param("messages")
    })
}
