//! A replica with a scripted service time: it reads one prompt after the other, so long a token that it has not read
//! before, and forgets nothing.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use mesh_proto::v1;
use mesh_types::Usage;

/// Characters of text to a token.
pub(crate) const CHARS_A_TOKEN: usize = 4;

#[derive(Debug)]
pub(crate) struct Replica {
    /// For one token.
    pace: Duration,
    /// Hashes of the beginnings that it has read. Whoever reads holds the lock.
    held: tokio::sync::Mutex<HashSet<u64>>,
    /// Tokens that it computed, and that it did not have to.
    pub(crate) computed: AtomicU32,
    pub(crate) hits: AtomicU32,
    /// Requests that it has.
    pub(crate) active: AtomicU32,
}

impl Replica {
    pub(crate) fn new(pace: Duration) -> Self {
        let count = || AtomicU32::new(0);
        Self { pace, held: Default::default(), computed: count(), hits: count(), active: count() }
    }

    /// Reads a prompt, and draws one token.
    pub(crate) async fn read(&self, request: &v1::GenerateRequest) -> Usage {
        self.active.fetch_add(1, Ordering::Relaxed);
        let mut held = self.held.lock().await;
        let mut hasher = DefaultHasher::new();
        let mut usage = Usage { completion_tokens: 1, ..Usage::default() };
        for message in &request.messages {
            let text = message.content.as_deref().unwrap_or_default();
            (&message.role, text).hash(&mut hasher);
            let tokens = (text.len() / CHARS_A_TOKEN) as u32;
            usage.prompt_tokens += tokens;
            usage.cached_tokens += if held.insert(hasher.finish()) { 0 } else { tokens };
        }
        let computed = usage.prompt_tokens - usage.cached_tokens;
        tokio::time::sleep(self.pace * computed).await;
        self.computed.fetch_add(computed, Ordering::Relaxed);
        self.hits.fetch_add(usage.cached_tokens, Ordering::Relaxed);
        self.active.fetch_sub(1, Ordering::Relaxed);
        usage
    }
}
