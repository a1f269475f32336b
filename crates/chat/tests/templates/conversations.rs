//! The conversations of the matrix, which `scripts/render-templates` reads as well.

use mesh_chat::{Arguments, ChatError, ChatTemplate};
use mesh_types::{Message, ToolCall};
use serde_json::{Map, Value};

/// One column of the matrix.
pub(crate) struct Case {
    pub(crate) name: String,
    messages: Vec<Message>,
    tools: Vec<Value>,
    arguments: Arguments,
    add_generation_prompt: bool,
    extra: Map<String, Value>,
}

/// All columns. A conversation with calls is two of them: with arguments as objects, and as text.
pub(crate) fn cases() -> Vec<Case> {
    let conversations: Vec<Value> = serde_json::from_str(include_str!("conversations.json")).expect("JSON");
    conversations.iter().flat_map(variants).collect()
}

fn variants(conversation: &Value) -> Vec<Case> {
    let has_calls = list(&conversation["messages"]).iter().any(|message| !list(&message["tool_calls"]).is_empty());
    match has_calls {
        true => vec![case(conversation, Arguments::Object), case(conversation, Arguments::Text)],
        false => vec![case(conversation, Arguments::Object)],
    }
}

fn case(conversation: &Value, arguments: Arguments) -> Case {
    let mut extra = conversation["kwargs"].as_object().cloned().unwrap_or_default();
    let is_raw = conversation["raw"] == true;
    if is_raw {
        // Shapes that the API allows and a `Message` does not have: the template gets them as they are.
        let mut messages = conversation["messages"].clone();
        if arguments == Arguments::Object {
            walk_arguments(&mut messages);
        }
        extra.insert("messages".to_owned(), messages);
        if let Some(tools) = conversation.get("tools") {
            extra.entry("tools").or_insert_with(|| tools.clone());
        }
    }
    Case {
        name: format!("{} ({arguments:?})", conversation["name"].as_str().unwrap_or_default()),
        messages: if is_raw { Vec::new() } else { list(&conversation["messages"]).iter().map(message).collect() },
        tools: list(&conversation["tools"]).to_vec(),
        arguments,
        add_generation_prompt: conversation["add_generation_prompt"] != false,
        extra,
    }
}

impl Case {
    /// The prompt.
    pub(crate) fn render(&self, template: &ChatTemplate) -> Result<String, ChatError> {
        let mut input = template.input(&self.messages, self.add_generation_prompt);
        input.tools.clone_from(&self.tools);
        input.arguments = self.arguments;
        input.extra.clone_from(&self.extra);
        input.now = Some("2026-07-04T09:05:00[UTC]".parse().expect("a time"));
        template.render_input(&input)
    }
}

fn walk_arguments(messages: &mut Value) {
    let messages = messages.as_array_mut().into_iter().flatten();
    for call in messages.filter_map(|message| message.get_mut("tool_calls")?.as_array_mut()).flatten() {
        let arguments = &mut call["function"]["arguments"];
        if let Some(parsed) = arguments.as_str().and_then(|text| serde_json::from_str(text).ok()) {
            *arguments = parsed;
        }
    }
}

fn message(value: &Value) -> Message {
    let text = |name: &str| value[name].as_str().map(str::to_owned);
    let call = |call: &Value| ToolCall {
        id: call["id"].as_str().unwrap_or_default().to_owned(),
        name: call["function"]["name"].as_str().unwrap_or_default().to_owned(),
        arguments: call["function"]["arguments"].as_str().unwrap_or_default().to_owned(),
    };
    Message {
        role: text("role").expect("a role"),
        content: text("content"),
        name: text("name"),
        reasoning_content: text("reasoning_content"),
        tool_calls: list(&value["tool_calls"]).iter().map(call).collect(),
        tool_call_id: text("tool_call_id"),
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}
