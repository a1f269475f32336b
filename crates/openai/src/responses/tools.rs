//! Tools and the choice of them, in the shapes of the Responses API.
//!
//! A namespace holds functions. A model sees each as a function of a joined name; a call of it is taken apart again.

use std::collections::{HashMap, HashSet};

use mesh_types::{Fault, Tool, ToolChoice};
use serde_json::{Map, Value, json};

use crate::ignored::Ignored;
use crate::json::{Object, UNSUPPORTED, invalid, wrong};
use crate::request::tools::{MAX_TOOLS, name};

/// The tools of a request that are its client's own.
#[derive(Default)]
pub(super) struct Tools {
    pub(super) tools: Vec<Tool>,
    /// Names as the model sees them, of functions that stand in a namespace.
    pub(super) origins: HashMap<String, Origin>,
}

/// Where a function of a joined name comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    pub(super) namespace: String,
    pub(super) name: String,
}

/// The tools that the client runs itself, in the canonical shape. Those that the vendor runs, and kinds that are not
/// served, are named in `ignored`.
pub(super) fn read(request: &Object<'_>, ignored: &mut Ignored) -> Result<Tools, Fault> {
    let mut tools = Tools::default();
    let mut names = HashSet::new();
    for definition in request.objects("tools")? {
        match definition.required("type")? {
            "function" => {
                let name = definition.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
                tools.tools.push(function(&definition, &name)?);
            }
            "namespace" => namespace(&definition, &mut tools, ignored)?,
            kind => ignored.push(left_out(&definition, kind)),
        }
    }
    if tools.tools.len() > MAX_TOOLS {
        let message = format!("`tools` holds {} tools; at most {MAX_TOOLS} are allowed.", tools.tools.len());
        return Err(invalid("tools", message));
    }
    match tools.tools.iter().find(|tool| !names.insert(&tool.name)) {
        Some(twice) => Err(invalid("tools", format!("`tools` holds two functions of the name `{}`.", twice.name))),
        None => Ok(tools),
    }
}

fn left_out(definition: &Object<'_>, kind: &str) -> String {
    format!("{} ({kind})", definition.path("type").trim_end_matches(".type"))
}

fn namespace(definition: &Object<'_>, tools: &mut Tools, ignored: &mut Ignored) -> Result<(), Fault> {
    let namespace = definition.required("name")?;
    for inner in definition.objects("tools")? {
        match inner.required("type")? {
            "function" => {
                let name = inner.get("name").and_then(Value::as_str).unwrap_or_default();
                let joined = joined(namespace, name);
                tools.tools.push(function(&inner, &joined)?);
                tools.origins.insert(joined, Origin { namespace: namespace.to_owned(), name: name.to_owned() });
            }
            kind => ignored.push(left_out(&inner, kind)),
        }
    }
    Ok(())
}

/// The name that the model sees.
pub(super) fn joined(namespace: &str, name: &str) -> String {
    let separator = if namespace.ends_with("__") { "" } else { "__" };
    format!("{namespace}{separator}{name}")
}

/// The function in `definition`, as one of the name `shown`.
fn function(definition: &Object<'_>, shown: &str) -> Result<Tool, Fault> {
    name(definition.get("name"), &definition.path("name"))?;
    let mut function = Map::new();
    function.insert("name".to_owned(), json!(shown));
    if let Some(description) = definition.text("description")? {
        function.insert("description".to_owned(), json!(description));
    }
    if let Some(parameters) = definition.object("parameters")? {
        function.insert("parameters".to_owned(), Value::Object(parameters.map().clone()));
    }
    if definition.flag("strict")? == Some(true) {
        function.insert("strict".to_owned(), json!(true));
    }
    let path = definition.path("name");
    Tool::from_definition(json!({"type": "function", "function": function}))
        .map_err(|what| invalid(path.clone(), format!("The tool of `{path}` {what}.")))
}

pub(super) fn choice(request: &Object<'_>, tools: &Tools) -> Result<ToolChoice, Fault> {
    const PATH: &str = "tool_choice";
    match request.get(PATH) {
        None => Ok(ToolChoice::Auto),
        Some(Value::String(word)) => match word.as_str() {
            "auto" => Ok(ToolChoice::Auto),
            "none" => Ok(ToolChoice::None),
            "required" if tools.tools.is_empty() => {
                Err(invalid(PATH, "`tool_choice` is `required`, and no function is given."))
            }
            "required" => Ok(ToolChoice::Required),
            _ => Err(invalid(PATH, "`tool_choice` must be `auto`, `none`, `required` or a function.")),
        },
        Some(value @ Value::Object(_)) => named(&Object::at(value, PATH)?, tools),
        Some(other) => Err(wrong(PATH, "a string or an object", other)),
    }
}

fn named(choice: &Object<'_>, tools: &Tools) -> Result<ToolChoice, Fault> {
    let kind = choice.required("type")?;
    if kind == "allowed_tools" {
        return allowed(choice, tools);
    }
    if kind != "function" {
        let message = format!("`tool_choice`: a tool of type `{kind}` cannot be chosen here, only a function.");
        return Err(invalid("tool_choice.type", message).with_code(UNSUPPORTED));
    }
    function_name(choice, tools).map(ToolChoice::Named)
}

/// `{"type": "allowed_tools", "mode": "auto" | "required", "tools": [{"type": "function", "name": …}]}`.
fn allowed(choice: &Object<'_>, tools: &Tools) -> Result<ToolChoice, Fault> {
    let required = match choice.required("mode")? {
        "auto" => false,
        "required" => true,
        _ => return Err(choice.invalid("mode", "must be `auto` or `required`")),
    };
    let functions = choice.objects("tools")?.into_iter().filter(|tool| tool.get("type") == Some(&json!("function")));
    let names = functions.map(|tool| function_name(&tool, tools)).collect::<Result<Vec<_>, _>>()?;
    if names.is_empty() {
        return Err(choice.invalid("tools", "holds no function"));
    }
    Ok(ToolChoice::Allowed { names, required })
}

/// The name, as the model sees it, of the function that is chosen.
fn function_name(choice: &Object<'_>, tools: &Tools) -> Result<String, Fault> {
    let name = match choice.text("namespace")? {
        Some(namespace) => joined(namespace, choice.required("name")?),
        None => choice.required("name")?.to_owned(),
    };
    if tools.tools.iter().any(|tool| tool.name == name) {
        return Ok(name);
    }
    Err(choice.invalid("name", &format!("is `{name}`, which is not in `tools`")))
}
