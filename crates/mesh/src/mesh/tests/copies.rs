//! A data directory that was copied.

use mesh_types::PeerState;

use super::*;

impl TestNode {
    /// Waits until it says that processes at `ips` share the identity `id`.
    async fn says_copied(&self, id: &PeerId, ips: &[&str]) {
        let said = || {
            let peers = self.mesh.peers().into_iter();
            peers.filter(|peer| peer.status.peer_id == id.as_str()).flat_map(|peer| peer.copied_at).collect::<Vec<_>>()
        };
        let waited = tokio::time::timeout(PATIENCE, async {
            let mut ticks = tokio::time::interval(Duration::from_millis(50));
            while said() != ips {
                ticks.tick().await;
            }
        });
        assert!(waited.await.is_ok(), "{} says {:?}, not {ips:?}", self.name, said());
    }
}

#[tokio::test]
async fn two_nodes_with_one_identity_are_named_to_all_until_one_goes() {
    let alpha = TestNode::up("alpha").await;
    alpha.mesh.publish(LocalStatus::default());
    let beta = TestNode::join("beta", &alpha).await;
    alpha.sees("beta", PeerState::Ready).await;
    let folder = tempfile::tempdir().unwrap();
    for file in ["identity.key", "membership.json"] {
        std::fs::copy(beta.dir.path().join(file), folder.path().join(file)).unwrap();
    }
    let copy = TestNode::start("copy", folder, None, localhost(0)).await.unwrap();
    copy.mesh.publish(LocalStatus::default());
    for node in [&alpha, &beta, &copy] {
        node.says_copied(&beta.id(), &["127.0.0.1"]).await;
    }
    alpha.says_copied(&alpha.id(), &[]).await;

    copy.kill();
    for node in [&alpha, &beta] {
        node.says_copied(&beta.id(), &[]).await;
    }
}
