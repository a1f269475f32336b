//! How models write tool calls: each native format as data.
//!
//! Most formats are the same few things with other texts: a marker that opens a call, the tool's name somewhere behind
//! it, arguments as JSON or as tagged values, a marker that closes it. A [`Format`] says which. What is really
//! different has code of its own and a variant of [`Syntax`]. The table is in `table`; the reader of all of them in
//! [`crate::parse`].

mod table;
pub(crate) mod written;

use crate::template::ChatTemplate;

/// A native format of tool calls.
#[derive(Debug, PartialEq, Eq)]
pub struct Format {
    /// The name under which it can be forced.
    pub name: &'static str,
    /// How calls are written.
    pub(crate) syntax: Syntax,
    /// Marks around thinking, beside `<think>` and `</think>`.
    pub(crate) thinking: &'static [Tags],
    /// Structure of an answer that is no text: it is left out of what is said. Each begins with a text.
    pub(crate) silent: &'static [Pattern],
    /// Ids of calls.
    pub(crate) ids: Ids,
}

/// What marks a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallMarks {
    /// Any of these opens one.
    pub open: Vec<&'static str>,
    /// Any of these closes one; none: it ends by itself.
    pub close: Vec<&'static str>,
    /// An answer may also begin with a call that nothing opens.
    pub bare: bool,
}

/// What opens and what closes something.
pub(crate) type Tags = (&'static str, &'static str);

/// How calls are written.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Syntax {
    /// Marked calls in prose.
    Marked(Marked),
    /// OpenAI's harmony: messages with channels and recipients.
    Harmony,
}

/// Calls that stand between markers, in prose. No marker of a list begins another one.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Marked {
    /// Any of these begins a call, or a list of calls.
    pub(crate) open: &'static [&'static str],
    /// As `open`, but part of the call's head.
    pub(crate) open_head: &'static [&'static str],
    /// Any of these ends a call or a list of calls.
    pub(crate) close: &'static [&'static str],
    /// A call may begin the answer without being opened.
    pub(crate) bare: bool,
    /// What a call is.
    pub(crate) body: Body,
}

/// What stands between the markers.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Body {
    /// One or more objects that hold name and arguments, perhaps in a list.
    Object,
    /// One or more objects whose only key is the name, and its value the arguments.
    KeyedObject,
    /// A head with the name, then the arguments as JSON.
    Named(&'static [Pattern]),
    /// A head with the name, then an object as JSON has it, but for bare keys and a mark around strings.
    Quoted {
        /// The head.
        heads: &'static [Pattern],
        /// What stands on both sides of a string.
        quote: &'static str,
    },
    /// A head with the name, then tagged values.
    Tagged(Tagged),
    /// `[name(key=value, …)]` with Python's literals.
    Python,
    /// An object that is read whole, and ends the answer: the convention of the emulation.
    Emulated,
}

impl Body {
    /// What stands on both sides of a string, beside JSON's own quotes; empty: nothing does.
    pub(crate) fn quote(&self) -> &'static str {
        match self {
            Self::Quoted { quote, .. } => quote,
            _ => "",
        }
    }
}

/// Calls whose arguments are written between tags.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Tagged {
    /// The head, up to the first value.
    pub(crate) heads: &'static [Pattern],
    /// What opens a value.
    pub(crate) values: &'static [Pattern],
    /// What closes a value; where values are [`Self::nested`], what stands before `key>`.
    pub(crate) close: &'static str,
    /// Objects and lists in a value are written as elements, as the value itself is: `MARK<key>value MARK</key>`, the
    /// members of a list as `item`s. This is the mark; empty: they are written as JSON.
    pub(crate) nested: &'static str,
    /// Keys are written with entities, as in attributes of XML.
    pub(crate) entities: bool,
    /// A string may stand in `<![CDATA[` … `]]>`.
    pub(crate) cdata: bool,
    /// What closes the call, if it is not one of [`Marked::close`].
    pub(crate) end: &'static str,
    /// One newline on either side of a value is layout.
    pub(crate) newlines: bool,
}

/// A text with places in it: literal texts and slots, in order. Blanks before a literal are passed over, unless it begins
/// with one.
pub(crate) type Pattern = &'static [Part];

/// A part of a [`Pattern`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// This text.
    Text(&'static str),
    /// A tool's name.
    Name,
    /// An argument's name.
    Key,
    /// A call's id.
    Id,
    /// Letters or digits that do not matter.
    Any,
    /// The first word where the value is a string; one of the others, or any other word, where it is JSON.
    Kind(&'static str, &'static [&'static str]),
}

/// Which ids calls have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ids {
    /// Ours.
    Ours,
    /// Those that the model writes.
    Model,
    /// Nine letters or digits; templates of this family refuse others.
    Nine,
}

impl Format {
    /// The format of this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        let name = table::ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, name)| name);
        Self::all().find(|format| format.name == name)
    }

    /// All formats, in the order in which a template is tried for them.
    pub fn all() -> impl Iterator<Item = &'static Self> {
        table::FORMATS.iter()
    }

    /// What marks a call.
    pub fn call_marks(&self) -> CallMarks {
        match &self.syntax {
            Syntax::Harmony => CallMarks { open: vec!["to=functions."], close: vec!["<|call|>"], bare: false },
            Syntax::Marked(marked) => {
                let end = match &marked.body {
                    Body::Tagged(tagged) if marked.close.is_empty() => tagged.end,
                    _ => "",
                };
                let close = marked.close.iter().copied().chain([end]).filter(|close| !close.is_empty());
                let open = marked.open.iter().chain(marked.open_head).copied().collect();
                CallMarks { open, close: close.collect(), bare: marked.bare }
            }
        }
    }

    /// Marks around thinking, in the order in which they are looked for.
    pub(crate) fn thinking_marks(&self) -> Vec<Tags> {
        match self.syntax {
            Syntax::Harmony => vec![("<|channel|>analysis<|message|>", "<|end|>")],
            Syntax::Marked(_) => std::iter::once(crate::parse::THINKING).chain(self.thinking.iter().copied()).collect(),
        }
    }

    /// What marks the thinking of a model with this template. `None`: it does not think.
    pub(crate) fn thinking_with(&self, template: &ChatTemplate) -> Option<Tags> {
        let is_harmony = self.syntax == Syntax::Harmony;
        self.thinking_marks().into_iter().find(|(open, _)| is_harmony || template.mentions(open))
    }

    /// The texts that make the structure of this format. Where they are special tokens of a vocabulary, their text has
    /// to reach the parser all the same.
    pub fn markers(&self) -> Vec<&'static str> {
        let mut markers: Vec<&'static str> = self.thinking.iter().flat_map(|(open, close)| [*open, *close]).collect();
        markers.extend(["<think>", "</think>"]);
        markers.extend(self.silent.iter().flat_map(|pattern| texts(pattern)));
        match &self.syntax {
            Syntax::Harmony => markers.extend(crate::parse::HARMONY_MARKERS),
            Syntax::Marked(marked) => {
                markers.extend(marked.open.iter().chain(marked.open_head).chain(marked.close));
                let patterns: Vec<Pattern> = match &marked.body {
                    Body::Named(heads) => heads.to_vec(),
                    Body::Quoted { heads, quote } => {
                        markers.push(quote);
                        heads.to_vec()
                    }
                    Body::Tagged(tagged) => {
                        markers.extend([tagged.close, tagged.end, tagged.nested]);
                        tagged.heads.iter().chain(tagged.values).copied().collect()
                    }
                    _ => Vec::new(),
                };
                markers.extend(patterns.into_iter().flat_map(texts));
            }
        }
        markers.retain(|marker| !marker.is_empty());
        markers
    }
}

/// The texts of a pattern.
fn texts(pattern: Pattern) -> impl Iterator<Item = &'static str> {
    pattern.iter().filter_map(|part| match part {
        Part::Text(text) => Some(*text),
        _ => None,
    })
}

/// The convention of the emulation.
pub(crate) static EMULATED: Format = Format {
    name: "emulated",
    syntax: Syntax::Marked(Marked {
        open: &[EMULATED_MARKER],
        open_head: &[],
        close: &[],
        bare: false,
        body: Body::Emulated,
    }),
    thinking: &[("[THINK]", "[/THINK]")],
    silent: &[],
    ids: Ids::Ours,
};

/// What begins a call in the emulation.
pub(crate) const EMULATED_MARKER: &str = "TOOL_CALL";

/// No calls at all.
pub(crate) static PROSE: Format = Format {
    name: "none",
    syntax: Syntax::Marked(Marked { open: &[], open_head: &[], close: &[], bare: false, body: Body::Object }),
    thinking: &[("[THINK]", "[/THINK]")],
    silent: &[],
    ids: Ids::Ours,
};

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_are_unique_and_found() {
        let names: HashSet<_> = Format::all().map(|format| format.name).collect();
        assert_eq!(names.len(), Format::all().count());
        for format in Format::all() {
            assert_eq!(Format::named(format.name), Some(format));
        }
        for (alias, name) in table::ALIASES {
            assert!(!names.contains(alias), "{alias}");
            assert_eq!(Format::named(alias).map(|format| format.name), Some(*name));
        }
        assert_eq!(Format::named("nonsense"), None);
    }

    #[test]
    fn no_marker_begins_another() {
        for format in Format::all() {
            let Syntax::Marked(marked) = &format.syntax else { continue };
            let openers: Vec<_> = marked.open.iter().chain(marked.open_head).collect();
            for list in [openers, marked.close.iter().collect()] {
                for (i, a) in list.iter().enumerate() {
                    assert!(
                        !list.iter().enumerate().any(|(j, b)| i != j && b.starts_with(**a)),
                        "{}: {a}",
                        format.name
                    );
                }
            }
        }
    }
}
