//! Whole meshes on loopback, with real sockets.

use std::io;
use std::time::Duration;

use mesh_proto::v1;
use mesh_proto::v1::inference_client::InferenceClient;
use mesh_proto::v1::inference_server::{Inference, InferenceServer};
use mesh_types::{ErrorClass, PeerState};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tonic::{Code, Request, Response, Status};

use super::*;
use crate::DataDir;
use crate::admission::VERSIONS;

mod copies;
mod lan;
mod leaders;
mod reach;
mod relay;
mod simulation;
mod strangers;

const PATIENCE: Duration = Duration::from_secs(30);

/// A node in a runtime of its own, so that it can be killed.
pub(crate) struct TestNode {
    pub(crate) mesh: Mesh,
    name: String,
    runtime: Option<Runtime>,
    dir: tempfile::TempDir,
}

impl TestNode {
    /// Starts a mesh.
    pub(crate) async fn up(name: &str) -> Self {
        Self::start(name, tempfile::tempdir().unwrap(), None, localhost(0)).await.unwrap()
    }

    /// Joins the mesh that `token` leads to; does not wait.
    pub(crate) async fn with_token(name: &str, token: &JoinToken) -> Self {
        Self::start(name, tempfile::tempdir().unwrap(), Some(token), localhost(0)).await.unwrap()
    }

    /// Joins the mesh of `other`, and says so.
    pub(crate) async fn join(name: &str, other: &Self) -> Self {
        let node = Self::with_token(name, &other.mesh.token()).await;
        node.mesh.joined(PATIENCE).await.unwrap();
        node.mesh.publish(LocalStatus::default());
        node
    }

    async fn start(
        name: &str,
        dir: tempfile::TempDir,
        token: Option<&JoinToken>,
        listen: SocketAddr,
    ) -> Result<Self, MeshError> {
        Self::start_with(name, dir, token, listen, |door| door).await
    }

    async fn start_with(
        name: &str,
        dir: tempfile::TempDir,
        token: Option<&JoinToken>,
        listen: SocketAddr,
        change: impl FnOnce(Door) -> Door,
    ) -> Result<Self, MeshError> {
        let filter = tracing_subscriber::EnvFilter::from_default_env();
        let _ = tracing_subscriber::fmt().with_env_filter(filter).with_test_writer().try_init();
        let data_dir = DataDir::open(dir.path()).unwrap();
        let membership = match token {
            Some(token) => Membership::join(&data_dir, token).unwrap(),
            None => Membership::create_or_resume(&data_dir).unwrap(),
        };
        drop(data_dir);
        Self::run(name, dir, membership, listen, change).await
    }

    /// Starts a node with what `membership` says.
    async fn run(
        name: &str,
        dir: tempfile::TempDir,
        membership: Membership,
        listen: SocketAddr,
        change: impl FnOnce(Door) -> Door,
    ) -> Result<Self, MeshError> {
        Self::run_with(name, dir, membership, listen, change, Tuning::default()).await
    }

    async fn run_with(
        name: &str,
        dir: tempfile::TempDir,
        membership: Membership,
        listen: SocketAddr,
        change: impl FnOnce(Door) -> Door,
        tuning: Tuning,
    ) -> Result<Self, MeshError> {
        let identity = Identity::open(&DataDir::open(dir.path()).unwrap()).unwrap();
        let door = change(door(&identity, &membership));
        let config =
            Config { identity, membership, listen, name: name.to_owned(), version: "0.0.1".to_owned(), mdns: true };
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        match runtime.spawn(Mesh::start_with(config, door, tuning)).await.unwrap() {
            Ok(mesh) => Ok(Self { mesh, name: name.to_owned(), runtime: Some(runtime), dir }),
            Err(error) => {
                runtime.shutdown_background();
                Err(error)
            }
        }
    }

    pub(crate) fn id(&self) -> PeerId {
        self.mesh.local_id().clone()
    }

    /// Ends it as a killed process ends: sockets close, nothing is said.
    fn kill(mut self) -> (String, tempfile::TempDir, SocketAddr) {
        let listen = self.mesh.listen_addr();
        self.runtime.take().unwrap().shutdown_background();
        let name = std::mem::take(&mut self.name);
        (name, std::mem::replace(&mut self.dir, tempfile::tempdir().unwrap()), listen)
    }

    /// Waits until it sees `name` in `state`.
    pub(crate) async fn sees(&self, name: &str, state: PeerState) {
        self.until(&format!("{name} is {state:?}"), |view| {
            view.peers.iter().any(|peer| peer.name == name && peer.state == state)
        })
        .await;
    }

    /// Waits until it has heard of that secret.
    async fn is_at_epoch(&self, epoch: u32) {
        let mut said = self.mesh.core.said.subscribe();
        let heard = said.wait_for(|said| said.as_ref().is_some_and(|said| said.status.epoch == epoch));
        assert!(tokio::time::timeout(PATIENCE, heard).await.is_ok(), "{} does not hear of the secret", self.name);
    }

    async fn until(&self, what: &str, condition: impl FnMut(&Arc<MeshView>) -> bool) {
        let mut view = self.mesh.view();
        let waited = tokio::time::timeout(PATIENCE, view.wait_for(condition)).await.map(|_| ());
        assert!(waited.is_ok(), "{}: not so: {what}; {:#?}", self.name, self.mesh.view().borrow());
    }
}

impl Drop for TestNode {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn localhost(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

async fn until(token: &CancellationToken) {
    tokio::time::timeout(PATIENCE, token.cancelled()).await.expect("not cancelled in time");
}

#[tokio::test]
async fn a_token_admits_and_is_kept() {
    let alpha = TestNode::up("alpha").await;
    alpha.mesh.publish(LocalStatus::default());
    let beta = TestNode::with_token("beta", &alpha.mesh.token().encode().parse().unwrap()).await;
    beta.mesh.joined(PATIENCE).await.unwrap();
    alpha.until("beta is joining", |view| view.peers.get(1).is_some_and(|p| p.state == PeerState::Joining)).await;
    beta.mesh.publish(LocalStatus { memory: ByteSize(7), ..Default::default() });
    alpha.sees("beta", PeerState::Ready).await;
    beta.sees("alpha", PeerState::Ready).await;

    assert_eq!(alpha.mesh.id(), beta.mesh.id());
    assert!(alpha.mesh.is_admitted(&beta.id()) && beta.mesh.is_admitted(&alpha.id()));
    assert!(alpha.mesh.is_admitted(&alpha.id()));
    let peers = alpha.mesh.peers();
    assert_eq!(peers.iter().map(|peer| peer.status.name.as_str()).collect::<Vec<_>>(), ["alpha", "beta"]);
    assert!(peers[0].local && !peers[1].local);
    assert_eq!((peers[1].status.memory_bytes, peers[1].status.version.as_str()), (7, "0.0.1"));

    beta.mesh.update(|status| status.memory = ByteSize(8));
    alpha.until("beta's memory is 8", |view| view.peers[1].memory == ByteSize(8)).await;

    let dir = beta.dir.path().to_owned();
    beta.mesh.shutdown().await;
    let kept = std::fs::read_to_string(dir.join("membership.json")).unwrap();
    assert!(kept.contains(&alpha.mesh.id().to_string()) && kept.contains(alpha.mesh.local_id().as_str()), "{kept}");
}

#[tokio::test]
async fn who_does_not_know_the_secret_stays_out_and_is_told_why() {
    let alpha = TestNode::up("alpha").await;
    let token = alpha.mesh.token();
    let other = TestNode::up("other").await.mesh.token();
    let address = token.bootstrap[0].to_string().split("/p2p").next().unwrap().to_owned();

    let wrong_secret = JoinToken { secret: other.secret.clone(), ..token.clone() };
    let beta = TestNode::with_token("beta", &wrong_secret).await;
    let error = beta.mesh.joined(PATIENCE).await.unwrap_err().to_string();
    let expected = format!("could not join the mesh: {address}: the node there does not accept the token's secret");
    assert_eq!(error, expected);
    assert!(!beta.dir.path().join("membership.json").exists(), "a token that leads nowhere leaves no trace");

    // The next one from the same address has to wait a little, and does.
    let wrong_mesh = JoinToken { mesh: other.mesh, ..token.clone() };
    let gamma = TestNode::with_token("gamma", &wrong_mesh).await;
    let error = gamma.mesh.joined(PATIENCE).await.unwrap_err().to_string();
    assert!(error.ends_with("the node there belongs to another mesh than the token's"), "{error}");

    let delta = TestNode::start_with("delta", tempfile::tempdir().unwrap(), Some(&token), localhost(0), |door| {
        door.with(2..=2, PATIENCE)
    });
    let error = delta.await.unwrap().mesh.joined(PATIENCE).await.unwrap_err().to_string();
    assert!(error.ends_with("the node there speaks protocol 1, this node speaks 2"), "{error}");

    let others: Vec<PeerState> = alpha.mesh.view().borrow().peers[1..].iter().map(|peer| peer.state).collect();
    assert_eq!(others, [PeerState::OtherVersion], "of the three only the other version is shown");
    assert!(!alpha.mesh.is_admitted(&beta.id()));
    let epsilon = TestNode::join("epsilon", &alpha).await;
    epsilon.sees("epsilon", PeerState::Ready).await;
}

#[tokio::test]
async fn strangers_on_the_port_get_nothing_in_no_time() {
    let alpha = TestNode::start_with("alpha", tempfile::tempdir().unwrap(), None, localhost(0), |door| {
        door.with(VERSIONS, Duration::from_millis(300))
    });
    let alpha = alpha.await.unwrap();
    for words in [&b"GET / HTTP/1.1\r\n\r\n"[..], b""] {
        let mut stranger = TcpStream::connect(alpha.mesh.listen_addr()).await.unwrap();
        stranger.write_all(words).await.unwrap();
        let mut heard = Vec::new();
        let read = tokio::time::timeout(PATIENCE, stranger.read_to_end(&mut heard)).await.expect("closed in time");
        assert!(read.is_ok() || read.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionReset));
        assert!(heard.len() < 64, "{heard:?}");
    }
    assert!(a_plain_libp2p_node_is_refused(&alpha).await);
    assert_eq!(alpha.mesh.view().borrow().peers.len(), 1);
}

/// A node that speaks noise, yamux and ping, and knows nothing of admission.
async fn a_plain_libp2p_node_is_refused(alpha: &TestNode) -> bool {
    use futures::StreamExt as _;
    use libp2p::swarm::SwarmEvent;
    let mut swarm = libp2p::SwarmBuilder::with_new_identity()
        .with_tokio()
        .with_tcp(Default::default(), libp2p::noise::Config::new, libp2p::yamux::Config::default)
        .unwrap()
        .with_behaviour(|_| libp2p::ping::Behaviour::default())
        .unwrap()
        .build();
    swarm.dial(alpha.mesh.token().bootstrap[0].clone()).unwrap();
    tokio::time::timeout(PATIENCE, async {
        loop {
            match swarm.select_next_some().await {
                // It dialled optimistically; its connection is refused as soon as it is used.
                SwarmEvent::OutgoingConnectionError { .. } | SwarmEvent::ConnectionClosed { .. } => return true,
                SwarmEvent::Behaviour(libp2p::ping::Event { result: Ok(_), .. }) => return false,
                _ => {}
            }
        }
    })
    .await
    .expect("refused in time")
}

#[tokio::test]
async fn three_nodes_find_each_other_through_one() {
    let alpha = TestNode::up("alpha").await;
    alpha.mesh.publish(LocalStatus::default());
    let beta = TestNode::join("beta", &alpha).await;
    let gamma = TestNode::join("gamma", &alpha).await;
    beta.sees("gamma", PeerState::Ready).await;
    gamma.sees("beta", PeerState::Ready).await;
    assert!(beta.mesh.is_admitted(&gamma.id()) && gamma.mesh.is_admitted(&beta.id()));
    let names: Vec<_> = gamma.mesh.view().borrow().peers.iter().map(|peer| peer.name.clone()).collect();
    assert_eq!(names, ["gamma", "alpha", "beta"], "this node first, the others by name");
}

#[tokio::test]
async fn a_killed_node_is_noticed_at_once_and_found_again() {
    let alpha = TestNode::up("alpha").await;
    alpha.mesh.publish(LocalStatus::default());
    let beta = TestNode::join("beta", &alpha).await;
    alpha.sees("beta", PeerState::Ready).await;
    let id = beta.id();
    let presence = alpha.mesh.presence(&id);
    assert!(!presence.is_cancelled());

    let (name, dir, listen) = beta.kill();
    let killed = std::time::Instant::now();
    until(&presence).await;
    assert!(killed.elapsed() < Duration::from_secs(2), "{:?}", killed.elapsed());
    assert!(!alpha.mesh.is_admitted(&id) && alpha.mesh.presence(&id).is_cancelled());
    alpha.sees("beta", PeerState::Gone).await;

    let beta = TestNode::start(&name, dir, None, listen).await.unwrap();
    assert_eq!(beta.id(), id);
    beta.mesh.publish(LocalStatus { memory: ByteSize(5), ..Default::default() });
    alpha.sees("beta", PeerState::Ready).await;
    alpha.until("beta says it is back", |view| view.peers[1].memory == ByteSize(5)).await;
    assert!(!alpha.mesh.presence(&id).is_cancelled());

    // And the first of all, to which everybody came.
    beta.sees("alpha", PeerState::Ready).await;
    let (name, dir, listen) = alpha.kill();
    beta.sees("alpha", PeerState::Gone).await;
    let alpha = TestNode::start(&name, dir, None, listen).await.unwrap();
    alpha.mesh.publish(LocalStatus::default());
    beta.sees("alpha", PeerState::Ready).await;
}

#[tokio::test]
async fn a_node_that_leaves_says_so() {
    let alpha = TestNode::up("alpha").await;
    let beta = TestNode::join("beta", &alpha).await;
    alpha.sees("beta", PeerState::Ready).await;
    let mut view = alpha.mesh.view();
    let mut states = Vec::new();
    let leaving = async {
        loop {
            view.changed().await.unwrap();
            let state = view.borrow_and_update().peers[1].state;
            states.push(state);
            if state == PeerState::Gone {
                return;
            }
        }
    };
    let shutdown = async { tokio::time::timeout(Duration::from_secs(10), beta.mesh.shutdown()).await.expect("ends") };
    tokio::time::timeout(PATIENCE, async { tokio::join!(leaving, shutdown) }).await.expect("beta is gone");
    assert!(states.contains(&PeerState::Leaving), "{states:?}");
    beta.mesh.shutdown().await;
}

/// Answers with the caller's id.
struct Echo;

#[tonic::async_trait]
impl Inference for Echo {
    type GenerateStream = futures::stream::Empty<Result<v1::GenerateEvent, Status>>;

    async fn generate(&self, _: Request<v1::GenerateRequest>) -> Result<Response<Self::GenerateStream>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn tokenize(&self, _: Request<v1::TokenizeRequest>) -> Result<Response<v1::TokenizeReply>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn embed(&self, _: Request<v1::EmbedRequest>) -> Result<Response<v1::EmbedReply>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn detokenize(&self, call: Request<v1::DetokenizeRequest>) -> Result<Response<v1::DetokenizeReply>, Status> {
        let caller = call.extensions().get::<Caller>().ok_or(Status::internal("nobody calls"))?;
        Ok(Response::new(v1::DetokenizeReply { text: caller.0.to_string() }))
    }
}

async fn echo(from: &TestNode, to: &PeerId) -> Result<String, Status> {
    let call = async {
        let mut there = InferenceClient::new(from.mesh.channel(to));
        Ok(there.detokenize(v1::DetokenizeRequest::default()).await?.into_inner().text)
    };
    tokio::time::timeout(PATIENCE, call).await.expect("answered in time")
}

#[tokio::test]
async fn peers_call_each_other_and_themselves() {
    let alpha = TestNode::up("alpha").await;
    let beta = TestNode::join("beta", &alpha).await;
    let unknown = echo(&beta, &alpha.id()).await.unwrap_err();
    assert_eq!(unknown.code(), Code::Unimplemented);
    alpha.mesh.serve_grpc(tonic::service::Routes::new(InferenceServer::new(Echo)));
    assert_eq!(echo(&beta, &alpha.id()).await.unwrap(), beta.id().as_str());
    assert_eq!(echo(&alpha, &alpha.id()).await.unwrap(), alpha.id().as_str());
    // Many at once, from several sides: no stream is lost.
    let gamma = TestNode::join("gamma", &alpha).await;
    let calls = (0..20).map(|_| async { (echo(&beta, &alpha.id()).await, echo(&gamma, &alpha.id()).await) });
    for (at_beta, at_gamma) in futures::future::join_all(calls).await {
        assert_eq!(at_beta.unwrap(), beta.id().as_str());
        assert_eq!(at_gamma.unwrap(), gamma.id().as_str());
    }
    alpha.sees("beta", PeerState::Ready).await;

    // A channel outlives its connection.
    let (name, dir, listen) = alpha.kill();
    beta.sees("", PeerState::Gone).await;
    let (id, asked) = (beta.mesh.view().borrow().peers[1].id.clone(), std::time::Instant::now());
    let lost = echo(&beta, &id).await.unwrap_err();
    assert_eq!(lost.code(), Code::Unavailable, "{lost:?}");
    assert!(asked.elapsed() < Duration::from_secs(5));
    let alpha = TestNode::start(&name, dir, None, listen).await.unwrap();
    alpha.mesh.serve_grpc(tonic::service::Routes::new(InferenceServer::new(Echo)));
    alpha.mesh.publish(LocalStatus::default());
    beta.sees("alpha", PeerState::Ready).await;
    assert_eq!(echo(&beta, &alpha.id()).await.unwrap(), beta.id().as_str());
}

#[tokio::test]
async fn where_nobody_answers_each_address_is_named() {
    let alpha = TestNode::up("alpha").await;
    let mut token = alpha.mesh.token();
    let (_, _, listen) = alpha.kill();
    token.bootstrap.push(format!("/ip4/127.0.0.1/tcp/1/p2p/{}", libp2p::PeerId::random()).parse().unwrap());
    let beta = TestNode::with_token("beta", &token).await;
    let error = beta.mesh.joined(Duration::from_secs(2)).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Unavailable);
    let error = error.to_string();
    for address in [format!("/ip4/127.0.0.1/tcp/{}", listen.port()), "/ip4/127.0.0.1/tcp/1".to_owned()] {
        assert!(error.contains(&format!("{address}: connection refused (nothing listens there)")), "{error}");
    }
    let nowhere = JoinToken { bootstrap: Vec::new(), ..token };
    let gamma = TestNode::with_token("gamma", &nowhere).await;
    let error = gamma.mesh.joined(PATIENCE).await.unwrap_err().to_string();
    assert_eq!(error, "could not join the mesh: the token names no address to join at");
}

#[tokio::test]
async fn a_port_in_use_is_named() {
    let alpha = TestNode::up("alpha").await;
    let listen = alpha.mesh.listen_addr();
    let error = match TestNode::start("beta", tempfile::tempdir().unwrap(), None, listen).await {
        Ok(_) => panic!("two nodes on one port"),
        Err(error) => error.to_string(),
    };
    assert!(error.starts_with(&format!("cannot listen on {listen}: another program is using that port")), "{error}");
}

#[tokio::test]
async fn loopback_is_advertised_only_by_who_listens_there() {
    let alpha = TestNode::up("alpha").await;
    let port = alpha.mesh.listen_addr().port();
    assert_eq!(alpha.mesh.listen_addresses(), [format!("/ip4/127.0.0.1/tcp/{port}/p2p/{}", alpha.id())]);
    let any = SocketAddr::from(([0, 0, 0, 0], 0));
    let beta = TestNode::start("beta", tempfile::tempdir().unwrap(), None, any).await.unwrap();
    let ips = beta.mesh.advertised_ips();
    assert!(!ips.is_empty() && (ips.len() == 1 || ips.iter().all(|ip| !ip.is_loopback())), "{ips:?}");
}

/// Two orders of taking the same locks would stop both for ever.
#[tokio::test]
async fn a_token_is_made_while_the_status_changes() {
    let alpha = TestNode::up("alpha").await;
    let mesh = alpha.mesh.clone();
    let changing = tokio::task::spawn_blocking(move || (0..20_000).for_each(|_| mesh.publish(LocalStatus::default())));
    let mesh = alpha.mesh.clone();
    let asking = tokio::task::spawn_blocking(move || {
        (0..20_000).for_each(|_| {
            assert_eq!(mesh.token().bootstrap.len(), 1);
            assert_eq!(mesh.peers().len(), 1);
        });
    });
    let both = tokio::time::timeout(PATIENCE, async { tokio::try_join!(changing, asking) }).await;
    if !matches!(both, Ok(Ok(_))) {
        // The runtime's end would wait for the threads.
        eprintln!("{both:?}");
        std::process::abort();
    }
}

#[tokio::test]
async fn a_replaced_token_stops_and_members_stay_even_those_that_were_away() {
    let alpha = TestNode::up("alpha").await;
    alpha.mesh.publish(LocalStatus::default());
    let old = alpha.mesh.token();
    let beta = TestNode::join("beta", &alpha).await;
    let away = TestNode::join("away", &alpha).await;
    alpha.sees("away", PeerState::Ready).await;
    let (_, dir, _) = away.kill();
    alpha.sees("away", PeerState::Gone).await;

    // Beta replaces it, and alpha hears.
    alpha.sees("beta", PeerState::Ready).await;
    beta.mesh.rotate_token().await.unwrap();
    alpha.is_at_epoch(2).await;
    let stranger = TestNode::with_token("stranger", &old).await;
    let error = stranger.mesh.joined(PATIENCE).await.unwrap_err().to_string();
    assert!(error.contains("it was replaced (epoch 2), ask for a new token"), "{error}");

    let back = TestNode::start("away", dir, None, localhost(0)).await.unwrap();
    back.mesh.publish(LocalStatus::default());
    back.is_at_epoch(2).await;
    let newcomer = TestNode::join("newcomer", &back).await;
    newcomer.sees("away", PeerState::Ready).await;
}

#[tokio::test]
async fn a_blocked_peer_is_thrown_out_everywhere_and_may_be_let_in_again() {
    let alpha = TestNode::up("alpha").await;
    alpha.mesh.publish(LocalStatus::default());
    let beta = TestNode::join("beta", &alpha).await;
    let bad = TestNode::join("bad", &alpha).await;
    beta.sees("bad", PeerState::Ready).await;
    bad.sees("beta", PeerState::Ready).await;
    let presence = (alpha.mesh.presence(&bad.id()), beta.mesh.presence(&bad.id()));
    assert!(alpha.mesh.block(&bad.id()) && !alpha.mesh.block(&bad.id()));
    until(&presence.0).await;
    until(&presence.1).await;
    assert_eq!(beta.mesh.blocked(), [bad.id()]);
    alpha.sees("bad", PeerState::Gone).await;
    assert!(!alpha.mesh.is_admitted(&bad.id()));
    assert!(echo(&bad, &alpha.id()).await.is_err());

    // It would come by itself, some time later. One that knows nobody any more comes back because it is dialled.
    let (id, (name, dir, listen)) = (bad.id(), bad.kill());
    let file = dir.path().join("membership.json");
    let mut kept: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    kept["peers"] = serde_json::json!({});
    std::fs::write(&file, kept.to_string()).unwrap();
    let bad = TestNode::start(&name, dir, None, listen).await.unwrap();
    bad.mesh.publish(LocalStatus::default());
    assert!(alpha.mesh.unblock(&id) && alpha.mesh.blocked().is_empty());
    bad.sees("alpha", PeerState::Ready).await;
    bad.sees("beta", PeerState::Ready).await;
}
