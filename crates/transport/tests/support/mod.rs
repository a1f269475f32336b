//! Nodes for tests: an endpoint on loopback with scripted stages.
#![allow(dead_code, clippy::unwrap_used)] // each test file uses a part

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use libp2p::identity::Keypair;
use mesh_engine::scripted::ScriptedStage;
use mesh_engine::{Frame, MicroBatch, Rows, Segment, SeqId, Stage, StageError, StageLink, StageSpec, StepId, Want};
use mesh_transport::{Endpoint, Gate, Hop, StageDirectory};
use mesh_types::{LayerRange, ModelId, PeerId, StageId, TokenId};
use tokio_util::sync::CancellationToken;

/// Admits all but the peers named.
#[derive(Default)]
pub(crate) struct Strangers(pub(crate) Mutex<HashSet<PeerId>>);

impl Gate for Strangers {
    fn admits(&self, peer: &PeerId) -> bool {
        !self.0.lock().unwrap().contains(peer)
    }
}

/// Counts how often it is asked.
#[derive(Default)]
pub(crate) struct Directory {
    pub(crate) stages: Mutex<HashMap<StageId, Arc<dyn Stage>>>,
    pub(crate) asked: AtomicUsize,
}

impl StageDirectory for Directory {
    fn stage(&self, id: &StageId, _peer: &PeerId) -> Option<Arc<dyn Stage>> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.stages.lock().unwrap().get(id).cloned()
    }
}

pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) endpoint: Endpoint,
    pub(crate) directory: Arc<Directory>,
    pub(crate) gate: Arc<Strangers>,
    pub(crate) keypair: Keypair,
}

impl Node {
    pub(crate) fn start(name: &str) -> Self {
        let (keypair, gate) = (Keypair::generate_ed25519(), Arc::new(Strangers::default()));
        let endpoint = Endpoint::bind(([127, 0, 0, 1], 0).into(), &keypair, gate.clone()).unwrap();
        let directory = Arc::new(Directory::default());
        endpoint.serve(directory.clone());
        Self { name: name.to_owned(), endpoint, directory, gate, keypair }
    }

    pub(crate) fn id(&self) -> PeerId {
        self.endpoint.local_peer().clone()
    }

    pub(crate) fn load(&self, id: &str, stage: impl Stage) -> Hop {
        let spec = stage.spec().clone();
        self.directory.stages.lock().unwrap().insert(StageId::from(id), Arc::new(stage));
        Hop {
            peer: self.id(),
            name: self.name.clone(),
            addresses: vec![self.endpoint.local_addr().unwrap()],
            stage: StageId::from(id),
            spec,
            lost: CancellationToken::new(),
        }
    }
}

pub(crate) fn spec(start: u32, end: u32, n_embd: u32) -> StageSpec {
    StageSpec {
        model: ModelId::from("scripted"),
        layers: LayerRange::new(start, end).unwrap(),
        n_layer: 6,
        n_embd,
        n_vocab: 60,
        n_ctx: 4096,
        n_seq: 3,
        n_batch: 64,
        n_cells: 12288,
        cuts_back: true,
        rolls_back: true,
        n_parked: 64,
        n_states: 8,
    }
}

pub(crate) fn scripted(spec: StageSpec) -> ScriptedStage {
    ScriptedStage::new(spec, |tokens: &[TokenId], index: u32| TokenId(tokens.len() as i32 * 7 + index as i32))
}

pub(crate) fn decode(step: u64, spec: &StageSpec) -> Frame {
    let rows = (!spec.is_first()).then(|| Rows { n_embd: spec.n_embd, data: vec![0.5; spec.n_embd as usize] });
    let segment = Segment { seq: SeqId(0), start: step as u32, len: 1, want: Want::Nothing };
    Frame::Batch(MicroBatch { step: StepId(step), segments: vec![segment], tokens: vec![TokenId(1)], rows })
}

pub(crate) async fn ask(link: &mut StageLink, frame: Frame) -> Result<Frame, StageError> {
    link.input.send(frame).await.expect("the link has ended");
    within(Duration::from_secs(5), link.output.recv()).await.expect("the link ended without a word")
}

pub(crate) async fn within<F: Future>(time: Duration, future: F) -> F::Output {
    tokio::time::timeout(time, future).await.unwrap_or_else(|_| panic!("nothing happened within {time:?}"))
}
