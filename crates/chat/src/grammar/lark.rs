//! Text of a grammar in llguidance's dialect of Lark.

use std::collections::HashMap;
use std::fmt::Write;

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv};
use llguidance::{Matcher, ParserFactory};
use serde_json::{Value, json};

/// Blanks between lexemes of JSON: one, or the beginning of an indented line, so that a model cannot spin on them.
const JSON_BLANKS: &str = r" |\n[ \t]{0,40}";
/// The same between the texts of a format.
const BLANKS: &str = r"BLANK: / |\n\n?[ \t]{0,16}/";

/// A grammar that grows rule by rule.
#[derive(Debug)]
pub(super) struct Lark {
    text: String,
    rules: usize,
    /// Rules by what they are, where several places use the same.
    known: HashMap<String, String>,
}

impl Lark {
    pub(super) fn new() -> Self {
        Self { text: format!("{BLANKS}\n"), rules: 0, known: HashMap::new() }
    }

    /// The whole text; `start` is where it begins.
    pub(super) fn finish(mut self, start: &str) -> String {
        let _ = writeln!(self.text, "start: {start}");
        self.text
    }

    /// A name for a rule that is still to be [defined](Self::define).
    pub(super) fn name(&mut self) -> String {
        self.rules += 1;
        format!("r{}", self.rules)
    }

    pub(super) fn define(&mut self, name: &str, body: &str) {
        let _ = writeln!(self.text, "{name}: {body}");
    }

    /// A rule for `body`.
    pub(super) fn rule(&mut self, body: &str) -> String {
        if let Some(name) = self.known.get(body) {
            return name.clone();
        }
        let name = self.name();
        self.define(&name, body);
        self.known.insert(body.to_owned(), name.clone());
        name
    }

    /// A rule for JSON that is valid against `schema`.
    pub(super) fn json(&mut self, schema: &Value) -> String {
        let mut schema = match schema {
            Value::Object(_) => schema.clone(),
            // `false` is never asked for: nothing satisfies it.
            _ => json!({}),
        };
        bound_numbers(&mut schema);
        schema["x-guidance"] = json!({"whitespace_pattern": JSON_BLANKS});
        self.rule(&format!("%json {schema}"))
    }

    /// A rule for text of the regular expression `body`, a terminal's, up to the first `close`, which it ends with.
    pub(super) fn text_up_to(&mut self, body: &str, close: &str) -> String {
        let key = format!("{close}\0{body}");
        if let Some(name) = self.known.get(&key) {
            return name.clone();
        }
        let name = self.name();
        let _ = writeln!(self.text, "{name}[suffix={}]: {body}", literal(close));
        self.known.insert(key, name.clone());
        name
    }

    /// The items, in order, with `comma` between those that are there. Each says whether it has to be.
    pub(super) fn sequence(&mut self, items: &[(String, bool)], comma: &str) -> String {
        // What may follow where something came before, and where nothing did.
        let (mut after, mut first) = (String::new(), String::new());
        for (item, is_required) in items.iter().rev() {
            let next = match is_required {
                true => (format!("{comma} {item} {after}"), format!("{item} {after}")),
                false => (format!("({comma} {item})? {after}"), either(&[format!("{item} {after}"), first])),
            };
            after = self.rule(next.0.trim());
            first = self.rule(next.1.trim());
        }
        first
    }
}

/// Largest number where a schema names none. A model can write digits without end, and readers know no such numbers.
const LARGEST: f64 = 1e18;

/// Gives bounds to the numbers of an enforceable schema that have none.
fn bound_numbers(schema: &mut Value) {
    let Some(fields) = schema.as_object_mut() else { return };
    for name in ["properties", "patternProperties", "$defs"] {
        let schemas = fields.get_mut(name).and_then(Value::as_object_mut);
        schemas.into_iter().flatten().for_each(|(_, schema)| bound_numbers(schema));
    }
    for name in ["anyOf", "oneOf", "allOf", "prefixItems"] {
        fields.get_mut(name).and_then(Value::as_array_mut).into_iter().flatten().for_each(bound_numbers);
    }
    for name in ["items", "additionalProperties"] {
        fields.get_mut(name).into_iter().for_each(bound_numbers);
    }
    let is_number = |kind: &Value| kind == "number" || kind == "integer";
    let kinds = fields.get("type");
    let has_numbers =
        kinds.is_some_and(|kinds| is_number(kinds) || kinds.as_array().is_some_and(|all| all.iter().any(is_number)));
    if !has_numbers || fields.contains_key("enum") || fields.contains_key("const") {
        return;
    }
    let has = |names: [&str; 2]| names.iter().any(|name| fields.contains_key(*name));
    let (has_least, has_most) = (has(["minimum", "exclusiveMinimum"]), has(["maximum", "exclusiveMaximum"]));
    if !has_least && !has_most {
        fields.insert("minimum".to_owned(), Value::from(-LARGEST));
        fields.insert("maximum".to_owned(), Value::from(LARGEST));
    }
}

/// One of `options`; an empty one is nothing.
pub(super) fn either(options: &[String]) -> String {
    let options: Vec<&str> = options.iter().map(|option| option.trim()).collect();
    let some: Vec<&str> = options.iter().copied().filter(|option| !option.is_empty()).collect();
    match (some.as_slice(), some.len() < options.len()) {
        ([], _) => String::new(),
        ([one], false) => (*one).to_owned(),
        (some, is_optional) => format!("({}){}", some.join(" | "), if is_optional { "?" } else { "" }),
    }
}

/// Whether there is any text of the regular expression `term`, a terminal's.
pub(super) fn is_possible(term: &str) -> bool {
    let bytes: TokEnv = ApproximateTokEnv::single_byte_env();
    let Ok(factory) = ParserFactory::new_simple(&bytes) else { return true };
    let grammar = TopLevelGrammar::from_lark(format!("start: TERM\nTERM: {term}"));
    let mut matcher = Matcher::new(factory.create_parser(grammar));
    matcher.is_accepting().unwrap_or(false) || matcher.compute_mask().is_ok_and(|mask| !mask.is_zero())
}

/// A literal text.
pub(super) fn literal(text: &str) -> String {
    Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

/// A literal text inside a regular expression.
pub(super) fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        match c {
            '\n' => escaped.push_str("\\n"),
            // `\<` and `\>` are places, not characters.
            c if c.is_ascii_punctuation() && !"<>".contains(c) => escaped.extend(['\\', c]),
            c => escaped.push(c),
        }
    }
    escaped
}

/// Literals and rules in order, where literals that follow each other become one.
#[derive(Debug, Default)]
pub(super) struct Sequence {
    done: Vec<String>,
    text: String,
}

impl Sequence {
    pub(super) fn text(&mut self, text: &str) {
        self.text.push_str(text);
    }

    pub(super) fn rule(&mut self, rule: impl Into<String>) {
        self.flush();
        self.done.push(rule.into());
    }

    pub(super) fn blank(&mut self) {
        // Two in a row are one.
        if !self.text.is_empty() || self.done.last().is_none_or(|last| last != "BLANK?") {
            self.rule("BLANK?");
        }
    }

    pub(super) fn finish(mut self) -> String {
        self.flush();
        self.done.join(" ")
    }

    fn flush(&mut self) {
        if !self.text.is_empty() {
            self.done.push(literal(&std::mem::take(&mut self.text)));
        }
    }
}
