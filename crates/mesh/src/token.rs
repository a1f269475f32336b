//! Join tokens: the text that lets another machine find and join a mesh. Whoever has one can join; treat it as a
//! password.
//!
//! Text: `mesh`, one character for the version (`1`), then base64url without padding of
//!
//! ```text
//! u16   bytes of the payload, this field and the checksum included
//! [16]  mesh id
//! u32   epoch
//! u64   expiry, Unix seconds; 0: none
//! [32]  invite secret
//! u8    bootstrap peers, each:
//!   u8 + bytes   peer id (multihash)
//!   u8           its addresses, each: u8 + bytes   multiaddress, without /p2p
//! [4]   first bytes of the SHA-256 of the text's first five characters and all of the above
//! ```
//!
//! Integers are big-endian.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, Mac as _};
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId};
use sha2::{Digest as _, Sha256};
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

const PREFIX: &str = "mesh1";
const VERSION: char = '1';
const CHECKSUM: usize = 4;
/// Longer than any token that this program makes; bounds what a file or pipe may hold.
const MAX_TEXT: usize = 16 * 1024;
const MAX_PEERS: usize = 16;
const MAX_ADDRESSES: usize = 16;

/// A mesh's identity: random, made by `up`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MeshId(pub [u8; 16]);

/// The invite secret. Wiped from memory when dropped; never printed.
#[derive(Clone, PartialEq, Eq, Zeroize, ZeroizeOnDrop)]
pub struct Secret(pub(crate) [u8; 32]);

impl Secret {
    /// A key for `purpose` from which neither this secret nor the key for another purpose can be found.
    pub(crate) fn derive(&self, purpose: &str) -> [u8; 32] {
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&self.0) else { unreachable!("HMAC takes any key") };
        mac.update(purpose.as_bytes());
        mac.finalize().into_bytes().into()
    }

    /// What a token holds that expires at `until`, in Unix seconds, instead of this secret.
    pub(crate) fn invitation(&self, until: u64) -> Self {
        Self(self.derive(&format!("mesh-node invitation until {until}")))
    }
}

/// A decoded join token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinToken {
    /// The mesh it leads to.
    pub mesh: MeshId,
    /// Counts rotations of the secret.
    pub epoch: u32,
    /// When it stops being accepted, in Unix seconds.
    pub expires: Option<u64>,
    /// What admission asks proof of: the mesh's secret or, in a token that expires, one for this expiry.
    pub secret: Secret,
    /// Where to begin: multiaddresses that end in `/p2p/…`.
    pub bootstrap: Vec<Multiaddr>,
}

/// Why a text is not a usable join token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// It does not look like one at all.
    #[error("this is not a join token: one begins with {PREFIX}")]
    NotAToken,
    /// Made by a newer program.
    #[error("the join token is of version {0}, this mesh-node reads version {VERSION}: update mesh-node")]
    Version(char),
    /// Characters are missing at its end.
    #[error("the join token is incomplete: copy all of it again")]
    Incomplete,
    /// A character was changed, lost or added.
    #[error("the join token is damaged (mistyped?): copy it again")]
    Damaged,
    /// Too late.
    #[error("the join token expired {0} ago: ask for a new one (mesh-node token)")]
    Expired(Ago),
}

/// A span of time for people: its largest unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ago(pub Duration);

impl JoinToken {
    /// The text to hand out. Not `Display`, so that no log line shows it by accident.
    pub fn encode(&self) -> String {
        let mut payload = Zeroizing::new(vec![0, 0]);
        payload.extend_from_slice(&self.mesh.0);
        payload.extend_from_slice(&self.epoch.to_be_bytes());
        payload.extend_from_slice(&self.expires.unwrap_or(0).to_be_bytes());
        payload.extend_from_slice(&self.secret.0);
        let peers = by_peer(&self.bootstrap);
        payload.push(peers.len() as u8);
        for (peer, addresses) in peers {
            push_short(&mut payload, &peer.to_bytes());
            payload.push(addresses.len() as u8);
            addresses.iter().for_each(|address| push_short(&mut payload, address.as_ref()));
        }
        let length = (payload.len() + CHECKSUM) as u16;
        payload[..2].copy_from_slice(&length.to_be_bytes());
        let checksum = checksum(&payload);
        payload.extend_from_slice(&checksum);
        format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(&*payload))
    }

    /// Refuses a token that has expired at `now`.
    ///
    /// # Errors
    /// [`TokenError::Expired`].
    pub fn check_expiry(&self, now: SystemTime) -> Result<(), TokenError> {
        let Some(expires) = self.expires else {
            return Ok(());
        };
        match now.duration_since(UNIX_EPOCH + Duration::from_secs(expires)) {
            Ok(since) => Err(TokenError::Expired(Ago(since))),
            Err(_) => Ok(()),
        }
    }
}

impl FromStr for JoinToken {
    type Err = TokenError;

    /// Reads a token; blanks and line breaks in it do not matter. Does not look at the clock.
    fn from_str(text: &str) -> Result<Self, TokenError> {
        let text: Zeroizing<String> =
            Zeroizing::new(text.chars().filter(|c| !c.is_whitespace()).take(MAX_TEXT + 1).collect());
        let rest = text.strip_prefix("mesh").ok_or(TokenError::NotAToken)?;
        let version = rest.chars().next().ok_or(TokenError::Incomplete)?;
        if !version.is_ascii_alphanumeric() {
            return Err(TokenError::NotAToken);
        }
        if version != VERSION {
            return Err(TokenError::Version(version));
        }
        let payload = Zeroizing::new(decode_prefix(&rest[1..])?);
        check(&payload)?;
        let body = payload.get(2..payload.len() - CHECKSUM).ok_or(TokenError::Incomplete)?;
        parse(&mut Reader(body)).ok_or(TokenError::Damaged)
    }
}

/// Base64url to bytes. A text that was cut may end within a group; its whole bytes are enough to see the length.
fn decode_prefix(text: &str) -> Result<Vec<u8>, TokenError> {
    if text.len() > MAX_TEXT || !text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_') {
        return Err(TokenError::Damaged);
    }
    match URL_SAFE_NO_PAD.decode(text) {
        Ok(bytes) => Ok(bytes),
        // Not a whole number of bytes. Either characters are missing at the end, or one was changed or lost: then the
        // length of what remains tells.
        Err(_) => {
            let whole = text.len() / 4 * 4;
            let bytes = URL_SAFE_NO_PAD.decode(&text[..whole]).map_err(|_| TokenError::Damaged)?;
            match declared(&bytes) {
                Some(length) if bytes.len() + 3 > length => Err(TokenError::Damaged),
                _ => Err(TokenError::Incomplete),
            }
        }
    }
}

fn declared(payload: &[u8]) -> Option<usize> {
    payload.first_chunk::<2>().map(|length| u16::from_be_bytes(*length).into())
}

fn check(payload: &[u8]) -> Result<(), TokenError> {
    let length = declared(payload).ok_or(TokenError::Incomplete)?;
    if length < 2 + CHECKSUM || payload.len() > length {
        return Err(TokenError::Damaged);
    }
    if payload.len() < length {
        return Err(TokenError::Incomplete);
    }
    let (body, sum) = payload.split_at(length - CHECKSUM);
    if sum == checksum(body) { Ok(()) } else { Err(TokenError::Damaged) }
}

fn checksum(payload: &[u8]) -> [u8; CHECKSUM] {
    let digest = Sha256::new().chain_update(PREFIX).chain_update(payload).finalize();
    [digest[0], digest[1], digest[2], digest[3]]
}

fn parse(reader: &mut Reader<'_>) -> Option<JoinToken> {
    let mesh = MeshId(reader.array()?);
    let epoch = u32::from_be_bytes(reader.array()?);
    let expires = Some(u64::from_be_bytes(reader.array()?)).filter(|at| *at != 0);
    let secret = Secret(reader.array()?);
    let mut bootstrap = Vec::new();
    for _ in 0..reader.byte()? {
        let peer = PeerId::from_bytes(reader.short()?).ok()?;
        for _ in 0..reader.byte()? {
            let address = Multiaddr::try_from(reader.short()?.to_vec()).ok()?;
            bootstrap.push(address.with(Protocol::P2p(peer)));
        }
    }
    reader.0.is_empty().then_some(JoinToken { mesh, epoch, expires, secret, bootstrap })
}

/// Takes bytes from the front; `None` once they run out.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn byte(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn short(&mut self) -> Option<&'a [u8]> {
        let count = self.byte()?;
        self.take(count.into())
    }
}

fn push_short(payload: &mut Vec<u8>, bytes: &[u8]) {
    payload.push(bytes.len() as u8);
    payload.extend_from_slice(bytes);
}

/// The bootstrap addresses grouped by the peer they end in; those that end in none, or are too long, are left out.
fn by_peer(addresses: &[Multiaddr]) -> Vec<(PeerId, Vec<Multiaddr>)> {
    let mut peers: Vec<(PeerId, Vec<Multiaddr>)> = Vec::new();
    for address in addresses {
        let Some((address, peer)) = split_peer(address).filter(|(address, _)| address.len() <= 255) else {
            continue;
        };
        match peers.iter().position(|(known, _)| *known == peer) {
            Some(at) if peers[at].1.len() < MAX_ADDRESSES => peers[at].1.push(address),
            None if peers.len() < MAX_PEERS => peers.push((peer, vec![address])),
            _ => {}
        }
    }
    peers
}

/// An address without its `/p2p/…` end, and that end's peer.
pub(crate) fn split_peer(address: &Multiaddr) -> Option<(Multiaddr, PeerId)> {
    let mut address = address.clone();
    match address.pop() {
        Some(Protocol::P2p(peer)) if !address.is_empty() => Some((address, peer)),
        _ => None,
    }
}

impl MeshId {
    /// A random id.
    pub(crate) fn random() -> Result<Self, getrandom::Error> {
        let mut id = [0; 16];
        getrandom::fill(&mut id)?;
        Ok(Self(id))
    }
}

impl Secret {
    /// A random secret.
    pub(crate) fn random() -> Result<Self, getrandom::Error> {
        let mut secret = [0; 32];
        getrandom::fill(&mut secret)?;
        Ok(Self(secret))
    }
}

impl fmt::Display for MeshId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for MeshId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MeshId({self})")
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl fmt::Display for Ago {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        let (count, unit) = match seconds {
            0..60 => (seconds, "second"),
            60..3600 => (seconds / 60, "minute"),
            3600..86_400 => (seconds / 3600, "hour"),
            _ => (seconds / 86_400, "day"),
        };
        write!(f, "{count} {unit}{}", if count == 1 { "" } else { "s" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> JoinToken {
        let peer = PeerId::random();
        let other = PeerId::random();
        JoinToken {
            mesh: MeshId([7; 16]),
            epoch: 3,
            expires: Some(1_000_000),
            secret: Secret([0xa5; 32]),
            bootstrap: [
                format!("/ip4/192.0.2.1/tcp/9338/p2p/{peer}"),
                format!("/ip6/2001:db8::1/tcp/9338/p2p/{peer}"),
                format!("/dns/example.org/tcp/1/p2p/{other}"),
            ]
            .iter()
            .map(|address| address.parse().unwrap())
            .collect(),
        }
    }

    #[test]
    fn keys_differ_by_purpose_and_secret() {
        let (one, two) = (Secret([1; 32]), Secret([2; 32]));
        assert_eq!(one.derive("a"), Secret([1; 32]).derive("a"));
        assert_ne!(one.derive("a"), one.derive("b"));
        assert_ne!(one.derive("a"), two.derive("a"));
    }

    #[test]
    fn a_token_survives_its_text() {
        let token = token();
        let text = token.encode();
        assert!(text.starts_with("mesh1"), "{text}");
        assert_eq!(text.parse(), Ok(token.clone()));
        let wrapped = format!("  {}\n{}\r\n", &text[..40], &text[40..]);
        assert_eq!(wrapped.parse(), Ok(token));
    }

    #[test]
    fn each_way_to_spoil_a_token_is_named() {
        let text = token().encode();
        for end in 4..text.len() {
            assert_eq!(text[..end].parse::<JoinToken>(), Err(TokenError::Incomplete), "cut at {end}");
        }
        // The first two bytes are the length: a change there may look like a cut.
        for at in 8..text.len() {
            let other = if &text[at..=at] == "A" { "B" } else { "A" };
            let typo = format!("{}{other}{}", &text[..at], &text[at + 1..]);
            assert_eq!(typo.parse::<JoinToken>(), Err(TokenError::Damaged), "typo at {at}");
        }
        assert_eq!(format!("{text}AAAA").parse::<JoinToken>(), Err(TokenError::Damaged));
        assert_eq!(format!("{text}!").parse::<JoinToken>(), Err(TokenError::Damaged));
        assert_eq!(format!("mesh2{}", &text[5..]).parse::<JoinToken>(), Err(TokenError::Version('2')));
        for other in ["", "hello", "mesh://x", "MESH1abc"] {
            assert_eq!(other.parse::<JoinToken>(), Err(TokenError::NotAToken), "{other}");
        }
    }

    #[test]
    fn a_token_expires() {
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        let token = token();
        assert_eq!(token.check_expiry(at(999_999)), Ok(()));
        let error = token.check_expiry(at(1_007_200)).unwrap_err();
        assert_eq!(error.to_string(), "the join token expired 2 hours ago: ask for a new one (mesh-node token)");
        assert_eq!(JoinToken { expires: None, ..token }.check_expiry(at(u32::MAX.into())), Ok(()));
    }

    #[test]
    fn the_secret_is_never_printed() {
        let shown = format!("{:?}", token());
        assert!(shown.contains("Secret(…)") && !shown.contains("165") && !shown.contains("a5a5"), "{shown}");
    }
}
