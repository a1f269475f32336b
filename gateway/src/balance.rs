//! The memory that a gateway routes by: which replica holds which conversation, and what is under way where.
//!
//! Owns the router and its clock; what to prefer is decided in `mesh-routing`. A [`Sent`] stands for one request at one
//! replica and is let go of when the run is over, however it ends.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mesh_routing::{Candidate, Choice, Prefixes, Router, RunId};
use mesh_types::{ChatRequest, Fault, MeshView, Usage};
use tokio::time::Instant;

/// The router of one gateway.
pub(crate) struct Balancer {
    router: Mutex<Router>,
    started: Instant,
}

/// A request on its way through a replica.
pub(crate) struct Sent {
    balancer: Arc<Balancer>,
    run: RunId,
    answering: bool,
    usage: Option<Usage>,
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

    /// `chat` goes to `candidate`.
    pub(crate) fn sent(self: &Arc<Self>, chat: &ChatRequest, candidate: &Candidate, prefixes: &Prefixes) -> Sent {
        let run = self.router().sent(&chat.model, candidate, prefixes, self.started.elapsed());
        Sent { balancer: Arc::clone(self), run, answering: false, usage: None }
    }

    fn router(&self) -> MutexGuard<'_, Router> {
        self.router.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sent {
    /// The node has drawn something.
    pub(crate) fn answering(&mut self) {
        if !std::mem::replace(&mut self.answering, true) {
            self.balancer.router().answering(&self.run, self.balancer.started.elapsed());
        }
    }

    /// The run ended well.
    pub(crate) fn finished(&mut self, usage: &Usage) {
        self.usage = Some(*usage);
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        let now = self.balancer.started.elapsed();
        self.balancer.router().ended(&self.run, self.usage.as_ref(), now);
    }
}
