//! Peers that no direct way joins.

use mesh_proto::v1::inference_server::InferenceServer;
use mesh_types::PeerState;

use super::calls::{Echo, echo};
use super::*;

impl TestNode {
    /// Joins the mesh of `other`, and tells everybody an address that nobody can reach.
    async fn join_hidden(name: &str, other: &Self) -> Self {
        let node = Self::with_token(name, &other.mesh.token()).await;
        {
            let mut local = node.mesh.core.local();
            local.own = vec![SocketAddr::from(([255, 255, 255, 255], 9))];
            local.rank();
        }
        node.mesh.joined(PATIENCE).await.unwrap();
        node.mesh.serve_grpc(tonic::service::Routes::new(InferenceServer::new(Echo)));
        node.mesh.publish(LocalStatus::default());
        node
    }

    fn relay_to(&self, other: &Self) -> Option<PeerId> {
        let id = other.id();
        let peers = self.mesh.peers();
        peers.into_iter().find(|peer| peer.status.peer_id == id.as_str()).and_then(|peer| peer.relay)
    }
}

#[tokio::test]
async fn two_that_cannot_reach_each_other_meet_through_a_member_and_find_a_direct_way() {
    let alpha = TestNode::up("alpha").await;
    alpha.mesh.publish(LocalStatus::default());
    let beta = TestNode::join_hidden("beta", &alpha).await;
    let gamma = TestNode::join_hidden("gamma", &alpha).await;
    // What they tell of themselves leads nowhere: the only way is the one through alpha.
    beta.sees("gamma", PeerState::Ready).await;
    gamma.sees("beta", PeerState::Ready).await;
    assert_eq!(echo(&beta, &gamma.id()).await.unwrap(), beta.id().as_str(), "who calls is proven end to end");
    assert_eq!((beta.relay_to(&alpha), alpha.relay_to(&beta)), (None, None));
    assert!([None, Some(alpha.id())].contains(&beta.relay_to(&gamma)));

    // Alpha told each of them from where it comes: on one host, that is a way.
    let direct = async {
        let mut ticks = tokio::time::interval(Duration::from_millis(50));
        while beta.relay_to(&gamma).is_some() || gamma.relay_to(&beta).is_some() {
            ticks.tick().await;
        }
    };
    tokio::time::timeout(PATIENCE, direct).await.expect("connected directly");
    alpha.kill();
    beta.sees("alpha", PeerState::Gone).await;
    assert_eq!(echo(&beta, &gamma.id()).await.unwrap(), beta.id().as_str());
}
