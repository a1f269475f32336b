//! What peers tell each other of themselves: `mesh.v1.Membership`, served and watched. [`super::telling`] says what goes
//! out, and when.

use std::sync::{Arc, Mutex, PoisonError};
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
use super::table::Table;
use super::telling::{Said, Teller};

const MAX_UPDATE_BYTES: usize = 1 << 20;
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Tells whoever watches what this node says.
#[derive(Clone)]
pub(super) struct Service {
    /// `None` until it says something.
    pub(super) said: watch::Receiver<Option<Said>>,
    pub(super) table: Arc<Mutex<Table>>,
    /// Ends all streams, with a last status where there is a new one.
    pub(super) closing: CancellationToken,
}

/// The service, beside `more`.
pub(super) fn routes(service: Service, more: tonic::service::Routes) -> tonic::service::Routes {
    more.add_service(MembershipServer::new(service))
}

#[tonic::async_trait]
impl Membership for Service {
    type WatchStream = BoxStream<'static, Result<v1::Update, Status>>;

    async fn watch(&self, _: Request<v1::WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let watcher = Watcher { service: self.clone(), teller: Teller::default() };
        Ok(Response::new(stream::unfold(watcher, Watcher::next).boxed()))
    }
}

/// One peer that watches.
struct Watcher {
    service: Service,
    teller: Teller,
}

impl Watcher {
    async fn next(mut self) -> Option<(Result<v1::Update, Status>, Self)> {
        let closing = self.service.closing.clone();
        let _ = closing.run_until_cancelled(self.ready()).await;
        let said = self.service.said.borrow_and_update().clone()?;
        let links = self.service.table.lock().unwrap_or_else(PoisonError::into_inner);
        let update = self.teller.update(&said, links.links(self.teller.links()), Instant::now());
        drop(links);
        // At the end only a new status goes out.
        if closing.is_cancelled() && update.status.is_none() {
            return None;
        }
        Some((Ok(update), self))
    }

    /// Waits until there is something to tell, and the time has come.
    async fn ready(&mut self) {
        let Self { service, teller } = self;
        loop {
            let now = Instant::now();
            let due = service.said.borrow_and_update().as_ref().and_then(|said| teller.due(said, now));
            let changed = match due {
                Some(due) => tokio::time::timeout_at(due, service.said.changed()).await,
                None => Ok(service.said.changed().await),
            };
            match changed {
                Err(_) => return,
                Ok(Ok(())) => {}
                Ok(Err(_)) => return service.closing.cancelled().await,
            }
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

async fn watch_once(core: &Arc<Core>, peer: &PeerId) -> Result<(), Status> {
    let mut client = MembershipClient::new(core.channel(peer)).max_decoding_message_size(MAX_UPDATE_BYTES);
    let mut updates = client.watch(v1::WatchRequest {}).await?.into_inner();
    core.table().watches(peer);
    while let Some(update) = updates.message().await? {
        core.heard(peer, update);
    }
    Ok(())
}
