//! A grammar and its lexemes as Lark text.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use mesh_types::Constraint;

use super::GbnfError;
use super::chars::Chars;
use super::lexemes::Lexemes;
use super::parse::{Grammar, Node, NodeId};

pub(super) fn lark(grammar: &Grammar, lexemes: &Lexemes) -> Result<String, GbnfError> {
    let mut writer = Writer { grammar, lexemes, out: "start: r0\n".to_owned(), rules: BTreeSet::from([0]) };
    let mut written = BTreeSet::new();
    while let Some(rule) = writer.rules.pop_first() {
        if written.insert(rule) {
            writer.push(&format!("r{rule}: "))?;
            writer.part(grammar.rules[rule])?;
            writer.push("\n")?;
        }
    }
    for node in lexemes.nodes.keys() {
        writer.push(&format!("T{node}: /"))?;
        writer.regex(*node)?;
        writer.push("/\n")?;
    }
    Ok(writer.out)
}

struct Writer<'a> {
    grammar: &'a Grammar,
    lexemes: &'a Lexemes,
    out: String,
    /// Named, and perhaps not written yet.
    rules: BTreeSet<usize>,
}

impl Writer<'_> {
    fn push(&mut self, text: &str) -> Result<(), GbnfError> {
        if self.out.len() + text.len() > Constraint::MAX_GRAMMAR {
            return Err(GbnfError::TooLarge("more than a mebibyte with its rules within each other"));
        }
        self.out.push_str(text);
        Ok(())
    }

    /// A part as rules have it.
    fn part(&mut self, node: NodeId) -> Result<(), GbnfError> {
        if self.lexemes.nodes.contains_key(&node) {
            return self.push(&format!("T{node}"));
        }
        match &self.grammar.nodes[node] {
            // Every one that is reached is a lexeme.
            Node::Chars(chars) => self.push(&format!("/{}/", class(chars))),
            Node::Rule(rule) => {
                self.rules.insert(*rule);
                self.push(&format!("r{rule}"))
            }
            Node::Sequence(parts) => self.several(parts, " "),
            Node::Choice(parts) => self.several(parts, " | "),
            Node::Repeat(_, _, Some(0)) => self.push("\"\""),
            Node::Repeat(inner, min, max) => {
                self.push("(")?;
                self.part(*inner)?;
                self.push(")")?;
                self.push(&times(*min, *max))
            }
        }
    }

    fn several(&mut self, parts: &[NodeId], between: &str) -> Result<(), GbnfError> {
        if parts.is_empty() {
            return self.push("\"\"");
        }
        for (index, part) in parts.iter().enumerate() {
            self.push(if index == 0 { "(" } else { between })?;
            self.part(*part)?;
        }
        self.push(")")
    }

    /// A part as a lexeme has it.
    fn regex(&mut self, node: NodeId) -> Result<(), GbnfError> {
        match &self.grammar.nodes[node] {
            Node::Chars(chars) => self.push(&class(chars)),
            Node::Rule(rule) => self.regex(self.grammar.rules[*rule]),
            Node::Sequence(parts) => parts.iter().try_for_each(|part| self.regex(*part)),
            Node::Choice(parts) => {
                for (index, part) in parts.iter().enumerate() {
                    self.push(if index == 0 { "(?:" } else { "|" })?;
                    self.regex(*part)?;
                }
                self.push(")")
            }
            Node::Repeat(_, _, Some(0)) => Ok(()),
            Node::Repeat(inner, min, max) => {
                self.push("(?:")?;
                self.regex(*inner)?;
                self.push(")")?;
                self.push(&times(*min, *max))
            }
        }
    }
}

fn times(min: u32, max: Option<u32>) -> String {
    match (min, max) {
        (0, None) => "*".to_owned(),
        (1, None) => "+".to_owned(),
        (0, Some(1)) => "?".to_owned(),
        (min, None) => format!("{{{min},}}"),
        (min, Some(max)) => format!("{{{min},{max}}}"),
    }
}

/// In numbers, so that no character means anything else to a regular expression, or to what it is written in.
fn class(chars: &Chars) -> String {
    let mut out = "[".to_owned();
    for (from, to) in chars.ranges() {
        // Writing into a string cannot fail.
        let _ = match from == to {
            true => write!(out, "\\x{{{from:x}}}"),
            false => write!(out, "\\x{{{from:x}}}-\\x{{{to:x}}}"),
        };
    }
    out.push(']');
    out
}
