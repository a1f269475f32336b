//! From Anthropic's messages to canonical ones.

use mesh_types::{Fault, Message, ToolCall};
use serde_json::Value;

use crate::fields::{MESSAGES_BLOCK, MESSAGES_MESSAGE};
use crate::ignored::Ignored;
use crate::json::{Object, wrong};
use crate::seal::Seal;

/// The system message, if there is one, and the conversation.
pub(super) fn messages(request: &Object<'_>, seal: &dyn Seal, ignored: &mut Ignored) -> Result<Vec<Message>, Fault> {
    let mut reader = Reader { seal, ignored, out: Vec::new() };
    if let Some(system) = reader.text(request, "system")?.filter(|system| !system.is_empty()) {
        reader.out.push(message("system", system));
    }
    let given = request.objects("messages")?;
    if given.is_empty() {
        return Err(match request.get("messages") {
            Some(_) => request.invalid("messages", "is empty: it needs at least one message"),
            None => request.missing("messages"),
        });
    }
    for turn in given {
        MESSAGES_MESSAGE.sort(turn.map(), &turn.path(""), reader.ignored)?;
        match turn.required("role")? {
            "user" => reader.user(&turn)?,
            "assistant" => reader.assistant(&turn)?,
            "system" => {
                let text = reader.text(&turn, "content")?.ok_or_else(|| turn.missing("content"))?;
                reader.out.push(message("system", text));
            }
            _ => return Err(turn.invalid("role", "must be `user`, `assistant` or `system`")),
        }
    }
    Ok(reader.out)
}

fn message(role: &str, content: impl Into<String>) -> Message {
    Message { role: role.to_owned(), content: Some(content.into()), ..Message::default() }
}

struct Reader<'a> {
    seal: &'a dyn Seal,
    ignored: &'a mut Ignored,
    out: Vec<Message>,
}

impl Reader<'_> {
    /// Text, and results of tools, in their order.
    fn user(&mut self, turn: &Object<'_>) -> Result<(), Fault> {
        let mut texts: Vec<String> = Vec::new();
        for block in self.blocks(turn, "content")?.ok_or_else(|| turn.missing("content"))? {
            match block {
                Block::Text(text) => texts.push(text),
                Block::Other(block) if block.text("type")? == Some("tool_result") => {
                    self.say(&mut texts);
                    let id = block.required("tool_use_id")?.to_owned();
                    let content = self.text(&block, "content")?.unwrap_or_default();
                    self.out.push(Message { tool_call_id: Some(id), ..message("tool", content) });
                }
                Block::Other(block) => self.leave_out(&block)?,
            }
        }
        // A turn without anything is a turn still.
        if !texts.is_empty() || self.out.last().is_none_or(|last| last.role != "tool") {
            self.out.push(message("user", texts.join("\n")));
        }
        Ok(())
    }

    fn say(&mut self, texts: &mut Vec<String>) {
        if !texts.is_empty() {
            self.out.push(message("user", std::mem::take(texts).join("\n")));
        }
    }

    fn assistant(&mut self, turn: &Object<'_>) -> Result<(), Fault> {
        let mut texts = Vec::new();
        let mut thoughts = Vec::new();
        let mut tool_calls = Vec::new();
        for block in self.blocks(turn, "content")?.ok_or_else(|| turn.missing("content"))? {
            let block = match block {
                Block::Text(text) => {
                    texts.push(text);
                    continue;
                }
                Block::Other(block) => block,
            };
            match block.text("type")? {
                Some("tool_use") => tool_calls.push(call(&block)?),
                Some("thinking") => thoughts.extend(self.thought(&block, "signature")?),
                Some("redacted_thinking") => thoughts.extend(self.thought(&block, "data")?),
                _ => self.leave_out(&block)?,
            }
        }
        let content = (!texts.is_empty()).then(|| texts.join("\n"));
        let reasoning_content = (!thoughts.is_empty()).then(|| thoughts.join("\n"));
        let role = "assistant".to_owned();
        self.out.push(Message { role, content, reasoning_content, tool_calls, ..Message::default() });
        Ok(())
    }

    /// What the model thought: from under the seal, else as the client shows it.
    fn thought(&mut self, block: &Object<'_>, field: &str) -> Result<Option<String>, Fault> {
        let sealed = block.text(field)?.filter(|sealed| !sealed.is_empty());
        let opened = sealed.and_then(|sealed| self.seal.open(sealed));
        let shown = block.text("thinking")?.filter(|text| !text.is_empty());
        if opened.is_none() && sealed.is_some() {
            // Another server's, say, in a conversation that moved here.
            self.ignored.push(block.path(field));
        }
        Ok(opened.or_else(|| shown.map(str::to_owned)))
    }

    /// The text of `field`: a string, or blocks of text.
    fn text(&mut self, object: &Object<'_>, field: &str) -> Result<Option<String>, Fault> {
        let Some(blocks) = self.blocks(object, field)? else { return Ok(None) };
        let mut texts = Vec::new();
        for block in blocks {
            match block {
                Block::Text(text) => texts.push(text),
                Block::Other(block) => self.leave_out(&block)?,
            }
        }
        Ok(Some(texts.join("\n")))
    }

    fn blocks<'b>(&mut self, object: &Object<'b>, field: &str) -> Result<Option<Vec<Block<'b>>>, Fault> {
        let blocks = match object.get(field) {
            None => return Ok(None),
            Some(Value::String(text)) => return Ok(Some(vec![Block::Text(text.clone())])),
            Some(Value::Array(_)) => object.objects(field)?,
            Some(other) => return Err(wrong(&object.path(field), "a string or an array of blocks", other)),
        };
        let block = |block: Object<'b>| {
            MESSAGES_BLOCK.sort(block.map(), &block.path(""), self.ignored)?;
            match block.required("type")? {
                "text" => Ok(Block::Text(block.text("text")?.ok_or_else(|| block.missing("text"))?.to_owned())),
                _ => Ok(Block::Other(block)),
            }
        };
        blocks.into_iter().map(block).collect::<Result<_, _>>().map(Some)
    }

    /// Blocks of tools that the vendor runs say nothing here; what else is no text cannot be shown to the model.
    fn leave_out(&mut self, block: &Object<'_>) -> Result<(), Fault> {
        let kind = block.required("type")?;
        let hosted = ["server_tool_use", "mcp_tool_use", "mcp_tool_result", "container_upload"];
        if hosted.contains(&kind) || (kind.ends_with("_tool_result") && kind != "tool_result") {
            self.ignored.push(format!("{} ({kind})", block.path("type").trim_end_matches(".type")));
            return Ok(());
        }
        Err(block.unsupported("type", &format!("is `{kind}`, which is not supported here")))
    }
}

enum Block<'a> {
    Text(String),
    Other(Object<'a>),
}

fn call(block: &Object<'_>) -> Result<ToolCall, Fault> {
    let arguments = match block.get("input") {
        None => "{}".to_owned(),
        Some(input @ Value::Object(_)) => input.to_string(),
        Some(other) => return Err(wrong(&block.path("input"), "an object", other)),
    };
    Ok(ToolCall { id: block.required("id")?.to_owned(), name: block.required("name")?.to_owned(), arguments })
}
