//! The memory that a gateway routes by: which replica holds which conversation, and what is under way where.
//!
//! Owns the router and its clock; what to prefer is decided in `mesh-routing`. A [`Sent`] stands for one request at one
//! replica and is let go of when the run is over, however it ends.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mesh_routing::{Choice, Prefixes, Router, RunId};
use mesh_types::{ChatRequest, Fault, MeshView, PeerId, Usage};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

use crate::peers::Peers;

/// The router of one gateway.
pub struct Balancer {
    router: Mutex<Router>,
    started: Instant,
}

/// A request on its way through a replica.
pub(crate) struct Sent {
    balancer: Arc<Balancer>,
    run: RunId,
    computed: Option<u32>,
}

/// A mesh, seen by a gateway that remembers where it sent what.
pub(crate) struct Balanced {
    peers: Arc<dyn Peers>,
    balancer: Arc<Balancer>,
}

impl Balancer {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { router: Mutex::default(), started: Instant::now() })
    }

    /// The replicas for `chat`, best first.
    pub(crate) fn choose(&self, view: &MeshView, chat: &ChatRequest, prefixes: &Prefixes) -> Result<Choice, Fault> {
        let now = self.started.elapsed();
        Ok(self.router().choose(view, &chat.model, prefixes, now)?)
    }

    /// `chat` goes to `peer`.
    pub(crate) fn sent(self: &Arc<Self>, chat: &ChatRequest, peer: &PeerId, prefixes: &Prefixes) -> Sent {
        let run = self.router().sent(&chat.model, peer, prefixes, self.started.elapsed());
        Sent { balancer: Arc::clone(self), run, computed: None }
    }

    fn router(&self) -> MutexGuard<'_, Router> {
        self.router.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sent {
    /// The run ended well.
    pub(crate) fn finished(&mut self, usage: &Usage) {
        let prompt = usage.prompt_tokens.saturating_sub(usage.cached_tokens);
        self.computed = Some(prompt.saturating_add(usage.completion_tokens));
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        let now = self.balancer.started.elapsed();
        self.balancer.router().ended(&self.run, self.computed, now);
    }
}

impl Balanced {
    pub(crate) fn new(peers: Arc<dyn Peers>) -> Self {
        Self { peers, balancer: Balancer::new() }
    }
}

impl Peers for Balanced {
    fn view(&self) -> watch::Receiver<Arc<MeshView>> {
        self.peers.view()
    }

    fn ages(&self) -> HashMap<PeerId, Duration> {
        self.peers.ages()
    }

    fn channel(&self, peer: &PeerId) -> Channel {
        self.peers.channel(peer)
    }

    fn presence(&self, peer: &PeerId) -> CancellationToken {
        self.peers.presence(peer)
    }

    fn derive_key(&self, purpose: &str) -> [u8; 32] {
        self.peers.derive_key(purpose)
    }

    fn balancer(&self) -> Option<&Arc<Balancer>> {
        Some(&self.balancer)
    }
}
