//! Endpoints with one answer: cutting texts, counting conversations, vectors of texts.

use http::{Response, StatusCode};
use mesh_openai::embeddings::Embeddings;
use mesh_openai::tokens::{Detokenize, Tokenize};
use mesh_openai::{ApiError, count_tokens, token_count};
use mesh_routing::served;
use mesh_types::{Fault, ModelId, RequestId};

use crate::answer::{context, name_ignored};
use crate::body::{self, ResponseBody};
use crate::request_body::RequestBody;
use crate::routes::Shared;
use crate::upstream;

/// `POST /tokenize`.
///
/// # Errors
/// What is wrong with the request, or why nobody could answer it.
///
/// # Cancel safety
/// Dropping it cancels the call.
pub(crate) async fn tokenize(
    shared: &Shared,
    body: RequestBody,
    id: RequestId,
) -> Result<Response<ResponseBody>, ApiError> {
    let context = context(shared, id);
    let mut asked = body.parse(move |bytes| Tokenize::parse(bytes, &context)).await?;
    asked.chat.model = model(shared, asked.chat.model)?;
    let pieces = asked.with_pieces || asked.token_strs;
    let cut = upstream::tokenize(&*shared.peers, &asked.chat, pieces, &shared.limits).await?;
    if pieces && cut.pieces.len() != cut.tokens.len() {
        return Err(upstream::violation("the node", "tokens without their pieces").into());
    }
    Ok(answered(asked.reply(&cut.tokens, &cut.pieces, cut.context), &asked.ignored))
}

/// `POST /detokenize`.
///
/// # Errors
/// As [`tokenize`].
///
/// # Cancel safety
/// Dropping it cancels the call.
pub(crate) async fn detokenize(shared: &Shared, body: RequestBody) -> Result<Response<ResponseBody>, ApiError> {
    let asked = body.parse(Detokenize::parse).await?;
    let model = model(shared, asked.model)?;
    let text = upstream::detokenize(&*shared.peers, &model, asked.tokens, &shared.limits).await?;
    Ok(answered(Detokenize::reply(&text), &asked.ignored))
}

/// `POST /v1/messages/count_tokens`.
///
/// # Errors
/// As [`tokenize`].
///
/// # Cancel safety
/// Dropping it cancels the call.
pub(crate) async fn count(
    shared: &Shared,
    body: RequestBody,
    id: RequestId,
) -> Result<Response<ResponseBody>, ApiError> {
    let context = context(shared, id);
    let (chat, ignored) = body.parse(move |bytes| count_tokens(bytes, &context)).await?;
    let cut = upstream::tokenize(&*shared.peers, &chat, false, &shared.limits).await?;
    Ok(answered(token_count(cut.tokens.len()), &ignored))
}

/// `POST /v1/embeddings`.
///
/// # Errors
/// As [`tokenize`].
///
/// # Cancel safety
/// Dropping it cancels the call.
pub(crate) async fn embed(shared: &Shared, body: RequestBody) -> Result<Response<ResponseBody>, ApiError> {
    let (asked, ignored) = body.parse(Embeddings::parse).await?;
    let reply = upstream::embed(&*shared.peers, &asked.model, &asked.inputs, &shared.limits).await?;
    let vectors: Vec<Vec<f32>> = reply.vectors.into_iter().map(|vector| vector.values).collect();
    let is_sound = |vector: &Vec<f32>| {
        !vector.is_empty()
            && vectors.first().is_some_and(|first| first.len() == vector.len())
            && vector.iter().all(|value| value.is_finite())
    };
    if vectors.len() != asked.inputs.len() || !vectors.iter().all(is_sound) {
        return Err(upstream::violation("the node", "vectors that are none, or not as many as texts").into());
    }
    Ok(answered(asked.reply(&vectors, reply.prompt_tokens)?, &ignored))
}

fn answered(json: Vec<u8>, ignored: &[String]) -> Response<ResponseBody> {
    let mut response = body::json(StatusCode::OK, json);
    name_ignored(&mut response, ignored.iter());
    response
}

/// The model that is meant: where a client names none, the only one.
fn model(shared: &Shared, named: ModelId) -> Result<ModelId, Fault> {
    if !named.as_str().is_empty() {
        return Ok(named);
    }
    let view = shared.peers.view().borrow().clone();
    match served(&view).as_slice() {
        [only] => Ok(only.name.clone()),
        _ => Err(Fault::invalid("`model` is missing, and it is not one model that is served.").with_param("model")),
    }
}
