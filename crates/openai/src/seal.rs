//! The seal on reasoning that a client carries for the model from one turn to the next.
//!
//! Dialects hand out what a model thought as an opaque text (`signature`, `encrypted_content`) which the client sends
//! back unread. What is sealed, and how, is the caller's: this crate has no keys.

/// Makes opaque texts, and reads them again.
pub trait Seal: Send + Sync {
    /// An opaque text for `text`, of characters that JSON does not escape.
    fn seal(&self, text: &str) -> String;

    /// What was sealed; `None` where the seal is another's, or broken.
    fn open(&self, sealed: &str) -> Option<String>;
}
