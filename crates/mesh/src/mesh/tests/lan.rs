//! Members that find each other by multicast, on loopback.

use mesh_types::PeerState;

use super::super::lan::{self, Interfaces};
use super::*;

impl TestNode {
    /// Announces itself and looks for others on loopback.
    fn search(&self) {
        let core = self.mesh.core.clone();
        let runtime = self.runtime.as_ref().unwrap();
        core.tasks.own.spawn_on(lan::run(core.clone(), Interfaces::Loopback), runtime.handle());
    }
}

/// A token that leads nowhere by itself.
fn without_addresses(token: &JoinToken) -> JoinToken {
    JoinToken { bootstrap: Vec::new(), ..token.clone() }
}

#[tokio::test]
async fn members_find_each_other_and_strangers_find_nothing() {
    let alpha = TestNode::up("alpha").await;
    let token = without_addresses(&alpha.mesh.token());
    let stranger = TestNode::up("stranger").await;
    // It knows the mesh, not its secret: its announcements are believed, and it is refused.
    let guess = JoinToken { secret: stranger.mesh.token().secret.clone(), ..token.clone() };
    let guesser = TestNode::with_token("guesser", &guess).await;
    let beta = TestNode::with_token("beta", &token).await;
    for node in [&alpha, &stranger, &guesser, &beta] {
        node.mesh.publish(LocalStatus::default());
        node.search();
    }
    alpha.sees("beta", PeerState::Ready).await;
    beta.sees("alpha", PeerState::Ready).await;
    for node in [&stranger, &guesser] {
        assert_eq!(node.mesh.view().borrow().peers.len(), 1, "{}", node.name);
    }
    assert!(alpha.mesh.peers().iter().all(|peer| ["alpha", "beta"].contains(&peer.status.name.as_str())));
    tokio::time::timeout(PATIENCE, beta.mesh.shutdown()).await.expect("mDNS ends with the mesh");
}

#[tokio::test]
async fn a_search_in_vain_is_named() {
    let alpha = TestNode::up("alpha").await;
    let lost = without_addresses(&alpha.mesh.token());
    let any = std::net::SocketAddr::from(([0, 0, 0, 0], 0));
    let beta = TestNode::start("beta", tempfile::tempdir().unwrap(), Some(&lost), any).await.unwrap();
    let error = beta.mesh.joined(Duration::from_millis(300)).await.unwrap_err().to_string();
    let expected = "the token names no address to join at; nor did a member on the local network answer by mDNS";
    assert_eq!(error, format!("could not join the mesh: {expected}"));
}
