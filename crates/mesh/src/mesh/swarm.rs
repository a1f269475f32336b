//! The task that drives the libp2p swarm: dials, and turns connections that come and go into the peer table and
//! presences. [`super::behaviour`] is what it drives.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use libp2p::core::ConnectedPoint;
use libp2p::swarm::dial_opts::{DialOpts, PeerCondition};
use libp2p::swarm::{DialError, SwarmEvent};
use libp2p::{Multiaddr, PeerId, Swarm, identify, ping};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use super::Core;
use super::behaviour::{Behaviour, BehaviourEvent};
use super::copies::Copies;
use super::dialer::{self, Dial, Dialer};
use super::leaders::{Found, Leaders, ModelKey};
use super::paths::{self, Path, Paths};
use super::reach::Reach;
use super::reason::{self, Reason};
use super::telling::Said;
use crate::identity;

mod discovery;

const CLOSE_DEADLINE: Duration = Duration::from_secs(1);
/// Peers whose addresses are remembered while they are kept out.
const MAX_DROPPED: usize = 256;

/// What the rest of the mesh asks of the swarm's task.
pub(super) enum Command {
    /// Others, or the peer itself, say where `peer` is.
    Learn { peer: PeerId, addresses: Vec<Multiaddr>, source: Source },
    /// Closes all connections to `peer`, and dials it no more.
    Drop(PeerId),
    /// Dials `peer`, which was dropped, where it was then: it waits long between its own attempts, all of which failed.
    Resume(PeerId),
    /// Dials everybody that is away at once: what kept them from admitting this node may be over.
    Hurry,
    /// Asks members who leads a model, connects to those that are said to, and tells whether there are any.
    Seek { model: ModelKey, found: oneshot::Sender<Found> },
    /// Closes every connection, answers, and ends.
    Close(oneshot::Sender<()>),
}

/// Who says where a peer is.
pub(super) enum Source {
    /// The peer itself, which leads these models.
    Itself(Vec<ModelKey>),
    /// A member that is connected to it directly.
    Member(PeerId),
    /// Somebody else.
    Hearsay,
}

/// The running task.
pub(super) struct Driver {
    core: Arc<Core>,
    swarm: Swarm<Behaviour>,
    dialer: Dialer,
    copies: Copies,
    paths: Paths,
    leaders: Leaders,
    reach: Reach,
    /// Where peers were that are kept out.
    dropped: HashMap<PeerId, Vec<Multiaddr>>,
    /// What this node says of itself.
    said: watch::Receiver<Option<Said>>,
    commands: mpsc::Receiver<Command>,
}

impl Driver {
    /// Looks for `room` peers at most by itself; others may come.
    pub(super) fn new(
        core: Arc<Core>,
        swarm: Swarm<Behaviour>,
        commands: mpsc::Receiver<Command>,
        room: usize,
    ) -> Self {
        let mut dialer = Dialer::new(*swarm.local_peer_id(), room);
        let now = Instant::now();
        for (peer, addresses) in core.known_peers() {
            dialer.add_lasting(peer, addresses, now);
        }
        let (leaders, said) = (Leaders::new(core.membership().mesh()), core.said.subscribe());
        let (copies, paths, reach) = (Copies::default(), Paths::default(), Reach::new(core.listen.port()));
        let mut driver =
            Self { core, swarm, dialer, copies, paths, leaders, reach, dropped: HashMap::new(), said, commands };
        driver.advertise();
        driver
    }

    /// Runs until told to close.
    pub(super) async fn run(mut self) {
        let done = loop {
            self.dial_due();
            self.leaders.tell_due(&mut self.swarm.behaviour_mut().dht, Instant::now());
            let dues = [self.dialer.next_due(), self.core.next_expiry(), self.leaders.next_due()];
            let wake = dues.into_iter().flatten().min();
            tokio::select! {
                event = self.swarm.select_next_some() => self.on_event(event),
                command = self.commands.recv() => match command {
                    Some(Command::Learn { peer, addresses, source }) => self.learn(peer, addresses, &source),
                    Some(Command::Drop(peer)) => self.drop_peer(peer),
                    Some(Command::Resume(peer)) => {
                        if let Some(addresses) = self.dropped.remove(&peer) {
                            self.dialer.learn(peer, &addresses, None, Instant::now());
                        }
                    }
                    Some(Command::Hurry) => self.dialer.hurry(Instant::now()),
                    Some(Command::Seek { model, found }) => {
                        self.leaders.seek(&mut self.swarm.behaviour_mut().dht, model, found);
                    }
                    Some(Command::Close(done)) => break Some(done),
                    None => break None,
                },
                Ok(()) = self.said.changed() => self.lead(),
                () = sleep_until(wake) => self.expire(),
            }
        };
        self.close().await;
        if let Some(done) = done {
            let _ = done.send(());
        }
    }

    fn learn(&mut self, peer: PeerId, addresses: Vec<Multiaddr>, source: &Source) {
        match source {
            Source::Itself(models) => {
                if self.swarm.is_connected(&peer) {
                    let dht = &mut self.swarm.behaviour_mut().dht;
                    self.leaders.heard(dht, peer, &addresses, models, Instant::now());
                }
                self.dialer.replace(peer, addresses);
            }
            Source::Member(member) => self.dialer.learn(peer, &addresses, Some(*member), Instant::now()),
            Source::Hearsay => self.dialer.learn(peer, &addresses, None, Instant::now()),
        }
    }

    fn drop_peer(&mut self, peer: PeerId) {
        let addresses = self.dialer.forget(&peer);
        if self.dropped.len() < MAX_DROPPED && !addresses.is_empty() {
            self.dropped.insert(peer, addresses);
        }
        self.forget(&peer);
        let _ = self.swarm.disconnect_peer_id(peer);
    }

    /// Tells those who ask for a place at this node where it is.
    fn advertise(&mut self) {
        let addresses = self.core.full_addresses();
        let stale: Vec<_> = self.swarm.external_addresses().cloned().collect();
        for address in stale.iter().filter(|address| !addresses.contains(address) && !paths::is_circuit(address)) {
            self.swarm.remove_external_address(address);
        }
        addresses.into_iter().for_each(|address| self.swarm.add_external_address(address));
    }

    fn dial_due(&mut self) {
        let now = Instant::now();
        for Dial { peer, addresses, upgrade } in self.dialer.due(now) {
            let condition = if upgrade { PeerCondition::NotDialing } else { PeerCondition::DisconnectedAndNotDialing };
            let options = DialOpts::peer_id(peer)
                .condition(condition)
                .addresses(addresses)
                // Another port than the listener's: nothing here needs the same, and redials would collide.
                .allocate_new_port()
                .build();
            match self.swarm.dial(options) {
                Ok(()) => {}
                Err(DialError::DialPeerConditionFalse(_)) if self.swarm.is_connected(&peer) => {
                    self.dialer.connected(peer, None, now);
                }
                Err(error) => self.on_dial_error(peer, &error),
            }
        }
    }

    fn on_event(&mut self, event: SwarmEvent<BehaviourEvent>) {
        match event {
            SwarmEvent::NewListenAddr { address, .. } | SwarmEvent::ExpiredListenAddr { address, .. }
                if !paths::is_circuit(&address) =>
            {
                self.reach.clear();
                self.core.addresses_changed();
                self.found();
            }
            // By what a member says: only what this node tells others stands.
            SwarmEvent::ExternalAddrConfirmed { .. } => self.advertise(),
            SwarmEvent::ConnectionEstablished { peer_id, connection_id, endpoint, num_established, .. } => {
                let ip = endpoint.get_remote_address().ip_addr();
                self.copies.connected(&identity::from_libp2p(&peer_id), connection_id, ip, Instant::now());
                let dialled = match &endpoint {
                    ConnectedPoint::Dialer { address, .. } if !paths::is_circuit(address) => {
                        Some(without_peer(address))
                    }
                    _ => None,
                };
                self.paths.opened(peer_id, connection_id, &endpoint);
                if num_established.get() == 1 {
                    tracing::info!(peer = %peer_id, address = %endpoint.get_remote_address(), "connected");
                    self.core.connected(peer_id, dialled.clone());
                }
                self.follow(peer_id, dialled);
            }
            SwarmEvent::ConnectionClosed { peer_id, connection_id, num_established, cause, .. } => {
                let peer = identity::from_libp2p(&peer_id);
                if self.copies.closed(&peer, connection_id) {
                    self.core.sees_copies(&self.copies);
                }
                if num_established == 0 {
                    self.leaders.lost(&mut self.swarm.behaviour_mut().dht, &peer_id);
                    let cause = cause.map(|cause| cause.to_string());
                    tracing::info!(peer = %peer_id, cause = cause.as_deref().unwrap_or("closed"), "disconnected");
                    self.core.disconnected(&peer);
                    self.dialer.disconnected(peer_id, Instant::now());
                }
                self.paths.closed(peer_id, connection_id);
                self.follow(peer_id, None);
            }
            SwarmEvent::OutgoingConnectionError { peer_id: Some(peer), error, .. } => self.on_dial_error(peer, &error),
            SwarmEvent::IncomingConnectionError { send_back_addr, error, .. } => {
                self.core.sees_foreigners();
                tracing::debug!(address = %send_back_addr, %error, "an inbound connection failed");
            }
            SwarmEvent::Behaviour(BehaviourEvent::Identify(identify::Event::Received {
                peer_id,
                connection_id,
                info,
            })) => {
                self.reach.seen(peer_id, &info.observed_addr);
                self.copies.identified(&identity::from_libp2p(&peer_id), connection_id, &info.agent_version);
            }
            SwarmEvent::Behaviour(BehaviourEvent::Ping(ping::Event { peer, connection, result: Ok(rtt) })) => {
                self.core.measured(&peer, rtt);
                let sent = Instant::now() - rtt;
                if self.copies.answered(&identity::from_libp2p(&peer), connection, sent) {
                    self.core.sees_copies(&self.copies);
                }
            }
            SwarmEvent::Behaviour(BehaviourEvent::Ping(ping::Event { peer, connection, result: Err(error) })) => {
                tracing::info!(%peer, %error, "a silent connection is closed");
                self.swarm.close_connection(connection);
            }
            SwarmEvent::Behaviour(BehaviourEvent::Dht(event)) => self.on_dht_event(event),
            SwarmEvent::Behaviour(BehaviourEvent::Autonat(event)) => self.on_autonat_event(event),
            SwarmEvent::ListenerClosed { listener_id, reason, .. } => match (self.paths.lost(listener_id), reason) {
                (Some(relay), reason) => tracing::debug!(%relay, ?reason, "lost the place at a relay"),
                (None, Err(error)) => tracing::error!(%error, "listening failed"),
                (None, Ok(())) => {}
            },
            SwarmEvent::ListenerError { error, .. } => tracing::debug!(%error, "a listener failed for a moment"),
            _ => {}
        }
    }

    fn on_dial_error(&mut self, peer: PeerId, error: &DialError) {
        let reasons = reason::of_dial(error);
        self.core.sees_foreigners();
        for (address, reason) in &reasons {
            if reason.is_refusal() {
                // Who runs this node has to do something about it, there or here.
                tracing::warn!(%peer, %address, "not let in: {reason}");
            } else {
                tracing::debug!(%peer, %address, %reason, "dialling failed");
            }
        }
        let hopeless = !reasons.is_empty() && reasons.iter().all(|(_, reason)| reason.is_final());
        let asked = reasons.iter().filter_map(|(_, reason)| reason.wait()).max();
        let wait = if hopeless { Some(dialer::LONGEST_PAUSE) } else { asked };
        if !reasons.is_empty() && reasons.iter().all(|(_, reason)| reason.is_silence()) {
            self.dialer.unanswered(peer);
        }
        self.dialer.failed(peer, wait, Instant::now());
        self.keep_places();
        if !self.swarm.is_connected(&peer) {
            let reasons: Vec<(Multiaddr, Reason)> =
                reasons.into_iter().map(|(address, reason)| (without_peer(&address), reason)).collect();
            self.core.dial_failed(peer, reasons);
        }
    }

    /// Takes note of the way to a peer after a connection to it came or went. `dialled` is where it was reached directly.
    fn follow(&mut self, peer: PeerId, dialled: Option<Multiaddr>) {
        let now = Instant::now();
        let relay = match self.paths.to(&peer) {
            None => return,
            Some(Path::Direct) => {
                self.dialer.connected(peer, dialled, now);
                None
            }
            Some(Path::Relayed(relay)) => {
                self.dialer.relayed(peer, now);
                Some(identity::from_libp2p(&relay))
            }
        };
        self.core.reached_through(&identity::from_libp2p(&peer), relay);
    }

    /// Asks for places at the members through which peers may come that this node cannot reach.
    fn keep_places(&mut self) {
        for (relay, address) in self.dialer.relays() {
            if self.paths.has_place(&relay) {
                continue;
            }
            match self.swarm.listen_on(paths::circuit(relay, &address, None)) {
                Ok(listener) => self.paths.asked(relay, listener),
                Err(error) => tracing::debug!(%relay, %error, "cannot ask for a place at a relay"),
            }
        }
    }

    /// Closes all connections, and lets their last bytes go out.
    async fn close(&mut self) {
        let peers: Vec<_> = self.swarm.connected_peers().copied().collect();
        for peer in peers {
            let _ = self.swarm.disconnect_peer_id(peer);
        }
        let emptied = async {
            while self.swarm.connected_peers().next().is_some() {
                if let SwarmEvent::ConnectionClosed { peer_id, num_established: 0, .. } =
                    self.swarm.select_next_some().await
                {
                    self.core.disconnected(&identity::from_libp2p(&peer_id));
                }
            }
        };
        if tokio::time::timeout(CLOSE_DEADLINE, emptied).await.is_err() {
            tracing::debug!("connections did not close in time");
        }
    }
}

fn without_peer(address: &Multiaddr) -> Multiaddr {
    crate::token::split_peer(address).map_or_else(|| address.clone(), |(address, _)| address)
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
