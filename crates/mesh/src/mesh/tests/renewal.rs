//! Tokens that are replaced, and peers that are kept out.

use mesh_types::PeerState;

use super::calls::echo;
use super::*;

#[tokio::test]
async fn a_replaced_token_stops_and_members_stay_even_those_that_were_away() {
    let alpha = TestNode::up("alpha").await;
    alpha.mesh.publish(LocalStatus::default());
    let old = alpha.mesh.token();
    let beta = TestNode::join("beta", &alpha).await;
    let away = TestNode::join("away", &alpha).await;
    alpha.sees("away", PeerState::Ready).await;
    let (_, dir, _) = away.kill();
    alpha.sees("away", PeerState::Gone).await;

    // Beta replaces it, and alpha hears.
    alpha.sees("beta", PeerState::Ready).await;
    beta.mesh.rotate_token().await.unwrap();
    alpha.is_at_epoch(2).await;
    let stranger = TestNode::with_token("stranger", &old).await;
    let error = stranger.mesh.joined(PATIENCE).await.unwrap_err().to_string();
    assert!(error.contains("it was replaced (epoch 2), ask for a new token"), "{error}");

    let back = TestNode::start("away", dir, None, localhost(0)).await.unwrap();
    back.mesh.publish(LocalStatus::default());
    back.is_at_epoch(2).await;
    let newcomer = TestNode::join("newcomer", &back).await;
    newcomer.sees("away", PeerState::Ready).await;
}

#[tokio::test]
async fn a_blocked_peer_is_thrown_out_everywhere_and_may_be_let_in_again() {
    let alpha = TestNode::up("alpha").await;
    alpha.mesh.publish(LocalStatus::default());
    let beta = TestNode::join("beta", &alpha).await;
    let bad = TestNode::join("bad", &alpha).await;
    beta.sees("bad", PeerState::Ready).await;
    bad.sees("beta", PeerState::Ready).await;
    let presence = (alpha.mesh.presence(&bad.id()), beta.mesh.presence(&bad.id()));
    assert!(alpha.mesh.block(&bad.id()) && !alpha.mesh.block(&bad.id()));
    until(&presence.0).await;
    until(&presence.1).await;
    assert_eq!(beta.mesh.blocked(), [bad.id()]);
    alpha.sees("bad", PeerState::Gone).await;
    assert!(!alpha.mesh.is_admitted(&bad.id()));
    assert!(echo(&bad, &alpha.id()).await.is_err());

    // It would come by itself, some time later. One that knows nobody any more comes back because it is dialled.
    let (id, (name, dir, listen)) = (bad.id(), bad.kill());
    let file = dir.path().join("membership.json");
    let mut kept: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    kept["peers"] = serde_json::json!({});
    std::fs::write(&file, kept.to_string()).unwrap();
    let bad = TestNode::start(&name, dir, None, listen).await.unwrap();
    bad.mesh.publish(LocalStatus::default());
    assert!(alpha.mesh.unblock(&id) && alpha.mesh.blocked().is_empty());
    bad.sees("alpha", PeerState::Ready).await;
    bad.sees("beta", PeerState::Ready).await;
}
