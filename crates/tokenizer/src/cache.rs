//! The tokens of long texts, kept for the next prompt that holds them: a bounded map from a text's digest, least
//! recently used first out. The texts themselves are not kept.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use sha2::{Digest, Sha256};

/// What an entry takes besides its tokens.
const ENTRY: usize = 160;

pub(crate) type Key = [u8; 32];

/// The key of a text.
pub(crate) fn key(text: &str) -> Key {
    Sha256::digest(text.as_bytes()).into()
}

pub(crate) struct Cache {
    entries: HashMap<Key, Entry>,
    /// Keys in the order of their last use.
    by_use: BTreeMap<u64, Key>,
    uses: u64,
    bytes: usize,
    limit: usize,
}

struct Entry {
    tokens: Arc<[i32]>,
    used: u64,
}

/// Says nothing of what it holds.
impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cache({} texts, {} bytes)", self.entries.len(), self.bytes)
    }
}

impl Cache {
    /// An empty one that never holds more than `limit` bytes.
    pub(crate) fn new(limit: usize) -> Self {
        Self { entries: HashMap::new(), by_use: BTreeMap::new(), uses: 0, bytes: 0, limit }
    }

    pub(crate) fn get(&mut self, key: &Key) -> Option<Arc<[i32]>> {
        let entry = self.entries.get_mut(key)?;
        self.uses += 1;
        self.by_use.remove(&entry.used);
        self.by_use.insert(self.uses, *key);
        entry.used = self.uses;
        Some(Arc::clone(&entry.tokens))
    }

    /// Keeps the tokens of a text, unless they alone pass the limit.
    pub(crate) fn insert(&mut self, key: Key, tokens: &[i32]) {
        let size = size(tokens);
        if size > self.limit || self.entries.contains_key(&key) {
            return;
        }
        while self.bytes + size > self.limit {
            let Some((_, oldest)) = self.by_use.pop_first() else { break };
            if let Some(entry) = self.entries.remove(&oldest) {
                self.bytes -= self::size(&entry.tokens);
            }
        }
        self.uses += 1;
        self.bytes += size;
        self.by_use.insert(self.uses, key);
        self.entries.insert(key, Entry { tokens: tokens.into(), used: self.uses });
    }
}

fn size(tokens: &[i32]) -> usize {
    size_of_val(tokens) + ENTRY
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_used_longest_goes_first() {
        let tokens = [7; 100];
        let mut cache = Cache::new(3 * size(&tokens));
        for text in ["a", "b", "c"] {
            cache.insert(key(text), &tokens);
        }
        assert_eq!(cache.get(&key("a")).as_deref(), Some(&tokens[..]));
        cache.insert(key("d"), &tokens);
        let held = ["a", "b", "c", "d"].map(|text| cache.get(&key(text)).is_some());
        assert_eq!(held, [true, false, true, true]);
        assert!(cache.bytes <= cache.limit);
    }

    #[test]
    fn nothing_passes_the_limit() {
        let mut cache = Cache::new(1000);
        cache.insert(key("long"), &[1; 1000]);
        assert!(cache.get(&key("long")).is_none());
        for text in 0..100 {
            cache.insert(key(&text.to_string()), &vec![text; text as usize]);
            let held: usize = cache.entries.values().map(|entry| size(&entry.tokens)).sum();
            assert!(held == cache.bytes && held <= 1000 && cache.by_use.len() == cache.entries.len());
        }
    }
}
