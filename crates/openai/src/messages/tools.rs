//! Tools and the choice of them, in Anthropic's shapes.

use std::collections::HashSet;

use mesh_types::{Fault, Tool, ToolChoice};
use serde_json::{Map, Value, json};

use crate::ignored::Ignored;
use crate::json::{Object, invalid};
use crate::request::tools::{MAX_TOOLS, name};

/// The tools that a client runs itself, in the canonical shape. Those that the vendor runs or defines are named in
/// `ignored`.
pub(super) fn read(request: &Object<'_>, ignored: &mut Ignored) -> Result<Vec<Tool>, Fault> {
    let definitions = request.objects("tools")?;
    if definitions.len() > MAX_TOOLS {
        let message = format!("`tools` holds {} tools; at most {MAX_TOOLS} are allowed.", definitions.len());
        return Err(invalid("tools", message));
    }
    let mut names = HashSet::new();
    let mut tools = Vec::with_capacity(definitions.len());
    for definition in definitions {
        match definition.text("type")? {
            None | Some("custom") => {}
            Some(kind) => {
                ignored.push(format!("{} ({kind})", definition.path("type").trim_end_matches(".type")));
                continue;
            }
        }
        let tool = tool(&definition)?;
        if !names.insert(tool.name.clone()) {
            return Err(definition.invalid("name", &format!("is `{}`, as that of another tool", tool.name)));
        }
        tools.push(tool);
    }
    Ok(tools)
}

fn tool(definition: &Object<'_>) -> Result<Tool, Fault> {
    name(definition.get("name"), &definition.path("name"))?;
    let mut function = Map::new();
    function.insert("name".to_owned(), json!(definition.required("name")?));
    if let Some(description) = definition.text("description")? {
        function.insert("description".to_owned(), json!(description));
    }
    let schema = definition.object("input_schema")?.ok_or_else(|| definition.missing("input_schema"))?;
    function.insert("parameters".to_owned(), Value::Object(schema.map().clone()));
    if definition.flag("strict")? == Some(true) {
        function.insert("strict".to_owned(), json!(true));
    }
    let path = definition.path("name");
    Tool::from_definition(json!({"type": "function", "function": function}))
        .map_err(|what| invalid(path.clone(), format!("The tool of `{path}` {what}.")))
}

/// The choice of tools, and whether there may be several calls.
pub(super) struct Choice {
    pub(super) tools: ToolChoice,
    pub(super) parallel: bool,
}

pub(super) fn choice(request: &Object<'_>, tools: &[Tool]) -> Result<Choice, Fault> {
    let Some(choice) = request.object("tool_choice")? else {
        return Ok(Choice { tools: ToolChoice::Auto, parallel: true });
    };
    let chosen = match choice.required("type")? {
        "auto" => ToolChoice::Auto,
        "none" => ToolChoice::None,
        "any" if tools.is_empty() => return Err(choice.invalid("type", "asks for a tool, and none is given")),
        "any" => ToolChoice::Required,
        "tool" => {
            let name = choice.required("name")?;
            if !tools.iter().any(|tool| tool.name == name) {
                return Err(choice.invalid("name", &format!("is `{name}`, which is not in `tools`")));
            }
            ToolChoice::Named(name.to_owned())
        }
        _ => return Err(choice.invalid("type", "must be `auto`, `any`, `tool` or `none`")),
    };
    Ok(Choice { tools: chosen, parallel: !choice.flag("disable_parallel_tool_use")?.unwrap_or(false) })
}
