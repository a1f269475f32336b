//! Members call each other.

use mesh_proto::v1;
use mesh_proto::v1::inference_client::InferenceClient;
use mesh_proto::v1::inference_server::{Inference, InferenceServer};
use mesh_types::PeerState;
use tonic::{Code, Request, Response, Status};

use super::*;

/// Answers with the caller's id.
pub(super) struct Echo;

#[tonic::async_trait]
impl Inference for Echo {
    type GenerateStream = futures::stream::Empty<Result<v1::GenerateEvent, Status>>;

    async fn generate(&self, _: Request<v1::GenerateRequest>) -> Result<Response<Self::GenerateStream>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn tokenize(&self, _: Request<v1::TokenizeRequest>) -> Result<Response<v1::TokenizeReply>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn embed(&self, _: Request<v1::EmbedRequest>) -> Result<Response<v1::EmbedReply>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn detokenize(&self, call: Request<v1::DetokenizeRequest>) -> Result<Response<v1::DetokenizeReply>, Status> {
        let caller = call.extensions().get::<Caller>().ok_or(Status::internal("nobody calls"))?;
        Ok(Response::new(v1::DetokenizeReply { text: caller.0.to_string() }))
    }
}

pub(super) async fn echo(from: &TestNode, to: &PeerId) -> Result<String, Status> {
    let call = async {
        let mut there = InferenceClient::new(from.mesh.channel(to));
        Ok(there.detokenize(v1::DetokenizeRequest::default()).await?.into_inner().text)
    };
    tokio::time::timeout(PATIENCE, call).await.expect("answered in time")
}

#[tokio::test]
async fn peers_call_each_other_and_themselves() {
    let alpha = TestNode::up("alpha").await;
    let beta = TestNode::join("beta", &alpha).await;
    let unknown = echo(&beta, &alpha.id()).await.unwrap_err();
    assert_eq!(unknown.code(), Code::Unimplemented);
    alpha.mesh.serve_grpc(tonic::service::Routes::new(InferenceServer::new(Echo)));
    assert_eq!(echo(&beta, &alpha.id()).await.unwrap(), beta.id().as_str());
    assert_eq!(echo(&alpha, &alpha.id()).await.unwrap(), alpha.id().as_str());
    // Many at once, from several sides: no stream is lost.
    let gamma = TestNode::join("gamma", &alpha).await;
    let calls = (0..20).map(|_| async { (echo(&beta, &alpha.id()).await, echo(&gamma, &alpha.id()).await) });
    for (at_beta, at_gamma) in futures::future::join_all(calls).await {
        assert_eq!(at_beta.unwrap(), beta.id().as_str());
        assert_eq!(at_gamma.unwrap(), gamma.id().as_str());
    }
    alpha.sees("beta", PeerState::Ready).await;

    // A channel outlives its connection.
    let (name, dir, listen) = alpha.kill();
    beta.sees("", PeerState::Gone).await;
    let (id, asked) = (beta.mesh.view().borrow().peers[1].id.clone(), std::time::Instant::now());
    let lost = echo(&beta, &id).await.unwrap_err();
    assert_eq!(lost.code(), Code::Unavailable, "{lost:?}");
    assert!(asked.elapsed() < Duration::from_secs(5));
    let alpha = TestNode::start(&name, dir, None, listen).await.unwrap();
    alpha.mesh.serve_grpc(tonic::service::Routes::new(InferenceServer::new(Echo)));
    alpha.mesh.publish(LocalStatus::default());
    beta.sees("alpha", PeerState::Ready).await;
    assert_eq!(echo(&beta, &alpha.id()).await.unwrap(), beta.id().as_str());
}
