//! Random calls, written by a template.

use mesh_chat::{Capability, ChatTemplate, Conversation, Format, Strategy, Turn, TurnOptions, TurnParser};
use mesh_types::{FinishReason, Message, Tool, ToolCall, ToolChoice};
use serde_json::Value;

use crate::archive;
use crate::random::{Random, Scope, tool_and_arguments};

/// A template whose calls are read natively.
pub(crate) struct Native {
    pub(crate) name: String,
    template: ChatTemplate,
    capability: Capability,
    pub(crate) format: &'static Format,
}

/// What a model would have written.
pub(crate) struct Answer {
    pub(crate) tools: Vec<Tool>,
    pub(crate) calls: Vec<(String, Value)>,
    /// The text, perhaps with the head of the turn; the first that is read right.
    pub(crate) texts: Vec<String>,
}

/// All native templates.
pub(crate) fn natives() -> Vec<Native> {
    let natives = archive::templates().into_iter().filter_map(|(name, source)| {
        let template = ChatTemplate::parse(&source, "<s>", "</s>").expect("a template");
        let capability = Capability::probe(&template);
        match capability.strategy {
            Strategy::Native(format) => Some(Native { name, template, capability, format }),
            Strategy::Emulated(_) => None,
        }
    });
    natives.collect()
}

impl Native {
    /// Random calls of random tools. `None`: the template refuses these.
    pub(crate) fn answer(&self, seed: u64) -> Option<Answer> {
        let mut random = Random::new(seed);
        let markers = self.format.markers();
        let format = self.format.name;
        // Where values are plain text, a marker in them is one.
        let is_plain = ["xml", "glm", "seed", "dsml", "minimax", "minicpm", "hunyuan", "kimi_k3", "muse", "gemma"];
        let is_plain = is_plain.iter().any(|part| format.contains(part));
        let forbidden: &[&str] = match format {
            // Its template writes strings between quotes, as they are.
            "pythonic" => &["'", "\"", "\\", "\n"],
            _ if is_plain => &markers,
            _ => &[],
        };
        let scope = Scope {
            forbidden,
            pieces: &markers,
            any_key: !["gemma4", "minimax_m3"].contains(&format),
            nothing: format != "minimax_m3",
        };
        let count = if self.capability.turns.parallel_calls { 1 + random.below(3) } else { 1 };
        let made: Vec<(Tool, Value)> = (0..count)
            .map(|_| {
                let (tool, arguments) = tool_and_arguments(&mut random, &scope);
                (Tool::from_definition(tool).expect("a tool"), arguments)
            })
            .collect();
        let call = |(index, (tool, arguments)): (usize, &(Tool, Value))| ToolCall {
            id: format!("call0000{index}"),
            name: tool.name.clone(),
            arguments: arguments.to_string(),
        };
        let asked = question();
        let tool_calls = made.iter().enumerate().map(call).collect();
        let called =
            Message { role: "assistant".to_owned(), content: Some(String::new()), tool_calls, ..Message::default() };
        let tools: Vec<Tool> = made.iter().map(|(tool, _)| tool.clone()).collect();
        let spoken = Message { content: Some("answer".to_owned()), tool_calls: Vec::new(), ..called.clone() };
        let whole = self.render(&[asked.clone(), called], &tools, false)?;
        // What ends every turn is a token that no parser sees.
        let spoken = self.render(&[asked.clone(), spoken], &tools, false)?;
        let mut end = whole.len() - common_end(&spoken, &whole);
        if !whole[..end].ends_with(['>', ']', '}', ')', '\n', ' ']) {
            end += whole[end..].find(['>', ']']).map_or(0, |at| at + 1);
        }
        let whole = &whole[..end];
        let texts =
            [true, false].into_iter().filter_map(|open| self.render(std::slice::from_ref(&asked), &tools, open));
        // A prompt that goes on otherwise may have a marker's beginning in common.
        let start = |prompt: &String| {
            let common = common(prompt, whole);
            if common == prompt.len() { common } else { whole[..common].rfind(['\n', '>', ']']).map_or(0, |at| at + 1) }
        };
        let texts = texts.map(|prompt| whole[start(&prompt)..].to_owned()).collect();
        Some(Answer { tools, calls: made.into_iter().map(|(tool, value)| (tool.name, value)).collect(), texts })
    }

    fn render(&self, messages: &[Message], tools: &[Tool], open: bool) -> Option<String> {
        let conversation = Conversation { messages, tools, choice: &ToolChoice::Auto, parallel: true };
        let prepared = conversation.prepare(&self.capability).expect("a conversation");
        self.template.render_input(&prepared.input(&self.template, open)).ok()
    }

    /// Reads an answer to the question that [`Self::answer`] answers.
    pub(crate) fn read_after_prompt(&self, tools: &[Tool], text: &str, reason: FinishReason) -> Turn {
        let prompt = self.render(&[question()], tools, true).unwrap_or_default();
        let options = TurnOptions { prompt: &prompt, ..self.options(tools) };
        Turn::parse(&options, text, reason)
    }

    fn options<'a>(&self, tools: &'a [Tool]) -> TurnOptions<'a> {
        TurnOptions {
            strategy: Strategy::Native(self.format),
            tools,
            choice: &ToolChoice::Auto,
            any_tool: false,
            parallel: true,
            prompt: "",
            seed: "test",
        }
    }

    /// Reads an answer that comes in these pieces.
    pub(crate) fn read<'a>(
        &self,
        tools: &[Tool],
        pieces: impl IntoIterator<Item = &'a str>,
        reason: FinishReason,
    ) -> Turn {
        let mut parser = TurnParser::new(&self.options(tools));
        let mut turn = Turn::default();
        for piece in pieces {
            turn.extend(parser.push(piece));
        }
        turn.extend(parser.finish(reason));
        turn
    }
}

fn question() -> Message {
    Message { role: "user".to_owned(), content: Some("question".to_owned()), ..Message::default() }
}

/// Names and arguments of the calls of a turn.
pub(crate) fn calls(turn: &Turn) -> Vec<(String, Value)> {
    let read = |text: &str| serde_json::from_str(text).unwrap_or_else(|_| Value::from(format!("no JSON: {text}")));
    turn.calls.iter().map(|call| (call.name.clone(), read(&call.arguments))).collect()
}

/// Bytes with which both texts begin, whole characters.
fn common(a: &str, b: &str) -> usize {
    a.chars().zip(b.chars()).take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8()).sum()
}

/// Bytes with which both texts end, whole characters.
fn common_end(a: &str, b: &str) -> usize {
    a.chars().rev().zip(b.chars().rev()).take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8()).sum()
}

/// How many rounds a seeded test makes: `MESH_ROUNDS` times as many as by itself.
pub(crate) fn rounds(usual: u64) -> u64 {
    usual * std::env::var("MESH_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(1)
}
