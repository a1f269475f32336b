//! The [`Generator`] trait: a whole model, as stage 0 uses it.

use async_trait::async_trait;
use mesh_types::{ErrorClass, FinishReason, GenerateSpec, Logprobs, TokenId, Usage};
use tokio::sync::mpsc;

use crate::frame::DrawFailure;

/// A whole model, however many stages it has: a prompt goes in, a bounded stream of tokens comes back.
#[async_trait]
pub trait Generator: Send + Sync + 'static {
    /// Queues a run.
    ///
    /// # Errors
    /// Before the first token: [`GenerateError::PromptTooLong`], [`GenerateError::QueueFull`],
    /// [`GenerateError::Unavailable`].
    ///
    /// # Cancel safety
    /// Dropping the future, or the stream that it gives, cancels the run on every stage within one step.
    async fn generate(&self, spec: GenerateSpec) -> Result<Generation, GenerateError>;
}

/// The stream of a run. Dropping it cancels the run.
///
/// Ends with [`TokenEvent::Finished`], or with an error; never without either.
#[derive(Debug)]
pub struct Generation {
    /// What happens, in order.
    pub events: mpsc::Receiver<Result<TokenEvent, GenerateError>>,
}

/// One event of a run.
#[derive(Clone, Debug, PartialEq)]
pub enum TokenEvent {
    /// How likely the prompt's tokens were: of each but the first. Comes once, before all else, where
    /// [`GenerateSpec::score_prompt`] asks for it.
    Prompt(Vec<Logprobs>),
    /// A token was drawn.
    Token {
        /// Which.
        token: TokenId,
        /// Its place in the sequence: the prompt's length plus the number of tokens drawn before.
        position: u32,
        /// How likely it was, where [`GenerateSpec::logprobs`] asks for it.
        logprobs: Option<Logprobs>,
        /// Counts up to it: a reader that stops here has them, too.
        usage: Usage,
    },
    /// The run is over.
    Finished {
        /// Why.
        reason: FinishReason,
        /// Counts.
        usage: Usage,
    },
}

/// Why a run failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GenerateError {
    /// The prompt leaves no room for a token.
    #[error("the prompt has {prompt} tokens, and the model's context here holds {context}")]
    PromptTooLong {
        /// Tokens of the prompt.
        prompt: u32,
        /// Tokens one sequence can hold.
        context: u32,
    },
    /// The queue is full.
    #[error("{queued} requests are waiting already")]
    QueueFull {
        /// Requests waiting.
        queued: u32,
    },
    /// A stage is missing or was lost.
    #[error("{0}")]
    Unavailable(String),
    /// What was asked of this run cannot be done by this model: its constraint, or a token that it names.
    #[error("{0}")]
    Invalid(String),
    /// A step could not be computed.
    #[error("the model could not compute a step: {0}")]
    Step(String),
}

impl From<DrawFailure> for GenerateError {
    fn from(failure: DrawFailure) -> Self {
        match failure {
            DrawFailure::Invalid(reason) => Self::Invalid(reason),
            DrawFailure::Internal(reason) => Self::Step(reason),
            DrawFailure::Over => Self::Step(failure.to_string()),
        }
    }
}

impl GenerateError {
    /// The class of this error.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::PromptTooLong { .. } | Self::Invalid(_) => ErrorClass::InvalidRequest,
            Self::QueueFull { .. } => ErrorClass::Overloaded,
            Self::Unavailable(_) => ErrorClass::Unavailable,
            Self::Step(_) => ErrorClass::Internal,
        }
    }
}
