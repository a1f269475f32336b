//! The runs of one request, one for each choice, as one stream of events.
//!
//! The first is opened before anything is answered. The others follow, at the same node, once it has said something:
//! their prompt is in the cache by then. Each waits for a slot by itself, so that a request may ask for more choices
//! than a model has slots.

use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt as _};
use mesh_openai::Event;
use mesh_types::{ChatRequest, Fault, PeerId};

use crate::upstream::{self, Run, Upstream};

type Next = BoxFuture<'static, (u32, Result<(Event, Run), Fault>)>;

/// See the module's documentation. Dropping it cancels all of them.
pub(crate) struct Runs {
    upstream: Upstream,
    /// What comes next of each run that is not finished.
    open: FuturesUnordered<Next>,
    /// Not opened yet.
    waiting: Vec<(u32, ChatRequest)>,
    choices: usize,
    peer: PeerId,
    peer_name: String,
    prompt_tokens: u32,
    relaxed: Vec<String>,
}

impl Runs {
    /// Opens the first of `chats`.
    ///
    /// # Errors
    /// As [`Upstream::open`].
    ///
    /// # Cancel safety
    /// Dropping it cancels the call.
    pub(crate) async fn open(upstream: Upstream, chats: Vec<ChatRequest>) -> Result<Self, Fault> {
        let choices = chats.len();
        let mut waiting = (0..).zip(chats);
        let Some((_, chat)) = waiting.next() else { return Err(Fault::invalid("The request asks for nothing.")) };
        let first = upstream.open(&chat, None).await?;
        let (peer, peer_name, prompt_tokens) = (first.peer().clone(), first.name().to_owned(), first.prompt_tokens());
        let relaxed = first.relaxed().to_vec();
        let open = FuturesUnordered::new();
        open.push(next(0, first));
        Ok(Self { upstream, open, waiting: waiting.collect(), choices, peer, peer_name, prompt_tokens, relaxed })
    }

    /// How many there are.
    pub(crate) fn choices(&self) -> usize {
        self.choices
    }

    /// Tokens of the first one's prompt.
    pub(crate) fn prompt_tokens(&self) -> u32 {
        self.prompt_tokens
    }

    /// What of the request's schemas the node does not enforce, by path.
    pub(crate) fn relaxed(&self) -> &[String] {
        &self.relaxed
    }

    /// The next event of any; `None`: all are finished. After an error nothing follows.
    ///
    /// # Errors
    /// A run could not be opened, or failed.
    ///
    /// # Cancel safety
    /// No event is lost by dropping it.
    pub(crate) async fn next(&mut self) -> Option<Result<(u32, Event), Fault>> {
        let (choice, outcome) = self.open.next().await?;
        let (event, run) = match outcome {
            Ok(next) => next,
            Err(fault) => {
                self.open.clear();
                self.waiting.clear();
                return Some(Err(fault));
            }
        };
        for (choice, chat) in std::mem::take(&mut self.waiting) {
            self.open.push(later(self.upstream.clone(), choice, chat, self.peer.clone()));
        }
        if !matches!(event, Event::Finished(..)) {
            self.open.push(next(choice, run));
        }
        Some(Ok((choice, event)))
    }

    /// A fault for when the node breaks the protocol by `what`.
    pub(crate) fn violation(&self, what: &str) -> Fault {
        upstream::violation(&self.peer_name, what)
    }
}

fn next(choice: u32, mut run: Run) -> Next {
    Box::pin(async move {
        let event = run.next().await;
        (choice, event.map(|event| (event, run)))
    })
}

fn later(upstream: Upstream, choice: u32, chat: ChatRequest, peer: PeerId) -> Next {
    Box::pin(async move {
        let event = async {
            let mut run = upstream.open(&chat, Some(&peer)).await?;
            Ok((run.next().await?, run))
        };
        (choice, event.await)
    })
}
