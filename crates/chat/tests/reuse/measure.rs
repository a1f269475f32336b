//! How many tokens of a conversation are computed again after a turn, for a template: with a toy vocabulary, and answers
//! whose tokens are not those that the vocabulary would make of their text, as sampled and grammar-forced ones are not.

use std::collections::BTreeSet;

use mesh_chat::ledger::{Layout, Piece, PromptMark, Reading, Said};
use mesh_chat::prompt::{self, Fragment};
use mesh_chat::{
    Capability, ChatError, ChatTemplate, Conversation, Ledger, SpecialTokens, Strategy, Turn, TurnOptions,
};
use mesh_types::{FinishReason, Message, TokenId, Tool, ToolCall, ToolChoice};
use serde_json::json;

const THOUGHT: &str = "The user wants to know the weather, so I have to look it up.";
const PROSE: &str = "Let me look that up.";

/// What a model does in the turn that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scene {
    /// It calls a tool.
    Call,
    /// It says something, and calls a tool.
    TextAndCall,
    /// It thinks, and calls a tool; the client does not send the thoughts back.
    HiddenThoughts,
    /// The same, and the client sends them back.
    SentThoughts,
    /// It answers.
    Answer,
}

impl Scene {
    /// All of them.
    pub(crate) const ALL: [Self; 5] =
        [Self::Call, Self::TextAndCall, Self::HiddenThoughts, Self::SentThoughts, Self::Answer];
}

/// Tokens after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reuse {
    /// Of the next prompt.
    pub(crate) prompt: usize,
    /// Held: those of the prompt before, and of the answer.
    pub(crate) held: usize,
    /// Of those held, from the first on: the same in the next prompt.
    pub(crate) reused: usize,
    /// The same without a ledger.
    pub(crate) without_ledger: usize,
    /// The next prompt begins with the text of the prompt before.
    pub(crate) is_continued: bool,
}

/// A template, and what its model knows.
pub(crate) struct Model {
    template: ChatTemplate,
    /// How it calls tools.
    pub(crate) capability: Capability,
    special: SpecialTokens,
    specials: BTreeSet<String>,
    tools: Vec<Tool>,
    thinks: bool,
}

impl Model {
    /// Of the template with this source.
    ///
    /// # Errors
    /// It is no template.
    pub(crate) fn new(source: &str) -> Result<Self, ChatError> {
        let template = ChatTemplate::parse(source, "<s>", "</s>")?;
        let specials = special_texts(source);
        let before = question();
        let mut model = Self::with(template, source, specials)?;
        // Some templates put the texts of special tokens together as they render.
        let shown = model.render(&[&before[..], &[message("assistant", "Mild.")], &before[..]].concat(), true);
        let called = model.render(&[&before[..], &[model.turn(Scene::Call)]].concat(), false);
        for text in [shown, called].into_iter().flatten() {
            model.specials.extend(special_texts(&text));
        }
        let Self { template, specials, .. } = model;
        Self::with(template, source, specials)
    }

    fn with(template: ChatTemplate, source: &str, specials: BTreeSet<String>) -> Result<Self, ChatError> {
        let (control, user_defined): (Vec<&str>, Vec<&str>) =
            specials.iter().map(String::as_str).partition(|text| is_control(text));
        let definition = json!({"type": "function", "function": {
            "name": "get_weather",
            "description": "The weather of a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        }});
        Ok(Self {
            capability: Capability::probe(&template),
            template,
            special: SpecialTokens::new(control, user_defined)?,
            thinks: source.contains("<think>"),
            tools: Tool::from_definition(definition).into_iter().collect(),
            specials,
        })
    }

    /// Plays a turn, and measures the next prompt. `None`: the template cannot have such a turn.
    pub(crate) fn play(&self, scene: Scene) -> Option<Reuse> {
        let before = question();
        let layout = self.layout(&before)?;
        let text = self.generated(&before, scene)?;
        let said = self.sampled(&text);
        let turn = self.read(&layout, &text);
        let mut ledger = Ledger::new(1 << 20);
        ledger.record(PromptMark::of(&layout), said.0.clone(), turn.clone());
        let held = [self.tokens(&Ledger::new(0), &layout), said.1].concat();

        let reasoning = (scene == Scene::SentThoughts).then(|| turn.reasoning.clone());
        let sent = Message {
            tool_calls: turn.calls.clone(),
            reasoning_content: reasoning.filter(|thoughts| !thoughts.is_empty()),
            ..message("assistant", &turn.content)
        };
        let next = match turn.calls.first() {
            Some(call) => Message {
                tool_call_id: Some(call.id.clone()),
                name: Some(call.name.clone()),
                ..message("tool", "{\"celsius\": 12}")
            },
            None => message("user", "And tomorrow?"),
        };
        let mut messages = [&before[..], &[sent, next]].concat();
        let plain = self.layout(&messages)?;
        ledger.restore_reasoning(&mut messages, |_| true);
        let after = self.layout(&messages)?;
        let tokens = self.tokens(&ledger, &after);
        let without = self.tokens(&Ledger::new(0), &plain);
        let common = |tokens: &[TokenId]| held.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        Some(Reuse {
            prompt: tokens.len(),
            held: held.len(),
            reused: common(&tokens),
            without_ledger: common(&without),
            is_continued: after.whole_text().starts_with(&layout.whole_text()),
        })
    }

    /// The turn, as a client would send it.
    fn turn(&self, scene: Scene) -> Message {
        let call = ToolCall {
            id: "call00001".to_owned(),
            name: "get_weather".to_owned(),
            arguments: "{\"city\": \"Graz\"}".to_owned(),
        };
        match scene {
            Scene::Answer => message("assistant", "It is mild and sunny in Graz today."),
            Scene::TextAndCall => Message { tool_calls: vec![call], ..message("assistant", PROSE) },
            _ => Message { tool_calls: vec![call], ..message("assistant", "") },
        }
    }

    /// What the model says: as its template renders such a turn.
    fn generated(&self, before: &[Message], scene: Scene) -> Option<String> {
        let turn = self.turn(scene);
        let thinks = matches!(scene, Scene::HiddenThoughts | Scene::SentThoughts);
        let rendered = |reasoning: Option<&str>| {
            let turn = Message { reasoning_content: reasoning.map(str::to_owned), ..turn.clone() };
            self.render(&[before, &[turn]].concat(), false)
        };
        let prompt = self.render(before, true)?;
        let answer = |whole: String| whole[common(&prompt, &whole)..].to_owned();
        let plain = answer(rendered(None)?);
        let shown = rendered(Some(THOUGHT)).map(answer).filter(|text| text.contains(THOUGHT));
        let text = match (thinks, shown) {
            (false, _) => plain,
            (true, Some(shown)) => shown,
            // The template opened the block, or the model does.
            (true, None) if prompt.trim_end().ends_with("<think>") => {
                format!("{THOUGHT}\n</think>\n\n{}", plain.trim_start())
            }
            (true, None) if self.thinks => format!("<think>\n{THOUGHT}\n</think>\n\n{}", plain.trim_start()),
            (true, None) => return None,
        };
        Some(self.up_to_the_end(&text))
    }

    /// A model's turn ends with its last control token; what a template puts behind it is not generated.
    fn up_to_the_end(&self, text: &str) -> String {
        let ends =
            |text: &str| self.specials.iter().any(|special| is_control(special) && text.ends_with(special.as_str()));
        // Where a template closes the whole conversation as well.
        let text = text.trim_end().strip_suffix("</s>").map(str::trim_end).filter(|text| ends(text)).unwrap_or(text);
        let controls = self.specials.iter().filter(|special| is_control(special));
        let end = controls.filter_map(|special| Some(text.rfind(special.as_str())? + special.len())).max();
        match end {
            Some(end) if text[end..].trim().is_empty() => text[..end].to_owned(),
            _ => text.trim_end().to_owned(),
        }
    }

    fn read(&self, prompt: &Layout, text: &str) -> Turn {
        let options = TurnOptions {
            strategy: self.capability.strategy.clone(),
            tools: &self.tools,
            choice: &ToolChoice::Auto,
            any_tool: false,
            parallel: true,
            prompt: &prompt.whole_text(),
            seed: "seed",
        };
        // The token that ends a turn has no text, but for those that an answer is read by.
        let end = self.specials.iter().filter(|s| is_control(s)).find(|s| text.ends_with(s.as_str()));
        let is_structure = |end: &str| match &self.capability.strategy {
            Strategy::Native(format) => format.markers().iter().any(|marker| marker.contains(end)),
            Strategy::Emulated(_) => false,
        };
        let text = match end.filter(|end| !is_structure(end)) {
            Some(end) => text.strip_suffix(end.as_str()).unwrap_or(text),
            None => text,
        };
        Turn::parse(&options, text, FinishReason::Stop)
    }

    fn layout(&self, messages: &[Message]) -> Option<Layout> {
        Some(Layout::new(&self.fragments(messages, true)?, &self.special))
    }

    fn render(&self, messages: &[Message], open: bool) -> Option<String> {
        Some(self.fragments(messages, open)?.into_iter().map(|fragment| fragment.text).collect())
    }

    fn fragments(&self, messages: &[Message], open: bool) -> Option<Vec<Fragment>> {
        let choice = ToolChoice::Auto;
        let conversation = Conversation { messages, tools: &self.tools, choice: &choice, parallel: true };
        let prepared = conversation.prepare(&self.capability).ok()?;
        prompt::render(&self.template, &prepared.input(&self.template, open), &self.special).ok()
    }

    fn tokens(&self, ledger: &Ledger, layout: &Layout) -> Vec<TokenId> {
        let reading = Reading { strategy: &self.capability.strategy, tools: &self.tools };
        let tokens = |piece: Piece| match piece {
            Piece::Text(fragment) => self.cut(&fragment.text, |_| 4).into_iter().map(|(text, _)| token(text)).collect(),
            Piece::Tokens(tokens) => tokens,
        };
        ledger.splice(layout, &reading).pieces.into_iter().flat_map(tokens).collect()
    }

    /// Its tokens, of one to three characters each.
    fn sampled(&self, text: &str) -> (Said, Vec<TokenId>) {
        let (mut said, mut tokens) = (Said::default(), Vec::new());
        for (text, is_special) in self.cut(text, |at| 1 + at % 3) {
            said.push(token(text), text.as_bytes(), is_special);
            tokens.push(token(text));
        }
        (said, tokens)
    }

    /// Special tokens whole, the rest in pieces of `len(n)` characters for the n-th.
    fn cut<'a>(&self, text: &'a str, len: impl Fn(usize) -> usize) -> Vec<(&'a str, bool)> {
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let special =
                self.specials.iter().filter(|special| rest.starts_with(special.as_str())).max_by_key(|s| s.len());
            let end = match special {
                Some(special) => special.len(),
                None => {
                    let begins =
                        |at: usize| self.specials.iter().any(|special| rest[at..].starts_with(special.as_str()));
                    let ends = rest.char_indices().skip(1).map(|(at, _)| at).chain([rest.len()]);
                    let most = len(pieces.len());
                    ends.enumerate()
                        .find(|(n, at)| n + 1 >= most || *at == rest.len() || begins(*at))
                        .map_or(first.len_utf8(), |(_, at)| at)
                }
            };
            pieces.push((&rest[..end], special.is_some()));
            rest = &rest[end..];
        }
        pieces
    }
}

fn question() -> [Message; 2] {
    [message("system", "You are helpful."), message("user", "What is the weather in Graz today?")]
}

fn message(role: &str, content: &str) -> Message {
    Message { role: role.to_owned(), content: Some(content.to_owned()), ..Message::default() }
}

/// A number for a text; two texts share one once in two thousand million pairs.
fn token(text: &str) -> TokenId {
    let hash = text
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    TokenId((hash >> 33) as i32)
}

/// Texts in a template's source that look like special tokens: `<|x|>`, `<x>`, `[X]`; or that it sets as one, as in
/// `bos_token = ']~b]'`.
fn special_texts(source: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::from(["<s>".to_owned(), "</s>".to_owned()]);
    for (at, name) in source.match_indices("_token") {
        let value = source[at + name.len()..].trim_start().strip_prefix('=').map(str::trim_start);
        let text = value.and_then(|value| value.strip_prefix('\'')?.split_once('\'')).map(|(text, _)| text);
        found.extend(text.filter(|text| text.contains(['[', ']']) && text.len() < 40).map(str::to_owned));
    }
    for (at, open) in source.char_indices().filter(|(_, c)| matches!(c, '<' | '[')) {
        let close = if open == '<' { '>' } else { ']' };
        let rest = &source[at + 1..];
        let Some(len) = rest.find(close).filter(|len| (1..40).contains(len)) else { continue };
        let name = &rest[..len];
        let is_name = |c: char| c.is_alphanumeric() || "_|｜▁/-".contains(c);
        let is_shout = |c: char| c.is_ascii_uppercase() || c == '_' || c == '/';
        if name.chars().all(if open == '<' { is_name } else { is_shout }) && !name.chars().all(|c| c == '/') {
            found.insert(format!("{open}{name}{close}"));
        }
    }
    found
}

/// Others are words of the model that its vocabulary has whole.
fn is_control(text: &str) -> bool {
    text == "<s>" || text == "</s>" || text.starts_with(['[', ']']) || text.contains(['|', '｜'])
}

/// Bytes with which both begin, whole characters.
fn common(a: &str, b: &str) -> usize {
    a.chars().zip(b.chars()).take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8()).sum()
}
