//! Who was asked for which chunk, and what is still to be asked: shares the chunks of a fetch among its holders.
//!
//! Holders take from one queue as fast as each of them delivers. Towards the end, one that has nothing to do is also
//! given what a slower one was asked for last, so that the slowest does not decide when the fetch ends.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::{Duration, Instant};

use mesh_gguf::{CHUNK_BYTES, MissingChunk};

/// Bytes of the chunks that one request asks for, about. Small tensors go together.
const REQUEST_BYTES: u64 = CHUNK_BYTES;
/// Chunks that one request asks for, at most.
const REQUEST_CHUNKS: usize = 1024;
/// What a holder was asked for so long ago may be asked of another, whoever is faster.
const OVERDUE: Duration = Duration::from_secs(3);

/// A holder's number in a fetch.
pub(super) type HolderIndex = usize;

/// The chunks of a fetch.
pub(super) struct Ledger {
    /// Asked of nobody.
    waiting: VecDeque<MissingChunk>,
    /// Asked and not landed, in the order of asking.
    asked: BTreeMap<u64, Asked>,
    by_chunk: HashMap<(usize, u64), u64>,
    next_number: u64,
}

struct Asked {
    job: MissingChunk,
    /// Who; at most two.
    of: Vec<HolderIndex>,
    at: Instant,
}

impl Ledger {
    /// All of `jobs` are to be asked.
    pub(super) fn new(jobs: Vec<MissingChunk>) -> Self {
        Self { waiting: jobs.into(), asked: BTreeMap::new(), by_chunk: HashMap::new(), next_number: 0 }
    }

    /// Whether all have landed.
    pub(super) fn is_done(&self) -> bool {
        self.waiting.is_empty() && self.asked.is_empty()
    }

    /// What `holder` is to be asked for next; nothing where there is nothing for it now.
    pub(super) fn take(&mut self, holder: HolderIndex, now: Instant) -> VecDeque<MissingChunk> {
        let batch = take_batch(&mut self.waiting);
        if batch.is_empty() {
            return self.take_over(holder, now);
        }
        for job in &batch {
            self.by_chunk.insert((job.part, job.chunk), self.next_number);
            self.asked.insert(self.next_number, Asked { job: *job, of: vec![holder], at: now });
            self.next_number += 1;
        }
        batch
    }

    /// A chunk is written. What else is asked for it is no longer waited for.
    pub(super) fn landed(&mut self, job: &MissingChunk) {
        if let Some(number) = self.by_chunk.remove(&(job.part, job.chunk)) {
            self.asked.remove(&number);
        }
    }

    /// `holder` will not deliver what it was asked for. The next one is asked for it first.
    pub(super) fn give_back(&mut self, holder: HolderIndex) {
        let mut orphans = Vec::new();
        self.asked.retain(|_, asked| {
            asked.of.retain(|of| *of != holder);
            if asked.of.is_empty() {
                orphans.push(asked.job);
            }
            !asked.of.is_empty()
        });
        for job in orphans.into_iter().rev() {
            self.by_chunk.remove(&(job.part, job.chunk));
            self.waiting.push_front(job);
        }
    }

    /// The last of what the busiest other holder was asked for, if that is more than it delivers next, or overdue.
    fn take_over(&mut self, holder: HolderIndex, now: Instant) -> VecDeque<MissingChunk> {
        let mut load: HashMap<HolderIndex, u64> = HashMap::new();
        for asked in self.asked.values() {
            asked.of.iter().for_each(|of| *load.entry(*of).or_default() += asked.job.len);
        }
        if load.contains_key(&holder) {
            return VecDeque::new();
        }
        let overdue = |asked: &Asked| now.saturating_duration_since(asked.at) > OVERDUE;
        let slow = load.into_iter().max_by_key(|(_, bytes)| *bytes);
        let mut batch = VecDeque::new();
        let mut bytes = 0;
        for asked in self.asked.values_mut().rev().filter(|asked| asked.of.len() == 1) {
            let behind = slow.is_some_and(|(slow, load)| asked.of == [slow] && load > 2 * (bytes + asked.job.len));
            if bytes + asked.job.len > REQUEST_BYTES || batch.len() == REQUEST_CHUNKS || !(behind || overdue(asked)) {
                continue;
            }
            bytes += asked.job.len;
            asked.of.push(holder);
            batch.push_front(asked.job);
        }
        batch
    }
}

fn take_batch(jobs: &mut VecDeque<MissingChunk>) -> VecDeque<MissingChunk> {
    let mut batch = VecDeque::new();
    let mut bytes = 0;
    while let Some(job) = jobs.front()
        && (batch.is_empty() || bytes + job.len <= REQUEST_BYTES)
        && batch.len() < REQUEST_CHUNKS
    {
        bytes += job.len;
        batch.extend(jobs.pop_front());
    }
    batch
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(chunk: u64, len: u64) -> MissingChunk {
        MissingChunk { part: 0, tensor: 0, chunk, len }
    }

    fn numbers(batch: &VecDeque<MissingChunk>) -> Vec<u64> {
        batch.iter().map(|job| job.chunk).collect()
    }

    #[test]
    fn requests_are_about_a_chunk_long() {
        let sizes = [10, 20, CHUNK_BYTES, CHUNK_BYTES, 5];
        let mut jobs: VecDeque<_> = sizes.into_iter().zip(0..).map(|(len, chunk)| job(chunk, len)).collect();
        let sizes: Vec<_> = std::iter::from_fn(|| Some(take_batch(&mut jobs).len()).filter(|n| *n > 0)).collect();
        assert_eq!(sizes, [2, 1, 1, 1]);
    }

    #[test]
    fn holders_share_the_queue_and_a_failed_ones_part_comes_first() {
        let mut ledger = Ledger::new((0..5).map(|chunk| job(chunk, CHUNK_BYTES)).collect());
        let now = Instant::now();
        assert_eq!([0, 1, 0, 1].map(|holder| numbers(&ledger.take(holder, now))), [[0], [1], [2], [3]]);
        ledger.landed(&job(2, CHUNK_BYTES));
        ledger.landed(&job(2, CHUNK_BYTES));
        ledger.give_back(0);
        assert_eq!([1, 2, 2].map(|holder| numbers(&ledger.take(holder, now))), [vec![0], vec![4], vec![]]);
        for chunk in [0, 1, 3, 4] {
            assert!(!ledger.is_done());
            ledger.landed(&job(chunk, CHUNK_BYTES));
        }
        assert!(ledger.is_done());
    }

    #[test]
    fn an_idle_holder_takes_over_from_a_slow_one() {
        let mut ledger = Ledger::new((0..4).map(|chunk| job(chunk, CHUNK_BYTES)).collect());
        let now = Instant::now();
        (0..3).for_each(|_| drop(ledger.take(0, now)));
        assert_eq!(numbers(&ledger.take(1, now)), [3]);
        assert!(ledger.take(1, now).is_empty(), "it has something to do");
        ledger.landed(&job(3, CHUNK_BYTES));
        assert_eq!(numbers(&ledger.take(1, now)), [2], "the last of three");
        ledger.landed(&job(2, CHUNK_BYTES));
        assert!(ledger.take(1, now).is_empty(), "the other delivers as soon");
        ledger.landed(&job(1, CHUNK_BYTES));
        assert!(ledger.take(1, now).is_empty());
        assert_eq!(numbers(&ledger.take(1, now + 2 * OVERDUE)), [0], "it should have come");
        // Either may fail now; the other still delivers.
        ledger.give_back(0);
        assert!(!ledger.is_done() && ledger.take(2, now).is_empty());
        ledger.give_back(1);
        assert_eq!(numbers(&ledger.take(2, now)), [0]);
    }
}
