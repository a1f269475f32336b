//! A mesh of scripted stage-0 nodes: real gRPC over in-memory connections that can be cut.

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt as _, Stream};
use hyper_util::rt::TokioIo;
use mesh_gateway::Peers;
use mesh_proto::convert::fault_to_status;
use mesh_proto::v1;
use mesh_proto::v1::generate_event::Event;
use mesh_proto::v1::inference_server::{Inference, InferenceServer};
use mesh_types::{
    ByteSize, Fault, FinishReason, LayerRange, MeshView, ModelId, ModelView, PeerId, PeerState, PeerView, Usage,
};
use tokio::io::DuplexStream;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint, Server, Uri};
use tonic::{Request, Response, Status};

use crate::replica::Replica;

/// What a node does with a call.
#[derive(Clone, Debug)]
pub(crate) enum Script {
    /// Refuses with a fault.
    Refuse(Fault),
    /// Refuses with a status that carries no fault.
    Status(Status),
    /// Never says anything, not even that it heard the call.
    Deaf,
    /// Takes as long as this replica.
    Reads(Arc<Replica>),
    /// Does these steps.
    Steps(Vec<Step>),
}

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Started,
    /// Started, with this path relaxed.
    Relaxed(&'static str),
    Text(&'static str),
    Reasoning(&'static str),
    /// Index, id and name.
    Call(u32, &'static str, &'static str),
    /// Index and text.
    Arguments(u32, &'static str),
    Finished(FinishReason),
    /// Finished, with this usage.
    Counted(Usage),
    Fault(Fault),
    /// An event without a kind.
    Nonsense,
    /// What follows is sent by itself.
    Apart,
    /// Says that all before it was sent.
    Mark,
    /// Goes on once the test says so.
    Gate,
    /// Waits for ever.
    Hang,
}

/// The usage that every scripted answer ends with.
pub(crate) const USAGE: Usage = Usage {
    prompt_tokens: 11,
    completion_tokens: 3,
    cached_tokens: 2,
    reasoning_tokens: 1,
    accepted_tokens: 0,
    rejected_tokens: 0,
};

pub(crate) fn whole_answer() -> Script {
    Script::Steps(vec![
        Step::Started,
        Step::Text("Hel"),
        Step::Text(""),
        Step::Text("lo 🌍"),
        Step::Finished(FinishReason::Stop),
    ])
}

/// One scripted node.
pub(crate) struct Node {
    script: Mutex<Script>,
    /// The requests it got.
    pub(crate) requests: Mutex<Vec<v1::GenerateRequest>>,
    /// Calls that began, and calls that were dropped before their script's end.
    begun: watch::Sender<usize>,
    cancelled: watch::Sender<usize>,
    /// How many marks were passed.
    marked: watch::Sender<usize>,
    gate: Arc<tokio::sync::Semaphore>,
    channel: Channel,
    /// Serves and relays; aborting it cuts every connection.
    tasks: Mutex<JoinSet<()>>,
    pub(crate) presence: CancellationToken,
}

impl Node {
    fn new(script: Script) -> Arc<Self> {
        let (dial, dialled) = mpsc::channel::<DuplexStream>(4);
        let connector = tower::service_fn(move |_: Uri| {
            let dial = dial.clone();
            async move {
                let (near, far) = tokio::io::duplex(1 << 16);
                dial.send(far).await.map_err(|_| std::io::Error::from(std::io::ErrorKind::ConnectionRefused))?;
                Ok::<_, std::io::Error>(TokioIo::new(near))
            }
        });
        let node = Arc::new(Self {
            script: Mutex::new(script),
            requests: Mutex::default(),
            begun: watch::channel(0).0,
            cancelled: watch::channel(0).0,
            marked: watch::channel(0).0,
            gate: Arc::new(tokio::sync::Semaphore::new(0)),
            channel: Endpoint::from_static("http://node").connect_with_connector_lazy(connector),
            tasks: Mutex::default(),
            presence: CancellationToken::new(),
        });
        let service = InferenceServer::new(Service(Arc::clone(&node)));
        node.tasks.lock().unwrap().spawn(relay_and_serve(service, dialled));
        node
    }

    /// A node, and its services for a real mesh to serve.
    pub(crate) fn routes(script: Script) -> (Arc<Self>, tonic::service::Routes) {
        let node = Self::new(script);
        let routes = tonic::service::Routes::new(InferenceServer::new(Service(Arc::clone(&node))));
        (node, routes)
    }

    pub(crate) fn set(&self, script: Script) {
        *self.script.lock().unwrap() = script;
    }

    /// Lets one [`Step::Gate`] pass.
    pub(crate) fn open_gate(&self) {
        self.gate.add_permits(1);
    }

    /// Cuts all connections, and refuses new ones.
    pub(crate) fn cut(&self) {
        self.tasks.lock().unwrap().abort_all();
    }

    /// Waits until `count` calls have begun.
    pub(crate) async fn begun(&self, count: usize) {
        wait(&self.begun, count, "began").await;
    }

    /// Waits until a call has begun that gives the client nothing to read; for ever where `script` gives it something.
    pub(crate) async fn begun_and_silent(&self, script: &Script, stream: bool) {
        self.begun(1).await;
        if stream && matches!(script, Script::Steps(steps) if steps.len() > 1) {
            std::future::pending::<()>().await;
        }
    }

    /// Waits until `count` marks were passed.
    pub(crate) async fn marked(&self, count: usize) {
        wait(&self.marked, count, "came to a mark").await;
    }

    /// Waits until `count` calls were dropped before their end.
    pub(crate) async fn cancelled(&self, count: usize) {
        wait(&self.cancelled, count, "were cancelled").await;
    }
}

async fn wait(counter: &watch::Sender<usize>, count: usize, what: &str) {
    let mut counter = counter.subscribe();
    let reached = counter.wait_for(|now| *now >= count);
    let reached = tokio::time::timeout(Duration::from_secs(5), reached).await.is_ok();
    assert!(reached, "{count} calls {what} within 5 s");
}

/// Serves on the far ends of relays, all of which end with this future.
async fn relay_and_serve(service: InferenceServer<Service>, mut dialled: mpsc::Receiver<DuplexStream>) {
    let mut relays = JoinSet::new();
    let (accept, accepted) = mpsc::channel(4);
    relays.spawn(async move {
        let incoming = ReceiverStream::new(accepted);
        Server::builder().add_service(service).serve_with_incoming(incoming).await.unwrap();
    });
    while let Some(mut near) = dialled.recv().await {
        let (mut middle, far) = tokio::io::duplex(1 << 16);
        accept.send(Ok::<_, std::io::Error>(far)).await.unwrap();
        relays.spawn(async move {
            let _ = tokio::io::copy_bidirectional(&mut near, &mut middle).await;
        });
    }
}

struct Service(Arc<Node>);

/// Counts a call that is dropped before its end.
struct Guard {
    node: Arc<Node>,
    ended: bool,
}

impl Guard {
    /// The call came to its script's end.
    fn end(mut self) {
        self.ended = true;
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.ended {
            self.node.cancelled.send_modify(|count| *count += 1);
        }
    }
}

#[tonic::async_trait]
impl Inference for Service {
    type GenerateStream = Pin<Box<dyn Stream<Item = Result<v1::GenerateEvent, Status>> + Send>>;

    async fn generate(&self, request: Request<v1::GenerateRequest>) -> Result<Response<Self::GenerateStream>, Status> {
        let node = Arc::clone(&self.0);
        let request = request.into_inner();
        node.requests.lock().unwrap().push(request.clone());
        node.begun.send_modify(|count| *count += 1);
        let guard = Guard { node, ended: false };
        let script = guard.node.script.lock().unwrap().clone();
        let steps = match script {
            Script::Deaf => std::future::pending().await,
            Script::Reads(replica) => {
                let usage = replica.read(&request).await;
                vec![Step::Started, Step::Text("a"), Step::Counted(usage)]
            }
            Script::Steps(steps) => steps,
            Script::Refuse(fault) => {
                guard.end();
                return Err(fault_to_status(&fault));
            }
            Script::Status(status) => {
                guard.end();
                return Err(status);
            }
        };
        let events = futures::stream::unfold((guard, VecDeque::from(steps)), |(guard, mut steps)| async move {
            loop {
                let Some(step) = steps.pop_front() else {
                    guard.end();
                    return None;
                };
                if let Some(event) = perform(step, &guard.node).await {
                    return Some((Ok(v1::GenerateEvent { event }), (guard, steps)));
                }
            }
        });
        Ok(Response::new(Box::pin(events)))
    }

    /// Each character is a token.
    async fn tokenize(&self, request: Request<v1::TokenizeRequest>) -> Result<Response<v1::TokenizeReply>, Status> {
        let v1::TokenizeRequest { prompt, pieces } = request.into_inner();
        let prompt = prompt.unwrap_or_default();
        let text = match prompt.raw.as_ref().and_then(|raw| raw.input.as_ref()) {
            Some(v1::raw_prompt::Input::Text(raw)) => raw.text.clone(),
            Some(v1::raw_prompt::Input::Tokens(_)) => String::new(),
            None => prompt.messages.iter().filter_map(|message| message.content.clone()).collect(),
        };
        self.0.requests.lock().unwrap().push(prompt);
        let bytes = |c: char| c.to_string().into_bytes();
        Ok(Response::new(v1::TokenizeReply {
            tokens: text.chars().map(|c| c as i32).collect(),
            pieces: if pieces { text.chars().map(bytes).collect() } else { Vec::new() },
            context: 2048,
        }))
    }

    /// A text's vector is its length and one, that of tokens their number and zero.
    async fn embed(&self, request: Request<v1::EmbedRequest>) -> Result<Response<v1::EmbedReply>, Status> {
        let v1::EmbedRequest { inputs, .. } = request.into_inner();
        if let Script::Refuse(fault) = &*self.0.script.lock().unwrap() {
            return Err(fault_to_status(fault));
        }
        let vector = |input: &v1::EmbedInput| {
            let values = match &input.input {
                Some(v1::embed_input::Input::Text(raw)) => vec![raw.text.len() as f32, 1.0],
                Some(v1::embed_input::Input::Tokens(raw)) => vec![raw.tokens.len() as f32, 0.0],
                None => Vec::new(),
            };
            v1::Vector { values }
        };
        let mut vectors: Vec<_> = inputs.iter().map(vector).collect();
        if matches!(&*self.0.script.lock().unwrap(), Script::Deaf) {
            // A node that breaks the protocol.
            vectors.pop();
        }
        Ok(Response::new(v1::EmbedReply { vectors, prompt_tokens: 7 }))
    }

    async fn detokenize(
        &self,
        request: Request<v1::DetokenizeRequest>,
    ) -> Result<Response<v1::DetokenizeReply>, Status> {
        let char = |token: i32| u32::try_from(token).ok().and_then(char::from_u32);
        let text: Option<String> = request.into_inner().tokens.into_iter().map(char).collect();
        let unknown = || fault_to_status(&Fault::invalid("no such token").with_param("tokens"));
        Ok(Response::new(v1::DetokenizeReply { text: text.ok_or_else(unknown)? }))
    }
}

/// The event that `step` makes; `None`: none.
async fn perform(step: Step, node: &Node) -> Option<Option<Event>> {
    match step {
        Step::Started => Some(Some(Event::Started(started(&[])))),
        Step::Relaxed(path) => Some(Some(Event::Started(started(&[path])))),
        Step::Text(text) => {
            let delta = v1::Delta { text: text.to_owned(), tokens: vec![1], position: 11, logprobs: Vec::new() };
            Some(Some(Event::Delta(delta)))
        }
        Step::Reasoning(text) => Some(Some(Event::Reasoning(v1::ReasoningDelta { text: text.to_owned() }))),
        Step::Call(index, id, name) => {
            let start = v1::ToolCallStart { index, id: id.to_owned(), name: name.to_owned() };
            Some(Some(Event::ToolCallStart(start)))
        }
        Step::Arguments(index, text) => {
            Some(Some(Event::ToolCallDelta(v1::ToolCallDelta { index, text: text.to_owned() })))
        }
        Step::Finished(reason) => Some(Some(Event::Finished(mesh_proto::convert::finished(reason, USAGE)))),
        Step::Counted(usage) => Some(Some(Event::Finished(mesh_proto::convert::finished(FinishReason::Stop, usage)))),
        Step::Fault(fault) => Some(Some(Event::Fault(v1::Fault::from(&fault)))),
        Step::Nonsense => Some(None),
        Step::Apart => {
            tokio::task::yield_now().await;
            None
        }
        Step::Mark => {
            node.marked.send_modify(|count| *count += 1);
            None
        }
        Step::Gate => {
            node.gate.acquire().await.unwrap().forget();
            None
        }
        Step::Hang => std::future::pending().await,
    }
}

fn started(relaxed: &[&str]) -> v1::Started {
    let relaxed = relaxed.iter().map(|path| (*path).to_owned()).collect();
    v1::Started { prompt_tokens: 11, seed: 1, relaxed }
}

/// A mesh as the gateway sees it.
pub(crate) struct Mesh {
    view: watch::Sender<Arc<MeshView>>,
    nodes: HashMap<PeerId, Arc<Node>>,
    pub(crate) ages: Mutex<HashMap<PeerId, Duration>>,
    /// Members that the view tells nothing of, and what others were asked for.
    unseen: Mutex<Vec<PeerView>>,
    asked_for: Mutex<Vec<ModelId>>,
}

impl Mesh {
    /// One node for each row of name, active sequences and script; each serves the model `m`.
    pub(crate) fn new(rows: Vec<(&str, u32, Script)>) -> Arc<Self> {
        let mut view = MeshView::default();
        let mut nodes = HashMap::new();
        for (name, active, script) in rows {
            let peer = peer(name, vec![model("m", active)]);
            nodes.insert(peer.id.clone(), Node::new(script));
            view.peers.push(peer);
        }
        let (ages, unseen, asked_for) = Default::default();
        Arc::new(Self { view: watch::channel(Arc::new(view)).0, nodes, ages, unseen, asked_for })
    }

    /// Takes all nodes out of the view, until somebody asks for what they serve.
    pub(crate) fn hide_all(&self) {
        self.change(|view| self.unseen.lock().unwrap().append(&mut view.peers));
    }

    /// What other members were asked for.
    pub(crate) fn asked_for(&self) -> Vec<ModelId> {
        self.asked_for.lock().unwrap().clone()
    }

    pub(crate) fn node(&self, name: &str) -> &Arc<Node> {
        &self.nodes[&PeerId::new(format!("id-{name}"))]
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut MeshView)) {
        self.view.send_modify(|view| change(Arc::make_mut(view)));
    }
}

pub(crate) fn peer(name: &str, models: Vec<ModelView>) -> PeerView {
    PeerView {
        id: PeerId::new(format!("id-{name}")),
        name: name.into(),
        state: PeerState::Ready,
        local: false,
        version: "0.1.0".into(),
        addresses: Vec::new(),
        stage_addresses: Vec::new(),
        memory: ByteSize::default(),
        memory_free: ByteSize::default(),
        models,
        stages: Vec::new(),
        speed: None,
        links: Vec::new(),
        draining: false,
    }
}

pub(crate) fn model(name: &str, active: u32) -> ModelView {
    ModelView {
        name: name.into(),
        digest: None,
        ready: true,
        detail: String::new(),
        context: 2048,
        layers: 30,
        nodes: vec!["alpha".into(), "beta".into()],
        ranges: [(0, 15), (15, 30)].map(|(start, end)| LayerRange::new(start, end).unwrap()).into(),
        active,
        queued: 0,
        last_forward_ms: Some(1000),
        scripted: true,
        tools: "native (hermes)".into(),
    }
}

impl Peers for Mesh {
    fn view(&self) -> watch::Receiver<Arc<MeshView>> {
        self.view.subscribe()
    }

    fn find<'a>(&'a self, model: &'a ModelId) -> BoxFuture<'a, bool> {
        self.asked_for.lock().unwrap().push(model.clone());
        let serves = |peer: &PeerView| peer.models.iter().any(|listed| listed.name == *model);
        let found: Vec<_> = self.unseen.lock().unwrap().extract_if(.., |peer| serves(peer)).collect();
        let is_found = !found.is_empty();
        self.change(|view| view.peers.extend(found));
        std::future::ready(is_found).boxed()
    }

    fn ages(&self) -> HashMap<PeerId, Duration> {
        self.ages.lock().unwrap().clone()
    }

    fn channel(&self, peer: &PeerId) -> Channel {
        self.nodes[peer].channel.clone()
    }

    fn presence(&self, peer: &PeerId) -> CancellationToken {
        self.nodes[peer].presence.clone()
    }

    fn derive_key(&self, purpose: &str) -> [u8; 32] {
        std::array::from_fn(|index| purpose.as_bytes().get(index).copied().unwrap_or_default())
    }
}
