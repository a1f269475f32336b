//! The head of a call that is a JSON object, read as far as the tool's name and the place of its arguments.

use std::ops::Range;

use mesh_types::FinishReason;

use crate::parse::json;

/// Fields that name the tool, and those that hold its arguments, over all formats.
const NAMES: [&str; 3] = ["name", "tool_name", "tool"];
const ARGUMENTS: [&str; 4] = ["arguments", "parameters", "args", "input"];
/// Fields that are neither, nor arguments that stand beside the name.
const OTHERS: [&str; 5] = ["id", "type", "index", "tool_call_id", "call_id"];
/// A wrapper around the two, as in the API's own shape.
const WRAPPER: &str = "function";
/// Deepest wrapping.
const MAX_WRAPPED: usize = 4;

/// What the beginning of a text is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Head {
    /// Perhaps a call: more text is needed.
    More,
    /// No call.
    No,
    /// A call of `name`. `open` objects are to be closed behind the place where reading goes on.
    Call {
        /// The tool.
        name: String,
        /// The arguments.
        arguments: Place,
        /// Where to read on: at the arguments, or behind what was read.
        next: usize,
        /// Objects that are open there.
        open: usize,
        /// Fields beside name and arguments that nobody knows: text.
        beside: Vec<Range<usize>>,
    },
}

/// Where a call's arguments are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// At the place where reading goes on.
    Next,
    /// They came before the name.
    Before(Range<usize>),
    /// No field is known to hold them; these are the others. None: there are none.
    Fields(Vec<Field>),
}

/// A key and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Field {
    both: Range<usize>,
    value: Range<usize>,
}

impl Place {
    /// The arguments that stand in `text`, but for those that are still to come there.
    pub(crate) fn text(&self, text: &str) -> Option<String> {
        match self {
            Self::Next => None,
            Self::Before(range) => Some(text[range.clone()].to_owned()),
            Self::Fields(fields) => Some(beside_the_name(text, fields)),
        }
    }
}

/// Arguments whose field has another name than any that is known, or that stand beside the tool's name themselves.
fn beside_the_name(text: &str, fields: &[Field]) -> String {
    if let [only] = fields
        && text[only.value.clone()].starts_with('{')
    {
        return text[only.value.clone()].to_owned();
    }
    let fields: Vec<&str> = fields.iter().map(|field| &text[field.both.clone()]).collect();
    format!("{{{}}}", fields.join(", "))
}

/// Reads the head of the object that begins at byte `at` of `text`. `keyed`: the object's first key is the tool's name,
/// and its value the arguments.
pub(crate) fn head(text: &str, at: usize, keyed: bool) -> Head {
    let bytes = text.as_bytes();
    let mut scan = Scan { text, bytes, at, open: 0, name: None, before: None, others: Vec::new() };
    match scan.object(keyed) {
        Ok(head) => head,
        Err(Stuck::More) => Head::More,
        Err(Stuck::No) => Head::No,
    }
}

enum Stuck {
    More,
    No,
}

struct Scan<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
    open: usize,
    name: Option<String>,
    before: Option<Range<usize>>,
    others: Vec<Field>,
}

impl Scan<'_> {
    fn object(&mut self, keyed: bool) -> Result<Head, Stuck> {
        self.expect(b'{')?;
        self.open += 1;
        loop {
            match self.peek()? {
                b'}' => {
                    self.at += 1;
                    self.open -= 1;
                    if self.open == 0 {
                        return self.ended();
                    }
                    continue;
                }
                b',' => {
                    self.at += 1;
                    continue;
                }
                b'"' | b'\'' => {}
                _ => return Err(Stuck::No),
            }
            let start_of_field = self.at;
            let key = self.string()?;
            self.expect(b':')?;
            let first = self.peek()?;
            if keyed {
                return Ok(self.call(key, Place::Next));
            }
            if ARGUMENTS.contains(&key.as_str()) {
                if let Some(name) = self.name.take() {
                    return Ok(self.call(name, Place::Next));
                }
                let start = self.at;
                self.value()?;
                self.before = Some(start..self.at);
            } else if (NAMES.contains(&key.as_str()) || key == WRAPPER) && matches!(first, b'"' | b'\'') {
                let name = self.string()?;
                if let Some(before) = self.before.take() {
                    return Ok(self.call(name, Place::Before(before)));
                }
                self.name = Some(name);
            } else if key == WRAPPER && first == b'{' && self.open < MAX_WRAPPED {
                self.at += 1;
                self.open += 1;
            } else {
                let value = self.at;
                self.value()?;
                if !OTHERS.contains(&key.as_str()) {
                    self.others.push(Field { both: start_of_field..self.at, value: value..self.at });
                }
            }
        }
    }

    fn call(&self, name: String, arguments: Place) -> Head {
        let beside = self.others.iter().map(|field| field.both.clone()).collect();
        Head::Call { name, arguments, next: self.at, open: self.open, beside }
    }

    fn ended(&mut self) -> Result<Head, Stuck> {
        let name = self.name.take().ok_or(Stuck::No)?;
        let others = std::mem::take(&mut self.others);
        Ok(self.call(name, Place::Fields(others)))
    }

    /// A key and its value; whether it is one of those that do not matter.
    fn field(&mut self) -> Result<bool, Stuck> {
        let key = self.string()?;
        self.expect(b':')?;
        self.peek()?;
        self.value()?;
        Ok(OTHERS.contains(&key.as_str()))
    }

    /// The next byte that is no blank.
    fn peek(&mut self) -> Result<u8, Stuck> {
        while self.bytes.get(self.at).is_some_and(u8::is_ascii_whitespace) {
            self.at += 1;
        }
        self.bytes.get(self.at).copied().ok_or(Stuck::More)
    }

    fn expect(&mut self, byte: u8) -> Result<(), Stuck> {
        if self.peek()? != byte {
            return Err(Stuck::No);
        }
        self.at += 1;
        Ok(())
    }

    fn string(&mut self) -> Result<String, Stuck> {
        let start = self.at;
        self.skip_string()?;
        let mended = json::mended(&self.text[start..self.at]).ok_or(Stuck::No)?;
        serde_json::from_str(&mended).map_err(|_| Stuck::No)
    }

    fn skip_string(&mut self) -> Result<(), Stuck> {
        self.at = end_of_string(self.bytes, self.at).ok_or(Stuck::More)?;
        Ok(())
    }

    fn value(&mut self) -> Result<(), Stuck> {
        let mut depth = 0usize;
        loop {
            match self.peek()? {
                b'"' | b'\'' => self.skip_string()?,
                b'{' | b'[' => {
                    depth += 1;
                    self.at += 1;
                }
                b'}' | b']' if depth > 0 => {
                    depth -= 1;
                    self.at += 1;
                }
                b',' | b':' if depth > 0 => self.at += 1,
                b'}' | b']' | b',' | b':' => return Err(Stuck::No),
                _ => self.word()?,
            }
            if depth == 0 {
                return Ok(());
            }
        }
    }

    fn word(&mut self) -> Result<(), Stuck> {
        let ends = |b: &u8| b.is_ascii_whitespace() || b",:{}[]\"'".contains(b);
        let len = self.bytes[self.at..].iter().position(ends).ok_or(Stuck::More)?;
        self.at += len;
        Ok(())
    }
}

/// Where the string that begins at byte `at` ends, in whichever quotes.
fn end_of_string(bytes: &[u8], at: usize) -> Option<usize> {
    let quote = *bytes.get(at)?;
    let mut next = at + 1;
    loop {
        match *bytes.get(next)? {
            byte if byte == quote => return Some(next + 1),
            b'\\' => next += 2,
            _ => next += 1,
        }
    }
}

/// Where the value ends that begins at byte `at`.
pub(crate) fn end_of_value(text: &str, at: usize) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut scan = Scan { text, bytes, at, open: 0, name: None, before: None, others: Vec::new() };
    scan.value().ok().map(|()| scan.at)
}

/// What follows the arguments inside a call's object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rest {
    /// So many bytes are structure.
    pub(crate) taken: usize,
    /// Fields among them that nobody knows: text.
    pub(crate) beside: Vec<Range<usize>>,
}

/// Reads up to `open` closing braces behind the arguments, and the fields before them. `None`: more text is needed to say.
/// Once the answer has `ended`, what is not complete is not taken, but for a field that does not matter, where there was no
/// room for the rest of it.
pub(crate) fn rest(text: &str, mut open: usize, ended: Option<FinishReason>) -> Option<Rest> {
    let bytes = text.as_bytes();
    let mut scan = Scan { text, bytes, at: 0, open, name: None, before: None, others: Vec::new() };
    let mut beside = Vec::new();
    while open > 0 {
        let before = scan.at;
        let Ok(next) = scan.peek() else {
            ended?;
            break;
        };
        let start = scan.at;
        match next {
            b'}' => {
                open -= 1;
                scan.at += 1;
            }
            b',' => scan.at += 1,
            b'"' | b'\'' => match scan.field() {
                Ok(true) => {}
                Ok(false) => beside.push(start..scan.at),
                Err(Stuck::More) if ended.is_none() => return None,
                Err(Stuck::More) if ended == Some(FinishReason::Length) && may_not_matter(&text[start..]) => {
                    return Some(Rest { taken: text.len(), beside });
                }
                Err(_) => return Some(Rest { taken: before, beside }),
            },
            _ => return Some(Rest { taken: before, beside }),
        }
    }
    Some(Rest { taken: scan.at, beside })
}

/// Whether `text`, which begins with a quote, begins a field that does not matter.
fn may_not_matter(text: &str) -> bool {
    let quote = &text[..1];
    let key = &text[1..];
    OTHERS.iter().any(|other| match key.split_once(quote) {
        Some((key, _)) => key == *other,
        None => other.starts_with(key),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(name: &str, arguments: Place, next: usize, open: usize) -> Head {
        Head::Call { name: name.to_owned(), arguments, next, open, beside: Vec::new() }
    }

    #[test]
    fn a_name_and_the_place_of_the_arguments_are_found() {
        assert_eq!(head(r#"{"name": "f", "arguments": {"#, 0, false), call("f", Place::Next, 27, 1));
        assert_eq!(head(r#"{"id":[1,{"name":"x"}],"tool_name":"f","parameters":"#, 0, false), Head::More);
        assert_eq!(head(r#"{"arguments": {"a": 1}, "name": "f""#, 0, false), call("f", Place::Before(14..22), 35, 1));
        assert_eq!(head(r#" {"name": "f"}"#, 1, false), call("f", Place::Fields(Vec::new()), 14, 0));
        assert_eq!(
            head(r#"{"type":"function","function":{"name":"f","arguments":{"#, 0, false),
            call("f", Place::Next, 54, 2)
        );
        assert_eq!(head(r#"{"f": {"#, 0, true), call("f", Place::Next, 6, 1));
        assert_eq!(head("{'name': 'f', 'arguments': {", 0, false), call("f", Place::Next, 27, 1));
    }

    #[test]
    fn arguments_in_no_known_field_are_not_lost() {
        let arguments = |text: &str| match head(text, 0, false) {
            Head::Call { arguments, .. } => arguments.text(text),
            other => panic!("{other:?}"),
        };
        assert_eq!(arguments(r#"{"name": "f", "id": "1"}"#).as_deref(), Some("{}"));
        assert_eq!(arguments(r#"{"name": "f", "argument": {"a": "b:c"}}"#).as_deref(), Some(r#"{"a": "b:c"}"#));
        assert_eq!(arguments(r#"{"a": "b", "name": "f", "c": {}}"#).as_deref(), Some(r#"{"a": "b", "c": {}}"#));
        assert_eq!(arguments(r#"{"a:b": {"c": 1}, "name": "f"}"#).as_deref(), Some(r#"{"c": 1}"#));
    }

    #[test]
    fn what_is_no_call_is_seen_as_soon_as_it_ends() {
        assert_eq!(head(r#"{"version": 1"#, 0, false), Head::More);
        assert_eq!(head(r#"{"version": 1}"#, 0, false), Head::No);
        assert_eq!(head("{x", 0, false), Head::No);
        assert_eq!(head("x", 0, false), Head::No);
    }

    #[test]
    fn the_rest_of_the_object_is_taken() {
        let taken =
            |text: &str, open: usize, ended: Option<FinishReason>| rest(text, open, ended).map(|rest| rest.taken);
        assert_eq!(taken(r#", "id": "a}b" } x"#, 1, None), Some(15));
        assert_eq!(taken(r#"}"#, 2, None), None);
        assert_eq!(taken("} </tool_call>", 2, None), Some(1));
        assert_eq!(taken(r#", "id": "a}b" , "x": "I say"#, 1, None), None);
        assert_eq!(taken(r#", "id": "a}b" , "x": "I say"#, 1, Some(FinishReason::Stop)), Some(15));
        assert_eq!(taken(r#", "id": "a}b" , "x": "I say"#, 1, Some(FinishReason::Length)), Some(15));
        for cut in [r#", "id": "a"#, r#", "id": "#, r#", "id"#, ", \"", ","] {
            assert_eq!(taken(cut, 1, Some(FinishReason::Length)), Some(cut.len()), "{cut}");
        }
    }

    #[test]
    fn fields_that_nobody_knows_are_text() {
        let text = r#"{"why": [1, "x"], "name": "f", "id": 1, "arguments": {}"#;
        let Head::Call { beside, .. } = head(text, 0, false) else { panic!("no call") };
        assert_eq!(beside.iter().map(|range| &text[range.clone()]).collect::<Vec<_>>(), [r#""why": [1, "x"]"#]);
        let text = r#", "id": "a", "why" : "x"}"#;
        let Rest { taken, beside } = rest(text, 1, None).expect("all of it");
        assert_eq!((taken, &text[beside[0].clone()], beside.len()), (text.len(), r#""why" : "x""#, 1));
    }
}
