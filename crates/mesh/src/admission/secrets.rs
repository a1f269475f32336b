//! The mesh's secret and the ones before it: who rotates the secret keeps its members.
//!
//! A member that was away still has the secret of an earlier epoch. It is let in with that, because it proved itself
//! before under the same id, and is told the new one; whoever comes with an old token under an id that nobody knows stays
//! out.

use std::collections::HashMap;
use std::collections::VecDeque;

use libp2p::PeerId;

use crate::token::Secret;

/// Earlier secrets that are kept.
pub(crate) const MAX_PAST: usize = 8;
/// Peers whose epoch is remembered.
const MAX_HINTS: usize = 1024;

/// What a door opens for.
pub(super) struct Secrets {
    present: (u32, Secret),
    /// The newest last.
    past: VecDeque<(u32, Secret)>,
    /// Members that are at an earlier epoch, as they said when they refused this node.
    behind: HashMap<PeerId, u32>,
}

impl Secrets {
    pub(super) fn new(epoch: u32, secret: Secret, past: impl IntoIterator<Item = (u32, Secret)>) -> Self {
        Self { present: (epoch, secret), past: past.into_iter().collect(), behind: HashMap::new() }
    }

    pub(super) fn epoch(&self) -> u32 {
        self.present.0
    }

    /// A new secret, unless it is not newer. Returns whether it was.
    pub(super) fn renew(&mut self, epoch: u32, secret: Secret) -> bool {
        if epoch <= self.present.0 {
            return false;
        }
        self.past.push_back(std::mem::replace(&mut self.present, (epoch, secret)));
        if self.past.len() > MAX_PAST {
            self.past.pop_front();
        }
        self.behind.clear();
        true
    }

    /// What to prove to `peer`.
    pub(super) fn for_dialling(&self, peer: &PeerId) -> (u32, Secret) {
        let behind = self.behind.get(peer).and_then(|epoch| self.past(*epoch));
        behind.unwrap_or_else(|| self.present.clone())
    }

    /// What a peer at `epoch` has to prove. Earlier ones are for members only.
    pub(super) fn of(&self, epoch: u32, is_member: bool) -> Option<(u32, Secret)> {
        if epoch == self.present.0 { Some(self.present.clone()) } else { self.past(epoch).filter(|_| is_member) }
    }

    /// `peer`, a member, said that it is at `epoch`.
    pub(super) fn is_behind(&mut self, peer: PeerId, epoch: u32) {
        if self.behind.len() < MAX_HINTS && self.past(epoch).is_some() {
            self.behind.insert(peer, epoch);
        }
    }

    fn past(&self, epoch: u32) -> Option<(u32, Secret)> {
        self.past.iter().find(|(at, _)| *at == epoch).cloned()
    }
}
