//! Who may not be here gets nothing, over real sockets: each kind of stranger, and what the node says of it.

use std::io;
use std::pin::Pin;
use std::sync::Mutex;
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use futures::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use libp2p::core::transport::{DialOpts, PortUse};
use libp2p::core::upgrade::{InboundConnectionUpgrade, OutboundConnectionUpgrade, UpgradeInfo, Version};
use libp2p::core::{Endpoint, Transport as _};
use libp2p::identity::Keypair;
use libp2p::{noise, tcp, yamux};
use mesh_types::PeerView;
use tonic::Code;

use super::calls::echo;
use super::*;
use crate::admission::{AdmissionError, Admit, Credentials};
use crate::mesh::stall::StallGuard;
use crate::token::Secret;

/// A token with the secret of another mesh.
fn wrong_secret(alpha: &TestNode, other: &TestNode) -> JoinToken {
    JoinToken { secret: other.mesh.token().secret, ..alpha.mesh.token() }
}

/// Neither sees anything of the other.
async fn gets_nothing(alpha: &TestNode, stranger: &TestNode) {
    assert_eq!(stranger.mesh.view().borrow().peers.len(), 1, "not a name, not a model");
    assert!(!alpha.mesh.is_admitted(&stranger.id()));
    assert_eq!(echo(stranger, &alpha.id()).await.unwrap_err().code(), Code::Unavailable);
    let stream = stranger.mesh.links().open(&alpha.id(), libp2p::StreamProtocol::new("/mesh-node/weights")).await;
    assert!(stream.is_err(), "not a byte of weights");
    let stream = stranger.mesh.links().open(&alpha.id(), super::super::leaders::PROTOCOL).await;
    assert!(stream.is_err() && !stranger.mesh.find(&"m".into()).await, "nor who leads what");
    let known = alpha.mesh.view().borrow().peers.iter().any(|peer| peer.id == stranger.id());
    assert!(!known, "and nobody hears of the stranger");
}

#[tokio::test]
async fn each_kind_of_stranger_is_told_why_and_gets_nothing() {
    let (alpha, other) = (TestNode::up("alpha").await, TestNode::up("other").await);
    alpha.mesh.publish(LocalStatus::default());
    let old = alpha.mesh.token();
    alpha.mesh.rotate_token().await.unwrap();
    let soon = alpha.mesh.token_for(Duration::from_secs(1));
    let (late_dir, blocked_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let late_membership = Membership::join(&DataDir::open(late_dir.path()).unwrap(), &soon).unwrap();
    let blocked = {
        let dir = DataDir::open(blocked_dir.path()).unwrap();
        Identity::open(&dir).unwrap().id().clone()
    };
    alpha.mesh.block(&blocked);
    let expired = UNIX_EPOCH + Duration::from_secs(soon.expires.unwrap());
    // An expiry is a moment of the clock, which no event tells.
    tokio::time::sleep(expired.duration_since(SystemTime::now()).unwrap_or_default() + Duration::from_millis(50)).await;

    let late = TestNode::run("late", late_dir, late_membership, localhost(0), |door| door).await.unwrap();
    let blocked = TestNode::start("blocked", blocked_dir, Some(&alpha.mesh.token()), localhost(0)).await.unwrap();
    let wrong = TestNode::with_token("wrong", &wrong_secret(&alpha, &other)).await;
    let replaced = TestNode::with_token("replaced", &old).await;
    for (stranger, why) in [
        (&late, "it expired, ask for a new one"),
        (&blocked, "has blocked this node"),
        (&wrong, "does not accept the token's secret"),
        (&replaced, "it was replaced (epoch 2)"),
    ] {
        let said = stranger.mesh.joined(PATIENCE).await.unwrap_err().to_string();
        assert!(said.contains(why), "{why}: {said}");
        gets_nothing(&alpha, stranger).await;
    }
    // All of them came from one address, which is slowed down; a member is not.
    let member = TestNode::with_token("member", &alpha.mesh.token()).await;
    member.mesh.publish(LocalStatus::default());
    member.mesh.joined(PATIENCE).await.unwrap();
    alpha.sees("member", PeerState::Ready).await;
}

#[tokio::test]
async fn who_was_invited_for_a_while_is_a_member_like_others() {
    let alpha = TestNode::up("alpha").await;
    alpha.mesh.publish(LocalStatus::default());
    let token = alpha.mesh.token_for(Duration::from_secs(3600));
    assert!(token.secret != alpha.mesh.token().secret, "the mesh's own secret is not in it");
    let guest = TestNode::with_token("guest", &token).await;
    guest.mesh.joined(PATIENCE).await.unwrap();
    guest.mesh.publish(LocalStatus::default());
    assert_eq!(guest.mesh.derive_key("x"), alpha.mesh.derive_key("x"), "it has the mesh's secret");
    let third = TestNode::join("third", &guest).await;
    alpha.sees("third", PeerState::Ready).await;
    let (_, dir, listen) = guest.kill();
    let guest = TestNode::start("guest", dir, None, listen).await.unwrap();
    guest.mesh.publish(LocalStatus::default());
    guest.sees("third", PeerState::Ready).await;
    third.sees("guest", PeerState::Ready).await;
}

#[tokio::test]
async fn another_version_is_seen_and_left_out() {
    let alpha = TestNode::up("alpha").await;
    alpha.mesh.publish(LocalStatus::default());
    let (dir, token) = (tempfile::tempdir().unwrap(), alpha.mesh.token());
    let newer =
        TestNode::start_with("newer", dir, Some(&token), localhost(0), |door| door.with(2..=3, Duration::from_secs(5)));
    let newer = newer.await.unwrap();
    assert!(newer.mesh.joined(PATIENCE).await.is_err());
    for (node, version) in [(&alpha, "protocol 2 to 3"), (&newer, "protocol 1")] {
        node.until("the other version is seen", |view| {
            let seen = |peer: &PeerView| peer.state == PeerState::OtherVersion && peer.version == version;
            view.peers.len() == 2 && seen(&view.peers[1]) && view.peers[1].name == "127.0.0.1"
        })
        .await;
        let record = node.mesh.peers().into_iter().find(|record| !record.local).unwrap();
        assert_eq!((record.state, record.status.version.as_str()), (PeerState::OtherVersion, version));
    }
}

/// Passes everything on, and keeps what is written.
struct Tee<C> {
    io: C,
    tape: Arc<Mutex<Vec<u8>>>,
}

impl<C: AsyncRead + Unpin> AsyncRead for Tee<C> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_read(context, into)
    }
}

impl<C: AsyncWrite + Unpin> AsyncWrite for Tee<C> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(context, from);
        if let Poll::Ready(Ok(count)) = written {
            self.tape.lock().unwrap().extend_from_slice(&from[..count]);
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_close(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_close(context)
    }
}

/// Goes through admission and keeps what it says; or says again what was kept, and keeps what it hears.
#[derive(Clone)]
struct Thief {
    admit: Admit,
    tape: Arc<Mutex<Vec<u8>>>,
    heard: Option<Arc<Mutex<Vec<u8>>>>,
}

/// Hello, Open and Proof.
const SAID: usize = 12 + (2 + 68) + (2 + 32);

impl UpgradeInfo for Thief {
    type Info = &'static str;
    type InfoIter = std::iter::Once<&'static str>;

    fn protocol_info(&self) -> Self::InfoIter {
        self.admit.protocol_info()
    }
}

impl<C: AsyncRead + AsyncWrite + Unpin + Send + 'static> OutboundConnectionUpgrade<C> for Thief {
    type Output = yamux::Muxer<StallGuard<Tee<C>>>;
    type Error = AdmissionError;
    type Future = BoxFuture<'static, Result<Self::Output, Self::Error>>;

    fn upgrade_outbound(self, mut io: C, info: Self::Info) -> Self::Future {
        Box::pin(async move {
            let Some(heard) = self.heard else {
                return self.admit.upgrade_outbound(Tee { io, tape: self.tape }, info).await;
            };
            let said = self.tape.lock().unwrap()[..SAID].to_vec();
            io.write_all(&said).await.map_err(|_| AdmissionError::Closed)?;
            io.flush().await.map_err(|_| AdmissionError::Closed)?;
            let mut answer = Vec::new();
            let _ = io.read_to_end(&mut answer).await;
            *heard.lock().unwrap() = answer;
            Err(AdmissionError::Closed)
        })
    }
}

impl<C: AsyncRead + AsyncWrite + Unpin + Send + 'static> InboundConnectionUpgrade<C> for Thief {
    type Output = yamux::Muxer<StallGuard<Tee<C>>>;
    type Error = AdmissionError;
    type Future = BoxFuture<'static, Result<Self::Output, Self::Error>>;

    fn upgrade_inbound(self, _: C, _: Self::Info) -> Self::Future {
        Box::pin(std::future::ready(Err(AdmissionError::Closed)))
    }
}

/// Dials `to` under `keypair`. Returns whether it was admitted.
async fn dial(keypair: &Keypair, to: &TestNode, thief: Thief) -> bool {
    let mut transport = tcp::tokio::Transport::new(tcp::Config::new())
        .upgrade(Version::V1Lazy)
        .authenticate(noise::Config::new(keypair).unwrap())
        .multiplex_ext(move |_, _| thief)
        .boxed();
    let options = DialOpts { role: Endpoint::Dialer, port_use: PortUse::New };
    let dialling = transport.dial(to.mesh.token().bootstrap[0].clone(), options).unwrap();
    tokio::time::timeout(PATIENCE, dialling).await.expect("answered in time").is_ok()
}

#[tokio::test]
async fn a_proof_that_is_said_again_is_worth_nothing() {
    let alpha = TestNode::up("alpha").await;
    alpha.mesh.publish(LocalStatus::default());
    let keypair = Keypair::generate_ed25519();
    let (peer, token) = (keypair.public().to_peer_id(), alpha.mesh.token());
    let credentials =
        |secret: Secret| Credentials { mesh: token.mesh, secret, epoch: token.epoch, invited: None, past: Vec::new() };
    let host = identity::to_libp2p(&alpha.id()).unwrap();
    let thief = |secret: Secret, tape: &Arc<Mutex<Vec<u8>>>, heard| {
        let door = Arc::new(Door::new(peer, credentials(secret)));
        Thief { admit: Admit::new(door, host, token.bootstrap[0].clone()), tape: tape.clone(), heard }
    };
    let tape = Arc::default();
    assert!(dial(&keypair, &alpha, thief(token.secret.clone(), &tape, None)).await, "the proof was good once");
    let heard: Arc<Mutex<Vec<u8>>> = Arc::default();
    assert!(!dial(&keypair, &alpha, thief(Secret([0; 32]), &tape, Some(heard.clone()))).await);
    let heard = heard.lock().unwrap();
    // Hello, a new challenge, and a refusal for a wrong secret.
    assert_eq!((heard.len(), &heard[12 + 34..]), (12 + 34 + 7, &[255, 5, 2, 0, 0, 0, 0][..]));
    assert!(!alpha.mesh.is_admitted(&identity::from_libp2p(&peer)));
}
