//! One node in one process: HTTP in front, a scripted model behind, and all that is ours between.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use mesh_engine::{GenerateError, Generation, Generator, TokenEvent};
use mesh_gateway::{Config, Gateway, Peers};
use mesh_node::serve::{Availability, InferenceService, ServedModel, ServedModels};
use mesh_node::settings::ModelSettings;
use mesh_proto::v1::inference_server::InferenceServer;
use mesh_routing::Split;
use mesh_types::{
    ByteSize, FinishReason, GenerateSpec, MeshView, ModelId, ModelView, PeerId, PeerState, PeerView, TokenId, Usage,
};
use serde_json::Value;
use tokio::io::DuplexStream;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint, Server, Uri};

/// The name under which the model is served.
pub(crate) const MODEL: &str = "scripted";

/// What the model says next, token for token.
type Script = Arc<Mutex<Vec<TokenId>>>;

/// A running node.
pub(crate) struct Rig {
    address: std::net::SocketAddr,
    model: Arc<ServedModel>,
    script: Script,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl Rig {
    /// A node whose model has the vocabulary of SmolLM2 and this template; `None`: its own, which knows no tools.
    pub(crate) async fn start(template: Option<&str>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let chat_template = template.map(|source| {
            let path = folder.path().join("template.jinja");
            std::fs::write(&path, source).unwrap();
            path
        });
        let settings = ModelSettings {
            path: smollm2(),
            name: ModelId::new(MODEL),
            split: Split::Never,
            chat_template,
            force_tool_emulation: false,
            scripted: None,
            draft: None,
        };
        let model = Arc::new(ServedModel::open(&settings, Some(4096)).unwrap());
        let script = Script::default();
        let scripted = Scripted { script: Arc::clone(&script) };
        model.availability.send_replace(Availability::Ready(Arc::new(scripted)));
        let mut tasks = JoinSet::new();
        let channel = serve(InferenceService::new(ServedModels::new([Arc::clone(&model)])), &mut tasks);
        let peers = Arc::new(Alone { view: watch::channel(Arc::new(view())).0, channel });
        let gateway = Gateway::bind(Config::new(([127, 0, 0, 1], 0).into()), peers).await.unwrap();
        let (address, stop) = (gateway.local_addr(), CancellationToken::new());
        tasks.spawn(gateway.run(stop.clone()));
        Self { address, model, script, stop, tasks }
    }

    /// The model's next answer: these pieces, each in the vocabulary's own tokens; byte by byte where it is no text.
    pub(crate) fn say_in_tokens<'a>(&self, pieces: impl IntoIterator<Item = &'a [u8]>) {
        let tokens = pieces.into_iter().flat_map(|piece| match std::str::from_utf8(piece) {
            Ok(text) => self.model.vocab.tokenize(text, false, false).unwrap().into_iter().map(TokenId).collect(),
            Err(_) => piece.iter().map(|byte| self.token(*byte)).collect::<Vec<_>>(),
        });
        *self.script.lock().unwrap() = tokens.collect();
    }

    /// The model's next answer, byte by byte.
    pub(crate) fn say<'a>(&self, pieces: impl IntoIterator<Item = &'a [u8]>) {
        let tokens = pieces.into_iter().flatten().map(|byte| self.token(*byte));
        *self.script.lock().unwrap() = tokens.collect();
    }

    /// The token that is this byte.
    fn token(&self, byte: u8) -> TokenId {
        // The first 256 tokens of this vocabulary behind its special ones are the bytes, in an order of their own.
        let vocab = &self.model.vocab;
        let is_byte = |token: &i32| vocab.piece(*token, false) == [byte];
        TokenId((0..1024).find(is_byte).unwrap_or_else(|| panic!("no token is the byte {byte}")))
    }

    /// Status and body of the answer to a chat completion.
    pub(crate) async fn post(&self, body: impl Into<Bytes>) -> (u16, Bytes) {
        let stream = TcpStream::connect(self.address).await.unwrap();
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let _ = connection.await;
        });
        let request = http::Request::post("/v1/chat/completions")
            .header("host", "node")
            .header("content-type", "application/json")
            .body(Full::new(body.into()))
            .unwrap();
        let answer = async {
            let response = sender.send_request(request).await.unwrap();
            let status = response.status().as_u16();
            (status, response.into_body().collect().await.unwrap().to_bytes())
        };
        tokio::time::timeout(Duration::from_secs(20), answer).await.expect("an answer within 20 s")
    }

    /// The message and the finish reason of an unstreamed answer.
    pub(crate) async fn message(&self, body: &Value) -> Value {
        let (status, bytes) = self.post(body.to_string()).await;
        let answer: Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(status, 200, "{answer}");
        let mut message = answer["choices"][0]["message"].clone();
        message["finish_reason"] = answer["choices"][0]["finish_reason"].clone();
        message
    }

    /// The same of a streamed answer, added up.
    pub(crate) async fn streamed(&self, body: &Value) -> Value {
        let mut body = body.clone();
        body["stream"] = true.into();
        let (status, bytes) = self.post(body.to_string()).await;
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        assert_eq!(status, 200, "{text}");
        assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
        let mut sum = Sum::default();
        for line in text.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|line| *line != "[DONE]") {
            sum.add(&serde_json::from_str(line).unwrap());
        }
        sum.message()
    }

    /// Ends everything, in order.
    pub(crate) async fn stop(mut self) {
        self.stop.cancel();
        self.tasks.abort_all();
        while self.tasks.join_next().await.is_some() {}
    }
}

/// A stream, added up as clients do it.
#[derive(Default)]
struct Sum {
    content: String,
    reasoning: String,
    calls: Vec<Value>,
    finish_reason: Value,
}

impl Sum {
    fn add(&mut self, chunk: &Value) {
        let Some(choice) = chunk["choices"].get(0) else { return };
        let delta = &choice["delta"];
        self.content += delta["content"].as_str().unwrap_or_default();
        self.reasoning += delta["reasoning_content"].as_str().unwrap_or_default();
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let index = usize::try_from(call["index"].as_u64().unwrap()).unwrap();
            if index == self.calls.len() {
                assert!(call["id"].is_string() && call["function"]["name"].is_string(), "{call}");
                self.calls.push(call.clone());
                self.calls[index].as_object_mut().unwrap().remove("index");
                continue;
            }
            assert!(call.get("id").is_none() && call["function"].get("name").is_none(), "named twice: {call}");
            let sum = &mut self.calls[index]["function"]["arguments"];
            *sum = format!("{}{}", sum.as_str().unwrap(), call["function"]["arguments"].as_str().unwrap()).into();
        }
        if !choice["finish_reason"].is_null() {
            self.finish_reason = choice["finish_reason"].clone();
        }
    }

    fn message(self) -> Value {
        let mut message = serde_json::json!({"role": "assistant", "content": self.content});
        if !self.reasoning.is_empty() {
            message["reasoning_content"] = self.reasoning.into();
        }
        if !self.calls.is_empty() {
            message["tool_calls"] = self.calls.into();
        }
        message["finish_reason"] = self.finish_reason;
        message
    }
}

/// Says what the script holds, one token at a time.
struct Scripted {
    script: Script,
}

#[async_trait]
impl Generator for Scripted {
    async fn generate(&self, spec: GenerateSpec) -> Result<Generation, GenerateError> {
        let script = self.script.lock().unwrap().clone();
        let prompt_tokens = u32::try_from(spec.prompt.len()).unwrap();
        let most = usize::try_from(spec.max_tokens).unwrap();
        let reason = if script.len() > most { FinishReason::Length } else { FinishReason::Stop };
        let tokens: Vec<TokenId> = script.into_iter().take(most).collect();
        let completion_tokens = u32::try_from(tokens.len()).unwrap();
        let (sender, events) = mpsc::channel(tokens.len() + 1);
        for (position, token) in (prompt_tokens..).zip(tokens) {
            let usage = Usage { prompt_tokens, completion_tokens: position + 1 - prompt_tokens, ..Usage::default() };
            sender.try_send(Ok(TokenEvent::Token { token, position, logprobs: None, usage })).unwrap();
        }
        let usage = Usage { prompt_tokens, completion_tokens, ..Usage::default() };
        sender.try_send(Ok(TokenEvent::Finished { reason, usage })).unwrap();
        Ok(Generation { events })
    }
}

/// Serves gRPC on connections in memory.
fn serve(service: InferenceService, tasks: &mut JoinSet<()>) -> Channel {
    let (dial, dialled) = mpsc::channel::<Result<DuplexStream, std::io::Error>>(4);
    tasks.spawn(async move {
        let server = Server::builder().add_service(InferenceServer::new(service));
        server.serve_with_incoming(ReceiverStream::new(dialled)).await.unwrap();
    });
    let connector = tower::service_fn(move |_: Uri| {
        let dial = dial.clone();
        async move {
            let (near, far) = tokio::io::duplex(1 << 16);
            dial.send(Ok(far)).await.map_err(|_| std::io::Error::from(std::io::ErrorKind::ConnectionRefused))?;
            Ok::<_, std::io::Error>(TokioIo::new(near))
        }
    });
    Endpoint::from_static("http://node").connect_with_connector_lazy(connector)
}

/// A mesh of this node.
struct Alone {
    view: watch::Sender<Arc<MeshView>>,
    channel: Channel,
}

impl Peers for Alone {
    fn view(&self) -> watch::Receiver<Arc<MeshView>> {
        self.view.subscribe()
    }

    fn find<'a>(&'a self, _model: &'a ModelId) -> BoxFuture<'a, bool> {
        std::future::ready(false).boxed()
    }

    fn ages(&self) -> HashMap<PeerId, Duration> {
        HashMap::new()
    }

    fn channel(&self, _peer: &PeerId) -> Channel {
        self.channel.clone()
    }

    fn presence(&self, _peer: &PeerId) -> CancellationToken {
        CancellationToken::new()
    }

    fn derive_key(&self, _purpose: &str) -> [u8; 32] {
        [7; 32]
    }
}

fn view() -> MeshView {
    let model = ModelView {
        name: MODEL.into(),
        digest: None,
        ready: true,
        detail: String::new(),
        context: 4096,
        layers: 30,
        nodes: vec!["alone".into()],
        ranges: Vec::new(),
        active: 0,
        queued: 0,
        last_forward_ms: Some(1),
        scripted: true,
        tools: String::new(),
    };
    let mut view = MeshView::default();
    view.peers.push(PeerView {
        id: PeerId::new("id-alone"),
        name: "alone".into(),
        state: PeerState::Ready,
        local: true,
        version: "0.1.0".into(),
        addresses: Vec::new(),
        stage_addresses: Vec::new(),
        memory: ByteSize::default(),
        memory_free: ByteSize::default(),
        models: vec![model],
        stages: Vec::new(),
        speed: None,
        links: Vec::new(),
        draining: false,
    });
    view
}

fn smollm2() -> PathBuf {
    let folder = std::env::var_os("MESH_TEST_MODELS").map(PathBuf::from).unwrap_or_else(|| {
        let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
        let home = || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cache");
        cache.unwrap_or_else(home).join("mesh-node/models")
    });
    folder.join("SmolLM2-135M-Instruct.Q4_1.gguf")
}
