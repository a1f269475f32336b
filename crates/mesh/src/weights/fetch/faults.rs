//! Which holders failed, how often, and which may still be asked.

use std::collections::HashMap;
use std::time::Duration;

use mesh_gguf::Manifest;
use mesh_types::PeerId;

use super::{FetchError, SliceRequest};
use crate::Mesh;
use crate::weights::holder::{Holder, HolderError, HolderFault};

/// Times that a holder whose transfer breaks is asked again, while no chunk comes of it.
const ATTEMPTS: usize = 3;
/// Before a holder that failed is asked again; as often as it failed.
const PAUSE: Duration = Duration::from_millis(200);

/// How often each holder failed since something last came of it, and how.
#[derive(Default)]
pub(super) struct Faults(HashMap<PeerId, (usize, HolderFault)>);

impl Faults {
    /// Whether `peer` may be asked.
    pub(super) fn may_ask(&self, peer: &PeerId) -> bool {
        self.count(peer) < ATTEMPTS
    }

    /// How long `peer` is left alone before it is asked again.
    pub(super) fn pause(&self, peer: &PeerId) -> Duration {
        PAUSE * self.count(peer) as u32
    }

    /// Something good came of `peer`.
    pub(super) fn forgive(&mut self, peer: &PeerId) {
        self.0.remove(peer);
    }

    /// `peer` failed.
    pub(super) fn note(&mut self, peer: &PeerId, fault: HolderFault) {
        tracing::warn!(holder = %peer, %fault, "a holder failed");
        let (count, last) = self.0.entry(peer.clone()).or_insert((0, fault.clone()));
        // A liar is not asked again; neither is one that says no.
        *count = if matches!(fault, HolderFault::Broken(_)) { *count + 1 } else { ATTEMPTS };
        *last = fault;
    }

    /// The manifest, from the first holder that has it.
    pub(super) async fn first_manifest(&mut self, mesh: &Mesh, request: &SliceRequest) -> Result<Manifest, FetchError> {
        loop {
            let next = request.holders.iter().filter(|peer| self.may_ask(peer)).min_by_key(|peer| self.count(peer));
            let Some(peer) = next else { return Err(self.exhausted(mesh, request)) };
            tokio::time::sleep(self.pause(peer)).await;
            let asked = match Holder::open(mesh, peer, request.digest).await {
                Ok(mut holder) => holder.manifest().await,
                Err(fault) => Err(fault),
            };
            match asked {
                Ok(manifest) => return Ok(manifest),
                Err(fault) => self.note(peer, fault),
            }
        }
    }

    /// Nobody is left to ask: why.
    pub(super) fn exhausted(&self, mesh: &Mesh, request: &SliceRequest) -> FetchError {
        let view = mesh.view();
        let view = view.borrow();
        let error = |peer: &PeerId| {
            let name = view.peer(peer).map(|peer| peer.name.clone()).filter(|name| !name.is_empty());
            let fault = self.0.get(peer)?.1.clone();
            Some(HolderError { holder: peer.clone(), name: name.unwrap_or_else(|| peer.to_string()), fault })
        };
        FetchError::Holders(request.holders.iter().filter_map(error).collect())
    }

    fn count(&self, peer: &PeerId) -> usize {
        self.0.get(peer).map_or(0, |(count, _)| *count)
    }
}
