//! What `template show` prints.

use mesh_chat::{Capability, ChatTemplate, Strategy, TemplateOrigin};
use serde_json::json;

/// The capability, for people or as JSON.
pub(super) fn text(template: &ChatTemplate, capability: &Capability, as_json: bool) -> String {
    if as_json { format!("{:#}\n", as_value(template, capability)) } else { for_people(template, capability) }
}

fn is_built_in(template: &ChatTemplate) -> bool {
    template.origin() == TemplateOrigin::BuiltIn
}

fn as_value(template: &ChatTemplate, capability: &Capability) -> serde_json::Value {
    let (strategy, format, reason) = match &capability.strategy {
        Strategy::Native(format) => ("native", Some(format.name), None),
        Strategy::Emulated(reason) => ("emulated", None, Some(reason.to_string())),
    };
    let calls = capability.strategy.call_marks();
    let thinking = capability.strategy.thinking_marks(template);
    let turns = &capability.turns;
    json!({
        "template": if is_built_in(template) { "built-in" } else { "given" },
        "strategy": strategy,
        "format": format,
        "reason": reason,
        "calls": {"open": calls.open, "close": calls.close, "bare": calls.bare},
        "thinking": thinking.map(|(open, close)| json!({"open": open, "close": close})),
        "turns": {
            "system": turns.system,
            "late_system": turns.late_system,
            "repeated": turns.repeated,
            "parallel_calls": turns.parallel_calls,
        },
    })
}

fn for_people(template: &ChatTemplate, capability: &Capability) -> String {
    let yes = |flag: bool| if flag { "yes" } else { "no" }.to_owned();
    let turns = &capability.turns;
    let calls = capability.strategy.call_marks();
    let thinking = capability.strategy.thinking_marks(template);
    let system = match (turns.system, turns.late_system) {
        (true, true) => "yes, and later ones",
        (true, false) => "yes, but none later on",
        (false, _) => "no",
    };
    let mut lines = Vec::new();
    if is_built_in(template) {
        lines.push(("template", "ChatML, which is built in: the model brings none".to_owned()));
    }
    lines.push(("tools", capability.strategy.to_string()));
    let bare = if calls.bare { ", or an answer begins with it" } else { "" };
    lines.push(("  a call opens with", shown(&calls.open) + bare));
    if !calls.close.is_empty() {
        lines.push(("  and closes with", shown(&calls.close)));
    }
    lines.push(("  several in a turn", yes(turns.parallel_calls)));
    lines.push(("thinking", thinking.map_or_else(|| "no".to_owned(), |(open, close)| shown(&[open, close]))));
    lines.push(("system message", system.to_owned()));
    lines.push(("two turns of a role", yes(turns.repeated)));
    lines.into_iter().map(|(name, value)| format!("{name:20} {value}\n")).collect()
}

/// Texts on one line.
fn shown(texts: &[&str]) -> String {
    let texts: Vec<String> = texts.iter().map(|text| text.replace('\n', "\\n")).collect();
    texts.join("  ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEMPLATE: &str = "{% for t in tools %}{{ t|tojson }}{% endfor %}{% for m in messages %}{{ m.role }}: {{ m.content }}\
        {% for c in m.tool_calls or [] %}<tool_call>{\"name\": \"{{ c.function.name }}\", \"arguments\": \
        {{ c.function.arguments|tojson }}}</tool_call>{% endfor %}{% endfor %}{% if think %}<think>{% endif %}";

    #[test]
    fn formats_and_their_marks_are_named() {
        let template = ChatTemplate::parse(TEMPLATE, "", "").expect("a template");
        let capability = Capability::probe(&template);
        let text = for_people(&template, &capability);
        for line in [
            "tools                native (hermes)\n",
            "  a call opens with  <tool_call>\n",
            "  and closes with    </tool_call>\n",
            "thinking             <think>  </think>\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
        let value = as_value(&template, &capability);
        assert_eq!(value["calls"], json!({"open": ["<tool_call>"], "close": ["</tool_call>"], "bare": false}));
        assert_eq!(value["thinking"], json!({"open": "<think>", "close": "</think>"}));
    }

    #[test]
    fn emulation_says_why() {
        let template = ChatTemplate::of_model(None, "", "").expect("ChatML");
        let text = for_people(&template, &Capability::probe(&template));
        assert!(text.contains("emulated: its template does not show tools") && text.contains("TOOL_CALL\n"), "{text}");
        assert!(text.starts_with("template             ChatML"), "{text}");
    }
}
