//! Which sequences begin as a given prompt does: a radix tree over token ids.
//!
//! Every path from the root spells the tokens of the sequences below it, and tokens that sequences share are stored and
//! compared once. A sequence ends at the end of a node; a node other than the root either has a sequence that ends
//! there, or parts into at least two.
//!
//! Owns: the tokens of the sequences. Does not own: slots, KV cells, or what is worth keeping (`scheduler/slots.rs`).
//! Start with [`PrefixIndex::common`].

use std::collections::HashMap;

use mesh_engine::SeqId;
use mesh_types::TokenId;

/// See the module's documentation.
#[derive(Debug)]
pub struct PrefixIndex {
    /// The root first. Those in `free` are not in use.
    nodes: Vec<Node>,
    free: Vec<usize>,
    /// At whose end each sequence ends.
    ends: HashMap<SeqId, usize>,
}

#[derive(Debug, Default)]
struct Node {
    /// Tokens between the parent and this node; empty only for the root.
    edge: Vec<TokenId>,
    /// Tokens from the root to the end of `edge`.
    end: usize,
    parent: usize,
    /// No two of them begin with the same token.
    children: Vec<usize>,
    /// Sequences that end here.
    seqs: Vec<SeqId>,
}

const ROOT: usize = 0;

impl Default for PrefixIndex {
    fn default() -> Self {
        Self { nodes: vec![Node::default()], free: Vec::new(), ends: HashMap::new() }
    }
}

impl PrefixIndex {
    /// For every sequence that begins as `prompt` does: how many tokens they have in common; in no particular order.
    /// Takes time with that number and with the number of sequences, not with their lengths.
    pub fn common(&self, prompt: &[TokenId]) -> Vec<(SeqId, u32)> {
        let mut found = Vec::new();
        let mut node = ROOT;
        loop {
            let Node { end, children, seqs, .. } = &self.nodes[node];
            let rest = &prompt[*end..];
            let next = self.child(node, rest.first());
            let (shared, matched) = next.map_or((0, false), |next| {
                let edge = &self.nodes[next].edge;
                let shared = shared(edge, rest);
                (shared, shared == edge.len())
            });
            if *end > 0 {
                found.extend(seqs.iter().map(|seq| (*seq, as_count(*end))));
                children
                    .iter()
                    .filter(|child| Some(**child) != next)
                    .for_each(|child| self.below(*child, *end, &mut found));
            }
            match next {
                Some(next) if matched => node = next,
                Some(next) => {
                    self.below(next, *end + shared, &mut found);
                    return found;
                }
                None => return found,
            }
        }
    }

    /// Sets the tokens of a sequence, whatever it held before.
    pub fn insert(&mut self, seq: SeqId, tokens: &[TokenId]) {
        self.remove(seq);
        let node = self.extend(ROOT, tokens);
        self.settle(seq, node);
    }

    /// Appends a token to a sequence; one that is not there begins with it.
    pub fn push(&mut self, seq: SeqId, token: TokenId) {
        let node = self.ends.get(&seq).copied().unwrap_or(ROOT);
        let end = &mut self.nodes[node];
        if node != ROOT && end.children.is_empty() && end.seqs.len() == 1 {
            end.edge.push(token);
            end.end += 1;
            return;
        }
        let target = self.extend(node, &[token]);
        // Splitting an edge on the way leaves `node` where it was: only nodes below it change.
        self.leave(seq, node);
        self.settle(seq, target);
    }

    /// Cuts a sequence back to its first `len` tokens.
    pub fn truncate(&mut self, seq: SeqId, len: u32) {
        let (Some(&from), len) = (self.ends.get(&seq), len as usize) else { return };
        if len >= self.nodes[from].end {
            return;
        }
        if len == 0 {
            return self.remove(seq);
        }
        let mut node = from;
        while self.start(node) >= len {
            node = self.nodes[node].parent;
        }
        let target = if self.nodes[node].end == len { node } else { self.split(node, len - self.start(node)) };
        self.settle(seq, target);
        self.leave(seq, from);
    }

    /// Forgets a sequence.
    pub fn remove(&mut self, seq: SeqId) {
        if let Some(node) = self.ends.remove(&seq) {
            self.leave(seq, node);
        }
    }

    /// Tokens stored: those that sequences share count once.
    pub fn stored(&self) -> usize {
        self.nodes.iter().map(|node| node.edge.len()).sum()
    }

    fn start(&self, node: usize) -> usize {
        self.nodes[node].end - self.nodes[node].edge.len()
    }

    fn child(&self, node: usize, first: Option<&TokenId>) -> Option<usize> {
        let first = first?;
        self.nodes[node].children.iter().copied().find(|child| self.nodes[*child].edge.first() == Some(first))
    }

    /// Adds all sequences of `node` and below it, with `common` tokens each.
    fn below(&self, node: usize, common: usize, found: &mut Vec<(SeqId, u32)>) {
        let mut open = vec![node];
        while let Some(node) = open.pop() {
            found.extend(self.nodes[node].seqs.iter().map(|seq| (*seq, as_count(common))));
            open.extend(&self.nodes[node].children);
        }
    }

    /// The node `tokens` behind the end of `node`, made where it is not there.
    fn extend(&mut self, mut node: usize, mut tokens: &[TokenId]) -> usize {
        while let Some(first) = tokens.first() {
            let Some(next) = self.child(node, Some(first)) else {
                let end = self.nodes[node].end + tokens.len();
                return self.add(Node { edge: tokens.to_vec(), end, parent: node, ..Node::default() });
            };
            let shared = shared(&self.nodes[next].edge, tokens);
            node = if shared == self.nodes[next].edge.len() { next } else { self.split(next, shared) };
            tokens = &tokens[shared..];
        }
        node
    }

    /// Parts the edge of `node` behind its first `at` tokens; returns the new node, which ends there.
    fn split(&mut self, node: usize, at: usize) -> usize {
        let (end, parent) = (self.start(node) + at, self.nodes[node].parent);
        let tail = self.nodes[node].edge.split_off(at);
        let front = std::mem::replace(&mut self.nodes[node].edge, tail);
        self.nodes[parent].children.retain(|child| *child != node);
        let middle = self.add(Node { edge: front, end, parent, children: vec![node], seqs: Vec::new() });
        self.nodes[node].parent = middle;
        middle
    }

    fn add(&mut self, node: Node) -> usize {
        let parent = node.parent;
        let id = match self.free.pop() {
            Some(id) => {
                self.nodes[id] = node;
                id
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() - 1
            }
        };
        self.nodes[parent].children.push(id);
        id
    }

    /// `seq` ends at `node` from now on.
    fn settle(&mut self, seq: SeqId, node: usize) {
        if node == ROOT {
            self.ends.remove(&seq);
        } else {
            self.ends.insert(seq, node);
            self.nodes[node].seqs.push(seq);
        }
    }

    /// `seq` does not end at `node` any more: what nobody needs then goes.
    fn leave(&mut self, seq: SeqId, node: usize) {
        self.nodes[node].seqs.retain(|other| *other != seq);
        let mut node = node;
        while node != ROOT && self.nodes[node].seqs.is_empty() {
            let parent = self.nodes[node].parent;
            match self.nodes[node].children[..] {
                [] => {
                    self.nodes[parent].children.retain(|child| *child != node);
                    self.discard(node);
                    node = parent;
                }
                [only] => return self.join(node, only),
                _ => return,
            }
        }
    }

    /// Makes one edge of those of `node` and its only child, which takes its place.
    fn join(&mut self, node: usize, only: usize) {
        let parent = self.nodes[node].parent;
        let mut edge = std::mem::take(&mut self.nodes[node].edge);
        edge.append(&mut self.nodes[only].edge);
        self.nodes[only].edge = edge;
        self.nodes[only].parent = parent;
        for child in &mut self.nodes[parent].children {
            if *child == node {
                *child = only;
            }
        }
        self.discard(node);
    }

    fn discard(&mut self, node: usize) {
        self.nodes[node] = Node::default();
        self.free.push(node);
    }
}

/// Tokens at the beginning that are the same.
fn shared(one: &[TokenId], other: &[TokenId]) -> usize {
    one.iter().zip(other).take_while(|(a, b)| a == b).count()
}

fn as_count(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// The same without a tree.
    #[derive(Default)]
    struct Naive(BTreeMap<u32, Vec<TokenId>>);

    impl Naive {
        fn common(&self, prompt: &[TokenId]) -> Vec<(SeqId, u32)> {
            let common = self.0.iter().map(|(seq, tokens)| (SeqId(*seq), shared(tokens, prompt) as u32));
            common.filter(|(_, len)| *len > 0).collect()
        }
    }

    #[derive(Clone, Debug)]
    enum Op {
        Insert(u32, Vec<TokenId>),
        Push(u32, TokenId),
        Truncate(u32, u32),
        Remove(u32),
    }

    /// Few kinds of tokens, so that sequences have a lot in common.
    fn tokens() -> impl Strategy<Value = Vec<TokenId>> {
        prop::collection::vec((0..3).prop_map(TokenId), 0..12)
    }

    fn op() -> impl Strategy<Value = Op> {
        let seq = 0..5u32;
        prop_oneof![
            3 => (seq.clone(), tokens()).prop_map(|(seq, tokens)| Op::Insert(seq, tokens)),
            5 => (seq.clone(), (0..3).prop_map(TokenId)).prop_map(|(seq, token)| Op::Push(seq, token)),
            2 => (seq.clone(), 0..14u32).prop_map(|(seq, len)| Op::Truncate(seq, len)),
            1 => seq.prop_map(Op::Remove),
        ]
    }

    fn apply(op: &Op, index: &mut PrefixIndex, naive: &mut Naive) {
        match op {
            Op::Insert(seq, tokens) => {
                index.insert(SeqId(*seq), tokens);
                naive.0.insert(*seq, tokens.clone());
            }
            Op::Push(seq, token) => {
                index.push(SeqId(*seq), *token);
                naive.0.entry(*seq).or_default().push(*token);
            }
            Op::Truncate(seq, len) => {
                index.truncate(SeqId(*seq), *len);
                naive.0.entry(*seq).or_default().truncate(*len as usize);
            }
            Op::Remove(seq) => {
                index.remove(SeqId(*seq));
                naive.0.remove(seq);
            }
        }
    }

    fn check_shape(index: &PrefixIndex) {
        let used = |node: &usize| !index.free.contains(node);
        for id in (0..index.nodes.len()).filter(used) {
            let node = &index.nodes[id];
            assert!(id == ROOT || !node.seqs.is_empty() || node.children.len() > 1, "node {id} is of no use");
            assert_eq!(node.edge.is_empty(), id == ROOT);
            for child in &node.children {
                assert_eq!(index.nodes[*child].parent, id);
                assert_eq!(index.nodes[*child].end, node.end + index.nodes[*child].edge.len());
            }
            assert!(node.seqs.iter().all(|seq| index.ends[seq] == id));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

        #[test]
        fn it_finds_what_comparing_everything_finds(
            ops in prop::collection::vec((op(), tokens()), 0..60),
        ) {
            let (mut index, mut naive) = (PrefixIndex::default(), Naive::default());
            for (op, prompt) in ops {
                apply(&op, &mut index, &mut naive);
                check_shape(&index);
                let mut found = index.common(&prompt);
                found.sort();
                prop_assert_eq!(found, naive.common(&prompt), "after {:?}", op);
            }
        }
    }

    #[test]
    fn what_sequences_share_is_stored_once() {
        let mut index = PrefixIndex::default();
        let tokens = |range: std::ops::Range<i32>| range.map(TokenId).collect::<Vec<_>>();
        index.insert(SeqId(0), &tokens(0..100));
        index.insert(SeqId(1), &[tokens(0..80), tokens(200..250)].concat());
        index.insert(SeqId(2), &tokens(0..40));
        assert_eq!(index.stored(), 150);
        for seq in 0..3 {
            index.remove(SeqId(seq));
        }
        assert_eq!((index.stored(), index.nodes.len() - index.free.len()), (0, 1));
    }
}
