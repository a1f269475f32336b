//! Vectors of the texts of one request.

use std::sync::Arc;

use kernels_ffi::Vocab;
use mesh_engine::pooler::PoolError;
use mesh_proto::v1;
use mesh_proto::v1::embed_input::Input;
use mesh_types::{ErrorClass, Fault};

use super::{Availability, PoolingModel};

/// Most texts in one request. OpenAI's limit.
const MAX_INPUTS: usize = 2048;

impl PoolingModel {
    /// A vector of each of `inputs`.
    ///
    /// # Errors
    /// The fault to refuse the request with; it names the text.
    ///
    /// # Cancel safety
    /// May be dropped; a text that has begun is computed to its end.
    pub async fn embed(self: &Arc<Self>, inputs: Vec<v1::EmbedInput>) -> Result<v1::EmbedReply, Fault> {
        let pooler = match &*self.availability.borrow() {
            Availability::Ready(pooler) => Arc::clone(pooler),
            Availability::Waiting(detail) => {
                return Err(Fault::unavailable(format!("the model `{}` is not ready: {detail}", self.name))
                    .with_code("model_not_ready"));
            }
        };
        if inputs.is_empty() || inputs.len() > MAX_INPUTS {
            let message = format!("`input` holds {} texts: 1 to {MAX_INPUTS} are allowed.", inputs.len());
            return Err(Fault::invalid(message).with_param("input"));
        }
        let model = Arc::clone(self);
        // A text of megabytes takes a moment, and keeps nobody waiting here.
        let cutting = tokio::task::spawn_blocking(move || model.cut(inputs));
        let failed = |_| Fault::new(ErrorClass::Internal, "the texts could not be cut into tokens");
        let texts = cutting.await.map_err(failed)??;
        let mut reply = v1::EmbedReply::default();
        for (index, tokens) in texts.into_iter().enumerate() {
            let count = u32::try_from(tokens.len()).unwrap_or(u32::MAX);
            reply.prompt_tokens = reply.prompt_tokens.saturating_add(count);
            let values = pooler.embed(tokens).await.map_err(|error| refusal(&error, index))?;
            reply.vectors.push(v1::Vector { values });
        }
        Ok(reply)
    }

    /// The tokens of every text, each of which fits.
    fn cut(&self, inputs: Vec<v1::EmbedInput>) -> Result<Vec<Vec<i32>>, Fault> {
        let most = self.config.n_ctx;
        let text = |(index, input): (usize, v1::EmbedInput)| {
            let tokens = tokens(&self.vocab, input.input, index)?;
            match tokens.len() > most as usize {
                true => Err(refusal(&PoolError::TooLong { tokens: tokens.len(), most }, index)),
                false => Ok(tokens),
            }
        };
        inputs.into_iter().enumerate().map(text).collect()
    }
}

/// What the model needs around a text is put there; tokens are taken as they are.
fn tokens(vocab: &Vocab, input: Option<Input>, index: usize) -> Result<Vec<i32>, Fault> {
    let invalid = |message: String| Fault::invalid(message).with_param(format!("input[{index}]"));
    let tokens = match input {
        Some(Input::Text(v1::RawText { text, add_special, parse_special })) => {
            let cut = vocab.tokenize(&text, add_special, parse_special);
            cut.map_err(|error| invalid(format!("The text cannot be tokenised: {error}.")))?
        }
        Some(Input::Tokens(v1::RawTokens { tokens })) => tokens,
        None => Vec::new(),
    };
    let size = vocab.n_tokens();
    if let Some(token) = tokens.iter().find(|token| !u32::try_from(**token).is_ok_and(|token| token < size)) {
        return Err(invalid(format!("The token {token} is not in the vocabulary, which has {size}.")));
    }
    if tokens.is_empty() {
        return Err(invalid("The text is empty: it needs at least one token.".to_owned()));
    }
    Ok(tokens)
}

fn refusal(error: &PoolError, index: usize) -> Fault {
    let fault = Fault::new(error.class(), error.to_string());
    match error {
        PoolError::TooLong { .. } => fault.with_param(format!("input[{index}]")).with_code("context_length_exceeded"),
        PoolError::Lost(_) | PoolError::Failed => fault,
    }
}
