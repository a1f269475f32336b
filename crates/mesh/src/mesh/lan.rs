//! Members of the mesh on the local networks of this host find each other by DNS-SD over multicast DNS, without any
//! address in a token.
//!
//! An announcement says no more than: a peer id, where it listens, and a tag that only members can tell from noise. It
//! proves nothing, and need not: whoever it leads to has to pass admission. The tag only spares a mesh the dialling of
//! its neighbours' nodes, and them the refusing.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use hmac::{Hmac, Mac as _};
use libp2p::Multiaddr;
use mdns_sd::{DaemonEvent, IfKind, IfPredicate, Receiver, ResolvedService, ServiceDaemon, ServiceEvent, ServiceInfo};
use sha2::Sha256;
use subtle::ConstantTimeEq as _;

use super::state::Core;
use super::swarm::Source;
use crate::token::MeshId;
use crate::{address, identity};

const SERVICE: &str = "_mesh-node._tcp.local.";
/// Keys of the announcement's properties: the peer id, and nonce and tag in hexadecimal digits.
const ID: &str = "id";
const NONCE: &str = "nonce";
const TAG: &str = "mesh";
/// Addresses that are taken from one announcement.
const MAX_ADDRESSES: usize = 16;
/// For telling the neighbours that this node is going.
const GOODBYE: Duration = Duration::from_secs(1);

/// On which of the host's interfaces to speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Interfaces {
    /// Those that belong to a local network: the ones whose addresses are advertised.
    OfNetworks,
    /// Loopback as well: nodes on one host, for tests.
    #[cfg(test)]
    Loopback,
}

/// Announces this node, and hands the members that announce themselves to the dialler; until the mesh closes.
pub(super) async fn run(core: Arc<Core>, interfaces: Interfaces) {
    let daemon = match start(&core, interfaces) {
        Ok(daemon) => daemon,
        Err(error) => {
            tracing::warn!(%error, "members on the local network cannot be found by mDNS");
            return;
        }
    };
    match (daemon.browse(SERVICE), daemon.monitor()) {
        (Ok(events), Ok(faults)) => {
            let closing = core.closing();
            closing.run_until_cancelled(watch(&core, events, faults)).await;
        }
        (Err(error), _) | (_, Err(error)) => tracing::warn!(%error, "mDNS ended early"),
    }
    // The daemon's thread tells the neighbours, and ends.
    if let Ok(ended) = daemon.shutdown()
        && tokio::time::timeout(GOODBYE, ended.recv_async()).await.is_err()
    {
        tracing::debug!("mDNS did not end in time");
    }
}

fn start(core: &Core, interfaces: Interfaces) -> Result<ServiceDaemon, mdns_sd::Error> {
    let random = |error: getrandom::Error| mdns_sd::Error::Msg(format!("no random numbers from the system: {error}"));
    let mut nonce = [0; 16];
    getrandom::fill(&mut nonce).map_err(random)?;
    let id = core.id.as_str();
    let mesh = core.membership().mesh();
    let properties = [(ID, id.to_owned()), (NONCE, hex::encode(nonce)), (TAG, hex::encode(tag(&mesh, &nonce, id)))];
    // A label holds 63 bytes, a peer id has 52.
    let host = format!("{id}.local.");
    let mut service = ServiceInfo::new(SERVICE, id, &host, "", core.listen.port(), &properties[..])?.enable_addr_auto();
    // Its name is its peer id: nobody else has it, so that asking around first would only lose time.
    service.set_requires_probe(false);

    let daemon = ServiceDaemon::new()?;
    daemon.disable_interface(IfKind::All)?;
    let listen = core.listen.ip();
    daemon.enable_interface(IfKind::Predicate(IfPredicate::new(move |interface| match interfaces {
        Interfaces::OfNetworks => address::is_of_a_network(interface, listen),
        #[cfg(test)]
        Interfaces::Loopback => interface.is_loopback() && interface.ip().is_ipv4() && listen.is_loopback(),
    })))?;
    daemon.register(service)?;
    Ok(daemon)
}

async fn watch(core: &Core, events: Receiver<ServiceEvent>, faults: Receiver<DaemonEvent>) {
    loop {
        tokio::select! {
            event = events.recv_async() => match event {
                Ok(ServiceEvent::ServiceResolved(found)) => found_one(core, &found),
                Ok(_) => {}
                Err(_) => return tracing::warn!("mDNS has ended: members on the local network are found no more"),
            },
            Ok(fault) = faults.recv_async() => if let DaemonEvent::Error(error) = fault {
                tracing::debug!(%error, "mDNS");
            },
        }
    }
}

fn found_one(core: &Core, found: &ResolvedService) {
    let mesh = core.membership().mesh();
    let Some(member) = Announcement::of(found) else { return };
    if !member.is_of(&mesh) || member.peer == core.id.as_str() {
        return;
    }
    tracing::debug!(peer = member.peer, addresses = ?member.addresses, "found by mDNS");
    core.learn(&mesh_types::PeerId::new(member.peer), member.addresses, Source::Hearsay);
}

/// What somebody announces.
struct Announcement {
    peer: String,
    nonce: [u8; 16],
    tag: [u8; 32],
    addresses: Vec<Multiaddr>,
}

impl Announcement {
    /// `None` where it is no announcement of a mesh-node.
    fn of(found: &ResolvedService) -> Option<Self> {
        let peer = found.get_property_val_str(ID)?;
        identity::to_libp2p(&mesh_types::PeerId::from(peer))?;
        let mut announcement = Self { peer: peer.to_owned(), nonce: [0; 16], tag: [0; 32], addresses: Vec::new() };
        hex::decode_to_slice(found.get_property_val_str(NONCE)?, &mut announcement.nonce).ok()?;
        hex::decode_to_slice(found.get_property_val_str(TAG)?, &mut announcement.tag).ok()?;
        let ips = found.get_addresses().iter().map(mdns_sd::ScopedIp::to_ip_addr);
        let mut ips: Vec<IpAddr> = ips.filter(|ip| !address::is_link_local(ip)).collect();
        ips.sort();
        ips.truncate(MAX_ADDRESSES);
        announcement.addresses = ips.into_iter().map(|ip| address::multiaddr(ip, found.get_port())).collect();
        Some(announcement)
    }

    fn is_of(&self, mesh: &MeshId) -> bool {
        self.tag.ct_eq(&tag(mesh, &self.nonce, &self.peer)).into()
    }
}

/// Tells whoever knows the mesh's id that `peer` announces a member of it. The id itself does not travel.
fn tag(mesh: &MeshId, nonce: &[u8; 16], peer: &str) -> [u8; 32] {
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&mesh.0) else { unreachable!("HMAC takes any key") };
    mac.update(b"mesh-node mdns 1");
    mac.update(nonce);
    mac.update(peer.as_bytes());
    mac.finalize().into_bytes().into()
}

#[cfg(test)]
mod tests {
    use libp2p::PeerId;

    use super::*;

    fn service(properties: &[(&str, String)]) -> ResolvedService {
        let ips = ["192.0.2.7", "169.254.1.1"].map(|ip| ip.parse::<IpAddr>().unwrap());
        ServiceInfo::new(SERVICE, "x", "x.local.", &ips[..], 9338, properties).unwrap().as_resolved_service()
    }

    #[test]
    fn an_announcement_is_of_one_mesh_and_one_peer() {
        let (ours, theirs) = (MeshId([1; 16]), MeshId([2; 16]));
        let (peer, other) = (PeerId::random().to_string(), PeerId::random().to_string());
        let nonce = [7; 16];
        let said = |peer: &str, tag: [u8; 32]| {
            let properties = [(ID, peer.to_owned()), (NONCE, hex::encode(nonce)), (TAG, hex::encode(tag))];
            Announcement::of(&service(&properties)).unwrap()
        };
        let member = said(&peer, tag(&ours, &nonce, &peer));
        assert!(member.is_of(&ours) && !member.is_of(&theirs));
        assert_eq!(member.addresses, ["/ip4/192.0.2.7/tcp/9338".parse::<Multiaddr>().unwrap()]);
        assert!(!said(&other, member.tag).is_of(&ours), "a tag is of one peer");
    }

    #[test]
    fn what_is_no_announcement_of_ours_is_ignored() {
        let peer = PeerId::random().to_string();
        let (nonce, tag) = ((NONCE, "00".repeat(16)), (TAG, "00".repeat(32)));
        for properties in [
            vec![],
            vec![(ID, "nobody".to_owned()), nonce.clone(), tag.clone()],
            vec![(ID, peer.clone()), (NONCE, "0".to_owned()), tag.clone()],
            vec![(ID, peer.clone()), nonce.clone(), (TAG, "zz".repeat(32))],
            vec![(ID, peer.clone()), nonce.clone()],
        ] {
            assert!(Announcement::of(&service(&properties)).is_none(), "{properties:?}");
        }
        assert!(Announcement::of(&service(&[(ID, peer), nonce, tag])).is_some());
    }
}
