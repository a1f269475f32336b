//! Whole meshes on loopback, with real sockets.

use std::time::Duration;

use mesh_types::{ErrorClass, PeerState};
use tokio::runtime::Runtime;

use super::*;
use crate::DataDir;

mod calls;
mod copies;
mod lan;
mod leaders;
mod port;
mod reach;
mod relay;
mod renewal;
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
