//! Which members lead which models (are their stage 0), as the members tell each other in a distributed hash table.
//!
//! A node knows the models of those it is connected to from their statuses. This is for the models of the others: just
//! after joining, or where a mesh has more members than a node keeps connections. Who leads a model leaves a provider
//! record for it with the members closest to the model's key (Kademlia); who looks for it asks them, connects to whom
//! they name, and reads that one's status. A record is a hint and no more: it says whom to ask.
//!
//! The routing table holds connected members only, so whoever is blocked or gone is named to nobody.
//! [`super::search`] says when to look.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::num::NonZeroUsize;
use std::time::Duration;

use hmac::{Hmac, Mac as _};
use libp2p::kad::store::{MemoryStore, MemoryStoreConfig, RecordStore as _};
use libp2p::kad::{
    self, BucketInserts, Caching, GetProvidersOk, Mode, ProviderRecord, QueryId, QueryResult, RecordKey, StoreInserts,
};
use libp2p::{Multiaddr, PeerId, StreamProtocol};
use sha2::Sha256;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::token::MeshId;

#[cfg(test)]
mod tests;

pub(super) const PROTOCOL: StreamProtocol = StreamProtocol::new("/mesh-node/kad/1");
/// With how many members a record is left.
const HOLDERS: NonZeroUsize = NonZeroUsize::new(8).unwrap();
/// Members that are asked at the same time.
const AT_ONCE: NonZeroUsize = NonZeroUsize::new(4).unwrap();
/// How often a record is left again, and how long it is good for: members come and go meanwhile.
const TELL_AGAIN: Duration = Duration::from_secs(20 * 60);
const GOOD_FOR: Duration = Duration::from_secs(60 * 60);
/// For finding those to leave a record with.
const QUERY_DEADLINE: Duration = Duration::from_secs(10);
/// Members that come within so long are told together.
const GATHER: Duration = Duration::from_secs(1);
/// Records that this node keeps for others: keys in all and of one member, members for one key, addresses in one.
const MAX_KEYS: usize = 4096;
const MAX_KEYS_OF_ONE: usize = 256;
const MAX_LEADERS: usize = 20;
const MAX_ADDRESSES: usize = 16;

/// This node's part of the table.
pub(super) type Dht = kad::Behaviour<MemoryStore>;

/// Stands for a model's name: names do not travel, and differ from mesh to mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ModelKey(pub(super) [u8; 32]);

impl ModelKey {
    pub(super) fn new(mesh: &MeshId, model: &str) -> Self {
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&mesh.0) else { unreachable!("HMAC takes any key") };
        mac.update(b"mesh-node model 1");
        mac.update(model.as_bytes());
        Self(mac.finalize().into_bytes().into())
    }

    fn record(&self) -> RecordKey {
        RecordKey::new(&self.0)
    }
}

/// Makes the node's part of the table. Nothing of it happens by itself but leaving records again, and libp2p's search for
/// this node's place while it knows few members: they come in by [`Leaders::heard`].
pub(super) fn dht(local: PeerId) -> Dht {
    let mut config = kad::Config::new(PROTOCOL);
    config
        .set_replication_factor(HOLDERS)
        .set_parallelism(AT_ONCE)
        .set_query_timeout(QUERY_DEADLINE)
        .set_kbucket_inserts(BucketInserts::Manual)
        .set_record_filtering(StoreInserts::FilterBoth)
        .set_caching(Caching::Disabled)
        .set_provider_record_ttl(Some(GOOD_FOR))
        .set_provider_publication_interval(Some(TELL_AGAIN))
        // Values are not kept at all.
        .set_publication_interval(None)
        .set_replication_interval(None)
        // Who is connected is in the table; there is nobody else to look for.
        .set_periodic_bootstrap_interval(None);
    let limits = MemoryStoreConfig {
        max_records: 0,
        max_value_bytes: 0,
        max_providers_per_key: MAX_LEADERS,
        max_provided_keys: MAX_KEYS,
    };
    let mut dht = Dht::with_config(local, MemoryStore::with_config(local, limits), config);
    // Every member can be asked: they are connected, whoever dialled.
    dht.set_mode(Some(Mode::Server));
    dht
}

/// What came of asking the members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// At least one member answered.
    pub(super) answered: bool,
    /// Somebody is said to lead the model.
    pub(super) leaders: bool,
}

/// What this node leads, whom others say they lead, and what is being looked for. Told the time.
pub(super) struct Leaders {
    mesh: MeshId,
    led: BTreeSet<ModelKey>,
    /// Those that can be asked.
    members: HashSet<PeerId>,
    /// How many they were when they were told last, or the fewest since.
    told: usize,
    due: Option<Instant>,
    /// The records that this node keeps for others.
    kept: HashMap<PeerId, HashSet<ModelKey>>,
    searches: HashMap<QueryId, Search>,
}

struct Search {
    found: oneshot::Sender<Found>,
    leaders: HashSet<PeerId>,
}

impl Leaders {
    pub(super) fn new(mesh: MeshId) -> Self {
        let (led, members, kept, searches) = Default::default();
        Self { mesh, led, members, told: 0, due: None, kept, searches }
    }

    /// This node leads `models` and no others.
    pub(super) fn lead<'a>(&mut self, dht: &mut Dht, models: impl Iterator<Item = &'a str>) {
        let led = models.take(MAX_KEYS_OF_ONE).map(|model| ModelKey::new(&self.mesh, model)).collect();
        let before = std::mem::replace(&mut self.led, led);
        for key in before.difference(&self.led) {
            dht.stop_providing(&key.record());
        }
        for key in self.led.difference(&before) {
            tell(dht, key);
        }
    }

    /// `peer`, which is connected, says where it is and that it leads `models`: it leads no others.
    pub(super) fn heard(
        &mut self,
        dht: &mut Dht,
        peer: PeerId,
        addresses: &[Multiaddr],
        models: &[ModelKey],
        now: Instant,
    ) {
        if let Some(kept) = self.kept.get_mut(&peer) {
            let over: Vec<ModelKey> = kept.iter().filter(|key| !models.contains(key)).copied().collect();
            for key in over {
                kept.remove(&key);
                dht.store_mut().remove_provider(&key.record(), &peer);
            }
        }
        place(dht, peer, addresses);
        self.members.insert(peer);
        // Each time they have become twice as many, those closest to a key may be others.
        let many_more = self.members.len() > self.told && self.members.len() >= 2 * self.told;
        if many_more && !self.led.is_empty() {
            self.due.get_or_insert(now + GATHER);
        }
    }

    /// The last connection to `peer` is gone. It may come back.
    pub(super) fn lost(&mut self, dht: &mut Dht, peer: &PeerId) {
        dht.remove_peer(peer);
        self.members.remove(peer);
        self.told = self.told.min(self.members.len());
    }

    /// `peer` is no member any more, or has been away for long.
    pub(super) fn forget(&mut self, dht: &mut Dht, peer: &PeerId) {
        self.lost(dht, peer);
        for key in self.kept.remove(peer).into_iter().flatten() {
            dht.store_mut().remove_provider(&key.record(), peer);
        }
    }

    /// A connected member leaves a record with this node.
    pub(super) fn record(&mut self, dht: &mut Dht, mut record: ProviderRecord) {
        let Ok(key) = record.key.as_ref().try_into().map(ModelKey) else { return };
        let kept = self.kept.entry(record.provider).or_default();
        if kept.len() >= MAX_KEYS_OF_ONE && !kept.contains(&key) {
            return;
        }
        record.addresses.truncate(MAX_ADDRESSES);
        match dht.store_mut().add_provider(record) {
            Ok(()) => _ = kept.insert(key),
            Err(error) => tracing::debug!(%error, "no room to note who leads a model"),
        }
    }

    /// When members are to be told again.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.due
    }

    /// Tells members what this node leads, where that is due.
    pub(super) fn tell_due(&mut self, dht: &mut Dht, now: Instant) {
        if self.due.is_some_and(|due| due <= now) {
            self.due = None;
            self.told = self.members.len();
            self.led.iter().for_each(|key| tell(dht, key));
        }
    }

    /// Asks members who leads `model`.
    pub(super) fn seek(&mut self, dht: &mut Dht, model: ModelKey, found: oneshot::Sender<Found>) {
        let query = dht.get_providers(model.record());
        self.searches.insert(query, Search { found, leaders: HashSet::new() });
    }

    /// Something happened in the table. Returns members that are said to lead what is being looked for.
    pub(super) fn on_event(&mut self, dht: &mut Dht, event: kad::Event) -> Vec<PeerId> {
        let kad::Event::OutboundQueryProgressed { id, result: QueryResult::GetProviders(result), stats, step } = event
        else {
            return Vec::new();
        };
        let Some(search) = self.searches.get_mut(&id) else { return Vec::new() };
        let mut news = Vec::new();
        if let Ok(GetProvidersOk::FoundProviders { providers, .. }) = result {
            for peer in providers {
                if search.leaders.len() < MAX_LEADERS && search.leaders.insert(peer) {
                    news.push(peer);
                }
            }
        }
        if step.last {
            if let Some(Search { found, leaders }) = self.searches.remove(&id) {
                // Who asked may not wait any more.
                let _ = found.send(Found { answered: stats.num_successes() > 0, leaders: !leaders.is_empty() });
            }
        } else if search.found.is_closed()
            && let Some(mut query) = dht.query_mut(&id)
        {
            query.finish();
        }
        news
    }
}

/// Leaves a record of this node with the members closest to `key`.
fn tell(dht: &mut Dht, key: &ModelKey) {
    if let Err(error) = dht.start_providing(key.record()) {
        tracing::debug!(%error, "no room to tell that this node leads a model");
    }
}

/// Puts `peer` into the routing table, at these addresses and no others.
fn place(dht: &mut Dht, peer: PeerId, addresses: &[Multiaddr]) {
    let full = |address: &Multiaddr| address.clone().with_p2p(peer).ok();
    let addresses: Vec<Multiaddr> = addresses.iter().take(MAX_ADDRESSES).filter_map(full).collect();
    for address in &addresses {
        dht.add_address(&peer, address.clone());
    }
    let known: Vec<Multiaddr> = dht.kbucket(peer).map_or_else(Vec::new, |bucket| {
        let entry = bucket.iter().find(|entry| *entry.node.key.preimage() == peer);
        entry.map(|entry| entry.node.value.iter().cloned().collect()).unwrap_or_default()
    });
    for stale in known.iter().filter(|known| !addresses.is_empty() && !addresses.contains(known)) {
        dht.remove_address(&peer, stale);
    }
}
