//! Which connection goes to which peer. One a pair: links share it, whoever dialled.
//!
//! Where both dial at the same moment, the connection dialled by the smaller peer id stays. A connection that was
//! dialled here is closed once it is neither the peer's nor used by a link; one that was dialled there is left to the
//! peer.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use mesh_types::PeerId;
use quinn::{Connection, VarInt};

/// A connection to an admitted peer. Dropping the last handle closes it.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) id: PeerId,
    pub(crate) connection: Connection,
    pub(crate) dialled: bool,
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.connection.close(VarInt::from_u32(0), b"unused");
    }
}

#[derive(Default)]
pub(crate) struct Peers(Mutex<HashMap<PeerId, Entry>>);

#[derive(Default)]
struct Entry {
    live: Option<Arc<Peer>>,
    /// Held by whoever dials the peer: the others wait and then share.
    dialling: Arc<tokio::sync::Mutex<()>>,
}

impl Entry {
    fn live(&self) -> Option<&Arc<Peer>> {
        self.live.as_ref().filter(|peer| peer.connection.close_reason().is_none())
    }
}

impl Peers {
    fn table(&self) -> std::sync::MutexGuard<'_, HashMap<PeerId, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn live(&self, id: &PeerId) -> Option<Arc<Peer>> {
        self.table().get(id).and_then(Entry::live).cloned()
    }

    /// Whether an admitted peer is connected from `ip`.
    pub(crate) fn has_one_at(&self, ip: IpAddr) -> bool {
        self.table().values().filter_map(Entry::live).any(|peer| peer.connection.remote_address().ip() == ip)
    }

    pub(crate) fn dialling(&self, id: &PeerId) -> Arc<tokio::sync::Mutex<()>> {
        self.table().entry(id.clone()).or_default().dialling.clone()
    }

    /// Enters a new connection, and returns the one that is to be used.
    pub(crate) fn enter(&self, local: &PeerId, new: Arc<Peer>) -> Arc<Peer> {
        let mut table = self.table();
        let entry = table.entry(new.id.clone()).or_default();
        if let Some(old) = entry.live()
            && old.dialled != new.dialled
        {
            let keep_dialled = *local < new.id;
            if old.dialled == keep_dialled {
                return old.clone();
            }
        }
        entry.live = Some(new.clone());
        new
    }

    /// Forgets `peer` if it is still what its id leads to.
    pub(crate) fn leave(&self, peer: &Peer) {
        let mut table = self.table();
        let same = |live: &Arc<Peer>| live.connection.stable_id() == peer.connection.stable_id();
        if table.get(&peer.id).and_then(|entry| entry.live.as_ref()).is_some_and(same) {
            table.remove(&peer.id);
        }
    }

    /// Takes a peer's connection out.
    pub(crate) fn remove(&self, id: &PeerId) -> Option<Arc<Peer>> {
        self.table().get_mut(id).and_then(|entry| entry.live.take())
    }

    pub(crate) fn clear(&self) {
        self.table().clear();
    }
}
