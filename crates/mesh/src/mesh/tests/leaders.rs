//! Models whose leaders a node is not connected to.

use futures::StreamExt as _;
use libp2p::kad::store::MemoryStore;
use libp2p::kad::{self, QueryResult, RecordKey};
use libp2p::swarm::SwarmEvent;
use mesh_types::ModelId;

use super::super::leaders::{ModelKey, PROTOCOL};
use super::super::swarm::Command;
use super::*;

impl TestNode {
    /// Joins the mesh of `other`, and connects to nobody else by itself: as if the mesh were larger than it can hold.
    async fn join_crowded(name: &str, other: &Self, change: impl FnOnce(Door) -> Door) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let membership = Membership::join(&DataDir::open(dir.path()).unwrap(), &other.mesh.token()).unwrap();
        let tuning = Tuning { room: 1, ..Tuning::default() };
        let node = Self::run_with(name, dir, membership, localhost(0), change, tuning).await.unwrap();
        node.mesh.joined(PATIENCE).await.unwrap();
        node.mesh.publish(LocalStatus::default());
        node
    }

    /// Whether members say that somebody leads `model`.
    async fn members_name_a_leader_of(&self, model: &ModelId) -> bool {
        let (found, answer) = tokio::sync::oneshot::channel();
        let seek = Command::Seek { model: self.mesh.core.model_key(model), found };
        assert!(self.mesh.core.commands.send(seek).await.is_ok());
        answer.await.unwrap().leaders
    }

    /// Waits until it has been told that `middle` is connected to `far`, whom it does not know itself.
    async fn hears_of(&self, far: &Self, middle: &Self) {
        let (far, middle) = (far.id(), middle.id());
        self.until("it is told of the far one", |view| {
            let links = view.peer(&middle).map(|peer| peer.links.as_slice()).unwrap_or_default();
            links.iter().any(|link| link.peer == far)
        })
        .await;
        assert!(self.mesh.view().borrow().peer(&far).is_none());
    }
}

fn leads(models: &[&str]) -> LocalStatus {
    let model = |name: &&str| ModelView {
        name: (*name).into(),
        digest: None,
        ready: true,
        detail: String::new(),
        context: 2048,
        layers: 1,
        nodes: Vec::new(),
        ranges: Vec::new(),
        active: 0,
        queued: 0,
        last_forward_ms: None,
        scripted: true,
        tools: String::new(),
    };
    LocalStatus { models: models.iter().map(model).collect(), ..Default::default() }
}

#[tokio::test]
async fn a_model_is_found_whose_leader_no_status_tells_of() {
    let middle = TestNode::up("middle").await;
    middle.mesh.publish(LocalStatus::default());
    let leader = TestNode::join_crowded("leader", &middle, |door| door).await;
    let model = ModelId::from("m");
    leader.mesh.publish(leads(&["m"]));
    middle.until("it leads the model", |view| view.lists(&model)).await;
    // So few members may meet by chance, in the table's own searches. These two do not, for now.
    let far = identity::to_libp2p(&leader.id()).unwrap();
    let shut = |door: Door| {
        door.block(far);
        door
    };
    let gateway = TestNode::join_crowded("gateway", &middle, shut).await;
    gateway.hears_of(&leader, &middle).await;
    assert!(!gateway.mesh.view().borrow().lists(&model));

    gateway.mesh.core.door.unblock(&far);
    assert!(gateway.mesh.find(&model).await, "{:#?}", gateway.mesh.view().borrow());
    assert!(gateway.mesh.view().borrow().lists(&model));
    gateway.sees("leader", PeerState::Ready).await;
    assert!(!gateway.mesh.find(&"another".into()).await);
}

#[tokio::test]
async fn a_record_that_is_not_true_gains_nothing() {
    let middle = TestNode::up("middle").await;
    middle.mesh.publish(LocalStatus::default());
    let gateway = TestNode::join("gateway", &middle).await;
    let model = ModelId::from("ghost");

    // A member that says nothing of itself, and leaves a record.
    let dir = tempfile::tempdir().unwrap();
    let data_dir = DataDir::open(dir.path()).unwrap();
    let membership = Membership::join(&data_dir, &middle.mesh.token()).unwrap();
    let identity = Identity::open(&data_dir).unwrap();
    let tasks = TaskTracker::new();
    let (door, spawner) = (Arc::new(door(&identity, &membership)), tasks.clone());
    let agent = super::super::copies::agent("0.0.1", 1);
    let mut liar =
        behaviour::build(&identity, door, agent, Tuning::default(), move |task| _ = spawner.spawn(task)).unwrap();
    let address = middle.mesh.token().bootstrap[0].clone();
    let host = identity::to_libp2p(&middle.id()).unwrap();
    liar.behaviour_mut().dht.add_address(&host, address);
    let key = RecordKey::new(&ModelKey::new(&middle.mesh.id(), model.as_str()).0);
    liar.behaviour_mut().dht.start_providing(key.clone()).unwrap();
    let told = async {
        loop {
            if let SwarmEvent::Behaviour(behaviour::BehaviourEvent::Dht(kad::Event::OutboundQueryProgressed {
                result: QueryResult::StartProviding(told),
                ..
            })) = liar.select_next_some().await
            {
                told.unwrap();
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, told).await.expect("the record is left");
    gateway.sees("middle", PeerState::Ready).await;
    let asking = async {
        while !gateway.members_name_a_leader_of(&model).await {}
        gateway.mesh.find(&model).await
    };
    let found = tokio::select! {
        found = tokio::time::timeout(PATIENCE, asking) => found.expect("the record is named"),
        () = async { while liar.next().await.is_some() {} } => unreachable!("a swarm does not end"),
    };
    assert!(!found && !gateway.mesh.view().borrow().lists(&model));
}

#[tokio::test]
async fn a_stranger_asks_no_member_for_models() {
    let alpha = TestNode::up("alpha").await;
    alpha.mesh.publish(leads(&["m"]));
    let mut stranger = libp2p::SwarmBuilder::with_new_identity()
        .with_tokio()
        .with_tcp(Default::default(), libp2p::noise::Config::new, libp2p::yamux::Config::default)
        .unwrap()
        .with_behaviour(|keypair| {
            let local = keypair.public().to_peer_id();
            kad::Behaviour::with_config(local, MemoryStore::new(local), kad::Config::new(PROTOCOL))
        })
        .unwrap()
        .build();
    let host = identity::to_libp2p(&alpha.id()).unwrap();
    stranger.behaviour_mut().add_address(&host, alpha.mesh.token().bootstrap[0].clone());
    let key = ModelKey::new(&alpha.mesh.id(), "m");
    stranger.behaviour_mut().get_providers(RecordKey::new(&key.0));
    let asked = async {
        loop {
            if let SwarmEvent::Behaviour(kad::Event::OutboundQueryProgressed {
                result: QueryResult::GetProviders(result),
                stats,
                step,
                ..
            }) = stranger.select_next_some().await
            {
                assert!(!matches!(result, Ok(kad::GetProvidersOk::FoundProviders { .. })), "{result:?}");
                if step.last {
                    return stats;
                }
            }
        }
    };
    let stats = tokio::time::timeout(PATIENCE, asked).await.expect("refused in time");
    assert_eq!((stats.num_successes(), stats.num_requests()), (0, 1));
}
