//! Between messages and tokens: a conversation becomes a prompt, and token pieces become text and tool calls.
//!
//! Owns: chat templates ([`template`]), whether a template can call tools ([`capability`]), the ways in which models
//! write calls ([`format`](mod@format)), the emulation for all others ([`emulation`]), what an answer is held to
//! ([`grammar`], [`schema`], [`gbnf`]), what of a conversation a template gets to see ([`conversation`]), the cut of a prompt into
//! trusted and untrusted text ([`prompt`]), bytes to characters ([`detokenizer`]), stop strings ([`stop`]), answers taken
//! apart ([`parse`]), and answers found again in the next prompt ([`ledger`]). Does not own: tokenising, dialects of the
//! API, the run of a model; it knows no peers, and there is no I/O and no async runtime here.
//!
//! Start with [`ChatTemplate`], then [`Conversation`] and [`TurnParser`].
#![forbid(unsafe_code)]

pub mod capability;
pub mod conversation;
pub mod detokenizer;
pub mod emulation;
pub mod error;
pub mod format;
pub mod gbnf;
pub mod grammar;
pub mod ledger;
pub mod parse;
pub mod prompt;
pub mod schema;
pub mod stop;
pub mod template;
mod tools;

pub use capability::{Capability, Strategy};
pub use conversation::{Conversation, Prepared};
pub use detokenizer::Detokenizer;
pub use error::ChatError;
pub use format::{CallMarks, Format};
pub use grammar::{Demand, Enforced, Unenforceable};
pub use ledger::Ledger;
pub use parse::{Ending, Turn, TurnEvent, TurnOptions, TurnParser};
pub use prompt::{Fragment, SpecialTokens};
pub use stop::{StopScanner, Stopped};
pub use template::{Arguments, ChatTemplate, RenderInput, TemplateOrigin};
