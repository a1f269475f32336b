//! What is changed in a template's source before it is compiled, where minijinja reads it otherwise than Jinja2 does.
//!
//! - Hugging Face's `{% generation %}` … `{% endgeneration %}`, which only marks what a model is trained on, becomes
//!   `{% if true %}` … `{% endif %}`: nothing to do, and the same control of whitespace.
//! - A loop over `none` is an error in Python, and empty in minijinja: what is looped over goes through a filter.
//! - What is added to a text marked as safe is escaped in Python, whatever the setting: `{{ "a"|safe + b }}` becomes
//!   `{{ "a"|safe + (b)|_added }}`.
//! - A slice of a list is a list in Python, and in minijinja something that is gone through from its beginning for each
//!   index: what `set` makes of a slice becomes a list, and a loop over `list[a:]` begins at its first.
//!
//! And some templates look through all messages for each message. That is read alike, and faster: a loop that does
//! nothing but note that it has found something looks no further ([`search`]), and one that does nothing for most members
//! of its list does not see them ([`scan`]). Macros that are one expression are written out ([`inline`]).

mod inline;
mod scan;
mod search;

/// The source to compile.
pub(super) fn as_python_reads_it(source: &str) -> String {
    let source = inline::written_out(&scan::left_out(&search::ended_where_found(source)));
    let source = source.as_str();
    let mut result = String::with_capacity(source.len() + 256);
    let mut rest = source;
    while let Some(start) = rest.find('{') {
        let (before, tag) = rest.split_at(start);
        result.push_str(before);
        let inner = match tag.as_bytes().get(1) {
            Some(b'#') => tag.find("#}").map(|end| (end, None)),
            Some(b'%') => end(tag, "%}").map(|end| (end, Some(statement(&tag[2..end])))),
            Some(b'{') => end(tag, "}}").map(|end| (end, Some(output(&tag[2..end])))),
            _ => Some((1, None)),
        };
        let Some((end, changed)) = inner else {
            rest = tag;
            break;
        };
        match changed {
            Some(changed) => {
                result.push_str(&tag[..2]);
                result.push_str(&changed);
            }
            None => result.push_str(&tag[..end]),
        }
        rest = &tag[end..];
        if tag.starts_with("{%") && word(&tag[2..end]) == "raw" {
            let raw = rest.find("endraw").unwrap_or(rest.len());
            result.push_str(&rest[..raw]);
            rest = &rest[raw..];
        }
    }
    result.push_str(rest);
    result
}

/// Where tags of statements begin, but for those in comments and in `raw`.
fn tags(source: &str) -> impl Iterator<Item = usize> {
    let mut at = 0;
    std::iter::from_fn(move || {
        loop {
            let start = at + source[at..].find('{')?;
            let tag = &source[start..];
            let skipped = match tag.as_bytes().get(1) {
                Some(b'#') => tag.find("#}")?,
                Some(b'%') if word(&tag["{%".len()..]) == "raw" => tag.find("endraw").unwrap_or(tag.len()),
                Some(b'%') => "{%".len(),
                _ => 1,
            };
            at = start + skipped;
            if skipped == "{%".len() && tag.starts_with("{%") {
                return Some(start);
            }
        }
    })
}

/// Where the tag that begins `tag` is closed.
fn end(tag: &str, close: &str) -> Option<usize> {
    Tokens::new(&tag[2..]).find(|(at, depth)| *depth == 0 && tag[2 + at..].starts_with(close)).map(|(at, _)| 2 + at)
}

/// The first word of a tag, without control of whitespace.
fn word(inner: &str) -> &str {
    inner.trim_start_matches(['-', '+']).split_whitespace().next().unwrap_or_default().trim_end_matches(['-', '+'])
}

fn statement(inner: &str) -> String {
    match word(inner) {
        // Only the word changes: dashes and plus signs around it stay.
        "generation" => inner.replacen("generation", "if true", 1),
        "endgeneration" => inner.replacen("endgeneration", "endif", 1),
        "for" => looped(inner).unwrap_or_else(|| inner.to_owned()),
        "set" => sliced(inner).unwrap_or_else(|| inner.to_owned()),
        _ => inner.to_owned(),
    }
}

/// `for x in VALUE if …` with the filter.
fn looped(inner: &str) -> Option<String> {
    let start = Tokens::new(inner).word("in")? + "in".len();
    let body = inner[start..].trim_end_matches(['-', '+']);
    let words = ["if", "recursive"];
    let end = words.into_iter().filter_map(|word| Tokens::new(body).word(word)).min().unwrap_or(body.len());
    let value = body[..end].trim();
    let (value, filter) = match rest_of(value) {
        Some((list, from)) => (value, format!("|_rest({list}, {from})")),
        None => (value, String::new()),
    };
    Some(format!("{} ({value}){filter}|_iterated {}", &inner[..start], &inner[start + end..]))
}

/// List and first index of `list[index:]`, where both can be asked for twice.
fn rest_of(value: &str) -> Option<(&str, &str)> {
    let (list, from) = value.strip_suffix(":]")?.split_once('[')?;
    let is_name = |c: char| c.is_alphanumeric() || "_.".contains(c);
    let is_sum = |c: char| is_name(c) || " +-".contains(c);
    (list.chars().all(is_name) && !from.is_empty() && from.chars().all(is_sum)).then_some((list, from))
}

/// `set x = y[a:b]` with a filter that makes a list of what is one.
fn sliced(inner: &str) -> Option<String> {
    let body = inner.trim_end_matches(['-', '+']);
    let value = body.split_once('=')?.1.trim();
    let (name, slice) = value.strip_suffix(']')?.split_once('[')?;
    let is_name = name.chars().all(|c| c.is_alphanumeric() || "_.".contains(c));
    let is_slice = slice.contains(':') && !slice.contains(['[', ']', '{', '\'', '"']);
    (is_name && is_slice).then(|| format!("{}|_listed {}", body.trim_end(), &inner[body.len()..]))
}

/// A sum that begins with a safe text, with the other terms escaped.
fn output(inner: &str) -> String {
    let own = || inner.to_owned();
    if !inner.contains("|safe") && !inner.contains("| safe") {
        return own();
    }
    let control = |c: char| c == '-' || c == '+';
    let body = inner.trim_start_matches(control).trim_end_matches(control);
    let places: Vec<usize> =
        Tokens::new(body).filter(|(at, depth)| *depth == 0 && body[*at..].starts_with('+')).map(|(at, _)| at).collect();
    let is_only_sum = !["if", "and", "or", "not", "in", "is"].iter().any(|word| Tokens::new(body).word(word).is_some())
        && !Tokens::new(body)
            .any(|(at, depth)| depth == 0 && body[at..].starts_with(['~', '=', '<', '>', '*', '-', ',']));
    let Some(first) = places.first().filter(|first| is_only_sum && body[..**first].trim_end().ends_with("safe")) else {
        return own();
    };
    let start = inner.len() - inner.trim_start_matches(control).len();
    let mut sum = format!("{}{}", &inner[..start], &body[..*first]);
    for (index, place) in places.iter().enumerate() {
        let term = &body[place + 1..places.get(index + 1).copied().unwrap_or(body.len())];
        sum += &format!("+ ({})|_added ", term.trim());
    }
    sum + &inner[start + body.len()..]
}

/// The characters of an expression that are in no string, each with the number of brackets that are open there.
struct Tokens<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
}

impl<'a> Tokens<'a> {
    fn new(text: &'a str) -> Self {
        Self { text, at: 0, depth: 0 }
    }

    /// Where `word` stands outside of brackets.
    fn word(self, word: &str) -> Option<usize> {
        let text = self.text;
        let is_part = |c: char| c.is_alphanumeric() || c == '_';
        let mut tokens = self;
        tokens.find_map(|(at, depth)| {
            let is_whole = depth == 0
                && text[at..].starts_with(word)
                && !text[..at].ends_with(|c: char| is_part(c) || c == '.')
                && !text[at + word.len()..].starts_with(is_part);
            is_whole.then_some(at)
        })
    }
}

impl Iterator for Tokens<'_> {
    /// Its place, and the depth: before an opening and before a closing bracket the outer one.
    type Item = (usize, usize);

    fn next(&mut self) -> Option<(usize, usize)> {
        loop {
            let at = self.at;
            let c = self.text[at..].chars().next()?;
            self.at += c.len_utf8();
            match c {
                '"' | '\'' => self.skip_string(c),
                '(' | '[' | '{' => {
                    self.depth += 1;
                    return Some((at, self.depth - 1));
                }
                ')' | ']' | '}' => {
                    self.depth = self.depth.saturating_sub(1);
                    return Some((at, self.depth));
                }
                _ => return Some((at, self.depth)),
            }
        }
    }
}

impl Tokens<'_> {
    fn skip_string(&mut self, quote: char) {
        let mut escaped = false;
        let rest = &self.text[self.at..];
        let end = rest.char_indices().find(|(_, c)| {
            let ends = *c == quote && !escaped;
            escaped = *c == '\\' && !escaped;
            ends
        });
        self.at = end.map_or(self.text.len(), |(len, _)| self.at + len + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generation_tags_become_a_condition_that_holds() {
        let source = "a {%- generation -%} b {%endgeneration+%} c {% if x %}{% endif %}{{ '%}' }}{% generations %}";
        let expected = "a {%- if true -%} b {%endif+%} c {% if x %}{% endif %}{{ '%}' }}{% generations %}";
        assert_eq!(as_python_reads_it(source), expected);
        for unchanged in
            ["no tag", "{% open", "{%%}", "{ x {# {% generation %} #}", "{% raw %}{% generation %}{% endraw %}"]
        {
            assert_eq!(as_python_reads_it(unchanged), unchanged);
        }
    }

    #[test]
    fn what_is_looped_over_goes_through_a_filter() {
        for (source, expected) in [
            ("{% for x in y %}", "{% for x in (y)|_iterated %}"),
            ("{%- for k, v in a['in'].items() if v -%}", "{%- for k, v in (a['in'].items())|_iterated if v -%}"),
            (
                "{% for x in a.b[loop.index0 + 1:] %}",
                "{% for x in (a.b[loop.index0 + 1:])|_rest(a.b, loop.index0 + 1)|_iterated %}",
            ),
            ("{% for x in a[1:2] %}", "{% for x in (a[1:2])|_iterated %}"),
            ("{% for x in (a if b else c) recursive %}", "{% for x in ((a if b else c))|_iterated recursive %}"),
        ] {
            assert_eq!(as_python_reads_it(source), expected);
        }
    }

    #[test]
    fn a_slice_that_is_kept_is_a_list() {
        for (source, expected) in [
            ("{%- set rest = messages[1:] -%}", "{%- set rest = messages[1:]|_listed -%}"),
            ("{% set ns.x = m.content[a : b.c - 1:2] %}", "{% set ns.x = m.content[a : b.c - 1:2]|_listed %}"),
            ("{% set x = y[1] %}", "{% set x = y[1] %}"),
            ("{% set x = {'a': [1]}['b:'] %}", "{% set x = {'a': [1]}['b:'] %}"),
            ("{% set x = a[1:] + b[2:] %}", "{% set x = a[1:] + b[2:] %}"),
        ] {
            assert_eq!(as_python_reads_it(source), expected);
        }
    }

    #[test]
    fn what_is_added_to_safe_text_is_escaped() {
        let source = "{{ \"+\"|safe + t[\"a+b\"] + x | tojson() }}{{- 'a'|safe -}}{{ a + b }}";
        let expected = "{{ \"+\"|safe + (t[\"a+b\"])|_added + (x | tojson())|_added }}{{- 'a'|safe -}}{{ a + b }}";
        assert_eq!(as_python_reads_it(source), expected);
    }
}
