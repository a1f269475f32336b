//! Text to tokens and back, for clients that count or cut for themselves. Computes nothing with the model, so that a
//! model that is not ready answers too.

use mesh_proto::v1;
use mesh_types::{ChatRequest, ErrorClass, Fault, ModelId};

use super::model::ServedModels;
use super::prompt::{Prompt, text_of};

/// The tokens of the prompt that `request` would run.
///
/// # Errors
/// The faults with which the request would be refused before it ran, but for its length.
///
/// # Cancel safety
/// May be dropped.
pub(super) async fn tokenize(
    models: &ServedModels,
    request: ChatRequest,
    pieces: bool,
) -> Result<v1::TokenizeReply, Fault> {
    let model = models.get(&request.model)?;
    let cutting = tokio::task::spawn_blocking(move || {
        let tokens: Vec<i32> = Prompt::of(&request, &model)?.tokens.iter().map(|token| token.0).collect();
        let piece = |token: &i32| model.vocab.piece(*token, true);
        let pieces = if pieces { tokens.iter().map(piece).collect() } else { Vec::new() };
        Ok(v1::TokenizeReply { tokens, pieces, context: model.context })
    });
    cutting.await.unwrap_or_else(|_| Err(Fault::new(ErrorClass::Internal, "the prompt could not be made")))
}

/// The text of tokens.
///
/// # Errors
/// No such model, or no such token.
pub(super) fn detokenize(models: &ServedModels, request: v1::DetokenizeRequest) -> Result<v1::DetokenizeReply, Fault> {
    let model = models.get(&ModelId::new(request.model))?;
    let text = text_of(&request.tokens, &model).map_err(|fault| fault.with_param("tokens"))?;
    Ok(v1::DetokenizeReply { text })
}
