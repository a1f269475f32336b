//! What peers tell each other of themselves: `mesh.v1.Membership`, served and watched.
//!
//! Gossip can take its place: it would feed the same [`Core::heard`].

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use mesh_proto::v1;
use mesh_proto::v1::membership_client::MembershipClient;
use mesh_proto::v1::membership_server::{Membership, MembershipServer};
use mesh_types::PeerId;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use super::Core;

/// Changes within this time of the last status go out together.
const DEBOUNCE: Duration = Duration::from_millis(200);
const MAX_STATUS_BYTES: usize = 1 << 20;
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Tells this node's status to whoever watches.
struct Service {
    status: watch::Receiver<Option<v1::NodeStatus>>,
    closing: CancellationToken,
}

/// The service; its streams end, with a last status, when `closing` is cancelled.
pub(super) fn routes(
    status: watch::Receiver<Option<v1::NodeStatus>>,
    closing: CancellationToken,
    more: tonic::service::Routes,
) -> tonic::service::Routes {
    more.add_service(MembershipServer::new(Service { status, closing }))
}

#[tonic::async_trait]
impl Membership for Service {
    type WatchStream = BoxStream<'static, Result<v1::NodeStatus, Status>>;

    async fn watch(&self, _: Request<v1::WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let watcher = Watcher { status: self.status.clone(), closing: self.closing.clone(), last: None };
        Ok(Response::new(stream::unfold(watcher, Watcher::next).boxed()))
    }
}

/// One peer that watches.
struct Watcher {
    status: watch::Receiver<Option<v1::NodeStatus>>,
    closing: CancellationToken,
    /// When the last status went out, and its number.
    last: Option<(Instant, u64)>,
}

impl Watcher {
    async fn next(mut self) -> Option<(Result<v1::NodeStatus, Status>, Self)> {
        let closing = self.closing.clone();
        let _ = closing.run_until_cancelled(self.ready()).await;
        let status = self.status.borrow_and_update().clone()?;
        // At the end only what is new goes out.
        if closing.is_cancelled() && self.last.is_some_and(|(_, sequence)| sequence == status.sequence) {
            return None;
        }
        self.last = Some((Instant::now(), status.sequence));
        Some((Ok(status), self))
    }

    /// Waits until there is a status to send, and the time to send it has come.
    async fn ready(&mut self) {
        let sent = self.last.map(|(_, sequence)| sequence);
        let news = |status: &Option<v1::NodeStatus>| status.as_ref().is_some_and(|s| Some(s.sequence) != sent);
        if self.status.wait_for(news).await.is_err() {
            return self.closing.cancelled().await;
        }
        if let Some((at, _)) = self.last {
            tokio::time::sleep_until(at + DEBOUNCE).await;
        }
    }
}

/// Watches `peer` for as long as it is connected.
pub(super) async fn watch(core: Arc<Core>, peer: PeerId, presence: CancellationToken) {
    let mut pause = FIRST_PAUSE;
    let watching = async {
        loop {
            match watch_once(&core, &peer).await {
                Ok(()) => pause = FIRST_PAUSE,
                Err(error) => tracing::debug!(%peer, %error, "a peer's status cannot be watched"),
            }
            // Its stream ends when it leaves; its connection closes next.
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    };
    let closing = core.closing();
    tokio::select! {
        () = presence.cancelled() => {}
        () = closing.cancelled() => {}
        () = watching => {}
    }
}

async fn watch_once(core: &Core, peer: &PeerId) -> Result<(), Status> {
    let mut client = MembershipClient::new(core.channel(peer)).max_decoding_message_size(MAX_STATUS_BYTES);
    let mut statuses = client.watch(v1::WatchRequest {}).await?.into_inner();
    while let Some(status) = statuses.message().await? {
        core.heard(peer, status);
    }
    Ok(())
}
