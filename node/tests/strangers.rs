//! Strangers at the sockets of a real node: at its mesh port (TCP) and at its stage port (UDP). Each kind is refused at
//! both, the log says so, and none of them learns anything.
#![allow(clippy::unwrap_used)] // every one is a check

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use mesh_engine::{Stage as _, StageError, StageSpec};
use mesh_mesh::{Config, DataDir, Identity, JoinToken, LocalStatus, Membership, Mesh};
use mesh_proto::v1;
use mesh_proto::v1::inference_client::InferenceClient;
use mesh_transport::{Endpoint, Gate, Hop, RemoteChain};
use mesh_types::{LayerRange, PeerId, StageId};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

const PATIENCE: Duration = Duration::from_secs(30);
const LOOPBACK: ([u8; 4], u16) = ([127, 0, 0, 1], 0);

/// Strangers ask nobody who may connect.
struct Anybody;

impl Gate for Anybody {
    fn admits(&self, _: &PeerId) -> bool {
        true
    }
}

/// The real program.
struct Node {
    _child: Child,
    /// All that it wrote on standard output and in its log.
    said: watch::Receiver<String>,
    _reading: JoinSet<()>,
}

impl Node {
    /// Starts a node with a scripted model in `dir`.
    async fn start(dir: &Path) -> Self {
        let script = dir.join("script.toml");
        std::fs::write(&script, "otherwise = \"a secret answer\"").unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_mesh-node"))
            .args(["up", "--name", "host", "--gateway", "127.0.0.1:0", "--listen", "127.0.0.1:0", "--ctx", "512"])
            .args([Path::new("--model"), &smollm2(), Path::new("--scripted"), &script, Path::new("--data-dir"), dir])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let (say, said) = watch::channel(String::new());
        let say = Arc::new(say);
        let mut reading = JoinSet::new();
        let mut out = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
        let also = say.clone();
        reading.spawn(async move {
            while let Ok(Some(line)) = out.next_line().await {
                say.send_modify(|said| *said += &format!("{line}\n"));
            }
        });
        reading.spawn(async move {
            while let Ok(Some(line)) = log.next_line().await {
                also.send_modify(|said| *said += &format!("{line}\n"));
            }
        });
        Self { _child: child, said, _reading: reading }
    }

    /// Waits until a line holds all of `words`; returns it.
    async fn says(&self, words: &[&str]) -> String {
        let line =
            |said: &str| said.lines().find(|line| words.iter().all(|word| line.contains(word))).map(str::to_owned);
        let mut said = self.said.clone();
        let found = tokio::time::timeout(PATIENCE, said.wait_for(|said| line(said).is_some())).await.map(|_| ());
        assert!(found.is_ok(), "no line with {words:?} in\n{}", *self.said.borrow());
        line(&self.said.borrow()).unwrap()
    }
}

/// Whoever comes to the node: one identity on both ports.
struct Guest {
    mesh: Mesh,
    endpoint: Endpoint,
    _dir: tempfile::TempDir,
}

impl Guest {
    /// With what `membership` makes of its data directory.
    async fn start(name: &str, dir: tempfile::TempDir, membership: impl FnOnce(&DataDir) -> Membership) -> Self {
        let data_dir = DataDir::open(dir.path()).unwrap();
        let identity = Identity::open(&data_dir).unwrap();
        let endpoint = Endpoint::bind(LOOPBACK.into(), identity.keypair(), Arc::new(Anybody)).unwrap();
        let membership = membership(&data_dir);
        let (name, version) = (name.to_owned(), "0.0.1".to_owned());
        let config = Config { identity, membership, listen: LOOPBACK.into(), name, version, mdns: false };
        let mesh = Mesh::start(config).await.unwrap();
        mesh.publish(LocalStatus::default());
        Self { mesh, endpoint, _dir: dir }
    }

    async fn with_token(name: &str, token: &JoinToken) -> Self {
        Self::start(name, tempfile::tempdir().unwrap(), |dir| Membership::join(dir, token).unwrap()).await
    }

    /// Why no stage of the node can be reached.
    async fn stage_refusal(&self, host: &PeerId, address: SocketAddr) -> String {
        let layers = LayerRange::new(0, 6).unwrap();
        let spec = StageSpec {
            model: "any".into(),
            layers,
            n_layer: 6,
            n_embd: 24,
            n_vocab: 60,
            n_ctx: 128,
            n_seq: 3,
            n_batch: 64,
            n_cells: 384,
            cuts_back: true,
            rolls_back: false,
            n_parked: 0,
            n_states: 0,
        };
        let (peer, addresses, stage) = (host.clone(), vec![address], StageId::new("any"));
        let hop = Hop { peer, name: "host".into(), addresses, stage, spec, lost: CancellationToken::new() };
        let chain = RemoteChain::new(self.endpoint.clone(), vec![hop]).unwrap();
        let linked = tokio::time::timeout(PATIENCE, chain.connect()).await.expect("answered in time");
        match linked {
            Err(StageError::Lost { reason, .. }) => reason,
            Err(other) => other.to_string(),
            Ok(_) => panic!("a stage of that name"),
        }
    }
}

fn smollm2() -> PathBuf {
    let folder = std::env::var_os("MESH_TEST_MODELS").map(PathBuf::from).unwrap_or_else(|| {
        let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
        let home = || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cache");
        cache.unwrap_or_else(home).join("mesh-node/models")
    });
    folder.join("SmolLM2-135M-Instruct.Q4_1.gguf")
}

/// Makes a mesh in `dir` that blocks `blocked`; returns a token that expires in a second.
async fn found_mesh(dir: &Path, blocked: &PeerId) -> JoinToken {
    let data_dir = DataDir::open(dir).unwrap();
    let (identity, membership) = (Identity::open(&data_dir).unwrap(), Membership::create_or_resume(&data_dir).unwrap());
    let (name, version) = ("host".to_owned(), "0.0.1".to_owned());
    let config = Config { identity, membership, listen: LOOPBACK.into(), name, version, mdns: false };
    let mesh = Mesh::start(config).await.unwrap();
    mesh.block(blocked);
    let token = mesh.token_for(Duration::from_secs(1));
    mesh.shutdown().await;
    token
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_kind_is_refused_at_both_ports() {
    let (dir, blocked_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let blocked_id = Identity::open(&DataDir::open(blocked_dir.path()).unwrap()).unwrap().id().clone();
    let short = found_mesh(dir.path(), &blocked_id).await;
    let node = Node::start(dir.path()).await;
    node.says(&["ready model"]).await;
    let ready = node.says(&["ready mesh"]).await;
    let token: JoinToken = ready.split("token=").nth(1).unwrap().parse().unwrap();

    // A member sees all, and reaches the stage port.
    let member = Guest::with_token("member", &token).await;
    member.mesh.joined(PATIENCE).await.unwrap();
    let mut view = member.mesh.view();
    let seen = view.wait_for(|view| view.peers.iter().any(|peer| !peer.models.is_empty()));
    let host = tokio::time::timeout(PATIENCE, seen).await.unwrap().unwrap().peers[1].clone();
    let stage_port: SocketAddr = host.stage_addresses[0].parse().unwrap();
    let refusal = member.stage_refusal(&host.id, stage_port).await;
    assert!(!refusal.contains("not admitted"), "{refusal}");

    // An expiry is a moment of the clock, which no event tells.
    let expiry = UNIX_EPOCH + Duration::from_secs(short.expires.unwrap());
    tokio::time::sleep(expiry.duration_since(SystemTime::now()).unwrap_or_default()).await;
    let elsewhere = found_mesh(tempfile::tempdir().unwrap().path(), &blocked_id).await;
    let late = {
        let bootstrap = token.bootstrap.clone();
        let token = JoinToken { expires: Some(short.expires.unwrap() + 3600), bootstrap, ..short };
        // It says that it is good for an hour more.
        Guest::with_token("late", &token).await
    };
    let wrong = Guest::with_token("wrong", &JoinToken { secret: elsewhere.secret, ..token.clone() }).await;
    let blocked = Guest::start("blocked", blocked_dir, |dir| Membership::join(dir, &token).unwrap()).await;
    let nobody =
        Guest::start("nobody", tempfile::tempdir().unwrap(), |dir| Membership::create_or_resume(dir).unwrap()).await;
    for (guest, why) in [
        (&late, Some("does not know this mesh's secret")),
        (&wrong, Some("does not know this mesh's secret")),
        (&blocked, Some("is blocked here")),
        (&nobody, None),
    ] {
        if let Some(why) = why {
            assert!(guest.mesh.joined(PATIENCE).await.is_err());
            node.says(&["refused a peer", &guest.mesh.local_id().to_string(), why, "retry_after"]).await;
        }
        assert!(guest.mesh.view().borrow().peers.iter().all(|peer| peer.local), "not a name, not a model");
        let asked = v1::TokenizeRequest::default();
        assert!(InferenceClient::new(guest.mesh.channel(&host.id)).tokenize(asked).await.is_err());
        let refusal = guest.stage_refusal(&host.id, stage_port).await;
        assert!(refusal.contains("not admitted"), "{refusal}");
    }
    node.says(&["refused a stage connection from a peer that is not admitted"]).await;
    member.mesh.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_is_blocked_loses_its_stage_links() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(dir.path()).await;
    node.says(&["ready model"]).await;
    let token: JoinToken = node.says(&["ready mesh"]).await.split("token=").nth(1).unwrap().parse().unwrap();
    let (member, bad) = (Guest::with_token("member", &token).await, Guest::with_token("bad", &token).await);
    for guest in [&member, &bad] {
        guest.mesh.joined(PATIENCE).await.unwrap();
    }
    let mut view = bad.mesh.view();
    let seen = view.wait_for(|view| view.peers.iter().any(|peer| !peer.models.is_empty()));
    let seen = tokio::time::timeout(PATIENCE, seen).await.unwrap().unwrap().clone();
    let host = seen.peers.iter().find(|peer| !peer.models.is_empty()).unwrap();
    let stage_port: SocketAddr = host.stage_addresses[0].parse().unwrap();
    bad.endpoint.connect(&host.id, &[stage_port]).await.unwrap();
    let presence = bad.mesh.presence(&host.id);
    // A member says whom to keep out; the node throws it out at both ports.
    member.mesh.block(bad.mesh.local_id());
    tokio::time::timeout(PATIENCE, presence.cancelled()).await.expect("thrown out of the mesh");
    // The first may still find the old connection, as that closes.
    let refused = async {
        let is_closing = |why: &str| why.contains("given up") || why.contains("connection lost");
        loop {
            let refusal = bad.stage_refusal(&host.id, stage_port).await;
            if !is_closing(&refusal) {
                break refusal;
            }
        }
    };
    let refusal = tokio::time::timeout(PATIENCE, refused).await.expect("the old connection closes");
    assert!(refusal.contains("not admitted"), "{refusal}");
    node.says(&["a member blocks a peer", &bad.mesh.local_id().to_string()]).await;
}
