//! Loops that pass over most of their list.
//!
//! `{% for x in LIST %}{% if x.role == 'tool' and REST %}…{% endif %}{% endfor %}` does nothing for members that are not
//! of the role: the list comes from a filter that leaves them out, `(LIST)|_where("role", "==", "tool")`, and the
//! condition keeps its `REST`. Templates that look through all messages for each message spend their time so. Only what
//! cannot fail is taken, and nothing behind what might: terms at the condition's beginning that ask for an attribute, or
//! compare it with a text. Where such a loop uses `loop.index0`, the filter numbers the members.

use super::search::{Block, eats, is_name, is_text, tag};
use super::{Tokens, tags};

/// Stands before the name of a loop's variable, for its place in the whole list.
const INDEX: &str = "_index_of_";

/// `source` with a filter on the list of each such loop.
pub(super) fn left_out(source: &str) -> String {
    let mut result = String::with_capacity(source.len() + 256);
    let mut done = 0;
    for at in tags(source) {
        if at < done {
            continue;
        }
        if let Some(scan) = Scan::of(&source[at..]) {
            result.push_str(&source[done..at]);
            result.push_str(&scan.head);
            result.push_str(&left_out(&scan.rest));
            done = at + scan.len;
        }
    }
    result.push_str(&source[done..]);
    result
}

/// A loop of this kind, up to its `endfor`.
struct Scan {
    /// Its `for` and `if`, changed.
    head: String,
    /// What follows, up to the `endif`.
    rest: String,
    /// So many bytes of the source are these.
    len: usize,
}

impl Scan {
    /// The one that `text` begins with.
    fn of(text: &str) -> Option<Self> {
        let (head, after_for) = tag(text, true)?;
        let (variable, list) = head.strip_prefix("for ")?.trim_start().split_once(" in ")?;
        let (variable, list) = (variable.trim(), list.trim());
        let has_word = |text: &str, words: &[&str]| words.iter().any(|word| Tokens::new(text).word(word).is_some());
        if !is_name(variable) || has_word(list, &["if", "recursive"]) || list.contains("loop") {
            return None;
        }
        let (condition, after_if) = tag(after_for, eats(text, after_for))?;
        let condition = condition.strip_prefix("if ")?.trim();
        if has_word(condition, &["or", "if"]) {
            return None;
        }
        let block = Block::of(after_if)?;
        let after_endif = &after_if[block.after_end..];
        let (endfor, _) = tag(after_endif, eats(text, after_endif))?;
        if block.has_branches || endfor != "endfor" {
            return None;
        }
        let (terms, others) = leading_terms(condition, variable)?;
        let others = if others.is_empty() { "true" } else { others };
        let body = &after_if[..block.after_end];
        let uses = [others, body].map(|text| uses_of_loop(text)).into_iter().flatten().collect::<Vec<_>>();
        let is_numbered = !uses.is_empty();
        // The variable of an inner loop has the same name.
        if is_numbered && (!uses.iter().all(|use_of| *use_of == "loop.index0") || body.contains("for ")) {
            return None;
        }
        let index = format!("{INDEX}{variable}");
        let numbered = |text: &str| if is_numbered { text.replace("loop.index0", &index) } else { text.to_owned() };
        let filter = if is_numbered { "_where_numbered" } else { "_where" };
        let target = if is_numbered { format!("{index}, {variable}") } else { variable.to_owned() };
        let between = &text[place(text, list) + list.len()..place(text, condition)];
        let before = &text[..place(text, head)];
        let closing = &text[place(text, condition) + condition.len()..text.len() - after_if.len()];
        let head = format!("{before}for {target} in ({list})|{filter}({terms}){between}{}{closing}", numbered(others));
        Some(Self { head, rest: numbered(body), len: text.len() - after_endif.len() })
    }
}

/// Where `part` of `text` begins.
fn place(text: &str, part: &str) -> usize {
    part.as_ptr() as usize - text.as_ptr() as usize
}

/// The terms at the beginning of a condition that are about `variable` alone, as arguments of the filter, and the others.
fn leading_terms<'a>(condition: &'a str, variable: &str) -> Option<(String, &'a str)> {
    let (mut terms, mut rest) = (Vec::new(), condition);
    while !rest.is_empty() {
        let end = Tokens::new(rest).word("and").unwrap_or(rest.len());
        let Some(term) = term(rest[..end].trim(), variable) else { break };
        terms.push(term);
        rest = rest[end..].strip_prefix("and").unwrap_or_default().trim();
    }
    (!terms.is_empty()).then(|| (terms.join(", "), rest))
}

/// `x.name`, `x['name'] == 'text'` and the like: attribute, operator and text.
fn term(text: &str, variable: &str) -> Option<String> {
    let compared = ["==", "!="].into_iter().find_map(|operator| Some((text.split_once(operator)?, operator)));
    let ((left, right), operator) = compared.unwrap_or(((text, "''"), "is"));
    let field = left.trim().strip_prefix(variable)?;
    let name = field.strip_prefix('.').filter(|name| is_name(name));
    let name = name.or_else(|| {
        let quoted = field.strip_prefix('[')?.strip_suffix(']')?.trim();
        is_text(quoted).then(|| &quoted[1..quoted.len() - 1])
    })?;
    let is_compared = operator != "is";
    (!is_compared || is_text(right)).then(|| format!("'{name}', '{operator}', {}", right.trim()))
}

/// Each `loop` in `text`, with the attribute that is asked for.
fn uses_of_loop(text: &str) -> Vec<&str> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let places = text.match_indices("loop").filter(|(at, _)| !text[..*at].ends_with(|c: char| is_part(c) || c == '.'));
    let uses = places.filter(|(at, word)| !text[at + word.len()..].starts_with(is_part));
    let attribute = |(at, _): (usize, &str)| {
        let end = text[at..].find(|c: char| !is_part(c) && c != '.').unwrap_or(text.len() - at);
        &text[at..at + end]
    };
    uses.map(attribute).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_loop_passes_over_is_left_out_of_its_list() {
        let source = "{%- for m in messages -%}\n  {%- if m.role == 'assistant' and m['calls'] and m.n > 1 -%}{{ m }}\
            {%- endif %}\n{% endfor %}";
        let expected = "{%- for m in (messages)|_where('role', '==', 'assistant', 'calls', 'is', '') -%}\n  \
            {%- if m.n > 1 -%}{{ m }}{%- endif %}\n{% endfor %}";
        assert_eq!(left_out(source), expected);
        let source = "{% for m in l[1:] %}{% if m.x != \"a\" %}{% for m in m.y %}{% if m.z %}{{ loop.index }}{% endif %}\
            {% endfor %}{% endif %}{% endfor %}";
        assert_eq!(left_out(source), source, "whose `loop` it is would have to be known");
        let source = source.replace("loop.index", "m");
        let expected = "{% for m in (l[1:])|_where('x', '!=', \"a\") %}{% if true %}\
            {% for m in (m.y)|_where('z', 'is', '') %}{% if true %}{{ m }}{% endif %}{% endfor %}{% endif %}{% endfor %}";
        assert_eq!(left_out(&source), expected);
    }

    #[test]
    fn members_keep_their_numbers() {
        let source = "{% for m in messages %}{% if m.a and loop.index0 < n %}{% set ns.i = loop.index0 %}{% endif %}{% endfor %}";
        let expected = "{% for _index_of_m, m in (messages)|_where_numbered('a', 'is', '') %}{% if _index_of_m < n %}\
            {% set ns.i = _index_of_m %}{% endif %}{% endfor %}";
        assert_eq!(left_out(source), expected);
    }

    #[test]
    fn what_does_more_or_might_fail_is_left_alone() {
        for unchanged in [
            "{% for m in l %}{% if m.a or m.b %}x{% endif %}{% endfor %}",
            "{% for m in l %}{% if n and m.a %}x{% endif %}{% endfor %}",
            "{% for m in l %}{% if m.a|lower == 'x' %}x{% endif %}{% endfor %}",
            "{% for m in l %}{% if m.a == b %}x{% endif %}{% endfor %}",
            "{% for m in l %}{% if m.a.b %}x{% endif %}{% endfor %}",
            "{% for m in l %}{% if m.a %}x{% else %}y{% endif %}{% endfor %}",
            "{% for m in l %}{% if m.a %}x{% endif %}y{% endfor %}",
            "{% for m in l %}{% if m.a %}x{% endif %}{% else %}y{% endfor %}",
            "{% for m in l %} {% if m.a %}x{% endif %}{% endfor %}",
            "{% for m in l if m.b %}{% if m.a %}x{% endif %}{% endfor %}",
            "{% for m in l recursive %}{% if m.a %}x{% endif %}{% endfor %}",
            "{% for k, m in l %}{% if m.a %}x{% endif %}{% endfor %}",
            "{% for m in l %}{% if m.a %}{{ loop.last }}{% endif %}{% endfor %}",
            "{% for m in l %}{% if m.a %}{{ f(loop) }}{% endif %}{% endfor %}",
            "{% raw %}{% for m in l %}{% if m.a %}x{% endif %}{% endfor %}{% endraw %}",
            "{# {% for m in l %}{% if m.a %}x{% endif %}{% endfor %} #}",
        ] {
            assert_eq!(left_out(unchanged), unchanged);
        }
    }
}
