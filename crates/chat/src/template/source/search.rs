//! Loops that come to their end before their list does.
//!
//! - `{% for x in LIST %}{% if CONDITION %}{% set ns.found = true %}{% endif %}{% endfor %}` changes nothing any more behind
//!   the first find, if its condition is about nothing but `x`: a `break` behind the `set` renders the same. Only
//!   conditions that cannot fail are taken: those that compare an attribute with a text, or ask for a key.
//! - `{% for x in LIST %}{% if not ns.found %}…{% endif %}{% endfor %}` does nothing once the condition is false, and so
//!   it stays: an `else` with a `break` renders the same. So does a `break` where such a loop begins with
//!   `{% if ns.stopped %}{% elif …`.

use super::{end, tags, word};

/// Longest body of a loop that is looked through, in bytes.
const MAX_BODY: usize = 4096;

/// `source` with a `{% break %}` in each such loop.
pub(super) fn ended_where_found(source: &str) -> String {
    let mut result = String::with_capacity(source.len() + 64);
    let mut done = 0;
    for at in tags(source) {
        let from = &source[at..];
        if at < done {
            continue;
        }
        if let Some((len, ending)) = search(from).map(|set| (set, "{%- break -%}")).or_else(|| guarded(from)) {
            let open = "{%".len();
            result.push_str(&source[done..at + open]);
            // There may be another loop inside.
            result.push_str(&ended_where_found(&from[open..len]));
            result.push_str(ending);
            done = at + len;
        }
    }
    result.push_str(&source[done..]);
    result
}

/// Where the `set` ends of the search that `text` begins with.
fn search(text: &str) -> Option<usize> {
    let (head, after_for) = tag(text, true)?;
    let (variable, _) = head.strip_prefix("for ")?.trim_start().split_once(" in ")?;
    let variable = variable.trim();
    if !is_name(variable) || head.split_whitespace().any(|word| matches!(word, "if" | "recursive")) {
        return None;
    }
    let (condition, after_if) = tag(after_for, eats(text, after_for))?;
    let (set, after_set) = tag(after_if, eats(text, after_if))?;
    let (target, value) = set.strip_prefix("set ")?.split_once('=')?;
    let (space, field) = target.trim().split_once('.')?;
    let is_constant = matches!(value.trim(), "true" | "false" | "True" | "False" | "none" | "None");
    let (endif, after_endif) = tag(after_set, eats(text, after_set))?;
    let (endfor, _) = tag(after_endif, eats(text, after_endif))?;
    let is_search = is_condition(condition.strip_prefix("if ")?, variable)
        && is_name(space)
        && is_name(field)
        && is_constant
        && (endif, endfor) == ("endif", "endfor");
    is_search.then(|| text.len() - after_set.len())
}

/// For a loop that `text` begins with, whose body is nothing but a condition on what is noted somewhere: where to put what
/// ends it.
fn guarded(text: &str) -> Option<(usize, &'static str)> {
    let (head, after_for) = tag(text, true)?;
    let (variable, list) = head.strip_prefix("for ")?.trim_start().split_once(" in ")?;
    if list.contains('|') || list.split_whitespace().any(|word| matches!(word, "if" | "recursive")) {
        return None;
    }
    let (condition, after_if) = tag(after_for, eats(text, after_for))?;
    let condition = condition.strip_prefix("if ")?.trim();
    let (is_negated, noted) = condition.strip_prefix("not ").map_or((false, condition), |noted| (true, noted.trim()));
    let (space, field) = noted.split_once('.')?;
    let is_other = space != variable.trim() && space != "loop";
    if !(is_name(space) && is_name(field) && is_other && is_name(variable.trim())) {
        return None;
    }
    let branch = tag(after_if, eats(text, after_if)).map(|(branch, _)| branch);
    let is_empty = branch.is_some_and(|branch| branch == "else" || branch.starts_with("elif "));
    let block = Block::of(after_if)?;
    let after_endif = &after_if[block.after_end..];
    let (endfor, _) = tag(after_endif, eats(text, after_endif))?;
    let start = text.len() - after_if.len();
    match (is_negated, is_empty) {
        _ if endfor != "endfor" => None,
        (true, false) if !block.has_branches && after_if[block.end..].starts_with("{%-") => {
            Some((start + block.end, "{%- else -%}{%- break -%}"))
        }
        (false, true) => Some((start, "{%- break -%}")),
        _ => None,
    }
}

/// What follows `{% if … %}`.
pub(super) struct Block {
    /// Where its `{% endif %}` is.
    end: usize,
    pub(super) after_end: usize,
    /// It has an `else` or `elif`.
    pub(super) has_branches: bool,
}

impl Block {
    /// Reads `text`, which stands behind an `{% if … %}`.
    pub(super) fn of(text: &str) -> Option<Self> {
        let (mut at, mut depth, mut has_branches) = (0, 0usize, false);
        while at < MAX_BODY {
            let start = at + text[at..].find('{')?;
            let tag = &text[start..];
            at = start
                + match tag.as_bytes().get(1)? {
                    b'#' => tag.find("#}")? + "#}".len(),
                    b'{' => end(tag, "}}")? + "}}".len(),
                    b'%' => end(tag, "%}")? + "%}".len(),
                    _ => 1,
                };
            if !tag.starts_with("{%") {
                continue;
            }
            let inner = &text[start + "{%".len()..at - "%}".len()];
            match word(inner) {
                "raw" => return None,
                "elif" | "else" if depth == 0 => has_branches = true,
                "endif" if depth == 0 => return Some(Self { end: start, after_end: at, has_branches }),
                "set" if inner.contains('=') => {}
                "if" | "for" | "set" | "macro" | "call" | "filter" | "with" | "generation" => depth += 1,
                word if word.starts_with("end") => depth = depth.checked_sub(1)?,
                _ => {}
            }
        }
        None
    }
}

/// The inner text of the tag that `text` begins with, behind blanks that are not rendered, and what follows it.
/// `is_eaten`: the tag before eats all blanks.
pub(super) fn tag(text: &str, is_eaten: bool) -> Option<(&str, &str)> {
    let (blanks, inner) = text.split_once("{%")?;
    let is_eaten = is_eaten || inner.starts_with('-');
    // A line end behind a tag and blanks before one are not rendered either.
    let indentation = blanks.strip_prefix('\n').unwrap_or(blanks);
    let is_line =
        blanks.is_empty() || (blanks.starts_with('\n') && indentation.bytes().all(|byte| b" \t".contains(&byte)));
    if !blanks.trim().is_empty() || !(is_eaten || is_line) {
        return None;
    }
    let (inner, after) = inner.split_once("%}")?;
    let inner = inner.strip_prefix('-').unwrap_or(inner);
    Some((inner.strip_suffix('-').unwrap_or(inner).trim(), after))
}

/// Whether what stands before `rest`, the end of `text`, is a tag that eats the blanks behind it.
pub(super) fn eats(text: &str, rest: &str) -> bool {
    text[..text.len() - rest.len()].ends_with("-%}")
}

/// Terms about `variable` alone that cannot fail, joined by `and`.
fn is_condition(text: &str, variable: &str) -> bool {
    text.split(" and ").all(|term| {
        let compared = term.split_once(" == ").or_else(|| term.split_once(" != "));
        let asked = term.split_once(" not in ").or_else(|| term.split_once(" in "));
        match (compared, asked) {
            (Some((left, right)), None) => {
                let field = left.trim().strip_prefix(variable).and_then(|rest| rest.strip_prefix('.'));
                field.is_some_and(is_name) && is_text(right)
            }
            (None, Some((left, right))) => is_text(left) && right.trim() == variable,
            _ => false,
        }
    })
}

pub(super) fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// A literal without anything special in it.
pub(super) fn is_text(text: &str) -> bool {
    let text = text.trim();
    let inner = ['"', '\''].into_iter().find_map(|quote| text.strip_prefix(quote)?.strip_suffix(quote));
    inner.is_some_and(is_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_ends_where_it_has_found() {
        let source = "{%- for m in list[loop.index:] %}\n  {%- if m.role == 'user' and \"calls\" not in m %}\n    \
            {%- set ns.found = true %}\n  {%- endif %}\n{%- endfor %}{{ ns.found }}";
        let ended = |source: &str| source.replace("found = true %}", "found = true %}{%- break -%}");
        assert_eq!(ended_where_found(source), ended(source));
        let plain = source.replace("{%-", "{%");
        assert_eq!(ended_where_found(&plain), ended(&plain));
    }

    #[test]
    fn a_loop_ends_where_its_condition_is_not_met_any_more() {
        let before = "{%- for j in range(9) -%}\n {%- if not ns.done -%}\n {%- if m[j] %}{% set x %}a{% endset -%}\n \
            {%- set ns.role = '%}' -%}{%- set ns.done = true -%}{%- endif -%}\n ";
        let after = "{%- endif -%}\n{%- endfor -%}{{ ns.role }}";
        let expected = format!("{before}{{%- else -%}}{{%- break -%}}{after}");
        assert_eq!(ended_where_found(&format!("{before}{after}")), expected);
        let before = "{% for k in range(9) %}{%- if ns.stopped -%}";
        let after = "{%- elif m[k] -%}{%- set ns.stopped = true -%}{%- else -%}{{ k }}{%- endif %}{% endfor %}";
        assert_eq!(ended_where_found(&format!("{before}{after}")), format!("{before}{{%- break -%}}{after}"));
        for unchanged in [
            "{% for k in l %}{% if not k.done %}x{%- endif %}{% endfor %}",
            "{% for k in l %}{% if not loop.first %}x{%- endif %}{% endfor %}",
            "{% for k in l %}{% if not ns.done and k %}x{%- endif %}{% endfor %}",
            "{% for k in l %}{% if not ns.done %}x{%- else %}y{%- endif %}{% endfor %}",
            "{% for k in l %}{% if not ns.done %}x{%- endif %}y{% endfor %}",
            "{% for k in l %}{% if not ns.done %}x {% endif %}{% endfor %}",
            "{% for k in l %}{% if ns.done %}x{% elif k %}y{%- endif %}{% endfor %}",
            "{% for k in l if k %}{% if not ns.done %}x{%- endif %}{% endfor %}",
            "{% for k in l %}{% if not ns.done %}{% raw %}{% endif %}{% endraw %}{%- endif %}{% endfor %}",
        ] {
            assert_eq!(ended_where_found(unchanged), unchanged);
        }
        // Both render the same.
        let source = "{% set ns = namespace(done=false, n=0) %}{% for k in [1, 2, 3, 4] %}{%- if not ns.done %}{{ k }}\
            {%- set ns.n = k %}{%- set ns.done = k > 2 %}{%- endif %}{% endfor %}{{ ns.n }}";
        let environment = minijinja::Environment::new();
        let ended = ended_where_found(source);
        assert!(ended.contains("break"));
        let rendered = environment.render_str(&ended, ()).expect("a text");
        assert_eq!((rendered.as_str(), environment.render_str(source, ()).expect("a text").as_str()), ("1233", "1233"));
    }

    #[test]
    fn what_does_more_or_could_fail_is_left_alone() {
        for inner in [
            "{% if m.role == 'user' %}{% set ns.found = true %}x{% endif %}",
            "{% if m.role == 'user' %}{% set ns.found = m %}{% endif %}",
            "{% if m.role == 'user' %}{% set found = true %}{% endif %}",
            "{% if m.role == 'user' %}{% set ns.found = true %}{% else %}{% endif %}",
            "{% if m.role == 'user' and not ns.found %}{% set ns.found = true %}{% endif %}",
            "{% if 'a' in m.content %}{% set ns.found = true %}{% endif %}",
            "{% if m.role == n.role %}{% set ns.found = true %}{% endif %}",
            "{% if m.role == 'user' %}{% set ns.found = true %}{% endif %}{{ m }}",
            "{% if m.role == 'user' %}{% set ns.found = true %} {% endif %}",
            "{% if m.role == 'user' %}{% set ns.found = true %}\n\n{% endif %}",
            "{%+ if m.role == 'user' %}{% set ns.found = true %}{% endif %}",
        ] {
            let source = format!("{{% for m in messages %}}{inner}{{% endfor %}}");
            assert_eq!(ended_where_found(&source), source);
        }
        let filtered = "{% for m in l if m.x %}{% if m.a == 'b' %}{% set n.f = true %}{% endif %}{% endfor %}";
        assert_eq!(ended_where_found(filtered), filtered);
    }
}
