//! Answers remembered by their tokens, so that the next prompt of a conversation extends what the stages hold.
//!
//! What a model samples is often not what its tokenizer would make of the same text. A client sends the text back; were
//! it tokenised anew, the stages' KV would be of no use from there on. So the ledger keeps each answer with the prompt
//! that it followed, and where a new prompt begins with that prompt and goes on with that answer, the answer's own tokens
//! go into the new prompt: where the rendered text is what was generated, or says the same (a template may trim text, or
//! write the arguments of a call with other blanks).
//!
//! Nothing that people write can make a control token of their words: prompts are compared by their text *and* by the
//! places at which it holds special tokens ([`Layout`]), and only after a prompt that is equal in both is an answer
//! looked for.
//!
//! Owns: the answers, within a limit of bytes. Does not own: tokenising, or what the stages hold. Start with
//! [`Ledger::splice`].

mod layout;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use mesh_types::{FinishReason, Message, TokenId, Tool, ToolCall, ToolChoice};
use sha2::{Digest, Sha256};

use crate::capability::Strategy;
use crate::parse::{Turn, TurnOptions};
use crate::prompt::Fragment;

pub use layout::{Layout, Said};

/// Special tokens that are looked at for the end of an answer that did not end with one.
const MAX_ENDS: usize = 64;
/// Bytes of a prompt's end that say how its answer is to be read.
const PROMPT_END: usize = 4096;
/// What an answer takes besides its text and tokens.
const OVERHEAD: usize = 512;

/// See the module's documentation.
#[derive(Debug)]
pub struct Ledger {
    answers: HashMap<u64, Answer>,
    /// By the length of the prompt that they followed, in bytes of its layout; of one length the oldest first.
    by_prompt: BTreeMap<usize, Vec<u64>>,
    /// By the id of their first call.
    by_call: HashMap<String, u64>,
    /// The oldest first.
    order: VecDeque<u64>,
    bytes: usize,
    max_bytes: usize,
    next: u64,
}

/// Names a prompt, for [`Ledger::record`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromptMark {
    len: usize,
    digest: [u8; 32],
}

impl PromptMark {
    /// The mark of this prompt.
    pub fn of(prompt: &Layout) -> Self {
        Self { len: prompt.key.len(), digest: Sha256::digest(&prompt.key).into() }
    }
}

/// One answer.
#[derive(Debug)]
struct Answer {
    prompt: PromptMark,
    tokens: Vec<TokenId>,
    /// Its text, with special tokens marked.
    key: Vec<u8>,
    /// Where its last token begins in `key`, if that is a special one.
    last: Option<usize>,
    turn: Turn,
}

/// How the answers in a prompt are read.
#[derive(Clone, Copy, Debug)]
pub struct Reading<'a> {
    /// How the model calls tools.
    pub strategy: &'a Strategy,
    /// The tools of the request; calls of others are read as well.
    pub tools: &'a [Tool],
}

/// A part of a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// To be tokenised.
    Text(Fragment),
    /// An answer's own tokens.
    Tokens(Vec<TokenId>),
}

/// A prompt with the answers in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spliced {
    /// Its parts, in order.
    pub pieces: Vec<Piece>,
    /// Which answers were found.
    pub answers: HashSet<u64>,
}

impl Ledger {
    /// An empty ledger that takes about `max_bytes` at most.
    pub fn new(max_bytes: usize) -> Self {
        Self {
            answers: HashMap::new(),
            by_prompt: BTreeMap::new(),
            by_call: HashMap::new(),
            order: VecDeque::new(),
            bytes: 0,
            max_bytes,
            next: 0,
        }
    }

    /// Keeps the answer to the prompt of this mark: its tokens and what they say, and what a client was told.
    pub fn record(&mut self, prompt: PromptMark, said: Said, turn: Turn) {
        let Said { tokens, key, last } = said;
        let answer = Answer { prompt, tokens, key, last, turn };
        let size = answer.size();
        if answer.tokens.is_empty() || size > self.max_bytes {
            return;
        }
        let id = self.next;
        self.next += 1;
        self.bytes += size;
        if let Some(call) = answer.turn.calls.first() {
            self.by_call.insert(call.id.clone(), id);
        }
        self.by_prompt.entry(prompt.len).or_default().push(id);
        self.answers.insert(id, answer);
        self.order.push_back(id);
        while self.bytes > self.max_bytes {
            self.forget_oldest();
        }
    }

    /// The prompt of `layout`, with own tokens for every answer in it that is known.
    pub fn splice(&self, layout: &Layout, reading: &Reading<'_>) -> Spliced {
        let mut spliced = Spliced::default();
        let mut digest = Sha256::new();
        let (mut done, mut hashed) = (0, 0);
        for (&len, ids) in self.by_prompt.range(..layout.key.len()) {
            if len < done {
                continue; // within an answer
            }
            digest.update(&layout.key[hashed..len]);
            hashed = len;
            let value: [u8; 32] = digest.clone().finalize().into();
            let known = ids.iter().rev().filter_map(|id| Some((*id, self.answers.get(id)?)));
            let mut followed: Vec<(u64, &Answer)> = known.filter(|(_, answer)| answer.prompt.digest == value).collect();
            // Word by word before in other words.
            followed.sort_by_key(|(_, answer)| answer.is_at(layout, len).is_none());
            let found = followed.iter().find_map(|(id, answer)| {
                let (end, tokens) = answer.is_at(layout, len).or_else(|| answer.is_said_at(layout, len, reading))?;
                Some((*id, end, &answer.tokens[..tokens]))
            });
            if let Some((id, end, tokens)) = found {
                spliced.pieces.extend(layout.fragments(done..len).map(Piece::Text));
                spliced.pieces.push(Piece::Tokens(tokens.to_vec()));
                spliced.answers.insert(id);
                done = end;
            }
        }
        spliced.pieces.extend(layout.fragments(done..layout.key.len()).map(Piece::Text));
        spliced
    }

    /// Gives assistant turns that make calls the reasoning back that a client did not send, where `may` allows the
    /// answer. Returns the answers that were used: only where [`Self::splice`] finds them in the prompt that comes of
    /// it are they this conversation's.
    pub fn restore_reasoning(&self, messages: &mut [Message], may: impl Fn(u64) -> bool) -> HashSet<u64> {
        let mut used = HashSet::new();
        for message in messages.iter_mut().filter(|m| m.role == "assistant" && m.reasoning_content.is_none()) {
            let id = message.tool_calls.first().and_then(|call| self.by_call.get(&call.id));
            let known = id.and_then(|id| Some((*id, self.answers.get(id)?)));
            if let Some((id, answer)) = known
                && may(id)
                && !answer.turn.reasoning.is_empty()
                && same_calls(&answer.turn.calls, &message.tool_calls)
            {
                message.reasoning_content = Some(answer.turn.reasoning.clone());
                used.insert(id);
            }
        }
        used
    }

    /// Answers kept.
    pub fn len(&self) -> usize {
        self.answers.len()
    }

    /// Whether nothing is kept.
    pub fn is_empty(&self) -> bool {
        self.answers.is_empty()
    }

    fn forget_oldest(&mut self) {
        let Some(id) = self.order.pop_front() else { return };
        let Some(answer) = self.answers.remove(&id) else { return };
        self.bytes -= answer.size();
        if let Some(ids) = self.by_prompt.get_mut(&answer.prompt.len) {
            ids.retain(|other| *other != id);
            if ids.is_empty() {
                self.by_prompt.remove(&answer.prompt.len);
            }
        }
        if let Some(call) = answer.turn.calls.first()
            && self.by_call.get(&call.id) == Some(&id)
        {
            self.by_call.remove(&call.id);
        }
    }
}

impl Answer {
    fn size(&self) -> usize {
        let Turn { reasoning, content, calls } = &self.turn;
        let calls: usize = calls.iter().map(|call| 2 * call.id.len() + call.name.len() + call.arguments.len()).sum();
        OVERHEAD + self.key.len() + self.tokens.len() * size_of::<TokenId>() + reasoning.len() + content.len() + calls
    }

    /// Whether the prompt goes on with this answer, byte for byte. Returns where the prompt goes on behind it, and how
    /// many of the answer's tokens stand for what is before.
    fn is_at(&self, layout: &Layout, at: usize) -> Option<(usize, usize)> {
        let rest = &layout.key[at..];
        let end = at + self.key.len();
        if rest.starts_with(&self.key) && layout.is_edge(end) {
            return Some((end, self.tokens.len()));
        }
        // Some templates end a turn of the past with another token than the one that the model draws.
        let end = at + self.last?;
        (rest.starts_with(&self.key[..self.last?]) && layout.is_edge(end)).then_some((end, self.tokens.len() - 1))
    }

    /// Whether the prompt goes on with a turn that says the same.
    fn is_said_at(&self, layout: &Layout, at: usize, reading: &Reading<'_>) -> Option<(usize, usize)> {
        let last = self.last.map(|last| &self.key[last..]);
        let ends = layout.specials(at).take(MAX_ENDS).filter(|range| match last {
            Some(last) => &layout.key[range.clone()] == last,
            None => true,
        });
        let prompt = layout.text(at.saturating_sub(PROMPT_END)..at);
        for special in ends {
            if self.says(&layout.text(at..special.start), &prompt, reading) {
                let end = if last.is_some() { special.end } else { special.start };
                return Some((end, self.tokens.len()));
            }
            if last.is_some() {
                return None;
            }
        }
        None
    }

    fn says(&self, text: &str, prompt: &str, reading: &Reading<'_>) -> bool {
        let options = TurnOptions {
            strategy: reading.strategy.clone(),
            tools: reading.tools,
            choice: &ToolChoice::Auto,
            any_tool: true,
            parallel: true,
            prompt,
            seed: "",
        };
        let read = Turn::parse(&options, text, FinishReason::Stop);
        read.content.trim() == self.turn.content.trim()
            && read.reasoning.trim() == self.turn.reasoning.trim()
            && same_calls(&read.calls, &self.turn.calls)
    }
}

/// Whether these are the same calls, whatever their ids are and however their arguments are spaced.
fn same_calls(one: &[ToolCall], other: &[ToolCall]) -> bool {
    let parse = |call: &ToolCall| serde_json::from_str::<serde_json::Value>(&call.arguments).ok();
    let same = |a: &ToolCall, b: &ToolCall| {
        a.name == b.name && (a.arguments == b.arguments || parse(a).is_some_and(|value| Some(value) == parse(b)))
    };
    one.len() == other.len() && one.iter().zip(other).all(|(a, b)| same(a, b))
}

#[cfg(test)]
mod tests;
