//! The stage-0 node, asked as a gateway asks it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use mesh_mesh::{DataDir, Identity, JoinToken, LocalStatus, Membership, Mesh};
use mesh_proto::v1;
use mesh_proto::v1::generate_event::Event;
use mesh_proto::v1::inference_client::InferenceClient;
use tonic::transport::Channel;

use super::http::{ANSWER, question};

/// How long the way into the mesh, and the model's way into its view, may take.
const JOIN: Duration = Duration::from_secs(30);

/// A peer of the mesh with a channel to the node that serves `model`.
#[derive(Clone)]
pub(super) struct Direct {
    mesh: Mesh,
    client: InferenceClient<Channel>,
    model: Arc<str>,
    _folder: Arc<tempfile::TempDir>,
}

impl Direct {
    pub(super) async fn join(token: &str, model: &str) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let dir = DataDir::open(folder.path())?;
        let token: JoinToken = token.parse()?;
        let config = mesh_mesh::Config {
            identity: Identity::open(&dir)?,
            membership: Membership::join(&dir, &token)?,
            listen: ([127, 0, 0, 1], 0).into(),
            name: "load".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            mdns: false,
        };
        let mesh = Mesh::start(config).await?;
        mesh.serve_grpc(tonic::service::Routes::default());
        mesh.publish(LocalStatus::default());
        mesh.joined(JOIN).await?;
        let mut view = mesh.view();
        let serves = |peer: &mesh_types::PeerView| peer.models.iter().any(|m| m.name.as_str() == model && m.ready);
        let peer = tokio::time::timeout(JOIN, async {
            loop {
                let found = view.borrow_and_update().peers.iter().find(|peer| serves(peer)).map(|peer| peer.id.clone());
                match found {
                    Some(peer) => return anyhow::Ok(peer),
                    None => view.changed().await?,
                }
            }
        });
        let peer = peer.await.context("no node serves the model")??;
        let client = InferenceClient::new(mesh.channel(&peer));
        Ok(Self { mesh, client, model: model.into(), _folder: Arc::new(folder) })
    }

    /// Asks, and takes the answer in. When its first text came.
    pub(super) async fn first(mut self, number: usize) -> anyhow::Result<Instant> {
        let message =
            v1::ChatMessage { role: "user".to_owned(), content: Some(question(number)), ..v1::ChatMessage::default() };
        let request = v1::GenerateRequest {
            request_id: format!("load-{number}"),
            model: self.model.to_string(),
            messages: vec![message],
            max_tokens: Some(ANSWER),
            ..v1::GenerateRequest::default()
        };
        let mut events = self.client.generate(request).await?.into_inner();
        let mut first = None;
        while let Some(v1::GenerateEvent { event: Some(event) }) = events.message().await? {
            match event {
                Event::Delta(delta) if !delta.text.is_empty() => drop(first.get_or_insert_with(Instant::now)),
                Event::Fault(fault) => bail!("{}", fault.message),
                _ => {}
            }
        }
        first.context("an end without a text")
    }

    pub(super) async fn leave(self) {
        self.mesh.shutdown().await;
    }
}
