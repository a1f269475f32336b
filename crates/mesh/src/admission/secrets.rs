//! The mesh's secret and the ones before it: who rotates the secret keeps its members.
//!
//! A member that was away still has the secret of an earlier epoch. It is let in with that, because it proved itself
//! before under the same id, and is told the new one; whoever comes with an old token under an id that nobody knows stays
//! out.
//!
//! A token that expires holds no secret of the mesh but one that is derived from it and from the time: members work out
//! the same and look at their own clocks. Who is let in with it is told the mesh's secret.

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
    /// The present one is an invitation, good until then (Unix seconds).
    invited: Option<u64>,
    /// The newest last.
    past: VecDeque<(u32, Secret)>,
    /// Members that are at an earlier epoch, as they said when they refused this node.
    behind: HashMap<PeerId, u32>,
}

/// What is to be proven.
pub(super) struct Key {
    pub(super) epoch: u32,
    pub(super) secret: Secret,
    /// It is an invitation, good until then (Unix seconds).
    pub(super) invited: Option<u64>,
}

/// Whether the secret `new` takes the place of `old`, each with its epoch. Of two that were made at the same time one
/// wins, the same everywhere.
pub(crate) fn supersedes(new: (u32, &Secret), old: (u32, &Secret)) -> bool {
    (new.0, new.1.0) > (old.0, old.1.0)
}

impl Secrets {
    pub(super) fn new(present: (u32, Secret), invited: Option<u64>, past: Vec<(u32, Secret)>) -> Self {
        Self { present, invited, past: past.into(), behind: HashMap::new() }
    }

    pub(super) fn epoch(&self) -> u32 {
        self.present.0
    }

    /// Whether this node has been invited only, and can tell nobody from a stranger.
    pub(super) fn is_guest(&self) -> bool {
        self.invited.is_some()
    }

    /// A new secret, unless it is not newer.
    pub(super) fn renew(&mut self, epoch: u32, secret: Secret) {
        if self.invited.take().is_some() {
            self.present = (epoch, secret);
        } else if supersedes((epoch, &secret), (self.present.0, &self.present.1)) {
            self.past.push_back(std::mem::replace(&mut self.present, (epoch, secret)));
            if self.past.len() > MAX_PAST {
                self.past.pop_front();
            }
            self.behind.clear();
        }
    }

    /// What to prove to `peer`.
    pub(super) fn for_dialling(&self, peer: &PeerId) -> Key {
        let behind = self.behind.get(peer).and_then(|epoch| self.past(*epoch));
        let (invited, (epoch, secret)) =
            behind.map_or_else(|| (self.invited, self.present.clone()), |past| (None, past));
        Key { epoch, secret, invited }
    }

    /// What a peer at `epoch` has to prove. Earlier ones are for members only.
    pub(super) fn of(&self, epoch: u32, is_member: bool) -> Option<Secret> {
        let known =
            if epoch == self.present.0 { Some(self.present.clone()) } else { self.past(epoch).filter(|_| is_member) };
        known.map(|(_, secret)| secret)
    }

    /// `peer`, a member, said that it is at `epoch`. Returns whether it can be met there.
    pub(super) fn is_behind(&mut self, peer: PeerId, epoch: u32) -> bool {
        let can = self.behind.len() < MAX_HINTS && self.past(epoch).is_some();
        can && self.behind.insert(peer, epoch) != Some(epoch)
    }

    /// Of two that an epoch had, the one that won came last.
    fn past(&self, epoch: u32) -> Option<(u32, Secret)> {
        self.past.iter().rev().find(|(at, _)| *at == epoch).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_missed_a_renewal_is_met_with_the_secret_that_won_its_epoch() {
        let mut secrets = Secrets::new((1, Secret([1; 32])), None, Vec::new());
        for (epoch, byte) in [(2, 3), (2, 9), (2, 4), (3, 5)] {
            secrets.renew(epoch, Secret([byte; 32]));
        }
        assert!(secrets.of(3, false).is_some_and(|secret| secret == Secret([5; 32])));
        assert!(secrets.of(2, true).is_some_and(|secret| secret == Secret([9; 32])), "not the one that lost");
        assert!(secrets.of(2, false).is_none(), "a stranger");
        assert!(secrets.is_behind(PeerId::random(), 2));
    }
}
