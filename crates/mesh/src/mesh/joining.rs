//! What the first attempts to reach the mesh came to: `join` waits on it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use libp2p::Multiaddr;
use mesh_types::PeerId;
use tokio::sync::watch;

use super::reason::Reason;
use crate::Membership;

/// How the search goes.
pub(super) struct Joining {
    state: watch::Sender<State>,
}

#[derive(Default)]
struct State {
    connected: bool,
    /// Whether members are looked for on the local network too.
    lan: bool,
    /// Every address that can be tried, and what went wrong there last.
    tried: BTreeMap<(PeerId, Multiaddr), Option<Reason>>,
}

impl Joining {
    /// A search for the peers that `membership` knows, and on the local network where `lan` says so.
    pub(super) fn new(membership: &Membership, lan: bool) -> Self {
        let tried = membership
            .known_peers()
            .flat_map(|(peer, addresses)| addresses.iter().map(|address| ((peer.clone(), address.clone()), None)))
            .collect();
        Self { state: watch::Sender::new(State { connected: false, lan, tried }) }
    }

    /// Somebody was admitted.
    pub(super) fn connected(&self) {
        self.state.send_if_modified(|state| {
            state.tried.clear();
            !std::mem::replace(&mut state.connected, true)
        });
    }

    /// Addresses of `peer` were tried in vain.
    pub(super) fn failed(&self, peer: &PeerId, reasons: Vec<(Multiaddr, Reason)>) {
        self.state.send_if_modified(|state| {
            for (address, reason) in reasons {
                // Only those of the token count: others come with a connection.
                if let Some(known) = state.tried.get_mut(&(peer.clone(), address)) {
                    // Being asked to wait says less than the reason before it.
                    if reason.wait().is_none() || known.is_none() {
                        *known = Some(reason);
                    }
                }
            }
            true
        });
    }

    /// Waits until somebody is admitted.
    ///
    /// # Errors
    /// In words: every address, and what went wrong there.
    pub(super) async fn wait(&self, within: Duration) -> Result<(), String> {
        let mut state = self.state.subscribe();
        let _ = tokio::time::timeout(within, state.wait_for(|state| state.connected || state.is_hopeless())).await;
        let state = state.borrow();
        if state.connected { Ok(()) } else { Err(state.sentence(within)) }
    }
}

impl State {
    /// Whether waiting longer cannot help. A member may still be found on the local network where the token's addresses
    /// lead nowhere, but not where the mesh has refused its secret.
    fn is_hopeless(&self) -> bool {
        let over = |reason: &Reason| if self.lan { reason.is_refusal() } else { reason.is_final() };
        (!self.lan || !self.tried.is_empty()) && self.tried.values().all(|reason| reason.as_ref().is_some_and(over))
    }

    fn sentence(&self, within: Duration) -> String {
        let mut sentence = String::new();
        if self.tried.is_empty() {
            sentence += "the token names no address to join at";
        }
        for (at, ((_, address), reason)) in self.tried.iter().enumerate() {
            let separator = if at == 0 { "" } else { "; " };
            let _ = match reason {
                Some(reason) => write!(sentence, "{separator}{address}: {reason}"),
                None => write!(sentence, "{separator}{address}: no answer within {} s", within.as_secs()),
            };
        }
        if self.lan && !self.is_hopeless() {
            sentence += "; nor did a member on the local network answer by mDNS";
        }
        sentence
    }
}
