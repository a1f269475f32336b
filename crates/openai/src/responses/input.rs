//! From items to turns.

use mesh_types::{Fault, Message, ToolCall};
use serde_json::Value;

use super::tools::{Tools, joined};
use crate::fields::RESPONSES_ITEM;
use crate::ignored::Ignored;
use crate::json::{Object, UNSUPPORTED, invalid, wrong};
use crate::seal::Seal;

/// Calls of tools that the vendor runs, and their results: nothing that a model here could use.
const HOSTED: [&str; 12] = [
    "web_search_call",
    "file_search_call",
    "code_interpreter_call",
    "image_generation_call",
    "computer_call",
    "computer_call_output",
    "mcp_call",
    "mcp_list_tools",
    "mcp_approval_request",
    "mcp_approval_response",
    "tool_search_call",
    "tool_search_output",
];

/// `instructions`, if there are any, and the conversation in `input`.
pub(super) fn messages(
    request: &Object<'_>,
    tools: &Tools,
    seal: &dyn Seal,
    ignored: &mut Ignored,
) -> Result<Vec<Message>, Fault> {
    let mut reader = Reader { tools, seal, ignored, out: Vec::new(), turn: None };
    if let Some(instructions) = request.text("instructions")?.filter(|text| !text.is_empty()) {
        reader.out.push(message("system", instructions));
    }
    let before = reader.out.len();
    match request.get("input") {
        None => return Err(request.missing("input")),
        Some(Value::String(text)) => reader.out.push(message("user", text)),
        Some(Value::Array(_)) => {
            for item in request.objects("input")? {
                reader.item(&item)?;
            }
        }
        Some(other) => return Err(wrong("input", "a string or an array of items", other)),
    }
    reader.close();
    if reader.out.len() == before {
        return Err(request.invalid("input", "is empty: it needs at least one item"));
    }
    Ok(reader.out)
}

fn message(role: &str, content: impl Into<String>) -> Message {
    Message { role: role.to_owned(), content: Some(content.into()), ..Message::default() }
}

struct Reader<'a> {
    tools: &'a Tools,
    seal: &'a dyn Seal,
    ignored: &'a mut Ignored,
    out: Vec<Message>,
    /// The assistant's turn that is being put together.
    turn: Option<Message>,
}

impl Reader<'_> {
    fn item(&mut self, item: &Object<'_>) -> Result<(), Fault> {
        RESPONSES_ITEM.sort(item.map(), &item.path(""), self.ignored)?;
        match item.text("type")?.unwrap_or("message") {
            "message" => self.message(item),
            "function_call" => self.call(item),
            "function_call_output" => {
                self.close();
                let id = item.required("call_id")?.to_owned();
                let content = self.text(item, "output")?.ok_or_else(|| item.missing("output"))?;
                self.out.push(Message { tool_call_id: Some(id), ..message("tool", content) });
                Ok(())
            }
            "reasoning" => self.reasoning(item),
            kind if HOSTED.contains(&kind) => {
                self.ignored.push(format!("{} ({kind})", item.path("type").trim_end_matches(".type")));
                Ok(())
            }
            "item_reference" => {
                let message = format!("`{}`: nothing is stored that could be referred to.", item.path("type"));
                Err(invalid(item.path("type"), message).with_code(UNSUPPORTED))
            }
            kind => Err(item.unsupported("type", &format!("is `{kind}`, which is not supported here"))),
        }
    }

    fn message(&mut self, item: &Object<'_>) -> Result<(), Fault> {
        let role = item.required("role")?;
        let text = self.text(item, "content")?.ok_or_else(|| item.missing("content"))?;
        match role {
            "assistant" => {
                if self.turn.as_ref().is_some_and(|turn| turn.content.is_some() || !turn.tool_calls.is_empty()) {
                    self.close();
                }
                self.turn().content = Some(text);
            }
            "user" => {
                self.close();
                self.out.push(message("user", text));
            }
            "system" | "developer" => {
                self.close();
                self.out.push(message("system", text));
            }
            _ => return Err(item.invalid("role", "must be `user`, `assistant`, `system` or `developer`")),
        }
        Ok(())
    }

    fn call(&mut self, item: &Object<'_>) -> Result<(), Fault> {
        let name = match item.text("namespace")?.filter(|namespace| !namespace.is_empty()) {
            Some(namespace) => joined(namespace, item.required("name")?),
            None => self.shown(item.required("name")?),
        };
        let arguments = item.text("arguments")?.ok_or_else(|| item.missing("arguments"))?.to_owned();
        let id = item.required("call_id")?.to_owned();
        self.turn().tool_calls.push(ToolCall { id, name, arguments });
        Ok(())
    }

    /// A client may leave out the namespace of a name that stands in one only.
    fn shown(&self, name: &str) -> String {
        let is_plain = self.tools.tools.iter().any(|tool| tool.name == name);
        let mut of_namespaces = self.tools.origins.iter().filter(|(_, origin)| origin.name == name);
        match (is_plain, of_namespaces.next(), of_namespaces.next()) {
            (false, Some((shown, _)), None) => shown.clone(),
            _ => name.to_owned(),
        }
    }

    /// What was thought before a turn: from under the seal, else as the client shows it.
    fn reasoning(&mut self, item: &Object<'_>) -> Result<(), Fault> {
        let sealed = item.text("encrypted_content")?.filter(|sealed| !sealed.is_empty());
        let opened = sealed.and_then(|sealed| self.seal.open(sealed));
        if opened.is_none() && sealed.is_some() {
            // Another server's, say, in a conversation that moved here.
            self.ignored.push(item.path("encrypted_content"));
        }
        let mut shown = None;
        for field in ["content", "summary"] {
            if opened.is_none() && shown.is_none() {
                shown = self.text(item, field)?.filter(|text| !text.is_empty());
            }
        }
        if let Some(text) = opened.or(shown) {
            if self.turn.as_ref().is_some_and(|turn| turn.content.is_some() || !turn.tool_calls.is_empty()) {
                self.close();
            }
            match &mut self.turn().reasoning_content {
                Some(before) => {
                    before.push('\n');
                    before.push_str(&text);
                }
                none => *none = Some(text),
            }
        }
        Ok(())
    }

    fn turn(&mut self) -> &mut Message {
        self.turn.get_or_insert_with(|| Message { role: "assistant".to_owned(), ..Message::default() })
    }

    /// Ends the assistant's turn.
    fn close(&mut self) {
        self.out.extend(self.turn.take());
    }

    /// The text of `field`: a string, or parts of text.
    fn text(&mut self, object: &Object<'_>, field: &str) -> Result<Option<String>, Fault> {
        match object.get(field) {
            None => return Ok(None),
            Some(Value::String(text)) => return Ok(Some(text.clone())),
            Some(Value::Array(_)) => {}
            Some(other) => return Err(wrong(&object.path(field), "a string or an array of parts", other)),
        }
        let mut texts = Vec::new();
        for part in object.objects(field)? {
            let name = match part.required("type")? {
                "input_text" | "output_text" | "text" | "summary_text" | "reasoning_text" => "text",
                "refusal" => "refusal",
                kind => {
                    return Err(part.unsupported("type", &format!("is `{kind}`; only text is supported here")));
                }
            };
            texts.push(part.text(name)?.ok_or_else(|| part.missing(name))?);
        }
        Ok(Some(texts.join("\n")))
    }
}
