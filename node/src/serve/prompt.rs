//! From a conversation to the prompt's token ids.

use std::collections::HashSet;

use mesh_chat::Conversation;
use mesh_chat::ledger::{Layout, Piece, PromptMark, Reading, Spliced};
use mesh_chat::prompt::{self, Fragment};
use mesh_types::chat::RawInput;
use mesh_types::{ChatRequest, Fault, Message, TokenId};

use super::model::ServedModel;

/// A prompt, ready for an answer to follow.
pub(super) struct Prompt {
    /// Its tokens.
    pub(super) tokens: Vec<TokenId>,
    /// Its text: the end says how the answer begins.
    pub(super) text: String,
    /// Tokens at its beginning that are not in the text: of a prompt that a client writes itself, the one put before it.
    pub(super) unwritten: usize,
    /// Under which its answer is remembered; none for a client that writes its prompts itself.
    pub(super) mark: Option<PromptMark>,
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
        let (layout, spliced) = Self::spliced(request, model)?;
        let mut tokens = Vec::new();
        for piece in &spliced.pieces {
            match piece {
                Piece::Text(fragment) => tokens.extend(tokenize(model, fragment)?),
                Piece::Tokens(own) => tokens.extend(own.iter().map(|token| token.0)),
            }
        }
        add_bos(model, &mut tokens);
        let (text, mark) = (layout.whole_text(), Some(PromptMark::of(&layout)));
        Ok(Self { tokens: tokens.into_iter().map(TokenId).collect(), text, unwritten: 0, mark })
    }

    /// Renders the conversation, and finds this model's own answers in it. Turns that make calls get the reasoning back
    /// that the client does not know, where the prompt shows that they are this conversation's.
    fn spliced(request: &ChatRequest, model: &ServedModel) -> Result<(Layout, Spliced), Fault> {
        let reading = Reading { strategy: &model.capability.strategy, tools: &request.tools };
        let mut messages = request.messages.clone();
        let mut used = model.ledger().restore_reasoning(&mut messages, |_| true);
        loop {
            let layout = layout(request, &messages, model)?;
            let spliced = model.ledger().splice(&layout, &reading);
            let proven: HashSet<u64> = used.intersection(&spliced.answers).copied().collect();
            // Fewer in every round.
            if proven.len() == used.len() {
                return Ok((layout, spliced));
            }
            messages.clone_from(&request.messages);
            used = model.ledger().restore_reasoning(&mut messages, |id| proven.contains(&id));
        }
    }

    /// The prompt of a client that writes it itself.
    fn raw(input: &RawInput, model: &ServedModel) -> Result<Self, Fault> {
        let invalid = |message: String| Fault::invalid(message).with_param("prompt");
        let mut unwritten = 0;
        let (tokens, text) = match input {
            RawInput::Text { text, add_special, parse_special } => {
                let cut = model.tokenizer.tokenize(text, *parse_special);
                let mut tokens = cut.map_err(|error| invalid(format!("the prompt cannot be tokenised: {error}")))?;
                if *add_special {
                    unwritten = usize::from(add_bos(model, &mut tokens));
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
        Ok(Self { tokens: tokens.into_iter().map(TokenId).collect(), text, unwritten, mark: None })
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

/// Puts the beginning-of-sequence token first where the model wants one; says whether it did. A template may have written
/// it itself; two of them confuse a model.
fn add_bos(model: &ServedModel, tokens: &mut Vec<i32>) -> bool {
    let bos = model.vocab.bos().filter(|bos| model.vocab.adds_bos() && tokens.first() != Some(bos));
    tokens.splice(..0, bos);
    bos.is_some()
}

/// The prompt of these messages, as the template makes it.
fn layout(request: &ChatRequest, messages: &[Message], model: &ServedModel) -> Result<Layout, Fault> {
    let conversation = Conversation {
        messages,
        tools: &request.tools,
        choice: &request.tool_choice,
        parallel: request.parallel_tool_calls,
    };
    let prepared = conversation.prepare(&model.capability)?;
    let mut input = prepared.input(&model.template, true);
    input.extra.clone_from(&request.template_kwargs);
    let fragments = prompt::render(&model.template, &input, &model.special)?;
    Ok(Layout::new(&fragments, &model.special))
}

fn tokenize(model: &ServedModel, fragment: &Fragment) -> Result<Vec<i32>, Fault> {
    model.tokenizer.tokenize(&fragment.text, fragment.parse_special).map_err(|error| {
        Fault::invalid(format!("the conversation cannot be tokenised: {error}")).with_param("messages")
    })
}
