//! Which mesh this node belongs to, kept in the data directory: id, secret, epoch, and where its peers were last.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use libp2p::Multiaddr;
use mesh_types::PeerId;
use zeroize::Zeroizing;

use crate::admission::{MAX_PAST, supersedes};
use crate::data_dir::{self, DataDir, DataDirError};
use crate::token::{JoinToken, MeshId, Secret, TokenError, split_peer};

mod stored;
#[cfg(test)]
mod tests;

use stored::Stored;

const FILE: &str = "membership.json";
const LIMIT: u64 = 1 << 20;
const VERSION: u32 = 1;
/// Peers remembered at most, and addresses of each.
const MAX_PEERS: usize = 256;
const MAX_ADDRESSES: usize = 16;
const MAX_BLOCKED: usize = 4096;

/// A node's membership in one mesh.
#[derive(Clone)]
pub struct Membership {
    path: PathBuf,
    mesh: MeshId,
    secret: Secret,
    epoch: u32,
    /// Addresses without their `/p2p/` end, by peer.
    peers: BTreeMap<PeerId, Vec<Multiaddr>>,
    blocked: Vec<PeerId>,
    /// Earlier epochs and their secrets, the newest last: for members that were away when it was replaced.
    past: Vec<(u32, Secret)>,
    /// The secret is an invitation, good until then (Unix seconds); a member that admits this node tells the mesh's own.
    invited: Option<u64>,
    /// Whether this membership came from a token and no member has accepted it yet.
    unproven: bool,
}

/// Why there is no membership.
#[derive(Debug, thiserror::Error)]
pub enum MembershipError {
    /// The data directory belongs to another mesh than the token.
    #[error(
        "{} is a member of mesh {present}, and the token leads to mesh {offered}: give another --data-dir, or remove \
         {FILE} in this one to leave its mesh", path.display()
    )]
    OtherMesh {
        /// The data directory.
        path: PathBuf,
        /// Whose member it is.
        present: MeshId,
        /// Where the token leads.
        offered: MeshId,
    },
    /// The token has expired.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The file cannot be read or written, or is damaged.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    /// The system gives no random numbers.
    #[error("no random numbers from the system: {0}")]
    Random(#[from] getrandom::Error),
}

impl Membership {
    /// The membership that `dir` holds, if any.
    ///
    /// # Errors
    /// Where the file cannot be read, or is damaged.
    pub fn load(dir: &DataDir) -> Result<Option<Self>, MembershipError> {
        let path = dir.file(FILE);
        let bytes = data_dir::read_private(&path, LIMIT)
            .map_err(|source| DataDirError::Io { path: path.clone(), source })?
            .map(Zeroizing::new);
        let Some(bytes) = bytes else { return Ok(None) };
        let damaged = |reason: String| DataDirError::Damaged { path: path.clone(), reason };
        let stored: Stored = serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
        if stored.version != VERSION {
            let reason = format!("it is of version {}, this mesh-node reads version {VERSION}", stored.version);
            return Err(damaged(reason).into());
        }
        Ok(Some(stored.into_membership(path.clone()).ok_or_else(|| damaged("its id or secret is malformed".into()))?))
    }

    /// The membership that `dir` holds, or a new mesh of which this node is the first member.
    ///
    /// # Errors
    /// As [`Self::load`]; and where it cannot be written.
    pub fn create_or_resume(dir: &DataDir) -> Result<Self, MembershipError> {
        if let Some(membership) = Self::load(dir)? {
            return Ok(membership);
        }
        let membership = Self {
            path: dir.file(FILE),
            mesh: MeshId::random()?,
            secret: Secret::random()?,
            epoch: 1,
            peers: BTreeMap::new(),
            blocked: Vec::new(),
            past: Vec::new(),
            invited: None,
            unproven: false,
        };
        membership.save()?;
        Ok(membership)
    }

    /// What `token` gives, joined with what `dir` knows of the same mesh. Written to `dir` once a member has accepted
    /// it, so that a token that leads nowhere leaves no trace.
    ///
    /// # Errors
    /// [`MembershipError::OtherMesh`] where `dir` is a member of another mesh; [`MembershipError::Token`] where the token
    /// has expired.
    pub fn join(dir: &DataDir, token: &JoinToken) -> Result<Self, MembershipError> {
        token.check_expiry(std::time::SystemTime::now())?;
        let mut membership = match Self::load(dir)? {
            Some(present) if present.mesh != token.mesh => {
                let path = dir.path().to_owned();
                return Err(MembershipError::OtherMesh { path, present: present.mesh, offered: token.mesh });
            }
            // A member that rotated its secret since the token was made keeps the newer one.
            Some(present) if present.epoch > token.epoch => present,
            // A member needs no invitation.
            Some(present) if present.epoch == token.epoch && token.expires.is_some() => present,
            Some(present) => {
                let unproven = present.secret != token.secret || present.epoch != token.epoch;
                let (secret, epoch, invited) = (token.secret.clone(), token.epoch, token.expires);
                Self { secret, epoch, invited, unproven, ..present }
            }
            None => Self {
                path: dir.file(FILE),
                mesh: token.mesh,
                secret: token.secret.clone(),
                epoch: token.epoch,
                peers: BTreeMap::new(),
                blocked: Vec::new(),
                past: Vec::new(),
                invited: token.expires,
                unproven: true,
            },
        };
        for (address, peer) in token.bootstrap.iter().filter_map(split_peer) {
            let known = membership.peers.entry(crate::identity::from_libp2p(&peer)).or_default();
            if !known.contains(&address) {
                known.insert(0, address);
                known.truncate(MAX_ADDRESSES);
            }
        }
        Ok(membership)
    }

    /// The mesh.
    pub fn mesh(&self) -> MeshId {
        self.mesh
    }

    /// The rotation count of the secret.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    pub(crate) fn secret(&self) -> &Secret {
        &self.secret
    }

    /// Peers and where they were last, without the `/p2p/` ends.
    pub fn known_peers(&self) -> impl Iterator<Item = (&PeerId, &[Multiaddr])> {
        self.peers.iter().map(|(peer, addresses)| (peer, addresses.as_slice()))
    }

    /// Until when this node is invited; `None`: it has the mesh's secret.
    pub(crate) fn invited(&self) -> Option<u64> {
        self.invited
    }

    pub(crate) fn past(&self) -> &[(u32, Secret)] {
        &self.past
    }

    /// Replaces the secret. Members stay.
    pub(crate) fn rotate(&mut self) -> Result<(), getrandom::Error> {
        self.renew(self.epoch.saturating_add(1), Secret::random()?);
        Ok(())
    }

    /// Another member has replaced the secret, or tells it to who was invited. Returns whether that is news.
    pub(crate) fn renew(&mut self, epoch: u32, secret: Secret) -> bool {
        if self.invited.take().is_some() {
            (self.epoch, self.secret, self.unproven) = (epoch, secret, false);
            return true;
        }
        if !supersedes((epoch, &secret), (self.epoch, &self.secret)) {
            return false;
        }
        let before = (self.epoch, std::mem::replace(&mut self.secret, secret));
        self.past.push(before);
        if self.past.len() > MAX_PAST {
            self.past.remove(0);
        }
        self.epoch = epoch;
        true
    }

    /// Refuses `peer` from now on. Returns whether that is news.
    pub(crate) fn block(&mut self, peer: &PeerId) -> bool {
        let is_news = !self.blocked.contains(peer) && self.blocked.len() < MAX_BLOCKED;
        if is_news {
            self.blocked.push(peer.clone());
            self.peers.remove(peer);
        }
        is_news
    }

    /// Takes `peer` off the block list. Returns whether it was on it.
    pub(crate) fn unblock(&mut self, peer: &PeerId) -> bool {
        let before = self.blocked.len();
        self.blocked.retain(|blocked| blocked != peer);
        self.blocked.len() != before
    }

    /// Peers that are refused, whatever they prove.
    pub fn blocked(&self) -> &[PeerId] {
        &self.blocked
    }

    /// Remembers where `peer` is. Returns whether that is news.
    pub(crate) fn remember(&mut self, peer: &PeerId, addresses: &[Multiaddr]) -> bool {
        let addresses: Vec<_> = addresses.iter().take(MAX_ADDRESSES).cloned().collect();
        if addresses.is_empty() || (!self.peers.contains_key(peer) && self.peers.len() >= MAX_PEERS) {
            return false;
        }
        self.peers.insert(peer.clone(), addresses.clone()).is_none_or(|before| before != addresses)
    }

    /// `peer` was reached at `address`. Returns whether that is news.
    pub(crate) fn reached(&mut self, peer: &PeerId, address: &Multiaddr) -> bool {
        match self.peers.get(peer) {
            Some(known) if known.contains(address) => false,
            Some(known) => {
                let mut addresses = vec![address.clone()];
                addresses.extend_from_slice(known);
                self.remember(peer, &addresses)
            }
            None => self.remember(peer, std::slice::from_ref(address)),
        }
    }

    /// A member has accepted the secret: from now on this membership is kept, unless it is an invitation. Returns
    /// whether that is news.
    pub(crate) fn proven(&mut self) -> bool {
        self.invited.is_none() && std::mem::take(&mut self.unproven)
    }

    /// Whether a member has accepted it, or this node founded the mesh.
    pub(crate) fn is_proven(&self) -> bool {
        !self.unproven
    }

    /// Writes it to the data directory, unless no member has accepted it yet. Blocks.
    pub(crate) fn save(&self) -> Result<(), DataDirError> {
        if self.unproven {
            return Ok(());
        }
        let fail = |source| DataDirError::Io { path: self.path.clone(), source };
        let stored = Zeroizing::new(serde_json::to_vec_pretty(&Stored::from(self)).map_err(|e| fail(e.into()))?);
        data_dir::write_private(&self.path, &stored).map_err(fail)
    }
}

impl fmt::Debug for Membership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Membership").field("mesh", &self.mesh).field("epoch", &self.epoch).finish_non_exhaustive()
    }
}
