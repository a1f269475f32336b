//! Replacing the mesh's secret and keeping peers out, as members tell each other.
//!
//! News travels from whoever has it to all connected peers, and on to those whose status shows that they are behind.

use std::sync::Arc;

use mesh_proto::v1;
use mesh_proto::v1::membership_client::MembershipClient;
use mesh_types::PeerId;
use tokio::time::Duration;

use super::swarm::Command;
use super::{Core, MeshError};
use crate::identity;
use crate::token::Secret;

/// How long a peer may take to hear the news; it is told again after its next status.
const TELL_DEADLINE: Duration = Duration::from_secs(10);
/// Peers that one message may block or unblock.
const MAX_PEERS: usize = 256;

impl Core {
    /// Replaces the secret here, on disk, and at connected peers.
    pub(super) async fn rotate(self: &Arc<Self>) -> Result<(), MeshError> {
        let failed = |why: String| MeshError::Rotate(why);
        let mut next = self.membership().clone();
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
        // Zero is said by those that do not know of epochs.
        if epoch != 0 && epoch < news.epoch {
            self.tell(peer.clone(), news);
        }
    }

    /// A member says that the secret was replaced, or that peers are to be kept out.
    pub(super) fn renewed(self: &Arc<Self>, from: &PeerId, news: v1::RenewRequest) -> Result<(), String> {
        if news.block.len() > MAX_PEERS || news.unblock.len() > MAX_PEERS {
            return Err("too many peers at once".to_owned());
        }
        for peer in news.block.into_iter().map(PeerId::new).filter(|peer| *peer != self.id) {
            if self.block(&peer) {
                tracing::warn!(%peer, by = %from, "a member blocks a peer");
            }
        }
        for peer in news.unblock.into_iter().map(PeerId::new) {
            self.unblock(&peer);
        }
        if news.epoch == 0 {
            return Ok(());
        }
        let secret = news.secret.try_into().map_err(|_| "a secret of 32 bytes".to_owned())?;
        if self.membership().epoch() < news.epoch {
            tracing::info!(epoch = news.epoch, by = %from, "the mesh's secret was replaced");
            self.adopt(news.epoch, Secret(secret));
        }
        Ok(())
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
        }
        self.membership_changed.notify_one();
        is_news
    }

    /// Tells all connected peers.
    pub(super) fn tell_all(self: &Arc<Self>, news: v1::RenewRequest) {
        let peers = self.table().present();
        peers.into_iter().for_each(|peer| self.tell(peer, news.clone()));
    }

    fn adopt(self: &Arc<Self>, epoch: u32, secret: Secret) {
        self.door.renew(epoch, secret.clone());
        self.membership().renew(epoch, secret);
        self.membership_changed.notify_one();
        self.changed();
        self.tell_all(self.news());
    }

    fn news(&self) -> v1::RenewRequest {
        let membership = self.membership();
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
            let mut client = MembershipClient::new(core.channel(&peer));
            let telling = tokio::time::timeout(TELL_DEADLINE, client.renew(news));
            match closing.run_until_cancelled(telling).await {
                Some(Ok(Err(error))) => tracing::debug!(%peer, %error, "a peer did not hear the news"),
                Some(Err(_)) => tracing::debug!(%peer, "a peer did not hear the news in time"),
                Some(Ok(Ok(_))) | None => {}
            }
        });
    }
}
