//! What members tell each other of models' leaders ([`super::super::leaders`]) and of addresses
//! ([`super::super::reach`]), at the swarm.

use libp2p::PeerId;
use libp2p::autonat::v1::{self as autonat, InboundProbeEvent};
use libp2p::kad::{self, InboundRequest};
use libp2p::swarm::dial_opts::DialOpts;
use tokio::time::Instant;

use super::Driver;
use crate::identity;

impl Driver {
    /// Tells members which models this node leads now.
    pub(super) fn lead(&mut self) {
        let said = self.said.borrow_and_update();
        let status = said.as_ref().map(|said| &said.status).filter(|status| !status.leaving);
        let models = status.into_iter().flat_map(|status| &status.models).map(|model| model.name.as_str());
        self.leaders.lead(&mut self.swarm.behaviour_mut().dht, models);
    }

    /// Lets go of peers that have been away for long.
    pub(super) fn expire(&mut self) {
        for peer in self.core.expire(Instant::now()).iter().filter_map(identity::to_libp2p) {
            self.forget(&peer);
        }
    }

    /// What `peer` said to lead, and found of this node, is over.
    pub(super) fn forget(&mut self, peer: &PeerId) {
        self.leaders.forget(&mut self.swarm.behaviour_mut().dht, peer);
        if self.reach.forget(peer) {
            self.found();
        }
    }

    /// Members found at which addresses they reach this node, or where they do not.
    pub(super) fn found(&mut self) {
        self.core.reached(self.reach.found());
        self.advertise();
    }

    /// Connects to a member that is said to lead a model: what it says of itself counts.
    fn meet(&mut self, peer: PeerId) {
        if self.core.is_blocked(&identity::from_libp2p(&peer)) || self.swarm.is_connected(&peer) {
            return;
        }
        // The addresses come with the answer that named it, which libp2p keeps for as long as the search goes on.
        if let Err(error) = self.swarm.dial(DialOpts::peer_id(peer).build()) {
            tracing::debug!(%peer, %error, "a member that is said to lead a model is not dialled");
        }
    }

    pub(super) fn on_dht_event(&mut self, event: kad::Event) {
        if let kad::Event::InboundRequest { request: InboundRequest::AddProvider { record: Some(record) } } = event {
            let is_member = self.swarm.is_connected(&record.provider)
                && !self.core.is_blocked(&identity::from_libp2p(&record.provider));
            if is_member {
                self.leaders.record(&mut self.swarm.behaviour_mut().dht, record);
            }
            return;
        }
        for peer in self.leaders.on_event(&mut self.swarm.behaviour_mut().dht, event) {
            self.meet(peer);
        }
    }

    pub(super) fn on_autonat_event(&mut self, event: autonat::Event) {
        match event {
            autonat::Event::OutboundProbe(event) => {
                let is_answer = self.reach.on_probe(event, Instant::now());
                if is_answer {
                    self.found();
                }
            }
            autonat::Event::InboundProbe(InboundProbeEvent::Response { peer, address, .. }) => {
                // The connection back has served its purpose, unless there was no direct one before.
                if let Some(connection) = self.paths.surplus(&peer, &address) {
                    self.swarm.close_connection(connection);
                }
            }
            _ => {}
        }
    }
}
