//! A request's leave to be answered: it counts against the limit for as long as it lives, and travels inside the
//! response's body.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use mesh_types::{ErrorClass, Fault};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tracing::Span;

use crate::metrics::Metrics;

/// How a request ended, for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The body was dropped before its end.
    ClientGone,
    /// A whole answer.
    Finished,
    /// An error, before or within the answer.
    Failed,
}

/// Held while a request is being answered. Logs the end when dropped.
pub(crate) struct Ticket {
    _permit: OwnedSemaphorePermit,
    span: Span,
    since: Instant,
    metrics: Arc<Metrics>,
    /// Whether something of the answer has come.
    begun: AtomicBool,
    /// Set before the end.
    pub(crate) outcome: Outcome,
}

impl Ticket {
    /// Leave for one more request, whose span is the current one.
    ///
    /// # Errors
    /// Overloaded, where as many as may be are being answered.
    pub(crate) fn take(requests: &Arc<Semaphore>, metrics: &Arc<Metrics>) -> Result<Self, Fault> {
        let permit = Arc::clone(requests).try_acquire_owned().map_err(|_| {
            Fault::new(ErrorClass::Overloaded, "This gateway is answering as many requests as it may: try again soon.")
        })?;
        metrics.active(1);
        Ok(Self {
            _permit: permit,
            span: Span::current(),
            since: Instant::now(),
            metrics: Arc::clone(metrics),
            begun: AtomicBool::new(false),
            outcome: Outcome::ClientGone,
        })
    }

    /// Something of the answer has come; only the first time counts.
    pub(crate) fn begun(&self) {
        if !self.begun.swap(true, Ordering::Relaxed) {
            self.metrics.first_event(self.since.elapsed());
        }
    }

    /// The request's span, for what happens after the response's head went out.
    pub(crate) fn span(&self) -> &Span {
        &self.span
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let seconds = self.since.elapsed().as_secs_f32();
        self.metrics.active(-1);
        self.metrics.ended(self.since.elapsed());
        tracing::info!(parent: &self.span, outcome = ?self.outcome, seconds, "request ended");
    }
}
