//! GBNF as text to rules over nodes.

use std::collections::HashMap;

use super::GbnfError;
use super::chars::Chars;

/// Most rules, parts of rules, and groups within groups.
const MAX_RULES: usize = 1024;
const MAX_NODES: usize = 16 << 10;
const MAX_DEPTH: usize = 64;
/// Most repetitions that can be counted. llama.cpp's own bound.
pub(super) const MAX_COUNT: u32 = 2000;

/// A part of a rule, by its place in [`Grammar::nodes`].
pub(super) type NodeId = usize;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Node {
    /// One of these characters.
    Chars(Chars),
    /// One after the other; none: nothing.
    Sequence(Vec<NodeId>),
    /// One of them.
    Choice(Vec<NodeId>),
    /// So often, or more often than that.
    Repeat(NodeId, u32, Option<u32>),
    /// A rule.
    Rule(usize),
}

/// A grammar. The first rule is `root`.
#[derive(Debug, Default)]
pub(super) struct Grammar {
    pub(super) nodes: Vec<Node>,
    /// The body of each rule.
    pub(super) rules: Vec<NodeId>,
}

pub(super) fn parse(text: &str) -> Result<Grammar, GbnfError> {
    let mut parser =
        Parser { text, rest: text, depth: 0, nodes: Vec::new(), names: Vec::new(), by_name: HashMap::new() };
    parser.rule("root")?;
    parser.blank(true);
    while !parser.rest.is_empty() {
        parser.definition()?;
        parser.blank(true);
    }
    let undefined = parser.names.iter().find(|(_, body)| body.is_none());
    if let Some((name, _)) = undefined {
        return Err(GbnfError::Undefined(name.clone()));
    }
    let rules = parser.names.iter().filter_map(|(_, body)| *body).collect();
    Ok(Grammar { nodes: parser.nodes, rules })
}

struct Parser<'a> {
    text: &'a str,
    rest: &'a str,
    depth: usize,
    nodes: Vec<Node>,
    /// Names of rules, and their bodies where they are defined.
    names: Vec<(String, Option<NodeId>)>,
    by_name: HashMap<String, usize>,
}

impl<'a> Parser<'a> {
    fn wrong<T>(&self, what: impl Into<String>) -> Result<T, GbnfError> {
        let before = &self.text[..self.text.len() - self.rest.len()];
        Err(GbnfError::Syntax { line: before.matches('\n').count() + 1, what: what.into() })
    }

    fn node(&mut self, node: Node) -> Result<NodeId, GbnfError> {
        if self.nodes.len() >= MAX_NODES {
            return Err(GbnfError::TooLarge("more than 16,384 parts"));
        }
        self.nodes.push(node);
        Ok(self.nodes.len() - 1)
    }

    fn rule(&mut self, name: &str) -> Result<usize, GbnfError> {
        if let Some(rule) = self.by_name.get(name) {
            return Ok(*rule);
        }
        if self.names.len() >= MAX_RULES {
            return Err(GbnfError::TooLarge("more than 1,024 rules"));
        }
        self.names.push((name.to_owned(), None));
        self.by_name.insert(name.to_owned(), self.names.len() - 1);
        Ok(self.names.len() - 1)
    }

    /// Passes white space and comments over; the ends of lines only where `lines` says so.
    fn blank(&mut self, lines: bool) {
        loop {
            let is_blank = |c: char| c == ' ' || c == '\t' || (lines && (c == '\n' || c == '\r'));
            self.rest = self.rest.trim_start_matches(is_blank);
            if !self.rest.starts_with('#') {
                return;
            }
            self.rest = self.rest.trim_start_matches(|c| c != '\n' && c != '\r');
        }
    }

    fn take(&mut self, token: &str) -> bool {
        match self.rest.strip_prefix(token) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn name(&mut self) -> Option<&'a str> {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let end = self.rest.find(|c| !is_part(c)).unwrap_or(self.rest.len());
        let (name, rest) = self.rest.split_at(end);
        self.rest = rest;
        (!name.is_empty()).then_some(name)
    }

    fn definition(&mut self) -> Result<(), GbnfError> {
        let Some(name) = self.name() else { return self.wrong("the name of a rule is expected") };
        self.blank(false);
        if !self.take("::=") {
            return self.wrong(format!("`::=` is expected behind `{name}`"));
        }
        self.blank(true);
        let body = self.choice(false)?;
        self.blank(false);
        if !self.rest.is_empty() && !self.rest.starts_with(['\n', '\r']) {
            return self.wrong("something that is no part of a rule");
        }
        let rule = self.rule(name)?;
        match self.names[rule].1.replace(body) {
            None => Ok(()),
            Some(_) => self.wrong(format!("the rule `{name}` is defined twice")),
        }
    }

    /// Alternatives, up to the end of the line or (`nested`) of the group.
    fn choice(&mut self, nested: bool) -> Result<NodeId, GbnfError> {
        let mut alternatives = vec![self.sequence(nested)?];
        while self.take("|") {
            self.blank(true);
            alternatives.push(self.sequence(nested)?);
        }
        match alternatives.as_slice() {
            [only] => Ok(*only),
            _ => self.node(Node::Choice(alternatives)),
        }
    }

    fn sequence(&mut self, nested: bool) -> Result<NodeId, GbnfError> {
        let mut parts = Vec::new();
        loop {
            self.blank(nested);
            let from = parts.len();
            if self.take("\"") {
                self.literal(&mut parts)?;
            } else if self.take("[") {
                let chars = self.class()?;
                parts.push(self.node(Node::Chars(chars))?);
            } else if self.take(".") {
                parts.push(self.node(Node::Chars(Chars::all()))?);
            } else if self.take("(") {
                parts.push(self.group()?);
            } else if self.rest.starts_with(['<', '!']) {
                return self.wrong("tokens (`<…>`) are not served: write their text");
            } else if let Some(name) = self.name() {
                let rule = self.rule(name)?;
                parts.push(self.node(Node::Rule(rule))?);
            } else {
                return if let [only] = parts.as_slice() { Ok(*only) } else { self.node(Node::Sequence(parts)) };
            }
            self.blank(nested);
            self.repeats(&mut parts, from)?;
        }
    }

    fn group(&mut self) -> Result<NodeId, GbnfError> {
        if self.depth >= MAX_DEPTH {
            return Err(GbnfError::TooLarge("more than 64 groups within each other"));
        }
        self.depth += 1;
        self.blank(true);
        let inner = self.choice(true)?;
        self.depth -= 1;
        self.blank(true);
        if self.take(")") { Ok(inner) } else { self.wrong("`)` is expected") }
    }

    /// What repeats the parts from `from` on, as often as it stands there.
    fn repeats(&mut self, parts: &mut Vec<NodeId>, from: usize) -> Result<(), GbnfError> {
        for _ in 0..MAX_DEPTH {
            let (min, max) = match self.rest.chars().next() {
                Some('*') => (0, None),
                Some('+') => (1, None),
                Some('?') => (0, Some(1)),
                Some('{') => {
                    self.rest = &self.rest[1..];
                    self.bounds()?
                }
                _ => return Ok(()),
            };
            self.rest = &self.rest[1..];
            // A text in quotes is repeated as a whole, as llama.cpp does.
            let inner = match parts.split_off(from).as_slice() {
                [only] => *only,
                several => self.node(Node::Sequence(several.to_vec()))?,
            };
            parts.push(self.node(Node::Repeat(inner, min, max))?);
            self.blank(false);
        }
        Err(GbnfError::TooLarge("more than 64 repetitions of repetitions"))
    }

    /// `3}`, `3,}`, `,5}` or `3,5}`, up to the brace.
    fn bounds(&mut self) -> Result<(u32, Option<u32>), GbnfError> {
        self.blank(true);
        let min = self.number()?;
        self.blank(true);
        let max = if self.take(",") {
            self.blank(true);
            self.number()?
        } else {
            min
        };
        self.blank(true);
        let is_one = min.is_none() && max.is_none();
        if !self.rest.starts_with('}') || is_one || max.is_some_and(|max| max < min.unwrap_or(0)) {
            return self.wrong("`{3}`, `{3,}` or `{3,5}` is expected");
        }
        Ok((min.unwrap_or(0), max))
    }

    fn number(&mut self) -> Result<Option<u32>, GbnfError> {
        let end = self.rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(self.rest.len());
        let (digits, rest) = self.rest.split_at(end);
        self.rest = rest;
        if digits.is_empty() {
            return Ok(None);
        }
        match digits.parse::<u32>() {
            Ok(number) if number <= MAX_COUNT => Ok(Some(number)),
            _ => Err(GbnfError::TooLarge("a repetition of more than 2,000")),
        }
    }

    fn literal(&mut self, parts: &mut Vec<NodeId>) -> Result<(), GbnfError> {
        while !self.take("\"") {
            let c = self.character("the end of a text in quotes")?;
            parts.push(self.node(Node::Chars(Chars::single(c)))?);
        }
        if parts.is_empty() {
            parts.push(self.node(Node::Sequence(Vec::new()))?);
        }
        Ok(())
    }

    fn class(&mut self) -> Result<Chars, GbnfError> {
        let negated = self.take("^");
        let mut ranges = Vec::new();
        while !self.take("]") {
            let from = u32::from(self.character("`]`")?);
            let mut to = from;
            if self.rest.starts_with('-') && !self.rest.starts_with("-]") {
                self.rest = &self.rest[1..];
                to = u32::from(self.character("`]`")?);
            }
            if to < from {
                return self.wrong("a range whose end comes before its beginning");
            }
            ranges.push((from, to));
        }
        let chars = Chars::of(&ranges);
        let chars = if negated { chars.complement() } else { chars };
        if chars.is_empty() { self.wrong("`[]` holds no character") } else { Ok(chars) }
    }

    /// The next character, which may be written as an escape.
    fn character(&mut self, expected: &str) -> Result<char, GbnfError> {
        let mut chars = self.rest.chars();
        let missing = format!("{expected} is expected");
        let Some(first) = chars.next() else { return self.wrong(missing) };
        if first == '\n' {
            return self.wrong(missing);
        }
        if first != '\\' {
            self.rest = chars.as_str();
            return Ok(first);
        }
        let Some(kind) = chars.next() else { return self.wrong(missing) };
        self.rest = chars.as_str();
        let digits = match kind {
            'x' => 2,
            'u' => 4,
            'U' => 8,
            'n' => return Ok('\n'),
            'r' => return Ok('\r'),
            't' => return Ok('\t'),
            '\\' | '"' | '[' | ']' | '-' | '^' => return Ok(kind),
            other => return self.wrong(format!("the escape `\\{other}` is not known")),
        };
        let code = self.rest.get(..digits).filter(|code| code.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let code = code.and_then(|code| u32::from_str_radix(code, 16).ok()).and_then(char::from_u32);
        let Some(c) = code else {
            return self.wrong(format!("{digits} hexadecimal digits of a character are expected"));
        };
        self.rest = &self.rest[digits..];
        Ok(c)
    }
}
