//! What is changed in a template's source before it is compiled.

/// Turns Hugging Face's `{% generation %}` … `{% endgeneration %}`, which only marks what a model is trained on, into
/// `{% if true %}` … `{% endif %}`: nothing to do, and the same control of whitespace.
pub(super) fn without_generation_tags(source: &str) -> String {
    let mut result = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start + 2);
        result.push_str(before);
        rest = tag;
        let Some(end) = tag.find("%}") else { break };
        let inner = &tag[..end];
        let word = inner.trim_matches(['-', '+']).trim();
        let replacement = match word {
            "generation" => "if true",
            "endgeneration" => "endif",
            _ => continue,
        };
        // Only the word changes: dashes and plus signs around it stay.
        result.push_str(&inner.replacen(word, replacement, 1));
        rest = &tag[end..];
    }
    result.push_str(rest);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generation_tags_become_a_condition_that_holds() {
        let source = "a {%- generation -%} b {%endgeneration+%} c {% if x %}{% endif %}{{ '%}' }}{% generations %}";
        let expected = "a {%- if true -%} b {%endif+%} c {% if x %}{% endif %}{{ '%}' }}{% generations %}";
        assert_eq!(without_generation_tags(source), expected);
        assert_eq!(without_generation_tags("no tag"), "no tag");
        assert_eq!(without_generation_tags("{% open"), "{% open");
        assert_eq!(without_generation_tags("{%%}"), "{%%}");
    }
}
