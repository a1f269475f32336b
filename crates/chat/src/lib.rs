//! Between messages and tokens: a conversation becomes a prompt, and token pieces become text.
//!
//! Owns: chat templates ([`template`]), the cut of a prompt into trusted and untrusted text ([`prompt`]), bytes to
//! characters ([`detokenizer`]), stop strings ([`stop`]). Does not own: tokenising, dialects of the API, the run of a
//! model; it knows no peers, and there is no I/O and no async runtime here. Tools are not handled yet: whatever a
//! template wants beside messages goes through [`RenderInput::extra`].
//!
//! Start with [`ChatTemplate`].
#![forbid(unsafe_code)]

pub mod detokenizer;
pub mod error;
pub mod prompt;
pub mod stop;
pub mod template;

pub use detokenizer::Detokenizer;
pub use error::ChatError;
pub use prompt::{Fragment, SpecialTokens};
pub use stop::{StopScanner, Stopped};
pub use template::{ChatTemplate, RenderInput, TemplateOrigin};
