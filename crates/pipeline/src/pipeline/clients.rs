//! The clients of runs: their streams, and what there is to know about their reading.

use std::collections::HashMap;

use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use mesh_engine::{GenerateError, Generation, TokenEvent};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::scheduler::{Event, MAX_TOKENS, RunId};

type What = Result<TokenEvent, GenerateError>;

/// Room beyond what a client may leave unread: for the micro-batch that fills its stream, and for what is under way, one
/// more or, where one runs ahead, two of a token each.
const ROOM: usize = 2 * MAX_TOKENS as usize;

/// All clients. Dropping this ends every stream with an error.
pub(super) struct Clients {
    streams: HashMap<RunId, Client>,
    /// What is waited for on their side. `None`: the run ended meanwhile.
    waits: FuturesUnordered<BoxFuture<'static, Option<Notice>>>,
    /// Events that a client may leave unread.
    unread: usize,
}

/// A client did something.
pub(super) enum Notice {
    /// It dropped its stream.
    Gone(RunId),
    /// It read, and there is room again.
    Reads(RunId),
}

/// What became of an event.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Delivery {
    /// There is room for more.
    Delivered,
    /// The client has a lot to read: [`Notice::Reads`] follows.
    Full,
    /// The client is gone.
    Gone,
}

struct Client {
    events: mpsc::Sender<What>,
    /// Room for the end, always there.
    last: mpsc::OwnedPermit<What>,
    /// Ends the waits for this client.
    over: CancellationToken,
}

impl Clients {
    pub(super) fn new(unread: usize) -> Self {
        Self { streams: HashMap::new(), waits: FuturesUnordered::new(), unread: unread.max(1) }
    }

    /// A stream for a run that is still to be submitted; give it to [`Self::insert`].
    pub(super) fn stream(&self) -> (mpsc::Sender<What>, Generation) {
        let (sender, events) = mpsc::channel(self.unread + ROOM);
        (sender, Generation { events })
    }

    /// Adds the client of `run`, with a fresh stream.
    pub(super) fn insert(&mut self, run: RunId, events: mpsc::Sender<What>) {
        // Fails only where the client is gone already: then its run is over as soon as the notice is read.
        let Ok(last) = events.clone().try_reserve_owned() else {
            self.waits.push(Box::pin(async move { Some(Notice::Gone(run)) }));
            return;
        };
        let over = CancellationToken::new();
        let sender = events.clone();
        let gone = over.clone().run_until_cancelled_owned(async move {
            sender.closed().await;
            Notice::Gone(run)
        });
        self.waits.push(Box::pin(gone));
        self.streams.insert(run, Client { events, last, over });
    }

    /// Forgets the client of a cancelled run.
    pub(super) fn remove(&mut self, run: RunId) {
        if let Some(client) = self.streams.remove(&run) {
            client.over.cancel();
        }
    }

    /// Passes an event on, without ever waiting.
    pub(super) fn deliver(&mut self, event: Event) -> Delivery {
        let Event { run, what } = event;
        if matches!(what, Ok(TokenEvent::Finished { .. }) | Err(_)) {
            if let Some(client) = self.streams.remove(&run) {
                client.over.cancel();
                client.last.send(what);
            }
            return Delivery::Delivered;
        }
        let Some(client) = self.streams.get(&run) else { return Delivery::Gone };
        // Full cannot be: a run is held back while there is room.
        if client.events.try_send(what).is_err() {
            return Delivery::Gone;
        }
        if client.events.capacity() >= ROOM {
            return Delivery::Delivered;
        }
        let sender = client.events.clone();
        let reads = client.over.clone().run_until_cancelled_owned(async move {
            match sender.reserve_many(ROOM).await {
                Ok(_) => Notice::Reads(run),
                Err(_) => Notice::Gone(run),
            }
        });
        self.waits.push(Box::pin(reads));
        Delivery::Full
    }

    /// The next thing that a client does; `None` where there is nobody to wait for.
    ///
    /// # Cancel safety
    /// May be dropped.
    pub(super) async fn next(&mut self) -> Option<Notice> {
        loop {
            match self.waits.next().await {
                Some(Some(notice)) => return Some(notice),
                Some(None) => {}
                None => return None,
            }
        }
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        for (_, client) in self.streams.drain() {
            client.over.cancel();
            client.last.send(Err(GenerateError::Unavailable("the model is not loaded any more".to_owned())));
        }
    }
}
