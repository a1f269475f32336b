//! What this node says of itself, as peers hear it and as the view and the admin show it.

use std::net::SocketAddr;
use std::time::Duration;

use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;
use mesh_proto::{convert, v1};
use mesh_types::{PeerState, PeerView};

use super::state::{Core, Local};
use super::table::{self, Table};
use super::{AddressReach, PeerRecord, reach, telling};
use crate::{address, identity};

impl Local {
    /// Makes what others are told of addresses anew.
    pub(super) fn rank(&mut self) {
        let ranked = reach::rank(&self.own, &self.reach);
        self.addresses = ranked.into_iter().map(|at| address::multiaddr(at.ip(), at.port())).collect();
    }
}

impl Core {
    /// The host's interfaces changed, or were read for the first time.
    pub(super) fn addresses_changed(&self) {
        let at = |ip| SocketAddr::new(ip, self.listen.port());
        self.change_addresses(|local| local.own = address::reachable(self.listen.ip()).into_iter().map(at).collect());
    }

    /// Members have found where they reach this node, and where they do not.
    pub(super) fn reached(&self, found: Vec<AddressReach>) {
        self.change_addresses(|local| local.reach = found);
    }

    fn change_addresses(&self, change: impl FnOnce(&mut Local)) {
        {
            let mut local = self.local();
            change(&mut local);
            local.rank();
        }
        self.changed();
    }

    pub(super) fn full_addresses(&self) -> Vec<Multiaddr> {
        let Some(id) = identity::to_libp2p(&self.id) else { return Vec::new() };
        self.local().addresses.iter().map(|address| address.clone().with(Protocol::P2p(id))).collect()
    }

    /// This node's status without its number and its peers; `None` until it is published.
    pub(super) fn compose(&self, local: &Local) -> Option<v1::NodeStatus> {
        let said = local.said.as_ref()?;
        let mut status = v1::NodeStatus {
            stage_addresses: said.stage_addresses.clone(),
            memory_bytes: said.memory.0,
            memory_free_bytes: said.memory_free.0,
            models: said.models.iter().map(Into::into).collect(),
            stages: said.stages.iter().map(Into::into).collect(),
            leaving: said.leaving,
            speed: said.speed.map(Into::into),
            draining: said.draining,
            copied: local.copied.clone(),
            epoch: self.epoch(),
            ..self.named(local)
        };
        telling::fit(&mut status);
        Some(status)
    }

    /// What is known of this node before it says anything.
    fn named(&self, local: &Local) -> v1::NodeStatus {
        v1::NodeStatus {
            peer_id: self.id.to_string(),
            name: self.name.clone(),
            version: self.version.clone(),
            addresses: local.addresses.iter().map(Multiaddr::to_string).collect(),
            ..Default::default()
        }
    }

    /// Its row in the view. `status` is what it says, once it does.
    pub(super) fn local_view(&self, local: &Local, status: Option<v1::NodeStatus>, table: &Table) -> PeerView {
        let state = local_state(local);
        let blank = || PeerView {
            local: true,
            name: self.name.clone(),
            version: self.version.clone(),
            addresses: local.addresses.iter().map(Multiaddr::to_string).collect(),
            ..table::blank(self.id.clone(), state)
        };
        let with_links = |status| v1::NodeStatus { peers: table.links(0).map(|link| link.to).collect(), ..status };
        let view = |status| convert::peer_view(self.id.clone(), with_links(status), state, true).ok();
        status.and_then(view).unwrap_or_else(blank)
    }

    pub(super) fn local_record(&self) -> PeerRecord {
        let local = self.local();
        let status = self.compose(&local).unwrap_or_else(|| self.named(&local));
        let peers = self.table().links(0).map(|link| link.to).collect();
        let status = v1::NodeStatus { sequence: local.sequence, peers, ..status };
        let copied_at = local.copied_at.iter().cloned().collect();
        PeerRecord {
            status,
            state: local_state(&local),
            age: Duration::ZERO,
            local: true,
            copied_at,
            relay: None,
            reach: local.reach.clone(),
        }
    }
}

fn local_state(local: &Local) -> PeerState {
    match &local.said {
        None => PeerState::Joining,
        Some(said) if said.leaving => PeerState::Leaving,
        Some(_) => PeerState::Ready,
    }
}
