//! The seal on reasoning that clients carry between turns: XChaCha20-Poly1305 under a key of the mesh, so that any of
//! its gateways opens what another has sealed, and nobody else reads or makes one.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chacha20poly1305::aead::{Aead as _, KeyInit as _, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};

/// First byte of what is sealed: how.
const VERSION: u8 = 1;
/// Long enough to be drawn at random for every seal.
const NONCE_LEN: usize = 24;

/// Seals and opens.
pub(crate) struct MeshSeal(XChaCha20Poly1305);

impl MeshSeal {
    /// With `key`.
    pub(crate) fn new(key: &[u8; 32]) -> Self {
        Self(XChaCha20Poly1305::new(key.into()))
    }

    /// `None` where the system has no random numbers.
    fn sealed(&self, text: &str) -> Option<Vec<u8>> {
        let mut nonce = [0; NONCE_LEN];
        getrandom::fill(&mut nonce).ok()?;
        let payload = Payload { msg: text.as_bytes(), aad: &[VERSION] };
        let bytes = self.0.encrypt(XNonce::from_slice(&nonce), payload).ok()?;
        Some([&[VERSION], &nonce[..], &bytes].concat())
    }
}

impl mesh_openai::Seal for MeshSeal {
    fn seal(&self, text: &str) -> String {
        // An empty seal is one that is not opened: the client keeps what it was shown.
        self.sealed(text).map(|sealed| URL_SAFE_NO_PAD.encode(sealed)).unwrap_or_default()
    }

    fn open(&self, sealed: &str) -> Option<String> {
        let bytes = URL_SAFE_NO_PAD.decode(sealed).ok()?;
        let (version, rest) = bytes.split_first()?;
        let (nonce, text) = rest.split_at_checked(NONCE_LEN)?;
        let payload = Payload { msg: text, aad: &[*version] };
        let opened = (*version == VERSION).then(|| self.0.decrypt(XNonce::from_slice(nonce), payload))?;
        String::from_utf8(opened.ok()?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mesh_openai::Seal as _;

    #[test]
    fn what_was_sealed_is_opened_by_the_same_key_alone() {
        let (seal, other) = (MeshSeal::new(&[7; 32]), MeshSeal::new(&[8; 32]));
        let sealed = seal.seal("Hm, é.\n");
        assert_eq!(seal.open(&sealed).as_deref(), Some("Hm, é.\n"));
        assert_eq!(other.open(&sealed), None);
        assert_ne!(sealed, seal.seal("Hm, é.\n"), "one text is sealed differently each time");
        assert!(sealed.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_'));
    }

    #[test]
    fn a_damaged_seal_is_not_opened() {
        let seal = MeshSeal::new(&[7; 32]);
        let sealed = seal.seal("Hm.");
        for index in 0..sealed.len() {
            let mut bytes = sealed.clone().into_bytes();
            bytes[index] = if bytes[index] == b'A' { b'B' } else { b'A' };
            assert_eq!(seal.open(std::str::from_utf8(&bytes).unwrap()), None, "{index}");
        }
        for other in ["", "AA", "!", &sealed[..sealed.len() / 2]] {
            assert_eq!(seal.open(other), None);
        }
    }
}
