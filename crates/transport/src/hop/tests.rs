//! Peers that are admitted and hostile.

use std::net::SocketAddr;

use libp2p::identity::Keypair;
use mesh_engine::scripted::ScriptedStage;
use mesh_engine::{MicroBatch, Segment, SeqId, Stage, StepId, StepResult, Want};
use mesh_types::{LayerRange, ModelId, PeerId, StageId, TokenId};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::endpoint::{Endpoint, Gate, StageDirectory};
use crate::remote::{Hop, RemoteChain};

struct All;

impl Gate for All {
    fn admits(&self, _: &PeerId) -> bool {
        true
    }
}

struct One(Arc<dyn Stage>);

impl StageDirectory for One {
    fn stage(&self, _: &StageId, _: &PeerId) -> Option<Arc<dyn Stage>> {
        Some(self.0.clone())
    }
}

fn spec() -> StageSpec {
    StageSpec {
        model: ModelId::from("m"),
        layers: LayerRange::new(0, 2).unwrap(),
        n_layer: 2,
        n_embd: 8,
        n_vocab: 50,
        n_ctx: 64,
        n_seq: 2,
        n_batch: 16,
        n_cells: 128,
        cuts_back: true,
        rolls_back: true,
        n_parked: 0,
        n_states: 0,
    }
}

fn endpoint() -> (Endpoint, SocketAddr) {
    let any = ([127, 0, 0, 1], 0).into();
    let endpoint = Endpoint::bind(any, &Keypair::generate_ed25519(), Arc::new(All)).unwrap();
    let address = endpoint.local_addr().unwrap();
    (endpoint, address)
}

fn wire_hop(endpoint: &Endpoint, address: SocketAddr) -> WireHop {
    WireHop {
        peer: endpoint.local_peer().clone(),
        name: "there".to_owned(),
        addresses: vec![address],
        stage: StageId::from("s"),
        spec: spec(),
    }
}

fn request(origin: &Endpoint, route: Vec<WireHop>) -> LinkRequest {
    LinkRequest {
        session: 7,
        origin: origin.local_peer().clone(),
        direct: false,
        budget_ms: 1000,
        previous: None,
        route,
    }
}

async fn within<F: Future>(future: F) -> F::Output {
    timeout(Duration::from_secs(4), future).await.expect("nothing happened within 4 s")
}

fn decode(step: u64) -> Frame {
    let segment = Segment { seq: SeqId(0), start: step as u32, len: 1, want: Want::Nothing };
    Frame::Batch(MicroBatch { step: StepId(step), segments: vec![segment], tokens: vec![TokenId(1)], rows: None })
}

#[tokio::test]
async fn bytes_that_are_no_frame_end_the_link_as_such() {
    let ((home, _), (node, address)) = (endpoint(), endpoint());
    node.serve(Arc::new(One(Arc::new(ScriptedStage::new(spec(), |_: &[TokenId], _| TokenId(0))))));
    let valid = mesh_engine::codec::encode::<()>(&Message::Frame(decode(0)), 0).unwrap().head;
    let mut long = valid.clone();
    long[16..24].copy_from_slice(&u64::MAX.to_le_bytes());
    let mut unknown = valid.clone();
    unknown[4] = 99;
    let control = mesh_engine::codec::encode(&Message::Control(Control::Ready), 0).unwrap().head;
    for bytes in [vec![0; 100], long, unknown, control] {
        let hops = vec![wire_hop(&node, address)];
        let mut next = within(open_next(home.inner(), request(&home, hops))).await.unwrap();
        next.send.raw(&bytes).await;
        match within(next.recv.next(Limits::out_of_stage(&spec()))).await {
            Ok(Message::End(Err(StageError::InvalidFrame(_)))) => {}
            other => panic!("{other:?}"),
        }
    }
    // The stage is as good as before.
    let mut next = within(open_next(home.inner(), request(&home, vec![wire_hop(&node, address)]))).await.unwrap();
    next.send.frame(decode(0)).await.unwrap();
    assert!(matches!(within(next.recv.next(Limits::out_of_stage(&spec()))).await, Ok(Message::Frame(_))));
}

#[tokio::test]
async fn routes_that_lead_elsewhere_are_refused() {
    let ((home, _), (node, address)) = (endpoint(), endpoint());
    node.serve(Arc::new(One(Arc::new(ScriptedStage::new(spec(), |_: &[TokenId], _| TokenId(0))))));
    let here = wire_hop(&node, address);
    let elsewhere = request(&home, vec![WireHop { peer: home.local_peer().clone(), ..here.clone() }]);
    let too_long = request(&home, vec![here.clone(); MAX_HOPS + 1]);
    let behind_the_last = request(&home, vec![here.clone(), here.clone()]);
    let nowhere = request(&home, Vec::new());
    for bad in [elsewhere, too_long, behind_the_last, nowhere] {
        let peer = home.inner().peer(&here.peer, &here.addresses).await.unwrap();
        let (_send, mut recv) = stream::open(&peer.connection, Control::Link(bad)).await.unwrap();
        match within(recv.next(Limits::control())).await {
            Ok(Message::Control(Control::Refused(StageError::InvalidFrame(_)))) => {}
            other => panic!("{other:?}"),
        }
    }
    // A return stream that never opens is waited for no longer than the caller said.
    let mut late = request(&home, vec![here.clone()]);
    late.direct = true;
    let refused = within(open_next(home.inner(), late)).await;
    assert!(matches!(refused, Err(StageError::Lost { .. })));
}

/// A socket that can be dialled as a node, and nothing behind it.
fn liar() -> (quinn::Endpoint, Hop) {
    let keypair = Keypair::generate_ed25519();
    let server = quinn::Endpoint::server(crate::tls::server(&keypair).unwrap(), ([127, 0, 0, 1], 0).into()).unwrap();
    let hop = Hop {
        peer: PeerId::new(keypair.public().to_peer_id().to_base58()),
        name: "liar".to_owned(),
        addresses: vec![server.local_addr().unwrap()],
        stage: StageId::from("s"),
        spec: spec(),
        lost: CancellationToken::new(),
    };
    (server, hop)
}

#[tokio::test]
async fn a_lying_hop_is_found_out() {
    let (home, _) = endpoint();
    let encode = |message: Message<Control>| {
        let encoded = mesh_engine::codec::encode(&message, 0).unwrap();
        let body: Vec<u8> = encoded.body.concat();
        [encoded.head.clone(), body].concat()
    };
    let output = |seq, position, token, logits| mesh_engine::Output {
        seq: SeqId(seq),
        position,
        token,
        logprobs: None,
        logits,
        failure: None,
    };
    let result = |outputs| encode(Message::Frame(Frame::Result(StepResult { step: StepId(0), outputs })));
    let lies = [
        vec![7; 64],
        result(vec![output(9, 1, Some(TokenId(1)), None)]),
        result(vec![output(0, 99, Some(TokenId(1)), None)]),
        result(vec![output(0, 1, Some(TokenId(50)), None)]),
        result(vec![output(0, 1, Some(TokenId(-1)), None)]),
        result(vec![output(0, 1, None, Some(vec![0.0; 49]))]),
        result(vec![output(0, 1, None, None), output(0, 1, None, None)]),
        encode(Message::Frame(decode(0))),
        encode(Message::Control(Control::Ready)),
    ];
    for lie in lies {
        let (server, hop) = liar();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let connection = server.accept().await.unwrap().await.unwrap();
            let (send, recv) = connection.accept_bi().await.unwrap();
            let (mut send, mut recv) = stream::both(send, recv);
            assert!(matches!(recv.next(Limits::control()).await, Ok(Message::Control(Control::Link(_)))));
            send.send(Message::Control(Control::Ready)).await.unwrap();
            send.raw(&lie).await;
            connection.closed().await;
        });
        let chain = RemoteChain::new(home.clone(), vec![hop]).unwrap();
        let mut link = within(chain.connect()).await.unwrap();
        match within(link.output.recv()).await {
            Some(Err(StageError::InvalidFrame(_))) => {}
            other => panic!("{other:?}"),
        }
    }
}
