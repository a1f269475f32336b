//! The turns so far as plain text, in roles that a template knows.

use mesh_types::{Message, ToolCall};

use crate::capability::Turns;
use crate::format::EMULATED_MARKER;

/// Longest arguments that a result's head repeats, in bytes.
const MAX_REPEATED: usize = 200;

/// A turn that is nothing but text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Turn {
    pub(super) role: String,
    pub(super) text: String,
    name: Option<String>,
}

impl Turn {
    pub(super) fn new(role: &str, text: String) -> Self {
        Self { role: role.to_owned(), text, name: None }
    }

    pub(super) fn into_message(self) -> Message {
        Message { role: self.role, content: Some(self.text), name: self.name, ..Message::default() }
    }

    fn append(&mut self, text: &str) {
        if !self.text.is_empty() && !text.is_empty() {
            self.text.push_str("\n\n");
        }
        self.text.push_str(text);
    }
}

/// Calls become lines and results what the user says. Only the roles `system`, `user` and `assistant` are left, and
/// what precedes the first of the latter two is one system turn.
pub(super) fn plain(messages: &[Message]) -> Vec<Turn> {
    let mut turns: Vec<Turn> = Vec::with_capacity(messages.len() + 1);
    let mut rest = messages.iter().peekable();
    let mut calls: &[ToolCall] = &[];
    while let Some(message) = rest.next() {
        let text = message.content.clone().unwrap_or_default();
        match message.role.as_str() {
            "system" | "developer" => match turns.last_mut() {
                Some(last) if last.role == "system" => last.append(&text),
                _ => turns.push(Turn::new("system", text)),
            },
            "assistant" => {
                calls = &message.tool_calls;
                let mut turn = Turn { name: message.name.clone(), ..Turn::new("assistant", text) };
                let lines: Vec<String> = calls.iter().map(line).collect();
                if !lines.is_empty() {
                    let before = if turn.text.is_empty() { "" } else { "\n" };
                    turn.text = format!("{}{before}{}", turn.text, lines.join("\n"));
                }
                turns.push(turn);
            }
            "tool" => {
                let mut results = vec![message];
                while let Some(next) = rest.next_if(|next| next.role == "tool") {
                    results.push(next);
                }
                turns.push(Turn::new("user", told(&results, calls)));
            }
            _ => turns.push(Turn { name: message.name.clone(), ..Turn::new("user", text) }),
        }
    }
    turns
}

/// A call as the model would have written it. Arguments that are no JSON stand as they are: the model can see its
/// mistake.
fn line(call: &ToolCall) -> String {
    let name = serde_json::Value::from(call.name.as_str());
    let arguments = if call.arguments.trim().is_empty() { "{}" } else { call.arguments.trim() };
    format!("{EMULATED_MARKER} {{\"name\": {name}, \"arguments\": {arguments}}}")
}

/// Results in the order of their calls.
fn told(results: &[&Message], calls: &[ToolCall]) -> String {
    let place = |result: &&Message| calls.iter().position(|call| Some(&call.id) == result.tool_call_id.as_ref());
    let mut ordered: Vec<(Option<usize>, &Message)> = results.iter().map(|result| (place(result), *result)).collect();
    ordered.sort_by_key(|(place, _)| place.unwrap_or(usize::MAX));
    let texts = ordered.into_iter().map(|(place, result)| {
        let head = head(result, place.and_then(|place| calls.get(place)), calls.len() > 1);
        format!("Tool result: {head}\n{}", result.content.as_deref().unwrap_or_default())
    });
    texts.collect::<Vec<_>>().join("\n\n")
}

/// The tool's name; where several calls were open, also which of them this is.
fn head(result: &Message, call: Option<&ToolCall>, several: bool) -> String {
    let name = call.map(|call| call.name.as_str()).or(result.name.as_deref()).unwrap_or("unknown");
    let Some(call) = call.filter(|_| several) else { return name.to_owned() };
    let arguments = call.arguments.trim();
    if arguments.len() <= MAX_REPEATED && !arguments.contains('\n') {
        format!("{name} {arguments} (id {})", call.id)
    } else {
        format!("{name} (id {})", call.id)
    }
}

/// Folds roles and repetitions that the template does not bear into what it does.
pub(super) fn fold(turns: Vec<Turn>, can: &Turns) -> Vec<Turn> {
    let mut folded: Vec<Turn> = Vec::with_capacity(turns.len());
    let mut before_user = String::new();
    for (index, mut turn) in turns.into_iter().enumerate() {
        if turn.role == "system" {
            let bears = if index == 0 { can.system } else { can.late_system };
            if bears {
                folded.push(turn);
                continue;
            }
            if index == 0 {
                before_user = turn.text;
                continue;
            }
            turn.role = "user".to_owned();
        }
        if turn.role == "user" && !before_user.is_empty() {
            let own = std::mem::replace(&mut turn.text, std::mem::take(&mut before_user));
            turn.append(&own);
        }
        match folded.last_mut() {
            Some(last) if !can.repeated && last.role == turn.role => last.append(&turn.text),
            _ => folded.push(turn),
        }
    }
    if !before_user.is_empty() {
        let at = folded.iter().position(|turn| turn.role != "system").unwrap_or(folded.len());
        folded.insert(at, Turn::new("user", before_user));
    }
    folded
}
