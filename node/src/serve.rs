//! Stage 0's side of a request: a canonical chat request comes in, canonical events go out.
//!
//! Owns the models that this node serves: their vocabulary, their chat template, and the pipeline that runs them while
//! there is one. It does not know how a pipeline came to be (see [`crate::supervisor`]) or which of its stages are
//! elsewhere. Start with [`InferenceService`].

mod answer;
mod demand;
mod model;
mod prompt;
mod reading;
mod tokenizer;
mod tokens;

use std::pin::Pin;

use futures::{Stream, StreamExt as _};
use mesh_proto::convert::fault_to_status;
use mesh_proto::v1;
use mesh_proto::v1::inference_server::Inference;
use mesh_types::{ChatRequest, Fault, ModelId};
use tonic::{Request, Response, Status};
use tracing::Instrument as _;

use crate::pooling::PoolingModels;

pub use answer::Answer;
pub(crate) use model::DEFAULT_CONTEXT;
pub use model::{Availability, ServedModel, ServedModelError, ServedModels};

/// Answers gateways.
pub struct InferenceService {
    models: ServedModels,
    pooling: PoolingModels,
}

impl InferenceService {
    /// Serves `models`, which generate.
    pub fn new(models: ServedModels) -> Self {
        Self { models, pooling: PoolingModels::default() }
    }

    /// The same, and `models` that pool.
    #[must_use]
    pub fn with_pooling(self, models: PoolingModels) -> Self {
        Self { pooling: models, ..self }
    }

    /// That `model` generates, as far as is known.
    fn check_generates(&self, model: &ModelId) -> Result<(), Status> {
        let pools = self.pooling.get(model);
        pools.map_or(Ok(()), |model| Err(fault_to_status(&model.generates_nothing())))
    }
}

#[tonic::async_trait]
impl Inference for InferenceService {
    type GenerateStream = Pin<Box<dyn Stream<Item = Result<v1::GenerateEvent, Status>> + Send>>;

    async fn generate(&self, request: Request<v1::GenerateRequest>) -> Result<Response<Self::GenerateStream>, Status> {
        let request = canonical(request.into_inner())?;
        self.check_generates(&request.model)?;
        let span = tracing::info_span!("generate", request = %request.request, model = %request.model);
        let answer = start(&self.models, request).instrument(span).await;
        let answer = answer.map_err(|fault| fault_to_status(&fault))?;
        Ok(Response::new(answer.into_stream().map(Ok).boxed()))
    }

    async fn tokenize(&self, request: Request<v1::TokenizeRequest>) -> Result<Response<v1::TokenizeReply>, Status> {
        let v1::TokenizeRequest { prompt, pieces } = request.into_inner();
        let prompt = canonical(prompt.unwrap_or_default())?;
        self.check_generates(&prompt.model)?;
        let reply = tokens::tokenize(&self.models, prompt, pieces).await;
        reply.map(Response::new).map_err(|fault| fault_to_status(&fault))
    }

    async fn detokenize(
        &self,
        request: Request<v1::DetokenizeRequest>,
    ) -> Result<Response<v1::DetokenizeReply>, Status> {
        let request = request.into_inner();
        self.check_generates(&ModelId::new(request.model.clone()))?;
        let reply = tokens::detokenize(&self.models, request);
        reply.map(Response::new).map_err(|fault| fault_to_status(&fault))
    }

    async fn embed(&self, request: Request<v1::EmbedRequest>) -> Result<Response<v1::EmbedReply>, Status> {
        let v1::EmbedRequest { model, inputs } = request.into_inner();
        let name = ModelId::new(model);
        let reply = match self.pooling.get(&name) {
            Some(model) => model.embed(inputs).await,
            None => Err(self.models.get(&name).map_or_else(|unknown| unknown, |model| does_not_pool(&model.name))),
        };
        reply.map(Response::new).map_err(|fault| fault_to_status(&fault))
    }
}

fn does_not_pool(model: &ModelId) -> Fault {
    let message = format!("The model `{model}` generates text and makes no embeddings.");
    Fault::invalid(message).with_param("model").with_code("unsupported_parameter")
}

fn canonical(request: v1::GenerateRequest) -> Result<ChatRequest, Status> {
    ChatRequest::try_from(request).map_err(|malformed| fault_to_status(&Fault::invalid(malformed.to_string())))
}

async fn start(models: &ServedModels, request: ChatRequest) -> Result<Answer, Fault> {
    let model = models.get(&request.model)?;
    Answer::start(&model, request).await.inspect_err(|fault| tracing::info!("refused: {fault}"))
}

#[cfg(test)]
mod tests;
