//! Macros that are nothing but an expression, written out where they are called.
//!
//! A template that writes each tag by a macro, `{%- macro close(tag) -%}{{- "</" + tag + ">" -}}{%- endmacro -%}`, spends
//! most of its time on calling it: `{{- close("a") -}}` renders as `{{- "</" + ("a") + ">" -}}` does. Only macros are
//! taken whose expression is about their parameters alone, and calls that give each of them a name, a text or a member.

use super::{Tokens, end, tags, word};

/// A macro of one expression.
struct Short<'a> {
    name: &'a str,
    parameters: Vec<&'a str>,
    expression: &'a str,
}

/// `source` with such calls written out.
pub(super) fn written_out(source: &str) -> String {
    let macros: Vec<Short<'_>> = tags(source).filter_map(|at| Short::of(&source[at..])).collect();
    let is_only_called = |name: &str| {
        let is_part = |c: char| c.is_alphanumeric() || c == '_';
        let words = source.match_indices(name).map(|(at, _)| (&source[..at], &source[at + name.len()..]));
        let mut words = words.filter(|(before, after)| !before.ends_with(is_part) && !after.starts_with(is_part));
        words.all(|(_, after)| after.starts_with('('))
    };
    let is_clear = |short: &&Short<'_>| {
        macros.iter().filter(|other| other.name == short.name).count() == 1 && is_only_called(short.name)
    };
    let macros: Vec<&Short<'_>> = macros.iter().filter(is_clear).filter(|_| !source.contains("endraw")).collect();
    if macros.is_empty() {
        return source.to_owned();
    }
    let mut result = String::with_capacity(source.len() + 256);
    let mut rest = source;
    while let Some(start) = rest.find("{{") {
        let (before, tag) = rest.split_at(start);
        result.push_str(before);
        let Some(end) = end(tag, "}}") else {
            rest = tag;
            break;
        };
        let inner = &tag["{{".len()..end];
        let call = inner.trim_matches(['-', '+']).trim();
        match macros.iter().find_map(|short| short.called(call)) {
            Some(expression) => {
                let at = call.as_ptr() as usize - tag.as_ptr() as usize;
                result.extend([&tag[..at], &expression, &tag[at + call.len()..end]]);
            }
            None => result.push_str(&tag[..end]),
        }
        rest = &tag[end..];
    }
    result.push_str(rest);
    result
}

impl<'a> Short<'a> {
    /// The one that `text` begins with.
    fn of(text: &'a str) -> Option<Self> {
        let close = end(text, "%}")?;
        let head = text["{%".len()..close].trim_matches(['-', '+']).trim();
        let (name, parameters) = head.strip_prefix("macro ")?.trim().strip_suffix(')')?.split_once('(')?;
        let parameters: Vec<&str> = parameters.split(',').map(str::trim).collect();
        let is_name = |name: &str| names(name).next() == Some((0, name));
        // What stands between the tags is blanks, which one of them eats.
        let eats = |text: &str, before: bool, after: &str| text.trim().is_empty() && (before || after.starts_with('-'));
        let after = &text[close + "%}".len()..];
        let (blanks, tag) = after.split_at(after.find("{{")?);
        let expression = &tag["{{".len()..end(tag, "}}")?];
        let behind = &tag["{{}}".len() + expression.len()..];
        let (more_blanks, last) = behind.split_once("{%")?;
        let is_whole = eats(blanks, text[..close].ends_with('-'), expression)
            && eats(more_blanks, expression.ends_with('-'), last)
            && word(last.split_once("%}")?.0) == "endmacro";
        let expression = expression.trim_matches(['-', '+']).trim();
        let is_about_parameters = names(expression).all(|(at, name)| {
            let is_filter = expression[..at].trim_end().ends_with('|');
            is_filter || parameters.contains(&name)
        });
        let is_short = is_whole && is_about_parameters && is_name(name) && parameters.iter().copied().all(is_name);
        is_short.then_some(Self { name, parameters, expression })
    }

    /// The expression that `call` stands for, if it calls this macro.
    fn called(&self, call: &str) -> Option<String> {
        let arguments = call.strip_prefix(self.name)?.strip_prefix('(')?.strip_suffix(')')?;
        let commas = Tokens::new(arguments).filter(|(at, depth)| *depth == 0 && arguments[*at..].starts_with(','));
        let mut places: Vec<usize> = commas.map(|(at, _)| at + 1).collect();
        places.insert(0, 0);
        places.push(arguments.len() + 1);
        let arguments: Vec<&str> = places.windows(2).map(|pair| arguments[pair[0]..pair[1] - 1].trim()).collect();
        if arguments.len() != self.parameters.len() || !arguments.iter().all(|argument| is_simple(argument)) {
            return None;
        }
        let (mut written, mut done) = (String::new(), 0);
        for (at, name) in names(self.expression) {
            let is_filter = self.expression[..at].trim_end().ends_with('|');
            if let Some(which) = self.parameters.iter().position(|parameter| *parameter == name && !is_filter) {
                written.extend([&self.expression[done..at], "(", arguments[which], ")"]);
                done = at + name.len();
            }
        }
        written.push_str(&self.expression[done..]);
        Some(written)
    }
}

/// A name with members of it, or a text.
fn is_simple(argument: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "_.[]".contains(c);
    let text = ['\'', '"'].into_iter().find_map(|quote| argument.strip_prefix(quote)?.strip_suffix(quote));
    let is_text = text.is_some_and(|text| !text.contains(['\'', '"', '\\']));
    is_text || (argument.starts_with(|c: char| c.is_ascii_alphabetic()) && argument.chars().all(is_part))
}

/// The names in an expression that are no members, outside of its texts.
fn names(expression: &str) -> impl Iterator<Item = (usize, &str)> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let starts = Tokens::new(expression).filter(move |(at, _)| {
        let before = &expression[..*at];
        expression[*at..].starts_with(|c: char| is_part(c) && !c.is_ascii_digit())
            && !before.ends_with(|c: char| is_part(c) || c == '.')
    });
    starts.map(move |(at, _)| {
        let rest = &expression[at..];
        (at, &rest[..rest.find(|c: char| !is_part(c)).unwrap_or(rest.len())])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_macro_of_one_expression_is_written_out() {
        let tag = "{%- macro tag(name, end) -%}\n{{- '<name ' + name|replace('a', \"b\") + end -}}\n{%- endmacro -%}\n";
        let calls =
            "{{- tag('it', x[1].y) -}}{{tag(name, end)}}{{ tag('a') }}{{ tag('a', f(x)) }}{{ tag('a', 'b')|trim }}";
        let written = "{{- '<name ' + ('it')|replace('a', \"b\") + (x[1].y) -}}\
            {{'<name ' + (name)|replace('a', \"b\") + (end)}}{{ tag('a') }}{{ tag('a', f(x)) }}{{ tag('a', 'b')|trim }}";
        assert_eq!(written_out(&format!("{tag}{calls}")), format!("{tag}{written}"));
        let source = format!("{tag}{{% set x = [0, {{'y': '>'}}] %}}{{{{- tag('nana', x[1].y) -}}}}!");
        let environment = minijinja::Environment::new();
        let rendered = |source: &str| environment.render_str(source, ()).expect("a text");
        assert_ne!(written_out(&source), source);
        assert_eq!(
            (rendered(&source), rendered(&written_out(&source))),
            ("<name nbnb>!".to_owned(), "<name nbnb>!".to_owned())
        );
    }

    #[test]
    fn other_macros_are_called() {
        for unchanged in [
            "{%- macro m(a) -%}{{- a + b -}}{%- endmacro -%}{{ m(x) }}",
            "{%- macro m(a) -%}{{- a -}}{{- a -}}{%- endmacro -%}{{ m(x) }}",
            "{%- macro m(a) -%}x{{- a -}}{%- endmacro -%}{{ m(x) }}",
            "{%- macro m(a) %} {{ a -}}{%- endmacro -%}{{ m(x) }}",
            "{%- macro m(a='x') -%}{{- a -}}{%- endmacro -%}{{ m(x) }}",
            "{%- macro m(a) -%}{{- m(a) -}}{%- endmacro -%}{{ m(x) }}",
            "{%- macro m(a) -%}{{- a -}}{%- endmacro -%}{%- macro m(a) -%}{{- a -}}{%- endmacro -%}{{ m(x) }}",
            "{%- macro m(a) -%}{{- a -}}{%- endmacro -%}{% set m = n %}{{ m(x) }}",
            "{%- macro m(a) -%}{{- a -}}{%- endmacro -%}{{ m(x + y) }}",
        ] {
            assert_eq!(written_out(unchanged), unchanged);
        }
    }
}
