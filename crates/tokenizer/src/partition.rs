//! A text, parted at its special tokens as llama.cpp parts it.
//!
//! llama.cpp looks for one special token after the other, the longest first, in what the ones before it left. That is
//! one pass of leftmost-longest search wherever no end of one token is the beginning of another, which is so in nearly
//! every vocabulary and checked here; where it is not, there is no [`Partition`].

use std::collections::HashMap;

use aho_corasick::{AhoCorasick, MatchKind};

/// Most bytes of a special token, so that the check stays short.
const MAX_TOKEN: usize = 512;
/// What `isspace` of C takes for a space.
const SPACES: [char; 6] = [' ', '\t', '\n', '\u{b}', '\u{c}', '\r'];

/// A token that is found in a text before anything is merged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Special {
    /// Its id.
    pub id: i32,
    /// Its text.
    pub text: String,
    /// Whether it is found in every text (USER_DEFINED); else only where special tokens are asked for.
    pub always: bool,
    /// Whether it takes the spaces before it along.
    pub strips_before: bool,
    /// Whether it takes the spaces behind it along.
    pub strips_behind: bool,
}

/// Why a vocabulary's special tokens cannot be found in one pass.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Inseparable {
    /// The end of one is the beginning of the other.
    #[error("the special tokens `{0}` and `{1}` can overlap")]
    Overlap(String, String),
    /// One strips the spaces that another one begins or ends with.
    #[error("the special token `{0}` begins or ends with a space, and others strip spaces")]
    Blank(String),
    /// A token is empty, too long, or not text.
    #[error("token {0} cannot be searched for")]
    Text(i32),
    /// They are too many to search for.
    #[error("the special tokens cannot be searched for: {0}")]
    Search(String),
}

/// A part of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part<'a> {
    /// A special token.
    Token(i32),
    /// Text without any; never empty.
    Text(&'a str),
}

/// Finds a vocabulary's special tokens.
#[derive(Clone, Debug)]
pub struct Partition {
    all: Search,
    /// Those that are found in every text.
    always: Search,
}

#[derive(Clone, Debug)]
struct Search {
    tokens: Vec<Special>,
    texts: AhoCorasick,
}

impl Partition {
    /// # Errors
    /// [`Inseparable`] names what stands against one pass.
    pub fn new(specials: Vec<Special>) -> Result<Self, Inseparable> {
        let odd = |token: &&Special| {
            token.text.is_empty() || token.text.len() > MAX_TOKEN || token.text.contains(char::REPLACEMENT_CHARACTER)
        };
        if let Some(token) = specials.iter().find(odd) {
            return Err(Inseparable::Text(token.id));
        }
        if specials.iter().any(|token| token.strips_before || token.strips_behind)
            && let Some(token) = specials.iter().find(|token| token.text.trim_matches(SPACES) != token.text)
        {
            return Err(Inseparable::Blank(token.text.clone()));
        }
        check_overlaps(&specials)?;
        let always = specials.iter().filter(|token| token.always).cloned().collect();
        Ok(Self { all: Search::new(specials)?, always: Search::new(always)? })
    }

    /// Where control tokens stand in `text`. What is between them may hold tokens that are found in every text: see
    /// [`Self::within`].
    pub fn controls<'a>(&self, text: &'a str) -> Vec<Part<'a>> {
        self.all.parts(text, |token| !token.always)
    }

    /// The parts of a text in which no control tokens are looked for.
    pub fn within<'a>(&self, text: &'a str) -> Vec<Part<'a>> {
        self.always.parts(text, |_| true)
    }
}

impl Search {
    /// Parts `text` at the tokens that `cuts`.
    fn parts<'a>(&self, text: &'a str, cuts: impl Fn(&Special) -> bool) -> Vec<Part<'a>> {
        let mut parts = Vec::new();
        let (mut done, mut strip) = (0, false);
        for found in self.texts.find_iter(text) {
            let token = &self.tokens[found.pattern().as_usize()];
            if !cuts(token) {
                continue;
            }
            push(&mut parts, &text[done..found.start()], strip, token.strips_before);
            parts.push(Part::Token(token.id));
            (done, strip) = (found.end(), token.strips_behind);
        }
        push(&mut parts, &text[done..], strip, false);
        parts
    }

    fn new(tokens: Vec<Special>) -> Result<Self, Inseparable> {
        let texts = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(tokens.iter().map(|token| &token.text))
            .map_err(|error| Inseparable::Search(error.to_string()))?;
        Ok(Self { tokens, texts })
    }
}

fn push<'a>(parts: &mut Vec<Part<'a>>, mut text: &'a str, strip_start: bool, strip_end: bool) {
    if strip_start {
        text = text.trim_start_matches(SPACES);
    }
    if strip_end {
        text = text.trim_end_matches(SPACES);
    }
    if !text.is_empty() {
        parts.push(Part::Text(text));
    }
}

/// Two tokens overlap where a proper end of one is a proper beginning of the other. One that overlaps itself is found
/// from left to right either way, and so are runs of one character of several lengths.
fn check_overlaps(specials: &[Special]) -> Result<(), Inseparable> {
    let mut beginnings: HashMap<&[u8], Vec<usize>> = HashMap::new();
    for (index, token) in specials.iter().enumerate() {
        for len in 1..token.text.len() {
            let owners = beginnings.entry(&token.text.as_bytes()[..len]).or_default();
            // Of the runs of one character, and of the others, two each tell whether there is one besides oneself.
            let alike = owners.iter().filter(|other| run(&specials[**other].text) == run(&token.text)).count();
            if alike < 2 {
                owners.push(index);
            }
        }
    }
    for (index, token) in specials.iter().enumerate() {
        for start in 1..token.text.len() {
            let owners = beginnings.get(&token.text.as_bytes()[start..]).into_iter().flatten();
            let harmless = |other: usize| {
                other == index || (run(&token.text).is_some() && run(&token.text) == run(&specials[other].text))
            };
            if let Some(other) = owners.copied().find(|other| !harmless(*other)) {
                return Err(Inseparable::Overlap(token.text.clone(), specials[other].text.clone()));
            }
        }
    }
    Ok(())
}

/// The one character that a text consists of.
pub(crate) fn run(text: &str) -> Option<char> {
    let first = text.chars().next()?;
    text.chars().all(|char| char == first).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn special(id: i32, text: &str) -> Special {
        Special { id, text: text.to_owned(), ..Special::default() }
    }

    #[test]
    fn tokens_are_found_where_they_are_asked_for() {
        let tool = Special { always: true, ..special(2, "<tool>") };
        let partition = Partition::new(vec![special(1, "<|end|>"), tool]).unwrap();
        let text = "a<|end|><tool>b";
        assert_eq!(partition.controls(text), [Part::Text("a"), Part::Token(1), Part::Text("<tool>b")]);
        assert_eq!(partition.within("<tool>b"), [Part::Token(2), Part::Text("b")]);
        assert_eq!(partition.within(text), [Part::Text("a<|end|>"), Part::Token(2), Part::Text("b")]);
        assert_eq!(partition.controls(""), []);
    }

    #[test]
    fn the_longest_of_those_that_begin_alike_is_found() {
        let runs = (2..5).map(|len| special(len, &" ".repeat(len as usize)));
        let partition = Partition::new(runs.chain([special(9, "<a"), special(10, "<a>")]).collect()).unwrap();
        let parts = partition.controls("<a>       <ab");
        assert_eq!(parts, [Part::Token(10), Part::Token(4), Part::Token(3), Part::Token(9), Part::Text("b")]);
    }

    #[test]
    fn spaces_beside_a_token_go_with_it_where_it_says_so() {
        let mask = Special { strips_before: true, ..special(1, "<mask>") };
        let end = Special { strips_behind: true, ..special(2, "<end>") };
        let partition = Partition::new(vec![mask, end]).unwrap();
        let parts = partition.controls("a \n<mask> b<end>\t \u{a0}c<end>  ");
        let expected =
            [Part::Text("a"), Part::Token(1), Part::Text(" b"), Part::Token(2), Part::Text("\u{a0}c"), Part::Token(2)];
        assert_eq!(parts, expected);
    }

    #[test]
    fn what_cannot_be_told_in_one_pass_is_refused() {
        let refused = |texts: &[&str]| Partition::new(texts.iter().map(|text| special(0, text)).collect()).unwrap_err();
        assert_eq!(refused(&["<a>", "x", ">b"]), Inseparable::Overlap("<a>".to_owned(), ">b".to_owned()));
        assert_eq!(refused(&["  ", " x", "   "]), Inseparable::Overlap("  ".to_owned(), " x".to_owned()));
        assert_eq!(refused(&[""]), Inseparable::Text(0));
        let strips = Special { strips_before: true, ..special(0, "<mask>") };
        assert_eq!(Partition::new(vec![strips, special(1, " x")]).unwrap_err(), Inseparable::Blank(" x".to_owned()));
    }
}
