//! Loops that search: `{% for x in LIST %}{% if CONDITION %}{% set ns.found = true %}{% endif %}{% endfor %}`.
//!
//! Behind the first find such a loop changes nothing any more, if its condition is about nothing but `x`: a `break` behind
//! the `set` renders the same. Only conditions that cannot fail are taken: those that compare an attribute with a text, or
//! ask for a key.

/// `source` with a `{% break %}` in each search.
pub(super) fn ended_where_found(source: &str) -> String {
    let mut result = String::with_capacity(source.len() + 64);
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, from) = rest.split_at(at);
        result.push_str(before);
        match search(from) {
            Some(set) => {
                result.push_str(&from[..set]);
                result.push_str("{%- break -%}");
                rest = &from[set..];
            }
            None => {
                result.push_str("{%");
                rest = &from["{%".len()..];
            }
        }
    }
    result.push_str(rest);
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

/// The inner text of the tag that `text` begins with, behind blanks that are not rendered, and what follows it.
/// `is_eaten`: the tag before eats all blanks.
fn tag(text: &str, is_eaten: bool) -> Option<(&str, &str)> {
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
fn eats(text: &str, rest: &str) -> bool {
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

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// A literal without anything special in it.
fn is_text(text: &str) -> bool {
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
