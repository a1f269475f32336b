//! Tools for models whose template knows none: a convention that the model is told, in plain text.
//!
//! The template never sees a tool, a call or the role `tool`. An instruction leads the system message; a call is one
//! line `TOOL_CALL {"name": …, "arguments": …}`; a result is what the user says next. Roles that a template does not
//! know are folded into ones that it does. (Reading the answer is [`crate::parse`]'s.)

mod history;
mod instruction;

use mesh_types::Message;

use crate::capability::Turns;
use crate::conversation::Conversation;
use history::Turn;

/// The turns of `conversation` as a template without tools is to see them.
pub(crate) fn messages(conversation: &Conversation<'_>, turns: &Turns) -> Vec<Message> {
    let mut said = history::plain(conversation.messages);
    let instruction = match conversation.choice {
        _ if conversation.tools.is_empty() => None,
        // Calls are kept from the answer where there are to be none; the prompt stays the same.
        choice => Some(instruction::text(conversation.tools, choice, conversation.parallel)),
    };
    if let Some(instruction) = instruction {
        lead(&mut said, &instruction);
    }
    history::fold(said, turns).into_iter().map(Turn::into_message).collect()
}

/// Puts the instruction at the head of the system message.
fn lead(turns: &mut Vec<Turn>, instruction: &str) {
    match turns.first_mut() {
        Some(first) if first.role == "system" => {
            first.text = match first.text.trim().is_empty() {
                true => instruction.to_owned(),
                false => format!("{instruction}\n\n# Task context\n\n{}", first.text),
            };
        }
        _ => turns.insert(0, Turn::new("system", instruction.to_owned())),
    }
}

#[cfg(test)]
mod tests;
