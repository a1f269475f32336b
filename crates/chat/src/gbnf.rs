//! GBNF, the grammars of llama.cpp, in the Lark dialect in which answers are enforced
//! (<https://github.com/ggml-org/llama.cpp/blob/master/grammars/README.md>).
//!
//! The two read a text differently. GBNF goes character by character and keeps every possibility. Lark cuts the text
//! into lexemes first, each the longest that fits, and loses what a shorter one would have allowed. So a part of the
//! grammar becomes a lexeme only where the longest is always right: where no lexeme's complete text can go on, in
//! itself or in another lexeme, with a character that may as well follow it. Other parts are cut into smaller lexemes,
//! down to single characters, of which every text is.
//!
//! Owns: reading GBNF ([`parse`]), cutting it into lexemes ([`lexemes`]), writing Lark ([`write`]). Bounded in all that
//! a client can make large. Does not own: enforcement. Start with [`to_lark`].

mod chars;
mod lexemes;
mod parse;
mod positions;
mod write;

/// Most bytes of a grammar in GBNF.
pub const MAX_BYTES: usize = 64 << 10;

/// Why a grammar is not taken. Says so in the terms of its author.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GbnfError {
    /// It is no GBNF.
    #[error("line {line}: {what}")]
    Syntax {
        /// From 1.
        line: usize,
        /// What is wrong there.
        what: String,
    },
    /// A rule is named and not there.
    #[error("the rule `{0}` is not defined")]
    Undefined(String),
    /// It is larger than what is taken, or takes too long to look through.
    #[error("the grammar is too large: {0}")]
    TooLarge(&'static str),
}

/// The grammar `text`, whose first rule is `root`, in Lark.
///
/// ```
/// let lark = mesh_chat::gbnf::to_lark("root ::= \"yes\" | \"no\"").unwrap();
/// assert!(lark.starts_with("start: "));
/// ```
///
/// # Errors
/// [`GbnfError`].
pub fn to_lark(text: &str) -> Result<String, GbnfError> {
    if text.len() > MAX_BYTES {
        return Err(GbnfError::TooLarge("more than 64 KiB of text"));
    }
    let grammar = lexemes::grouped(parse::parse(text)?);
    let lexemes = lexemes::Lexemes::of(&grammar)?;
    write::lark(&grammar, &lexemes)
}

#[cfg(test)]
mod tests;
