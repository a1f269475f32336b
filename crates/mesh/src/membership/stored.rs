//! A membership as its file holds it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use libp2p::Multiaddr;
use mesh_types::PeerId;
use serde::{Deserialize, Serialize};
use zeroize::Zeroize;

use super::{Membership, VERSION};
use crate::token::{MeshId, Secret};

#[derive(Serialize, Deserialize)]
pub(super) struct Stored {
    pub(super) version: u32,
    mesh_id: String,
    secret: String,
    epoch: u32,
    #[serde(default)]
    peers: BTreeMap<PeerId, Vec<String>>,
    #[serde(default)]
    blocked: Vec<PeerId>,
    /// Secrets in hexadecimal, by their epochs.
    #[serde(default)]
    past: BTreeMap<u32, String>,
}

impl From<&Membership> for Stored {
    fn from(membership: &Membership) -> Self {
        let texts = |addresses: &Vec<Multiaddr>| addresses.iter().map(Multiaddr::to_string).collect();
        Self {
            version: VERSION,
            mesh_id: membership.mesh.to_string(),
            secret: hex::encode(membership.secret.0),
            epoch: membership.epoch,
            peers: membership.peers.iter().map(|(peer, list)| (peer.clone(), texts(list))).collect(),
            blocked: membership.blocked.clone(),
            past: membership.past.iter().map(|(epoch, secret)| (*epoch, hex::encode(secret.0))).collect(),
        }
    }
}

impl Drop for Stored {
    fn drop(&mut self) {
        self.secret.zeroize();
        self.past.values_mut().for_each(Zeroize::zeroize);
    }
}

impl Stored {
    pub(super) fn into_membership(mut self, path: PathBuf) -> Option<Membership> {
        let mut mesh = [0; 16];
        hex::decode_to_slice(&self.mesh_id, &mut mesh).ok()?;
        let secret = secret_of(&self.secret)?;
        let addresses = |list: Vec<String>| list.iter().filter_map(|text| text.parse().ok()).collect();
        Some(Membership {
            path,
            mesh: MeshId(mesh),
            secret,
            epoch: self.epoch,
            peers: std::mem::take(&mut self.peers).into_iter().map(|(peer, list)| (peer, addresses(list))).collect(),
            blocked: std::mem::take(&mut self.blocked),
            past: self.past.iter().filter_map(|(epoch, text)| Some((*epoch, secret_of(text)?))).collect(),
            invited: None,
            unproven: false,
        })
    }
}

fn secret_of(text: &str) -> Option<Secret> {
    let mut secret = Secret([0; 32]);
    hex::decode_to_slice(text, &mut secret.0).ok()?;
    Some(secret)
}
