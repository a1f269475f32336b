//! The call to a stage-0 node: which one, when to try another, and what a broken connection means.
//!
//! A run is opened once its node has accepted it; until then another replica may take its place. Dropping a [`Run`], or
//! the future that opens it, cancels the call, and the node frees the sequence on every stage.

mod event;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use mesh_openai::Event;
use mesh_proto::v1;
use mesh_proto::v1::generate_event::Event as Wire;
use mesh_proto::v1::inference_client::InferenceClient;
use mesh_routing::{Candidate, Prefixes};
use mesh_types::chat::RawInput;
use mesh_types::{ChatRequest, ErrorClass, Fault, ModelId, PeerId};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};

use crate::balance::{Balancer, Sent};
use crate::config::Limits;
use crate::peers::{self, Peers};

use event::Reader;

/// Most replicas that are asked about one request.
const MAX_ATTEMPTS: usize = 3;
/// Most bytes of a peer's message that a client gets to see.
const MAX_MESSAGE: usize = 2000;
/// Most bytes of one message from a node: the tokens of the largest text that a client may send, with their pieces.
const MAX_MESSAGE_BYTES: usize = 256 << 20;

/// The way to the nodes of a mesh. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Upstream {
    pub(crate) peers: Arc<dyn Peers>,
    pub(crate) balancer: Arc<Balancer>,
    pub(crate) limits: Limits,
}

/// A run that a node has accepted.
pub(crate) struct Run {
    events: Streaming<v1::GenerateEvent>,
    reader: Reader,
    /// Events that are still to be given out.
    ready: VecDeque<Event>,
    peer: PeerId,
    name: String,
    prompt_tokens: u32,
    /// Paths of what the request asks of its schemas and the node does not enforce.
    relaxed: Vec<String>,
    /// Its place in the gateway's memory.
    sent: Option<Sent>,
    presence: CancellationToken,
    /// How long the node may be silent, and until when it may be now.
    silence: Duration,
    deadline: Instant,
}

impl Upstream {
    /// Opens `chat` at the first replica that accepts it, `preferred` before others.
    ///
    /// # Errors
    /// What the router says where there is no replica; a node's refusal; or what the first replica failed with, where
    /// all that were asked failed in a way that another might not have.
    ///
    /// # Cancel safety
    /// Dropping it cancels the call.
    pub(crate) async fn open(&self, chat: &ChatRequest, preferred: Option<&PeerId>) -> Result<Run, Fault> {
        let view = peers::view_for(&*self.peers, &chat.model).await;
        let prefixes = Prefixes::of(chat);
        let mut choice = self.balancer.choose(&view, chat, &prefixes)?;
        tracing::debug!(%choice, "replicas");
        choice.candidates.sort_by_key(|candidate| Some(&candidate.peer) != preferred);
        let mut first_fault = None;
        for candidate in choice.candidates.iter().take(MAX_ATTEMPTS) {
            // Counts from now on: others must not take the replica for idle meanwhile.
            let sent = self.balancer.sent(chat, candidate, &prefixes);
            match open_at(&*self.peers, candidate, chat, &self.limits).await {
                Ok(run) => {
                    tracing::info!(peer = %candidate.name, cached = candidate.cached, "accepted");
                    return Ok(Run { sent: Some(sent), ..run });
                }
                Err(fault) if another_may_do(&fault) => {
                    tracing::warn!(peer = %candidate.name, %fault, "no answer from this replica");
                    first_fault.get_or_insert(fault);
                }
                Err(fault) => return Err(fault),
            }
        }
        Err(first_fault.unwrap_or_else(|| Fault::unavailable("no replica of the model can be reached")))
    }
}

fn another_may_do(fault: &Fault) -> bool {
    matches!(fault.class, ErrorClass::Unavailable | ErrorClass::Overloaded)
}

async fn open_at(peers: &dyn Peers, candidate: &Candidate, chat: &ChatRequest, limits: &Limits) -> Result<Run, Fault> {
    let presence = peers.presence(&candidate.peer);
    let mut client = client(peers, &candidate.peer);
    let name = &candidate.name;
    let accepting = async {
        let events = client.generate(v1::GenerateRequest::from(chat)).await.map_err(|status| fault(&status, name))?;
        let mut run = Run {
            events: events.into_inner(),
            reader: Reader::default(),
            ready: VecDeque::new(),
            peer: candidate.peer.clone(),
            name: name.clone(),
            prompt_tokens: 0,
            relaxed: Vec::new(),
            sent: None,
            presence: presence.clone(),
            silence: limits.next_event,
            deadline: Instant::now() + limits.next_event,
        };
        run.started().await?;
        run.deadline = Instant::now() + run.silence;
        Ok(run)
    };
    tokio::select! {
        biased;
        accepted = timeout(limits.first_event, accepting) => accepted.unwrap_or_else(|_| {
            Err(Fault::new(ErrorClass::Deadline, format!("{name} did not accept the request in time")))
        }),
        () = presence.cancelled() => Err(lost(name)),
    }
}

impl Run {
    /// Waits for the first event, which says that the node has accepted the request.
    async fn started(&mut self) -> Result<(), Fault> {
        match self.message().await? {
            Wire::Started(started) => {
                self.prompt_tokens = started.prompt_tokens;
                self.relaxed = started.relaxed;
                Ok(())
            }
            Wire::Fault(fault) => Err(from_peer(fault.into())),
            _ => Err(self.violation("an answer that had not started")),
        }
    }

    /// What of the request's schemas the node does not enforce, by path.
    pub(crate) fn relaxed(&self) -> &[String] {
        &self.relaxed
    }

    /// The next event.
    ///
    /// # Errors
    /// The run failed; there is no next event.
    ///
    /// # Cancel safety
    /// No event is lost by dropping it.
    pub(crate) async fn next(&mut self) -> Result<Event, Fault> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                if let (Event::Finished(_, usage), Some(sent)) = (&event, &mut self.sent) {
                    sent.finished(usage);
                }
                return Ok(event);
            }
            let presence = self.presence.clone();
            let message = tokio::select! {
                // Events that have arrived come before the loss.
                biased;
                message = timeout_at(self.deadline, self.message()) => message.map_err(|_| {
                    Fault::new(ErrorClass::Deadline, format!("{} has been silent for too long", self.name))
                })??,
                () = presence.cancelled() => return Err(lost(&self.name)),
            };
            self.deadline = Instant::now() + self.silence;
            if let Some(sent) = &mut self.sent {
                sent.answering();
            }
            match message {
                Wire::Fault(fault) => return Err(from_peer(fault.into())),
                message => {
                    let read = self.reader.read(message, &mut self.ready);
                    let event = read.map_err(|malformed| violation(&self.name, malformed.0))?;
                    self.ready.extend(event);
                }
            }
        }
    }

    /// A fault for when the node breaks the protocol by `what`.
    fn violation(&self, what: &str) -> Fault {
        violation(&self.name, what)
    }

    /// The node that answers.
    pub(crate) fn peer(&self) -> &PeerId {
        &self.peer
    }

    /// Its name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Tokens of the prompt.
    pub(crate) fn prompt_tokens(&self) -> u32 {
        self.prompt_tokens
    }

    async fn message(&mut self) -> Result<Wire, Fault> {
        match self.events.message().await {
            Ok(Some(v1::GenerateEvent { event: Some(event) })) => Ok(event),
            Ok(Some(v1::GenerateEvent { event: None })) => Err(self.violation("an event of an unknown kind")),
            Ok(None) => Err(self.violation("an end without a finish")),
            Err(status) => Err(fault(&status, &self.name)),
        }
    }
}

/// A fault for when `peer` breaks the protocol by `what`.
pub(crate) fn violation(peer: &str, what: &str) -> Fault {
    tracing::error!(peer, what, "the peer broke the protocol");
    Fault::new(ErrorClass::PeerProtocol, format!("{peer} gave an answer that makes no sense"))
}

/// The tokens of the prompt that `chat` would run.
///
/// # Errors
/// A node's refusal, or why none answered.
///
/// # Cancel safety
/// Dropping it cancels the call.
pub(crate) async fn tokenize(
    peers: &dyn Peers,
    chat: &ChatRequest,
    pieces: bool,
    limits: &Limits,
) -> Result<v1::TokenizeReply, Fault> {
    let request = v1::TokenizeRequest { prompt: Some(v1::GenerateRequest::from(chat)), pieces };
    let call = |mut client: InferenceClient<Channel>| {
        let request = request.clone();
        async move { client.tokenize(request).await }.boxed()
    };
    ask(peers, &chat.model, limits, call).await
}

/// The text of `tokens`.
///
/// # Errors
/// A node's refusal, or why none answered.
///
/// # Cancel safety
/// Dropping it cancels the call.
pub(crate) async fn detokenize(
    peers: &dyn Peers,
    model: &ModelId,
    tokens: Vec<i32>,
    limits: &Limits,
) -> Result<String, Fault> {
    let request = v1::DetokenizeRequest { model: model.to_string(), tokens };
    let call = |mut client: InferenceClient<Channel>| {
        let request = request.clone();
        async move { client.detokenize(request).await }.boxed()
    };
    Ok(ask(peers, model, limits, call).await?.text)
}

/// A vector of each of `inputs`.
///
/// # Errors
/// A node's refusal, or why none answered.
///
/// # Cancel safety
/// Dropping it cancels the call.
pub(crate) async fn embed(
    peers: &dyn Peers,
    model: &ModelId,
    inputs: &[RawInput],
    limits: &Limits,
) -> Result<v1::EmbedReply, Fault> {
    let inputs = inputs.iter().map(v1::EmbedInput::from).collect();
    let request = v1::EmbedRequest { model: model.to_string(), inputs };
    let call = |mut client: InferenceClient<Channel>| {
        let request = request.clone();
        async move { client.embed(request).await }.boxed()
    };
    ask(peers, model, limits, call).await
}

/// One call with one answer, at the first replica that gives it.
async fn ask<T>(
    peers: &dyn Peers,
    model: &ModelId,
    limits: &Limits,
    call: impl Fn(InferenceClient<Channel>) -> BoxFuture<'static, Result<tonic::Response<T>, Status>>,
) -> Result<T, Fault> {
    let view = peers::view_for(peers, model).await;
    let mut first_fault = None;
    for candidate in mesh_routing::choose(&view, model)?.candidates.iter().take(MAX_ATTEMPTS) {
        let (name, presence) = (&candidate.name, peers.presence(&candidate.peer));
        let calling = call(client(peers, &candidate.peer));
        let outcome = tokio::select! {
            biased;
            answered = timeout(limits.first_event, calling) => match answered {
                Ok(answered) => answered.map_err(|status| fault(&status, name)),
                Err(_) => Err(Fault::new(ErrorClass::Deadline, format!("{name} did not answer in time"))),
            },
            () = presence.cancelled() => Err(lost(name)),
        };
        match outcome {
            Ok(answered) => return Ok(answered.into_inner()),
            Err(fault) if another_may_do(&fault) => {
                first_fault.get_or_insert(fault);
            }
            Err(fault) => return Err(fault),
        }
    }
    Err(first_fault.unwrap_or_else(|| Fault::unavailable("no replica of the model can be reached")))
}

fn client(peers: &dyn Peers, peer: &PeerId) -> InferenceClient<Channel> {
    InferenceClient::new(peers.channel(peer)).max_decoding_message_size(MAX_MESSAGE_BYTES)
}

/// The fault in `status`. A status that carries none was not made by the node's inference service but on the way to it.
fn fault(status: &Status, peer: &str) -> Fault {
    if !status.details().is_empty() {
        return from_peer(mesh_proto::convert::status_to_fault(status));
    }
    tracing::warn!(peer, %status, "the call broke");
    match status.code() {
        Code::DeadlineExceeded => Fault::new(ErrorClass::Deadline, format!("{peer} did not answer in time")),
        Code::Unimplemented => Fault::unavailable(format!("{peer} serves no models")),
        // tonic's answer to a message over its limit.
        Code::OutOfRange | Code::ResourceExhausted => Fault::invalid(format!("The request is too large for {peer}.")),
        _ => lost(peer),
    }
}

fn lost(peer: &str) -> Fault {
    Fault::unavailable(format!("the connection to {peer} was lost")).with_code("peer_lost")
}

/// A peer's fault as a client may see it.
fn from_peer(mut fault: Fault) -> Fault {
    if fault.message.len() > MAX_MESSAGE {
        let end = (0..=MAX_MESSAGE).rev().find(|end| fault.message.is_char_boundary(*end)).unwrap_or(0);
        fault.message.truncate(end);
    }
    // Only the client cancels; a node that gives up is one that cannot go on.
    if fault.class == ErrorClass::Cancelled {
        fault.class = ErrorClass::Unavailable;
    }
    fault
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_without_a_fault_comes_from_the_way() {
        for code in [Code::Unknown, Code::Unavailable, Code::Internal, Code::Cancelled, Code::Aborted] {
            let fault = fault(&Status::new(code, "h2 protocol error: broken pipe"), "beta");
            assert_eq!(
                (fault.class, fault.message.as_str()),
                (ErrorClass::Unavailable, "the connection to beta was lost")
            );
        }
        assert_eq!(fault(&Status::unimplemented(""), "beta").message, "beta serves no models");
        assert_eq!(fault(&Status::out_of_range("x"), "beta").class, ErrorClass::InvalidRequest);
    }

    #[test]
    fn a_peers_fault_is_bounded_and_never_the_clients_own_cancel() {
        let seen = from_peer(Fault::new(ErrorClass::Cancelled, "é".repeat(5000)));
        assert_eq!(seen.class, ErrorClass::Unavailable);
        assert_eq!(seen.message.len(), MAX_MESSAGE);
    }
}
