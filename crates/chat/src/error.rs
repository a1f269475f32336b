//! How a conversation fails to become a prompt.

use mesh_types::{ErrorClass, Fault};

/// Why there is no prompt.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChatError {
    /// The template itself is no Jinja template that can be read.
    #[error("the chat template cannot be read: {0}")]
    Syntax(String),
    /// The template refused the conversation: the message that it gave to `raise_exception`.
    #[error("the model's chat template refuses this conversation: {0}")]
    Refused(String),
    /// The template could not be rendered with this conversation.
    #[error("the model's chat template cannot render this conversation: {0}")]
    Render(String),
    /// The conversation makes no sense, whatever the template.
    #[error("{reason}")]
    Conversation {
        /// The field that is wrong, as in `messages[2].tool_call_id`.
        param: String,
        /// One sentence.
        reason: String,
    },
    /// The template used up the time or the memory that a conversation of this size is given.
    #[error("the model's chat template needs more time or memory than a conversation of this size is given")]
    TooCostly,
}

impl ChatError {
    /// The class of this error.
    ///
    /// All are the request's: the same model renders other conversations. (A [`ChatError::Syntax`] comes up when a
    /// model is loaded, and is then the fault of the file that was asked for.)
    pub fn class(&self) -> ErrorClass {
        ErrorClass::InvalidRequest
    }
}

impl From<ChatError> for Fault {
    fn from(error: ChatError) -> Self {
        let fault = Self::new(error.class(), error.to_string());
        match error {
            ChatError::Conversation { param, .. } => fault.with_param(param),
            _ => fault.with_param("messages"),
        }
    }
}
