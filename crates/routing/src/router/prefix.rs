//! The beginnings of conversations, and which replicas have computed them.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use mesh_types::chat::RawInput;
use mesh_types::{ChatRequest, Message, PeerId};

/// Beginnings that are remembered at most; the oldest quarter makes room.
const MAX_KNOWN: usize = 1 << 16;
/// Replicas that are remembered for each.
const MAX_HOLDERS: usize = 4;
/// Of a long conversation, the last so many turns are looked up and remembered, and the first.
const MAX_TURNS: usize = 64;
/// After so long without use a replica is taken to have forgotten a beginning.
const FORGOTTEN: Duration = Duration::from_secs(1800);
/// Bytes of a block of a prompt without turns.
const BLOCK: usize = 2048;
/// Bytes of text to a token, roughly.
const BYTES_A_TOKEN: usize = 4;

/// A prompt as a chain of beginnings, each a turn longer than the one before. Holds hashes, and nothing of the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prefixes {
    /// Shortest first; never empty.
    chain: Vec<Prefix>,
    /// Tokens of what many conversations have in common: tools and system prompt.
    opening: u32,
    /// The client's own name for the conversation.
    name: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Prefix {
    hash: u64,
    /// Tokens from the prompt's start, roughly.
    tokens: u32,
}

impl Prefixes {
    /// The beginnings of a request's prompt.
    pub fn of(chat: &ChatRequest) -> Self {
        let mut hasher = DefaultHasher::new();
        chat.model.hash(&mut hasher);
        let mut bytes = 0;
        for tool in &chat.tools {
            let definition = tool.definition.to_string();
            definition.hash(&mut hasher);
            bytes += definition.len();
        }
        let mut opening = tokens(bytes);
        let mut chain: Vec<Prefix> = Vec::with_capacity(chat.messages.len());
        for block in chat.raw.iter().flat_map(|raw| blocks(&raw.input)) {
            block.hash(&mut hasher);
            bytes += block.len();
            chain.push(Prefix { hash: hasher.finish(), tokens: tokens(bytes) });
        }
        let mut is_common = true;
        for message in &chat.messages {
            is_common &= matches!(message.role.as_str(), "system" | "developer");
            bytes += hash_message(message, &mut hasher);
            chain.push(Prefix { hash: hasher.finish(), tokens: tokens(bytes) });
            if is_common {
                opening = tokens(bytes);
            }
        }
        if chain.is_empty() {
            chain.push(Prefix { hash: hasher.finish(), tokens: tokens(bytes) });
        }
        if chain.len() > MAX_TURNS {
            chain.drain(1..chain.len() + 1 - MAX_TURNS);
        }
        let named = |name: &String| {
            let mut hasher = DefaultHasher::new();
            (&chat.model, "conversation", name).hash(&mut hasher);
            hasher.finish()
        };
        Self { chain, opening, name: chat.conversation.as_ref().map(named) }
    }

    /// Tokens of the whole prompt, roughly.
    pub fn tokens(&self) -> u32 {
        self.chain.last().map_or(0, |prefix| prefix.tokens)
    }

    /// Tokens of what many conversations have in common.
    pub(super) fn opening(&self) -> u32 {
        self.opening
    }

    /// What tells conversations apart that begin differently.
    pub(super) fn key(&self) -> u64 {
        self.name.unwrap_or_else(|| self.chain.first().map_or(0, |prefix| prefix.hash))
    }
}

/// A prompt without turns, in blocks: as bytes of its text, or of as many as its tokens are taken to stand for.
fn blocks(input: &RawInput) -> Vec<Vec<u8>> {
    match input {
        RawInput::Text { text, .. } => text.as_bytes().chunks(BLOCK).map(<[u8]>::to_vec).collect(),
        RawInput::Tokens(tokens) => {
            let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.0.to_le_bytes()).collect();
            bytes.chunks(BLOCK).map(<[u8]>::to_vec).collect()
        }
    }
}

fn hash_message(message: &Message, hasher: &mut DefaultHasher) -> usize {
    message.role.hash(hasher);
    message.content.hash(hasher);
    message.tool_call_id.hash(hasher);
    let mut bytes = message.content.as_ref().map_or(0, String::len);
    for call in &message.tool_calls {
        (&call.name, &call.arguments).hash(hasher);
        bytes += call.name.len() + call.arguments.len();
    }
    bytes
}

fn tokens(bytes: usize) -> u32 {
    u32::try_from(bytes / BYTES_A_TOKEN).unwrap_or(u32::MAX)
}

/// Which replicas have computed which beginnings.
#[derive(Debug, Default)]
pub(super) struct Known {
    holders: HashMap<u64, Vec<Holder>>,
}

#[derive(Debug)]
struct Holder {
    peer: PeerId,
    tokens: u32,
    used: Duration,
}

impl Known {
    /// Tokens of the prompt that `peer`, which is here `since` then, has computed.
    pub(super) fn covered(&self, prefixes: &Prefixes, peer: &PeerId, since: Duration, now: Duration) -> u32 {
        let still = |used: Duration| used >= since && now.saturating_sub(used) < FORGOTTEN;
        let held = |hash: u64| {
            let holders = self.holders.get(&hash)?;
            holders.iter().find(|holder| holder.peer == *peer && still(holder.used))
        };
        let by_text = prefixes.chain.iter().rev().find(|prefix| held(prefix.hash).is_some());
        let by_name = prefixes.name.and_then(held).map_or(0, |holder| holder.tokens.min(prefixes.tokens()));
        by_text.map_or(0, |prefix| prefix.tokens).max(by_name)
    }

    /// `peer` computes the prompt now.
    pub(super) fn remember(&mut self, prefixes: &Prefixes, peer: &PeerId, now: Duration) {
        let name = prefixes.name.map(|hash| Prefix { hash, tokens: prefixes.tokens() });
        for Prefix { hash, tokens } in prefixes.chain.iter().copied().chain(name) {
            let holders = self.holders.entry(hash).or_default();
            holders.retain(|holder| holder.peer != *peer);
            holders.insert(0, Holder { peer: peer.clone(), tokens, used: now });
            holders.truncate(MAX_HOLDERS);
        }
        if self.holders.len() > MAX_KNOWN {
            self.make_room();
        }
    }

    fn make_room(&mut self) {
        let used = |holders: &Vec<Holder>| holders.iter().map(|holder| holder.used).max().unwrap_or_default();
        let mut ages: Vec<Duration> = self.holders.values().map(used).collect();
        ages.sort_unstable();
        let oldest = ages.get(ages.len() / 4).copied().unwrap_or_default();
        self.holders.retain(|_, holders| used(holders) > oldest);
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.holders.len()
    }
}
