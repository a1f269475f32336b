//! What `template show` prints.

use mesh_chat::{Capability, ChatTemplate, Strategy, TemplateOrigin};
use serde_json::json;

/// The capability, for people or as JSON.
pub(super) fn text(template: &ChatTemplate, capability: &Capability, as_json: bool) -> String {
    let turns = &capability.turns;
    let is_built_in = template.origin() == TemplateOrigin::BuiltIn;
    let (strategy, format, reason) = match &capability.strategy {
        Strategy::Native(format) => ("native", Some(format.name), None),
        Strategy::Emulated(reason) => ("emulated", None, Some(reason.to_string())),
    };
    if as_json {
        let shown = json!({
            "template": if is_built_in { "built-in" } else { "given" },
            "strategy": strategy,
            "format": format,
            "reason": reason,
            "turns": {
                "system": turns.system,
                "late_system": turns.late_system,
                "repeated": turns.repeated,
                "parallel_calls": turns.parallel_calls,
            },
        });
        return format!("{shown:#}\n");
    }
    let yes = |flag: bool| if flag { "yes" } else { "no" };
    let mut out = String::new();
    if is_built_in {
        out += "template        built-in ChatML\n";
    }
    out += &format!("tools           {}\n", capability.strategy);
    out += &format!("system message  {}\n", yes(turns.system));
    out += &format!("  later on      {}\n", yes(turns.late_system));
    out += &format!("repeated turns  {}\n", yes(turns.repeated));
    out += &format!("parallel calls  {}\n", yes(turns.parallel_calls));
    out
}
