//! [`RemoteChain`]: consecutive stages on other nodes, as one stage.
//!
//! A link is one ordered stream from hop to hop, so that a decode step waits behind a prefill chunk that is still being
//! sent. The seam for a second stream is [`crate::wire::Control`]: another opening message with the same session would
//! carry prefill chunks, and each hop's feed would merge the two by step and sequence.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use mesh_engine::codec::{Limits, Message};
use mesh_engine::stage::LINK_DEPTH;
use mesh_engine::{Frame, Stage, StageError, StageLink, StageSpec, chain};
use mesh_types::{PeerId, StageId};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::ending::Ending;
use crate::endpoint::{Endpoint, Inner, OPEN_DEADLINE};
use crate::hop::{Next, open_next};
use crate::peers::Peer;
use crate::stream::{self, Broken, LINGER, Receiving, Sending};
use crate::wire::{Control, LinkRequest, Session, WireHop};

/// How long the return stream may take to open before results come back along the chain.
const DIRECT_DEADLINE: Duration = Duration::from_millis(1500);

/// One stage on another node.
#[derive(Clone, Debug)]
pub struct Hop {
    /// The node.
    pub peer: PeerId,
    /// Its name, for people and errors.
    pub name: String,
    /// Where its stage endpoint listens; may be empty for a node that has connected to whoever needs it.
    pub addresses: Vec<SocketAddr>,
    /// The stage there.
    pub stage: StageId,
    /// What that stage is, from the local manifest. A hop that has something else loaded refuses.
    pub spec: StageSpec,
    /// Cancelled when the node is known to be lost: ends links at once, and closes the connection to it.
    pub lost: CancellationToken,
}

/// Consecutive stages on other nodes. See the crate's documentation for the way that frames take.
pub struct RemoteChain {
    endpoint: Endpoint,
    hops: Vec<Hop>,
    spec: StageSpec,
    /// The link opened last.
    current: Mutex<Option<Ending>>,
}

impl RemoteChain {
    /// A chain through `hops`, in the order of their layers. Connects to nobody yet.
    ///
    /// # Errors
    /// [`StageError::Load`] where the hops do not fit together.
    pub fn new(endpoint: Endpoint, hops: Vec<Hop>) -> Result<Self, StageError> {
        let spec = chain::merge(hops.iter().map(|hop| &hop.spec))?;
        Ok(Self { endpoint, hops, spec, current: Mutex::new(None) })
    }

    fn route(&self) -> Vec<WireHop> {
        let wire = |hop: &Hop| WireHop {
            peer: hop.peer.clone(),
            name: hop.name.clone(),
            addresses: hop.addresses.clone(),
            stage: hop.stage.clone(),
            spec: hop.spec.clone(),
        };
        self.hops.iter().map(wire).collect()
    }

    /// The hop that is known to be lost, as soon as there is one.
    async fn lost(&self) -> StageError {
        lost(&self.hops, &self.route(), self.endpoint.inner()).await
    }

    /// Opens the return stream, if there is to be one and it can be had in time.
    async fn open_return(&self, session: Session, route: &[WireHop]) -> Option<Home> {
        let [_, .., last] = route else { return None };
        let open = async {
            let peer = self.endpoint.inner().peer(&last.peer, &last.addresses).await.map_err(|e| e.to_string())?;
            let (send, recv) = stream::open(&peer.connection, Control::Return(session)).await?;
            Ok::<_, String>(Home { recv, _send: send, _peer: peer })
        };
        match timeout(DIRECT_DEADLINE, open).await {
            Ok(Ok(home)) => Some(home),
            other => {
                let reason = other.map_or_else(|_| "no answer".to_owned(), |open| open.err().unwrap_or_default());
                tracing::info!(node = last.name, %reason, "results come back along the chain");
                None
            }
        }
    }

    async fn open(&self) -> Result<(Next, Option<Home>, Vec<WireHop>), StageError> {
        let started = Instant::now();
        let route = self.route();
        let mut session = [0; 16];
        getrandom::fill(&mut session).map_err(|error| StageError::Load(format!("no random numbers: {error}")))?;
        let session = Session::from_le_bytes(session);
        let home = self.open_return(session, &route).await;
        let left = OPEN_DEADLINE.saturating_sub(started.elapsed());
        let request = LinkRequest {
            session,
            origin: self.endpoint.local_peer().clone(),
            direct: home.is_some(),
            budget_ms: left.mul_f32(0.9).as_millis().try_into().unwrap_or(u32::MAX),
            previous: None,
            route: route.clone(),
        };
        let next = timeout(left, open_next(self.endpoint.inner(), request)).await;
        let next = next.map_err(|_| route[0].lost("it did not answer in time"))??;
        Ok((next, home, route))
    }
}

/// The return stream at the node of stage 0.
struct Home {
    recv: Receiving,
    /// Nothing is sent on it; held so that the stream stays open.
    _send: Sending,
    _peer: Arc<Peer>,
}

async fn lost(hops: &[Hop], route: &[WireHop], inner: &Inner) -> StageError {
    let tokens = hops.iter().map(|hop| Box::pin(hop.lost.cancelled()));
    let ((), index, _) = futures::future::select_all(tokens).await;
    inner.disconnect(&route[index].peer);
    route[index].lost("its node is gone")
}

#[async_trait]
impl Stage for RemoteChain {
    fn spec(&self) -> &StageSpec {
        &self.spec
    }

    async fn connect(&self) -> Result<StageLink, StageError> {
        let ending = Ending::new();
        let earlier = self.current.lock().unwrap_or_else(PoisonError::into_inner).replace(ending.clone());
        if let Some(earlier) = earlier {
            earlier.fail(StageError::Closed);
        }
        // A loss that is known by now is no reason to close a connection that may be a newer one.
        if let Some(hop) = self.hops.iter().position(|hop| hop.lost.is_cancelled()) {
            return Err(self.route()[hop].lost("its node is gone"));
        }
        let (next, home, route) = tokio::select! {
            biased;
            error = ending.failed() => return Err(error),
            error = self.lost() => return Err(error),
            opened = self.open() => opened?,
        };
        let (input, frames) = mpsc::channel(LINK_DEPTH);
        let (results, output) = mpsc::channel(LINK_DEPTH);
        let mut tasks = JoinSet::new();
        tasks.spawn(watch(Watch {
            hops: self.hops.clone(),
            route: route.clone(),
            inner: self.endpoint.inner().clone(),
            results: results.clone(),
            ending: ending.clone(),
        }));
        let Next { send, recv, hop, _peer } = next;
        tasks.spawn(send_frames(send, frames, ending.clone()));
        let last = route.last().cloned().unwrap_or_else(|| hop.clone());
        let mut receive = Receive { spec: self.spec.clone(), results, ending: ending.clone(), keep: vec![_peer], last };
        match home {
            Some(home) => {
                receive.keep.push(home._peer);
                tasks.spawn(hear(recv, hop, ending));
                tasks.spawn(receive.run(home.recv, Some(home._send)));
            }
            None => {
                tasks.spawn(receive.run(recv, None));
            }
        }
        Ok(StageLink { input, output, tasks })
    }
}

struct Watch {
    hops: Vec<Hop>,
    route: Vec<WireHop>,
    inner: Arc<Inner>,
    results: mpsc::Sender<Result<Frame, StageError>>,
    ending: Ending,
}

/// Ends the link when one of its nodes is lost, or when nobody listens any more.
async fn watch(it: Watch) {
    tokio::select! {
        _ = it.ending.wait() => {}
        error = lost(&it.hops, &it.route, &it.inner) => it.ending.fail(error),
        () = it.results.closed() => it.ending.fail(StageError::Closed),
    }
}

/// Sends the link's frames to the first hop. Dropped before the end, it resets the stream.
async fn send_frames(mut to: Sending, mut frames: mpsc::Receiver<Frame>, ending: Ending) {
    let moved = async {
        while let Some(frame) = frames.recv().await {
            to.frame(frame).await?;
        }
        Ok::<_, quinn::WriteError>(())
    };
    let end = tokio::select! {
        biased;
        _ = ending.wait() => return,
        moved = moved => moved,
    };
    // A hop that no longer reads says why on what it answers.
    if end.is_ok() {
        let _ = to.finish(Ok(())).await;
    }
}

/// Hears how the link ends from the first hop, where the results have their own way.
async fn hear(mut from: Receiving, hop: WireHop, ending: Ending) {
    let heard = async {
        match from.next(Limits::control()).await {
            Ok(Message::End(Ok(()))) => ending.wait().await,
            Ok(Message::End(Err(error))) => Err(error),
            Ok(_) => Err(Broken::Invalid("a frame that does not belong here".to_owned()).into_error(&hop)),
            Err(broken) => Err(settled(broken, &hop).await),
        }
    };
    tokio::select! {
        biased;
        _ = ending.wait() => {}
        Err(error) = heard => ending.fail(error),
        else => {}
    }
}

/// A hop that throws its streams away usually does so because of another; whose reason is on its way.
async fn settled(broken: Broken, hop: &WireHop) -> StageError {
    if matches!(broken, Broken::Cancelled) {
        tokio::time::sleep(LINGER).await;
    }
    broken.into_error(hop)
}

/// Where results arrive.
struct Receive {
    spec: StageSpec,
    results: mpsc::Sender<Result<Frame, StageError>>,
    ending: Ending,
    /// Connections that the link uses.
    keep: Vec<Arc<Peer>>,
    last: WireHop,
}

impl Receive {
    /// Runs until the link ends, and says how.
    async fn run(self, mut from: Receiving, _to: Option<Sending>) {
        let end = tokio::select! {
            biased;
            error = self.ending.failed() => Err(error),
            end = self.receive(&mut from) => end,
        };
        match end {
            Ok(()) => self.ending.done(),
            Err(error) => {
                self.ending.fail(error.clone());
                // Nobody listening is fine: the link was dropped.
                let _ = self.results.send(Err(error)).await;
            }
        }
        drop(self.keep);
    }

    async fn receive(&self, from: &mut Receiving) -> Result<(), StageError> {
        let limits = Limits::out_of_stage(&self.spec);
        loop {
            match from.next(limits).await {
                Ok(Message::Frame(frame)) => {
                    self.check(&frame)?;
                    if self.results.send(Ok(frame)).await.is_err() {
                        return Err(StageError::Closed);
                    }
                }
                Ok(Message::End(end)) => return end,
                Ok(Message::Control(_)) => return Err(self.invalid("no frame")),
                Err(broken) => return Err(settled(broken, &self.last).await),
            }
        }
    }

    /// A peer's word is not taken for what may follow from a frame.
    fn check(&self, frame: &Frame) -> Result<(), StageError> {
        match frame {
            Frame::Result(result) if self.spec.is_last() => result.check(&self.spec),
            Frame::Failure(_) => Ok(()),
            Frame::Command(command) if !self.spec.is_last() => command.check(&self.spec),
            Frame::Batch(batch) if !self.spec.is_last() => {
                let rows = batch.rows.as_ref().map_or(0, |rows| rows.data.len());
                let fits = rows == batch.tokens.len() * self.spec.n_embd as usize && rows > 0;
                if fits { Ok(()) } else { Err(self.invalid("rows of another shape")) }
            }
            _ => Err(self.invalid("a frame of the wrong kind")),
        }
    }

    fn invalid(&self, what: &str) -> StageError {
        StageError::InvalidFrame(format!("from {}: {what}", self.last.name))
    }
}
