//! Both sides of admission over real TCP sockets, without the encryption below: it has identified the peers.

use futures::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::compat::{Compat, TokioAsyncReadCompatExt as _};

use super::*;

type Outcome = Result<(), AdmissionError>;

const PATIENCE: Duration = Duration::from_secs(5);

struct Node {
    door: Door,
    peer: PeerId,
}

fn node(mesh: u8, secret: u8) -> Node {
    let peer = PeerId::random();
    let credentials = Credentials {
        mesh: MeshId([mesh; 16]),
        secret: Secret([secret; 32]),
        epoch: 1,
        invited: None,
        past: Vec::new(),
    };
    Node { door: Door::new(peer, credentials).with(VERSIONS, PATIENCE), peer }
}

impl Node {
    fn with(self, versions: RangeInclusive<u16>, deadline: Duration) -> Self {
        Self { door: self.door.with(versions, deadline), ..self }
    }

    fn guest(&self) -> Guest {
        Guest { peer: self.peer, address: "/ip4/127.0.0.1/tcp/1".parse().unwrap() }
    }
}

async fn sockets() -> (Compat<TcpStream>, Compat<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (near, far) =
        tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), async { listener.accept().await });
    (near.unwrap().compat(), far.unwrap().0.compat())
}

/// What the listening side does with a guest, as the upgrade does it.
async fn respond(host: &Node, guest: &Guest, io: &mut Compat<TcpStream>) -> Outcome {
    let outcome = within(host.door.deadline, handshake::respond(&host.door, guest, io)).await;
    host.door.note(guest, &outcome);
    outcome
}

/// How it ends for the dialling and for the listening side.
async fn meet(guest: &Node, host: &Node) -> (Outcome, Outcome) {
    let (mut near, mut far) = sockets().await;
    let (host_sees, guest_sees) = (guest.guest(), host.guest());
    let dialling = async {
        let outcome = within(guest.door.deadline, handshake::initiate(&guest.door, &guest_sees, &mut near)).await;
        drop(near);
        guest.door.note_outbound(&guest_sees, outcome)
    };
    let listening = async {
        let outcome = respond(host, &host_sees, &mut far).await;
        drop(far);
        outcome
    };
    tokio::join!(dialling, listening)
}

#[tokio::test]
async fn members_admit_each_other() {
    assert_eq!(meet(&node(1, 1), &node(1, 1)).await, (Ok(()), Ok(())));
}

#[tokio::test]
async fn each_refusal_is_named_on_both_sides() {
    let refused = |refusal| Err(AdmissionError::Refused(refusal));
    let host = || node(1, 1);
    assert_eq!(meet(&node(1, 2), &host()).await, (refused(Refusal::WrongSecret), Err(AdmissionError::WrongSecret)));
    assert_eq!(meet(&node(2, 1), &host()).await, (refused(Refusal::WrongMesh), Err(AdmissionError::WrongMesh)));

    let late = node(1, 1);
    late.door.renew(7, Secret([1; 32]));
    let expected = (refused(Refusal::OtherEpoch(1)), Err(AdmissionError::OtherEpoch { theirs: 7, ours: 1 }));
    assert_eq!(meet(&late, &host()).await, expected);

    let (guest, host) = (node(1, 1), host());
    host.door.block(guest.peer);
    assert_eq!(meet(&guest, &host).await, (refused(Refusal::Blocked), Err(AdmissionError::Blocked)));
    let (near, _far) = sockets().await;
    let outcome = handshake::initiate(&host.door, &guest.guest(), &mut { near }).await;
    assert_eq!(outcome, Err(AdmissionError::Blocked), "a blocked peer is not dialled either");
}

#[tokio::test]
async fn old_tokens_stop_and_members_stay_when_the_secret_is_replaced() {
    let (host, member, stranger) = (node(1, 1), node(1, 1), node(1, 1));
    assert_eq!(meet(&member, &host).await, (Ok(()), Ok(())));
    host.door.renew(2, Secret([2; 32]));
    host.door.renew(1, Secret([9; 32]));
    let refused = Err(AdmissionError::Refused(Refusal::OtherEpoch(2)));
    assert_eq!(meet(&stranger, &host).await, (refused, Err(AdmissionError::OtherEpoch { theirs: 1, ours: 2 })));
    assert_eq!(meet(&member, &host).await, (Ok(()), Ok(())), "it was away and comes back with the old secret");

    // The other way round the one that is ahead finds out that the member is behind, and meets it there at once.
    let old = node(1, 1);
    host.door.know(old.peer);
    assert_eq!(meet(&host, &old).await.0, Err(AdmissionError::Behind(1)));
    assert_eq!(meet(&host, &old).await, (Ok(()), Ok(())));

    // Who has learned the new secret is not held up by what it, or another at its address, tried before.
    stranger.door.renew(2, Secret([2; 32]));
    assert_eq!(meet(&stranger, &host).await, (Ok(()), Ok(())));
    let guesser = node(1, 3);
    guesser.door.renew(2, Secret([3; 32]));
    assert_eq!(meet(&guesser, &host).await.1, Err(AdmissionError::WrongSecret));
}

#[tokio::test]
async fn old_tokens_are_slowed_down_among_themselves() {
    let (host, stranger) = (node(1, 1), node(1, 1));
    host.door.renew(2, Secret([2; 32]));
    let refused = Err(AdmissionError::OtherEpoch { theirs: 1, ours: 2 });
    assert_eq!(meet(&stranger, &host).await.1, refused);
    assert!(matches!(meet(&stranger, &host).await.1, Err(AdmissionError::TooSoon(_))));
    let member = node(1, 1);
    member.door.renew(2, Secret([2; 32]));
    assert_eq!(meet(&member, &host).await, (Ok(()), Ok(())), "its neighbour's old token is not its own");
}

#[tokio::test]
async fn an_invitation_is_good_until_it_expires_and_for_nothing_else() {
    let host = node(1, 1);
    let guest = |secret: Secret, invited: u64| {
        let peer = PeerId::random();
        let credentials = Credentials { mesh: MeshId([1; 16]), secret, epoch: 1, invited: Some(invited), past: vec![] };
        Node { door: Door::new(peer, credentials).with(VERSIONS, PATIENCE), peer }
    };
    let (soon, past) = (unix_now() + 60, unix_now() - 1);
    let invited = guest(Secret([1; 32]).invitation(soon), soon);
    assert_eq!(meet(&invited, &host).await, (Ok(()), Ok(())));
    assert!(matches!(meet(&host, &invited).await.1, Err(AdmissionError::TooSoon(_))), "it can tell nobody yet");
    invited.door.renew(1, Secret([1; 32]));
    assert_eq!(meet(&host, &invited).await, (Ok(()), Ok(())), "now it has the mesh's own");

    let late = guest(Secret([1; 32]).invitation(past), past);
    let refused = Err(AdmissionError::Refused(Refusal::Expired));
    assert_eq!(meet(&late, &host).await, (refused, Err(AdmissionError::Expired)));
    let liar = guest(Secret([1; 32]).invitation(past), soon);
    assert_eq!(node_with(&host, &liar).await, Err(AdmissionError::WrongSecret));
}

/// How it ends for a host with a clean slate, of the same secret as `host`.
async fn node_with(host: &Node, guest: &Node) -> Outcome {
    let secret = host.door.secrets().of(1, false).unwrap();
    let credentials = Credentials { mesh: MeshId([1; 16]), secret, epoch: 1, invited: None, past: Vec::new() };
    let host = Node { door: Door::new(host.peer, credentials).with(VERSIONS, PATIENCE), peer: host.peer };
    meet(guest, &host).await.1
}

#[tokio::test]
async fn who_is_unblocked_may_come_again() {
    let (guest, host) = (node(1, 1), node(1, 1));
    host.door.know(guest.peer);
    host.door.block(guest.peer);
    assert_eq!(meet(&guest, &host).await.1, Err(AdmissionError::Blocked));
    host.door.unblock(&guest.peer);
    assert_eq!(meet(&guest, &host).await, (Ok(()), Ok(())));
}

#[tokio::test]
async fn other_versions_are_named() {
    let (old, new) = (node(1, 1), node(1, 1).with(2..=3, PATIENCE));
    let (at_old, at_new) = meet(&old, &new).await;
    assert_eq!(at_old.unwrap_err().to_string(), "speaks protocol 2 to 3, this node speaks 1");
    assert_eq!(at_new.unwrap_err().to_string(), "speaks protocol 1, this node speaks 2 to 3");
    let met = |node: &Node| node.door.foreigners_at(Instant::now()).into_iter().map(|f| f.peer).collect::<Vec<_>>();
    assert_eq!((met(&old), met(&new)), (vec![new.peer], vec![old.peer]), "each has seen the other");
    let both = node(1, 1).with(1..=2, PATIENCE);
    assert_eq!(meet(&both, &old).await, (Ok(()), Ok(())), "a newer program still speaks to an older");
}

#[tokio::test]
async fn garbage_and_silence_end_in_time_and_learn_nothing() {
    let host = node(1, 1).with(VERSIONS, Duration::from_millis(200));
    let guest = node(9, 9);
    for (words, expected) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], AdmissionError::NotAMeshNode),
        (b"meshnode\0\x01\0\x01\xff\xff", AdmissionError::Closed),
        (b"meshnode\0\x01\0\x01\x03\x20", AdmissionError::Timeout(Duration::from_millis(200))),
        (b"meshnode\0\x01\0\x01\x03\x00", AdmissionError::Malformed("a message out of turn")),
        (b"meshnode\0\x01\0\x01\x01\x01x", AdmissionError::Malformed("a message of the wrong length")),
        (b"", AdmissionError::Timeout(Duration::from_millis(200))),
    ] {
        let (mut near, mut far) = sockets().await;
        near.write_all(words).await.unwrap();
        if expected == AdmissionError::Closed {
            near.close().await.unwrap();
        }
        assert_eq!(respond(&host, &guest.guest(), &mut far).await, Err(expected), "{words:?}");
        drop(far);
        let mut heard = Vec::new();
        // Unread garbage may turn the end into a reset.
        let _ = near.read_to_end(&mut heard).await;
        assert_eq!(heard, b"meshnode\0\x01\0\x01", "only the frozen first message goes out");
    }
}

#[tokio::test]
async fn what_one_connection_proved_is_worth_nothing_in_another() {
    // A man in the middle passes everything on between two members, under his own identity.
    let (alice, bob, mallory) = (node(1, 1), node(1, 1), node(3, 3));
    let (mut alice_io, alice_far) = sockets().await;
    let (bob_far, mut bob_io) = sockets().await;
    let (mut from_alice, mut to_alice) = alice_far.split();
    let (mut from_bob, mut to_bob) = bob_far.split();
    let relay = async {
        tokio::join!(
            async {
                let _ = futures::io::copy(&mut from_alice, &mut to_bob).await;
                let _ = to_bob.close().await;
            },
            async {
                let _ = futures::io::copy(&mut from_bob, &mut to_alice).await;
                let _ = to_alice.close().await;
            },
        )
    };
    let mallory = mallory.guest();
    let (at_alice, at_bob, _) = tokio::join!(
        async {
            let outcome = handshake::initiate(&alice.door, &mallory, &mut alice_io).await;
            drop(alice_io);
            outcome
        },
        async {
            let outcome = respond(&bob, &mallory, &mut bob_io).await;
            drop(bob_io);
            outcome
        },
        relay
    );
    assert!(at_alice.is_err() && at_bob.is_err(), "{at_alice:?} {at_bob:?}");
}

#[tokio::test]
async fn strangers_are_slowed_down_and_members_are_not() {
    let host = node(1, 1);
    let member = node(1, 1);
    assert_eq!(meet(&member, &host).await.0, Ok(()));
    assert_eq!(meet(&node(1, 2), &host).await.1, Err(AdmissionError::WrongSecret));
    let (told, seen) = meet(&node(1, 1), &host).await;
    assert!(matches!(told, Err(AdmissionError::Refused(Refusal::TooSoon(wait))) if wait <= Duration::from_secs(1)));
    assert!(matches!(seen, Err(AdmissionError::TooSoon(_))));
    assert_eq!(meet(&member, &host).await, (Ok(()), Ok(())), "it proved itself before");
    assert_eq!(meet(&node(1, 1), &host).await.0, Ok(()), "and that cleared the address");
}
