//! Whether members reach a node at its addresses.

use futures::StreamExt as _;
use libp2p::autonat::v1::{self as autonat, OutboundProbeError, OutboundProbeEvent, ResponseError};
use libp2p::swarm::SwarmEvent;

use super::*;

/// Asks soon.
fn eager() -> Tuning {
    Tuning { probe_pause: Duration::from_millis(200), ..Tuning::default() }
}

impl TestNode {
    /// What members found of its addresses, once any has.
    async fn reach(&self) -> Vec<AddressReach> {
        let found = async {
            let mut ticks = tokio::time::interval(Duration::from_millis(20));
            loop {
                ticks.tick().await;
                let reach = self.mesh.peers().swap_remove(0).reach;
                if !reach.is_empty() {
                    return reach;
                }
            }
        };
        tokio::time::timeout(PATIENCE, found).await.expect("a member answers")
    }
}

#[tokio::test]
async fn members_open_connections_back_and_say_that_they_came_through() {
    let alpha = TestNode::up("alpha").await;
    alpha.mesh.publish(LocalStatus::default());
    let dir = tempfile::tempdir().unwrap();
    let membership = Membership::join(&DataDir::open(dir.path()).unwrap(), &alpha.mesh.token()).unwrap();
    let beta = TestNode::run_with("beta", dir, membership, localhost(0), |door| door, eager()).await.unwrap();
    beta.mesh.publish(LocalStatus::default());
    let (address, reached_by) = (beta.mesh.listen_addr(), vec![alpha.id()]);
    assert_eq!(beta.reach().await, [AddressReach { address, reached_by, missed_by: Vec::new() }]);
    // The connection back is closed again, and the one before stays.
    alpha.sees("beta", PeerState::Ready).await;
    beta.sees("alpha", PeerState::Ready).await;
    assert!(alpha.mesh.is_admitted(&beta.id()));
}

/// A member that does not listen asks alpha to connect to it at `candidates`. Returns the answer.
async fn asked_back(alpha: &TestNode, candidates: &[&str]) -> OutboundProbeEvent {
    let dir = tempfile::tempdir().unwrap();
    let data_dir = DataDir::open(dir.path()).unwrap();
    let membership = Membership::join(&data_dir, &alpha.mesh.token()).unwrap();
    let identity = Identity::open(&data_dir).unwrap();
    let tasks = TaskTracker::new();
    let (door, spawner) = (Arc::new(door(&identity, &membership)), tasks.clone());
    let agent = super::super::copies::agent("0.0.1", 1);
    let mut swarm = behaviour::build(&identity, door, agent, eager(), move |task| _ = spawner.spawn(task)).unwrap();
    for candidate in candidates {
        swarm.behaviour_mut().autonat.probe_address(candidate.parse().unwrap());
    }
    swarm.dial(alpha.mesh.token().bootstrap[0].clone()).unwrap();
    let answer = async {
        loop {
            if let SwarmEvent::Behaviour(behaviour::BehaviourEvent::Autonat(autonat::Event::OutboundProbe(event))) =
                swarm.select_next_some().await
                && !matches!(event, OutboundProbeEvent::Request { .. } | OutboundProbeEvent::Error { peer: None, .. })
            {
                return event;
            }
        }
    };
    tokio::time::timeout(PATIENCE, answer).await.expect("alpha answers")
}

#[tokio::test]
async fn an_address_with_nobody_or_a_stranger_behind_it_is_not_reached() {
    let (alpha, other) = (TestNode::up("alpha").await, TestNode::up("other").await);
    // Nobody listens; a node of another mesh, which does not let alpha in.
    let nobody = format!(
        "/ip4/127.0.0.1/tcp/{}",
        std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
    );
    let stranger = format!("/ip4/127.0.0.1/tcp/{}", other.mesh.listen_addr().port());
    for candidate in [&nobody, &stranger] {
        let answer = asked_back(&alpha, &[candidate]).await;
        let missed = matches!(
            answer,
            OutboundProbeEvent::Error { error: OutboundProbeError::Response(ResponseError::DialError), .. }
        );
        assert!(missed, "{candidate}: {answer:?}");
    }
    assert_eq!(other.mesh.view().borrow().peers.len(), 1);
}
