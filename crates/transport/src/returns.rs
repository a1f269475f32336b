//! Where a link and its return stream meet at the last hop, whichever comes first.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::oneshot;

use crate::peers::Peer;
use crate::stream::{Receiving, Sending};
use crate::wire::Session;

/// A stream from the node of stage 0 on which results go home.
#[derive(Debug)]
pub(crate) struct Return {
    pub(crate) peer: Arc<Peer>,
    pub(crate) send: Sending,
    /// Nothing comes on it; held so that the stream stays open.
    pub(crate) recv: Receiving,
}

enum Waiting {
    Stream(Return),
    Link(oneshot::Sender<Return>),
}

/// Everything that waits for its other half. Who puts something in takes it out again after a deadline.
#[derive(Default)]
pub(crate) struct Returns(Mutex<HashMap<Session, Waiting>>);

impl Returns {
    fn table(&self) -> std::sync::MutexGuard<'_, HashMap<Session, Waiting>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A return stream came in. A second one of a session replaces the first.
    pub(crate) fn offer(&self, session: Session, stream: Return) {
        let mut table = self.table();
        match table.remove(&session) {
            Some(Waiting::Link(link)) => {
                // A link that no longer waits drops the stream, which resets it.
                let _ = link.send(stream);
            }
            _ => {
                table.insert(session, Waiting::Stream(stream));
            }
        }
    }

    /// Takes back what nobody came for.
    pub(crate) fn withdraw(&self, session: Session) {
        self.table().remove(&session);
    }

    /// The return stream of a link. May be dropped; [`Self::withdraw`] then.
    pub(crate) async fn take(&self, session: Session) -> Option<Return> {
        let wait = {
            let mut table = self.table();
            if let Some(Waiting::Stream(stream)) = table.remove(&session) {
                return Some(stream);
            }
            let (link, wait) = oneshot::channel();
            table.insert(session, Waiting::Link(link));
            wait
        };
        wait.await.ok()
    }
}
