//! One hop of a link, at the node that runs its stage.
//!
//! Frames come in on the upstream, go through the stage, and leave for the next hop or, behind the last stage, for
//! home. A failure leaves in both directions: with the frames' stream, so that it comes home on the return stream, and
//! on the answering direction of the upstream, while the upstream itself is stopped.

use std::sync::Arc;
use std::time::Duration;

use mesh_engine::codec::{Limits, Message};
use mesh_engine::{Frame, StageError, StageLink, StageSpec};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::ending::Ending;
use crate::endpoint::{Inner, OPEN_DEADLINE};
use crate::peers::Peer;
use crate::returns::Return;
use crate::stream::{self, Broken, LINGER, Receiving, Sending};
use crate::wire::{Control, LinkRequest, MAX_HOPS, WireHop};

/// Where results and rows go, and what comes back from there.
enum Onward {
    /// To the next hop.
    Next(Next),
    /// Home, on a stream of their own.
    Direct(Return),
    /// Home along the chain.
    Back,
}

/// A link that was opened to the next hop.
pub(crate) struct Next {
    pub(crate) send: Sending,
    pub(crate) recv: Receiving,
    pub(crate) hop: WireHop,
    /// Keeps the connection open.
    pub(crate) _peer: Arc<Peer>,
}

/// Opens a link to `request.route[0]`, and with it to all hops behind.
pub(crate) async fn open_next(inner: &Arc<Inner>, request: LinkRequest) -> Result<Next, StageError> {
    let Some(hop) = request.route.first().cloned() else {
        return Err(StageError::InvalidFrame("a link without a hop".to_owned()));
    };
    let open = async {
        let peer = inner.peer(&hop.peer, &hop.addresses).await.map_err(|error| hop.lost(error.to_string()))?;
        let opened = stream::open(&peer.connection, Control::Link(request)).await;
        let (send, mut recv) = opened.map_err(|reason| hop.lost(reason))?;
        match recv.next(Limits::control()).await {
            Ok(Message::Control(Control::Ready)) => Ok(Next { send, recv, hop: hop.clone(), _peer: peer }),
            Ok(Message::Control(Control::Refused(error))) => Err(error),
            Ok(_) => Err(Broken::Invalid("an answer that is none".to_owned()).into_error(&hop)),
            Err(broken) => Err(broken.into_error(&hop)),
        }
    };
    open.await
}

/// Serves a link that a peer asked for, until it ends. Dropping the future cancels the link.
pub(crate) async fn serve(inner: &Arc<Inner>, mut back: Sending, mut upstream: Receiving, request: LinkRequest) {
    let session = request.session;
    let budget = Duration::from_millis(request.budget_ms.into()).min(OPEN_DEADLINE);
    let opened = tokio::select! {
        opened = open(inner, request, budget) => opened,
        _ = upstream.cancelled() => {
            inner.returns.withdraw(session);
            return;
        }
    };
    let (link, onward, ends) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            inner.returns.withdraw(session);
            tracing::info!(%error, "refused a stage link");
            if back.send(Message::Control(Control::Refused(error))).await.is_ok() {
                let _ = back.finish(Err(StageError::Closed)).await;
            }
            return;
        }
    };
    if back.send(Message::Control(Control::Ready)).await.is_ok() {
        run(link, upstream, back, onward, ends).await;
    }
}

type Opened = (StageLink, Onward, Ends);

/// Opens the stage, and what is behind it, at the same time.
async fn open(inner: &Arc<Inner>, mut request: LinkRequest, budget: Duration) -> Result<Opened, StageError> {
    let started = Instant::now();
    let hops = request.route.len();
    if hops == 0 || hops > MAX_HOPS || request.route[0].peer != inner.local {
        return Err(StageError::InvalidFrame("a link that does not lead here".to_owned()));
    }
    let own = request.route.remove(0);
    let previous = request.previous.replace(own.clone());
    let stage = inner.directory.get().and_then(|directory| directory.stage(&own.stage, &request.origin));
    let stage = stage.ok_or_else(|| own.lost("it has not loaded this stage"))?;
    let spec = stage.spec().clone();
    if spec != own.spec {
        return Err(own.lost("it has loaded another stage under this id"));
    }
    if spec.is_last() && !request.route.is_empty() {
        return Err(StageError::InvalidFrame("a hop behind the last stage".to_owned()));
    }
    // Dimensions are those of the stage that is loaded here; only the layers are the other end's word.
    let home = match request.route.last() {
        Some(last) => StageSpec { layers: last.spec.layers, ..spec.clone() },
        None => spec.clone(),
    };
    let onward = async {
        if !request.route.is_empty() {
            // The hops behind must have given up before this one is given up, so that their reason gets through.
            let left = budget.mul_f32(0.9).saturating_sub(started.elapsed());
            request.budget_ms = left.as_millis().try_into().unwrap_or(u32::MAX);
            let hop = request.route[0].clone();
            let next = timeout(left, open_next(inner, request)).await;
            return next.map_err(|_| hop.lost("it did not answer in time"))?.map(Onward::Next);
        }
        if !request.direct {
            return Ok(Onward::Back);
        }
        match timeout(budget.mul_f32(0.9), inner.returns.take(request.session)).await {
            Ok(Some(back)) if back.peer.id == request.origin => Ok(Onward::Direct(back)),
            _ => Err(own.lost("the way back to the node of stage 0 did not open")),
        }
    };
    let link = async {
        let link = timeout(budget.mul_f32(0.9), stage.connect()).await;
        let link = link.map_err(|_| own.lost("its stage did not open in time"))?;
        link.map_err(|error| with_host(error, &own))
    };
    let (link, onward) = tokio::try_join!(link, onward)?;
    Ok((link, onward, Ends { own, previous, home }))
}

/// A stage only knows itself as on this node; the other end must hear which node that is.
fn with_host(error: StageError, own: &WireHop) -> StageError {
    match error {
        StageError::Lost { model, layers, reason, .. } => {
            StageError::Lost { model, layers, host: own.name.clone(), reason }
        }
        other => other,
    }
}

struct Ends {
    own: WireHop,
    /// The hop before; `None` where that is the node of stage 0.
    previous: Option<WireHop>,
    /// What the last hop's stage is, as far as its frames are passed on here.
    home: StageSpec,
}

async fn run(link: StageLink, upstream: Receiving, back: Sending, onward: Onward, ends: Ends) {
    let StageLink { input, output, tasks: stage_tasks } = link;
    let ending = Ending::new();
    let (mut readers, mut writers) = (JoinSet::new(), JoinSet::new());
    let limits = Limits::into_stage(&ends.own.spec);
    readers.spawn(feed(Feed { upstream, input, limits, previous: ends.previous, ending: ending.clone() }));
    readers.spawn(watch(back.stopped(), ending.clone()));
    let own = ends.own;
    // What must stay as long as the link does.
    let (_peer, _recv);
    match onward {
        Onward::Next(Next { send, recv, hop, _peer: peer }) => {
            _peer = peer;
            let limits = Limits::out_of_stage(&ends.home);
            writers.spawn(relay(Relay { from: recv, hop, to: back, limits, ending: ending.clone() }));
            writers.spawn(drain(Drain { output, to: send, own, ends_link: false, ending: ending.clone() }));
        }
        Onward::Direct(Return { send, recv, peer }) => {
            (_peer, _recv) = (peer, recv);
            readers.spawn(watch(send.stopped(), ending.clone()));
            writers.spawn(conclude(back, ending.clone()));
            writers.spawn(drain(Drain { output, to: send, own, ends_link: true, ending: ending.clone() }));
        }
        Onward::Back => {
            writers.spawn(drain(Drain { output, to: back, own, ends_link: true, ending: ending.clone() }));
        }
    }
    let end = ending.wait().await;
    drop(readers);
    if end.is_err() {
        drop(stage_tasks);
    }
    // A peer that does not read is not waited for.
    let _ = timeout(LINGER, async { while writers.join_next().await.is_some() {} }).await;
}

struct Feed {
    upstream: Receiving,
    input: mpsc::Sender<Frame>,
    limits: Limits,
    previous: Option<WireHop>,
    ending: Ending,
}

/// Moves what comes in to the stage.
async fn feed(mut it: Feed) {
    let broken = loop {
        match it.upstream.next(it.limits).await {
            Ok(Message::Frame(frame)) => tokio::select! {
                sent = it.input.send(frame) => if sent.is_err() {
                    // The stage's link has ended; its output says why.
                    return;
                },
                broken = it.upstream.cancelled() => break broken,
            },
            Ok(Message::End(Ok(()))) => return,
            Ok(Message::End(Err(error))) => return it.ending.fail(error),
            Ok(Message::Control(_)) => break Broken::Invalid("no frame".to_owned()),
            Err(broken) => break broken,
        }
    };
    it.ending.fail(match (broken, &it.previous) {
        (Broken::Invalid(what), _) => StageError::InvalidFrame(what),
        (Broken::Lost(reason), Some(previous)) => previous.lost(reason),
        _ => StageError::Closed,
    });
}

/// The other side no longer reads what is sent home: the link was dropped.
async fn watch(stopped: impl Future<Output = ()>, ending: Ending) {
    stopped.await;
    ending.fail(StageError::Closed);
}

struct Drain {
    output: mpsc::Receiver<Result<Frame, StageError>>,
    to: Sending,
    own: WireHop,
    /// Nothing else has to come before the link is done.
    ends_link: bool,
    ending: Ending,
}

/// Moves what comes out of the stage.
async fn drain(mut it: Drain) {
    let end = loop {
        let item = tokio::select! {
            biased;
            error = it.ending.failed() => break Err(error),
            item = it.output.recv() => item,
        };
        match item {
            Some(Ok(frame)) => {
                if it.to.frame(frame).await.is_err() {
                    // Who reads this stream has ended the link, and says so elsewhere if there is a reason.
                    let reason = timeout(LINGER, it.ending.failed()).await;
                    return it.ending.fail(reason.unwrap_or(StageError::Closed));
                }
            }
            Some(Err(error)) => break Err(with_host(error, &it.own)),
            None => break Ok(()),
        }
    };
    if let Err(error) = &end {
        it.ending.fail(error.clone());
    }
    say(it.to, &end).await;
    if it.ends_link && end.is_ok() {
        it.ending.done();
    }
}

struct Relay {
    from: Receiving,
    hop: WireHop,
    to: Sending,
    limits: Limits,
    ending: Ending,
}

/// Moves what the next hop answers towards home: results where they have no way of their own, and the link's end.
async fn relay(mut it: Relay) {
    let end = loop {
        let message = tokio::select! {
            biased;
            error = it.ending.failed() => break Err(error),
            message = it.from.next(it.limits) => message,
        };
        match message {
            Ok(Message::Frame(frame)) => {
                if it.to.frame(frame).await.is_err() {
                    break Err(StageError::Closed);
                }
            }
            Ok(Message::End(end)) => break end,
            Ok(Message::Control(_)) => break Err(Broken::Invalid("no frame".to_owned()).into_error(&it.hop)),
            Err(Broken::Cancelled) => break Err(StageError::Closed),
            Err(broken) => break Err(broken.into_error(&it.hop)),
        }
    };
    match &end {
        Ok(()) => it.ending.done(),
        Err(error) => it.ending.fail(error.clone()),
    }
    say(it.to, &end).await;
}

/// Says on the answering direction how the link has ended, where no results travel there.
async fn conclude(back: Sending, ending: Ending) {
    say(back, &ending.wait().await).await;
}

/// Ends a stream. A link that was closed is thrown away at once, whatever of it is still on its way.
async fn say(to: Sending, end: &Result<(), StageError>) {
    if *end != Err(StageError::Closed) {
        // A peer that is gone need not know.
        let _ = to.finish(end.clone()).await;
    }
}

#[cfg(test)]
mod tests;
