//! The tools that a request offers, as the rest of this crate asks about them.

pub(crate) mod schema;

use mesh_types::{Tool, ToolChoice};

/// The tools that the answer may call.
#[derive(Clone, Debug, Default)]
pub(crate) struct Offered {
    tools: Vec<Tool>,
    any: bool,
}

impl Offered {
    /// Those of `tools` that `choice` allows. `any`: all others as well.
    pub(crate) fn new(tools: &[Tool], choice: &ToolChoice, any: bool) -> Self {
        Self { tools: tools.iter().filter(|tool| choice.allows(&tool.name)).cloned().collect(), any }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.tools.is_empty() && !self.any
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.any || self.tools.iter().any(|tool| tool.name == name)
    }

    /// Whether a tool's name begins with this.
    pub(crate) fn has_beginning(&self, name: &str) -> bool {
        self.tools.iter().any(|tool| tool.name.starts_with(name))
    }

    /// What the argument `key` of the tool `name` may be.
    pub(crate) fn types(&self, name: &str, key: &str) -> schema::Types {
        let tool = self.tools.iter().find(|tool| tool.name == name);
        tool.and_then(|tool| tool.parameters.as_ref())
            .map_or(schema::Types::UNKNOWN, |root| schema::property(root, key))
    }

    /// What the schema of the tool `name` says about its argument `key`.
    pub(crate) fn schema(&self, name: &str, key: &str) -> schema::Node<'_> {
        let tool = self.tools.iter().find(|tool| tool.name == name);
        tool.and_then(|tool| tool.parameters.as_ref()).map_or(schema::Node::NOTHING, schema::Node::of).property(key)
    }
}
