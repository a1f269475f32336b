//! Replacing the mesh's secret and keeping peers out, as members tell each other.
//!
//! News travels from whoever has it to all connected peers, and on to those whose status shows that they are behind. Who
//! was only invited asks for the secret when it is admitted.

use std::sync::{Arc, Weak};
use std::time::Duration;

use mesh_proto::v1;
use mesh_proto::v1::renewal_client::RenewalClient;
use mesh_proto::v1::renewal_server::{Renewal, RenewalServer};
use mesh_types::PeerId;
use tonic::{Request, Response, Status};

use super::swarm::Command;
use super::{Caller, Core, MeshError};
use crate::identity;
use crate::token::Secret;

/// How long a peer may take to hear the news; it is told again after its next status.
const TELL_DEADLINE: Duration = Duration::from_secs(10);
/// Peers that one message may block or unblock.
const MAX_PEERS: usize = 256;

/// Hears what members tell each other.
struct Service {
    /// The core owns the routes that own this.
    core: Weak<Core>,
}

/// The service, beside `more`.
pub(super) fn routes(core: &Arc<Core>, more: tonic::service::Routes) -> tonic::service::Routes {
    more.add_service(RenewalServer::new(Service { core: Arc::downgrade(core) }))
}

#[tonic::async_trait]
impl Renewal for Service {
    async fn renew(&self, request: Request<v1::RenewRequest>) -> Result<Response<v1::RenewResponse>, Status> {
        let caller = request.extensions().get::<Caller>().cloned();
        let (Some(Caller(peer)), Some(core)) = (caller, self.core.upgrade()) else {
            return Err(Status::unavailable("this node is going"));
        };
        core.renewed(&peer, request.into_inner()).map(Response::new).map_err(Status::invalid_argument)
    }
}

impl Core {
    /// Replaces the secret here, on disk, and at connected peers.
    pub(super) async fn rotate(self: &Arc<Self>) -> Result<(), MeshError> {
        let failed = |why: String| MeshError::Rotate(why);
        let mut next = self.membership().clone();
        if next.invited().is_some() {
            return Err(failed("this node has not been admitted yet".to_owned()));
        }
        next.rotate().map_err(|error| failed(format!("no random numbers from the system: {error}")))?;
        let (epoch, secret) = (next.epoch(), next.secret().clone());
        let saved = tokio::task::spawn_blocking(move || next.save()).await;
        saved.map_err(|error| failed(error.to_string()))?.map_err(|error| failed(error.to_string()))?;
        self.adopt(epoch, secret);
        Ok(())
    }

    /// `peer` is at `epoch`: if that is an old one, it is told the new secret.
    pub(super) fn tell_if_behind(self: &Arc<Self>, peer: &PeerId, epoch: u32) {
        let news = self.news();
        if epoch < news.epoch {
            self.tell(peer.clone(), news);
        }
    }

    /// Asks `peer`, which has admitted this node, for the mesh's secret, where this node was only invited.
    pub(super) fn ask_if_invited(self: &Arc<Self>, peer: &PeerId) {
        if self.membership().invited().is_some() {
            self.tell(peer.clone(), v1::RenewRequest::default());
        }
    }

    /// A member says that the secret was replaced, or that peers are to be kept out; or it asks. Returns what this node
    /// knows, for one that is behind.
    pub(super) fn renewed(
        self: &Arc<Self>,
        from: &PeerId,
        news: v1::RenewRequest,
    ) -> Result<v1::RenewResponse, String> {
        if news.block.len() > MAX_PEERS || news.unblock.len() > MAX_PEERS {
            return Err("too many peers at once".to_owned());
        }
        for peer in news.block.iter().filter_map(|peer| identity::check(peer)).filter(|peer| *peer != self.id) {
            if self.block(&peer) {
                tracing::warn!(%peer, by = %from, "a member blocks a peer");
            }
        }
        for peer in news.unblock.iter().filter_map(|peer| identity::check(peer)) {
            if self.unblock(&peer) {
                tracing::warn!(%peer, by = %from, "a member lets a peer in again");
            }
        }
        let theirs = news.epoch;
        self.learn_secret(from, news.epoch, news.secret)?;
        let v1::RenewRequest { epoch, secret, block, .. } = self.news();
        Ok(if theirs < epoch { v1::RenewResponse { epoch, secret, block } } else { v1::RenewResponse::default() })
    }

    /// Refuses `peer` and closes its connections. Returns whether that is news.
    pub(super) fn block(&self, peer: &PeerId) -> bool {
        let is_news = self.membership().block(peer);
        if let Some(peer) = identity::to_libp2p(peer) {
            self.door.block(peer);
            if self.commands.try_send(Command::Drop(peer)).is_err() {
                tracing::warn!(%peer, "a blocked peer keeps its connection until it closes");
            }
        }
        self.membership_changed.notify_one();
        is_news
    }

    /// Lets `peer` in again. Returns whether that is news.
    pub(super) fn unblock(&self, peer: &PeerId) -> bool {
        let is_news = self.membership().unblock(peer);
        if let Some(peer) = identity::to_libp2p(peer) {
            self.door.unblock(&peer);
            if self.commands.try_send(Command::Resume(peer)).is_err() {
                tracing::debug!(%peer, "a peer that may come again is not dialled: it comes when it is its time");
            }
        }
        self.membership_changed.notify_one();
        is_news
    }

    /// Tells all connected peers.
    pub(super) fn tell_all(self: &Arc<Self>, news: v1::RenewRequest) {
        let peers = self.table().present();
        peers.into_iter().for_each(|peer| self.tell(peer, news.clone()));
    }

    fn learn_secret(self: &Arc<Self>, from: &PeerId, epoch: u32, secret: Vec<u8>) -> Result<(), String> {
        if epoch == 0 {
            return Ok(());
        }
        let secret = secret.try_into().map_err(|_| "a secret of 32 bytes".to_owned())?;
        if self.adopt(epoch, Secret(secret)) {
            tracing::info!(epoch, by = %from, "learned the mesh's secret");
        }
        Ok(())
    }

    /// Takes a secret for the mesh's from now on, and tells others, unless it is not newer. Returns whether it was.
    fn adopt(self: &Arc<Self>, epoch: u32, secret: Secret) -> bool {
        if !self.membership().renew(epoch, secret.clone()) {
            return false;
        }
        self.door.renew(epoch, secret);
        self.membership_changed.notify_one();
        self.changed();
        self.tell_all(self.news());
        if self.commands.try_send(Command::Hurry).is_err() {
            tracing::debug!("peers that are away are dialled when it is their time");
        }
        true
    }

    /// What this node knows; nothing where it was only invited.
    fn news(&self) -> v1::RenewRequest {
        let membership = self.membership();
        if membership.invited().is_some() {
            return v1::RenewRequest::default();
        }
        v1::RenewRequest {
            epoch: membership.epoch(),
            secret: membership.secret().0.to_vec(),
            block: membership.blocked().iter().take(MAX_PEERS).map(ToString::to_string).collect(),
            unblock: Vec::new(),
        }
    }

    fn tell(self: &Arc<Self>, peer: PeerId, news: v1::RenewRequest) {
        let (core, closing) = (self.clone(), self.closing());
        self.tasks.own.spawn(async move {
            let mut client = RenewalClient::new(core.channel(&peer));
            let telling = tokio::time::timeout(TELL_DEADLINE, client.renew(news));
            match closing.run_until_cancelled(telling).await {
                Some(Ok(Ok(answer))) => {
                    let v1::RenewResponse { epoch, secret, block } = answer.into_inner();
                    let known = v1::RenewRequest { epoch, secret, block, unblock: Vec::new() };
                    if let Err(error) = core.renewed(&peer, known) {
                        tracing::warn!(%peer, error, "a peer gave an answer that makes no sense");
                    }
                }
                Some(Ok(Err(error))) => tracing::debug!(%peer, %error, "a peer did not hear the news"),
                Some(Err(_)) => tracing::debug!(%peer, "a peer did not hear the news in time"),
                None => {}
            }
        });
    }
}
