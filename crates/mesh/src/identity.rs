//! Who this node is: one ed25519 key, the same for libp2p and for the stage transport.

use std::fmt;

use libp2p::identity::Keypair;
use mesh_types::PeerId;
use zeroize::Zeroizing;

use crate::data_dir::{self, DataDir, DataDirError};

const FILE: &str = "identity.key";
/// More than the protobuf encoding of any key that libp2p knows.
const LIMIT: u64 = 4096;

/// A node's key pair and the peer id that follows from it.
#[derive(Clone)]
pub struct Identity {
    keypair: Keypair,
    id: PeerId,
}

impl Identity {
    /// A fresh key that is stored nowhere.
    pub fn generate() -> Self {
        Self::new(Keypair::generate_ed25519())
    }

    /// The key in `dir`, made on first use.
    ///
    /// # Errors
    /// Where it cannot be read, is damaged, or cannot be written.
    pub fn open(dir: &DataDir) -> Result<Self, DataDirError> {
        let path = dir.file(FILE);
        let fail = |source| DataDirError::Io { path: path.clone(), source };
        if let Some(bytes) = data_dir::read_private(&path, LIMIT).map_err(fail)?.map(Zeroizing::new) {
            let keypair = Keypair::from_protobuf_encoding(&bytes).map_err(|_| DataDirError::Damaged {
                path: path.clone(),
                reason: "it holds no key; restore it, or remove it to become a new node".to_owned(),
            })?;
            return Ok(Self::new(keypair));
        }
        let identity = Self::generate();
        let bytes = identity.keypair.to_protobuf_encoding().map_err(|error| fail(std::io::Error::other(error)))?;
        data_dir::write_private(&path, &Zeroizing::new(bytes)).map_err(fail)?;
        Ok(identity)
    }

    /// The peer id.
    pub fn id(&self) -> &PeerId {
        &self.id
    }

    /// The key pair, for libp2p and for `libp2p-tls`.
    pub fn keypair(&self) -> &Keypair {
        &self.keypair
    }

    fn new(keypair: Keypair) -> Self {
        let id = from_libp2p(&keypair.public().to_peer_id());
        Self { keypair, id }
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").field("id", &self.id).finish_non_exhaustive()
    }
}

/// The id as libp2p has it; `None` where the text is no peer id.
pub fn to_libp2p(id: &PeerId) -> Option<libp2p::PeerId> {
    id.as_str().parse().ok()
}

/// `text` as a peer id, where it is one.
pub fn check(text: &str) -> Option<PeerId> {
    text.parse::<libp2p::PeerId>().ok().map(|id| from_libp2p(&id))
}

/// The id as the rest of the product has it.
pub fn from_libp2p(id: &libp2p::PeerId) -> PeerId {
    PeerId::new(id.to_base58())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_keeps_its_identity() {
        let parent = tempfile::tempdir().unwrap();
        let dir = DataDir::open(parent.path().join("d")).unwrap();
        let first = Identity::open(&dir).unwrap();
        let again = Identity::open(&dir).unwrap();
        assert_eq!(first.id(), again.id());
        assert_eq!(to_libp2p(first.id()), Some(first.keypair().public().to_peer_id()));
        assert!(!format!("{first:?}").contains("keypair"));
    }

    #[test]
    fn a_damaged_key_is_named() {
        let parent = tempfile::tempdir().unwrap();
        let dir = DataDir::open(parent.path().join("d")).unwrap();
        std::fs::write(dir.file(FILE), b"nonsense").unwrap();
        let error = Identity::open(&dir).unwrap_err().to_string();
        assert!(error.contains("identity.key is damaged"), "{error}");
    }
}
