//! Values whose objects and lists are written as elements: `MARK<key>value MARK</key>`, members of lists as `item`s.

use crate::parse::json::quoted;
use crate::tools::schema::{Node, Types};

/// Deepest nesting; what is deeper is text.
pub(crate) const MAX_DEPTH: usize = 64;
/// The tag of a list's members.
pub(crate) const ITEM: &str = "item";

/// `text` as JSON: as elements where it consists of them, else as a value of the types that `schema` allows.
pub(crate) fn json(text: &str, mark: &str, schema: &Node<'_>) -> String {
    value(text, mark, schema, 0)
}

fn value(text: &str, mark: &str, schema: &Node<'_>, depth: usize) -> String {
    let types = schema.types();
    let Some(elements) = elements(text, mark).filter(|_| depth < MAX_DEPTH) else { return scalar(text, types) };
    let is_list = elements.iter().all(|(tag, _)| *tag == ITEM) && types.may_be_list();
    let inner: Vec<String> = elements
        .iter()
        .enumerate()
        .map(|(index, (tag, text))| match is_list {
            true => value(text, mark, &schema.item(index), depth + 1),
            false => format!("{}: {}", quoted(tag), value(text, mark, &schema.property(tag), depth + 1)),
        })
        .collect();
    let inner = inner.join(", ");
    if is_list { format!("[{inner}]") } else { format!("{{{inner}}}") }
}

/// An empty object or list leaves no trace but its type.
fn scalar(text: &str, types: Types) -> String {
    match text {
        "" if types.is_only_list() => "[]".to_owned(),
        "" if types.is_only_object() => "{}".to_owned(),
        _ => types.value(text),
    }
}

/// Tags and inner texts, where `text` is one element after the other, and nothing else but blanks.
fn elements<'a>(text: &'a str, mark: &str) -> Option<Vec<(&'a str, &'a str)>> {
    let mut elements = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let open = rest.strip_prefix(mark)?.strip_prefix('<')?;
        let (tag, after) = open.split_once('>').filter(|(tag, _)| !tag.is_empty() && !tag.starts_with('/'))?;
        let (inner, behind) = inner(after, mark, tag)?;
        elements.push((tag, inner));
        rest = behind.trim_start();
    }
    (!elements.is_empty()).then_some(elements)
}

/// What stands before the end of the element `tag`, whose beginning was read, and what behind it.
fn inner<'a>(text: &'a str, mark: &str, tag: &str) -> Option<(&'a str, &'a str)> {
    let (open, close) = (format!("{mark}<{tag}>"), format!("{mark}</{tag}>"));
    let (mut depth, mut at) = (0usize, 0);
    loop {
        let end = at + text[at..].find(&close)?;
        depth += text[at..end].matches(&open).count();
        if depth == 0 {
            return Some((&text[..end], &text[end + close.len()..]));
        }
        depth -= 1;
        at = end + close.len();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn elements_are_objects_and_lists() {
        let root = json!({"properties": {"a": {
            "type": "object",
            "properties": {"n": {"type": "integer"}, "list": {"type": "array", "items": {"type": "string"}}},
        }}});
        let node = Node::of(&root).property("a");
        let text = "~<n>1~</n>~<list>~<item>x~</item>~<item>2~</item>~</list>~<a>~<a>~</a>~</a>";
        assert_eq!(json(text, "~", &node), r#"{"n": 1, "list": ["x", "2"], "a": {"a": ""}}"#);
        assert_eq!(json("", "~", &node), "{}");
        assert_eq!(json("", "~", &node.property("list")), "[]");
        assert_eq!(json("x ~<n>", "~", &node), "\"x ~<n>\"");
        let nested = "~<x>".repeat(1000) + &"~</x>".repeat(1000);
        assert!(serde_json::from_str::<serde_json::Value>(&json(&nested, "~", &node)).is_ok());
    }
}
