//! What of a conversation a template gets to see, by the strategy of its model.
//!
//! The client's messages stay as they are; what is made here are copies.

use std::collections::HashMap;

use mesh_types::{Message, Tool, ToolChoice};
use serde_json::Value;

use crate::capability::{Capability, Strategy};
use crate::emulation;
use crate::error::ChatError;
use crate::format::Ids;
use crate::parse::nine;
use crate::template::{Arguments, ChatTemplate, RenderInput};

/// A conversation, as a client has it.
#[derive(Clone, Copy, Debug)]
pub struct Conversation<'a> {
    /// The turns so far.
    pub messages: &'a [Message],
    /// The tools that are offered.
    pub tools: &'a [Tool],
    /// Which of them may be called.
    pub choice: &'a ToolChoice,
    /// Whether one answer may hold several calls.
    pub parallel: bool,
}

/// A conversation, as a template gets it.
#[derive(Clone, Debug)]
pub struct Prepared {
    messages: Vec<Message>,
    tools: Vec<Value>,
    arguments: Arguments,
}

impl Conversation<'_> {
    /// What the template with this capability is to render.
    ///
    /// # Errors
    /// [`ChatError::Conversation`] where a result answers no call.
    pub fn prepare(&self, capability: &Capability) -> Result<Prepared, ChatError> {
        check(self.messages)?;
        let turns = &capability.turns;
        match &capability.strategy {
            Strategy::Emulated(_) => Ok(Prepared {
                messages: emulation::messages(self, turns),
                tools: Vec::new(),
                arguments: Arguments::default(),
            }),
            Strategy::Native(format) => {
                let mut messages = self.messages.to_vec();
                name_results(&mut messages);
                if !turns.parallel_calls {
                    messages = one_call_each(messages);
                }
                if format.ids == Ids::Nine {
                    messages.iter_mut().for_each(shorten_ids);
                }
                let tools = self.tools.iter().map(|tool| tool.definition.clone()).collect();
                Ok(Prepared { messages, tools, arguments: turns.arguments })
            }
        }
    }
}

impl Prepared {
    /// As input for [`crate::prompt::render`] or [`ChatTemplate::render_input`].
    pub fn input<'a>(&'a self, template: &'a ChatTemplate, add_generation_prompt: bool) -> RenderInput<'a> {
        let mut input = template.input(&self.messages, add_generation_prompt);
        input.tools.clone_from(&self.tools);
        input.arguments = self.arguments;
        input
    }

    /// The turns.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }
}

/// A result has to answer a call of the assistant's turn before it: else a client could plant results.
fn check(messages: &[Message]) -> Result<(), ChatError> {
    let mut open: Vec<&str> = Vec::new();
    for (index, message) in messages.iter().enumerate() {
        let wrong = |reason: String| {
            let param = format!("messages[{index}].tool_call_id");
            Err(ChatError::Conversation { reason: format!("`{param}` {reason}"), param })
        };
        match (message.role.as_str(), &message.tool_call_id) {
            ("tool", None) => return wrong("is missing: a tool's result names the call that it answers.".to_owned()),
            ("tool", Some(id)) if !open.contains(&id.as_str()) => {
                return wrong(format!("is {id:?}, and the assistant's turn before it makes no call of that id."));
            }
            ("tool", Some(_)) => {}
            _ => open = message.tool_calls.iter().map(|call| call.id.as_str()).collect(),
        }
    }
    Ok(())
}

/// Some templates want the tool's name with its result.
fn name_results(messages: &mut [Message]) {
    let mut names: HashMap<String, String> = HashMap::new();
    for message in messages {
        names.extend(message.tool_calls.iter().map(|call| (call.id.clone(), call.name.clone())));
        if let (None, Some(id)) = (&message.name, &message.tool_call_id) {
            message.name = names.get(id).cloned();
        }
    }
}

/// For templates that render one call a turn: each call becomes a turn, and its result follows it.
fn one_call_each(messages: Vec<Message>) -> Vec<Message> {
    let mut split = Vec::with_capacity(messages.len());
    let mut rest = messages.into_iter().peekable();
    while let Some(mut message) = rest.next() {
        if message.tool_calls.len() < 2 {
            split.push(message);
            continue;
        }
        let mut results = Vec::new();
        while let Some(result) = rest.next_if(|next| next.role == "tool") {
            results.push(result);
        }
        for call in std::mem::take(&mut message.tool_calls) {
            let (own, others): (Vec<Message>, Vec<Message>) =
                results.into_iter().partition(|result| result.tool_call_id.as_ref() == Some(&call.id));
            results = others;
            split.push(Message { tool_calls: vec![call], ..message.clone() });
            split.extend(own);
            // What was said and thought belongs to the first call.
            message.content = message.content.map(|_| String::new());
            message.reasoning_content = None;
        }
        split.extend(results);
    }
    split
}

/// Mistral's templates refuse ids that are not nine letters or digits.
fn shorten_ids(message: &mut Message) {
    let shorten = |id: &mut String| {
        if id.len() != 9 || !id.bytes().all(|b| b.is_ascii_alphanumeric()) {
            *id = nine(id, 0);
        }
    };
    message.tool_calls.iter_mut().for_each(|call| shorten(&mut call.id));
    message.tool_call_id.iter_mut().for_each(shorten);
}

#[cfg(test)]
mod tests;
