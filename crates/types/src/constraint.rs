//! What a run may generate: grammars that hold from the start or from a marker on, thinking before them, texts that
//! never come.
//!
//! Plain data that travels from stage 0, which knows the tools and schemas, to the stage that samples, which enforces it
//! (`mesh_engine::constraint`). Start with [`Constraint`].

use serde::{Deserialize, Serialize};

/// A bound on what a run generates: one automaton, *optional thinking → prose → grammar → after the grammar*.
///
/// All texts are matched against the bytes that the generated tokens stand for. A control token stands for no text and
/// can neither satisfy a grammar nor be a part of a marker, unless [`Self::control_text`] names it. While free text is
/// generated, nothing is excluded but what [`Self::forbid`] says and what would lead into the grammar against its rules.
///
/// ```
/// # use mesh_types::constraint::*;
/// // A forced call, one: `{"name": "f", "arguments": …}` and then the end of the turn.
/// let forced = Constraint::immediately(r#"start: %json {"type": "object"}"#);
/// // Free text, until the model begins a call; then the call has to be a right one.
/// let auto = Constraint {
///     start: Start::AtMarker(vec!["<tool_call>".into()]),
///     after: After::Repeat,
///     ..Constraint::immediately(r#"start: "<tool_call>\n" %json {"type": "object"} "\n</tool_call>""#)
/// };
/// // No call at all.
/// let none = Constraint::forbidding(vec!["<tool_call>".into()]);
/// # for constraint in [forced, auto, none] { constraint.check().unwrap(); }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Constraint {
    /// The grammar, in llguidance's Lark dialect (`%json {…}` embeds a JSON schema), or its `TopLevelGrammar` as JSON
    /// where the text begins with `{`. `None`: only [`Self::forbid`] holds.
    pub grammar: Option<String>,
    /// Where the grammar begins to hold.
    pub start: Start,
    /// What the prompt ends with of a marker or of a forbidden text, which may go on in what is generated. It counts
    /// where nothing is thought.
    pub begun: String,
    /// What may follow where the grammar's text is complete.
    pub after: After,
    /// Set for models that think before they answer.
    pub thinking: Option<Thinking>,
    /// Texts that are never generated outside of thinking and of the grammar's own text.
    pub forbid: Vec<String>,
    /// Texts of control tokens of the vocabulary that count as their text here, such as `[TOOL_CALLS]`: one that a
    /// vocabulary does not have as a control token is ordinary text in it. (User-defined tokens always are text.)
    pub control_text: Vec<String>,
    /// Whether the grammar's text is brought to its end before the tokens run out: thinking is ended, and only what
    /// still leads to the end is drawn, where the tokens left come near the shortest way there. A grammar that begins
    /// at a marker is then not begun where its text would not fit any more.
    pub close_in_time: bool,
}

/// Where a grammar begins to hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Start {
    /// From the first token on, but for thinking and the white space behind it.
    Immediately,
    /// From where one of these texts appears, whose first byte is the grammar's first: free text before. What follows the
    /// marker in the token that completes it belongs to the grammar.
    AtMarker(Vec<String>),
}

/// What may follow the complete text of a grammar. A text that is complete but could go on is left as soon as a token
/// comes that it does not go on with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum After {
    /// The end of the generation, nothing else.
    End,
    /// Free text, in which markers have no meaning any more.
    Free,
    /// As at the beginning, without thinking: free text up to the next marker, or for [`Start::Immediately`] the grammar
    /// again.
    Repeat,
}

/// How a model marks what it thinks. Thinking is free text: no marker and no forbidden text is looked for in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thinking {
    /// Begins it, as the first text of the generation but for white space; thinking is optional.
    pub open: String,
    /// Ends it.
    pub close: String,
    /// Whether the prompt has opened it already.
    pub is_open: bool,
}

/// Why a constraint is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConstraintError {
    /// The grammar is too long.
    #[error("a grammar of {bytes} bytes is longer than the {} that are taken", Constraint::MAX_GRAMMAR)]
    GrammarTooLong {
        /// Its length.
        bytes: usize,
    },
    /// Too many texts, or one of them is empty or too long.
    #[error("{0}")]
    Texts(&'static str),
    /// The grammar could not be compiled.
    #[error("the grammar cannot be enforced: {0}")]
    Grammar(String),
}

impl Constraint {
    /// Longest grammar, in bytes.
    pub const MAX_GRAMMAR: usize = 1 << 20;
    /// Most texts in one list.
    pub const MAX_TEXTS: usize = 256;
    /// Longest text, in bytes.
    pub const MAX_TEXT: usize = 256;

    /// `grammar` from the first token to the last, closed in time.
    pub fn immediately(grammar: impl Into<String>) -> Self {
        Self {
            grammar: Some(grammar.into()),
            start: Start::Immediately,
            begun: String::new(),
            after: After::End,
            thinking: None,
            forbid: Vec::new(),
            control_text: Vec::new(),
            close_in_time: true,
        }
    }

    /// Free text in which none of `texts` appears.
    pub fn forbidding(texts: Vec<String>) -> Self {
        Self { grammar: None, forbid: texts, ..Self::immediately("") }
    }

    /// The texts at which the grammar begins; none where it holds from the first token on.
    pub fn markers(&self) -> &[String] {
        match &self.start {
            Start::Immediately => &[],
            Start::AtMarker(markers) => markers,
        }
    }

    /// Checks sizes. Whether the grammar compiles is for the enforcer to say.
    ///
    /// # Errors
    /// [`ConstraintError`] names the first violation.
    pub fn check(&self) -> Result<(), ConstraintError> {
        let bytes = self.grammar.as_ref().map_or(0, String::len);
        if bytes > Self::MAX_GRAMMAR {
            return Err(ConstraintError::GrammarTooLong { bytes });
        }
        if matches!(&self.start, Start::AtMarker(markers) if markers.is_empty()) {
            return Err(ConstraintError::Texts("a grammar that begins at a marker needs one"));
        }
        let lists = [self.markers(), &self.forbid, &self.control_text];
        if lists.iter().any(|list| list.len() > Self::MAX_TEXTS) {
            return Err(ConstraintError::Texts("a constraint has too many texts"));
        }
        let thinking = self.thinking.iter().flat_map(|thinking| [&thinking.open, &thinking.close]);
        let mut texts = lists.into_iter().flatten().chain(thinking);
        match self.begun.len() > Self::MAX_TEXT || texts.any(|text| text.is_empty() || text.len() > Self::MAX_TEXT) {
            true => Err(ConstraintError::Texts("a text of a constraint is empty or too long")),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_bounded() {
        let fine = Constraint::immediately("start: \"a\"");
        assert_eq!(fine.check(), Ok(()));
        let bytes = Constraint::MAX_GRAMMAR + 1;
        let long = Constraint::immediately("x".repeat(bytes));
        assert_eq!(long.check(), Err(ConstraintError::GrammarTooLong { bytes }));
        let texts = |start, forbid: Vec<String>| {
            matches!(Constraint { start, forbid, ..fine.clone() }.check(), Err(ConstraintError::Texts(_)))
        };
        assert!(texts(Start::AtMarker(vec![]), vec![]));
        assert!(texts(Start::AtMarker(vec![String::new()]), vec![]));
        assert!(texts(Start::Immediately, vec!["x".repeat(Constraint::MAX_TEXT + 1)]));
        assert!(texts(Start::Immediately, vec!["x".to_owned(); Constraint::MAX_TEXTS + 1]));
        assert!(!texts(Start::Immediately, vec!["x".repeat(Constraint::MAX_TEXT); Constraint::MAX_TEXTS]));
        let begun = Constraint { begun: "x".repeat(Constraint::MAX_TEXT + 1), ..fine.clone() };
        assert!(matches!(begun.check(), Err(ConstraintError::Texts(_))));
    }
}
