//! The messages of admission, spoken over an encrypted stream whose ends know each other's peer ids.
//!
//! ```text
//! both       Hello      "meshnode" | u16 lowest version | u16 highest version      frozen for ever
//! initiator  Open       nonce [32] | tag of the mesh id [32] | u32 epoch [| u64 until when it is invited]
//! responder  Challenge  nonce [32]
//! initiator  Proof      HMAC [32]
//! responder  Proof      HMAC [32]
//! responder  Refused    u8 code | u32 detail                                       instead of any of its messages
//! ```
//!
//! Each side sends its Hello and reads the other's before it sends anything else. All messages after it are framed as
//! kind (u8), length (u8), payload. Integers are big-endian. A proof is HMAC-SHA256 under the invite secret over the
//! role, the mesh id, the epoch, both peer ids and both nonces, so that it is worth nothing in another direction,
//! connection or mesh. The mesh id does not travel either: the tag is an HMAC under it, so that only who knows it can
//! tell whether it is the same.

use std::time::Duration;

use futures::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use hmac::{Hmac, Mac as _};
use libp2p::PeerId;
use sha2::Sha256;
use subtle::ConstantTimeEq as _;

use super::secrets::Key;
use super::{AdmissionError, Door, Guest, Refusal, Versions};
use crate::token::Secret;

const MAGIC: &[u8; 8] = b"meshnode";

const OPEN: u8 = 1;
const CHALLENGE: u8 = 2;
const PROOF: u8 = 3;
const REFUSED: u8 = 255;

const WRONG_MESH: u8 = 1;
const WRONG_SECRET: u8 = 2;
const OTHER_EPOCH: u8 = 3;
const BLOCKED: u8 = 4;
const TOO_SOON: u8 = 5;
const EXPIRED: u8 = 6;

const WRONG_LENGTH: AdmissionError = AdmissionError::Malformed("a message of the wrong length");
/// After so long a node that was only invited has been told the mesh's secret.
const GUEST_PAUSE: Duration = Duration::from_secs(1);

type Bytes32 = [u8; 32];
type Outcome<T = ()> = Result<T, AdmissionError>;

/// Who a proof is from.
#[derive(Clone, Copy)]
enum Role {
    Initiator,
    Responder,
}

/// What both proofs are bound to.
struct Transcript<'a> {
    door: &'a Door,
    epoch: u32,
    secret: Secret,
    initiator: PeerId,
    responder: PeerId,
    initiator_nonce: Bytes32,
    responder_nonce: Bytes32,
}

/// The dialling side.
pub(super) async fn initiate<C: AsyncRead + AsyncWrite + Unpin>(door: &Door, guest: &Guest, io: &mut C) -> Outcome {
    door.check_blocked(&guest.peer)?;
    hello(door, io).await?;
    let nonce = nonce()?;
    let Key { epoch, secret, invited } = door.secrets().for_dialling(&guest.peer);
    let mut open = [&nonce[..], &mesh_tag(door, &nonce, door.local, guest.peer), &epoch.to_be_bytes()].concat();
    open.extend(invited.iter().flat_map(|until| until.to_be_bytes()));
    send(io, OPEN, &open).await?;
    let transcript = Transcript {
        door,
        epoch,
        secret,
        initiator: door.local,
        responder: guest.peer,
        initiator_nonce: nonce,
        responder_nonce: receive(io, CHALLENGE).await?,
    };
    send(io, PROOF, &transcript.proof(Role::Initiator)).await?;
    let proof: Bytes32 = receive(io, PROOF).await?;
    transcript.check(Role::Responder, &proof)
}

/// The listening side.
pub(super) async fn respond<C: AsyncRead + AsyncWrite + Unpin>(door: &Door, guest: &Guest, io: &mut C) -> Outcome {
    hello(door, io).await?;
    let outcome = respond_to_open(door, guest, io).await;
    if let Err(error) = &outcome
        && let Some(refusal) = error.refusal()
    {
        // It may have gone already; the reason to refuse it stands.
        let _ = send(io, REFUSED, &encode_refusal(refusal)).await;
        let _ = io.close().await;
    }
    outcome
}

async fn respond_to_open<C: AsyncRead + AsyncWrite + Unpin>(door: &Door, guest: &Guest, io: &mut C) -> Outcome {
    let open = receive_any(io, OPEN).await?;
    let Open { nonce: initiator_nonce, tag, epoch, invited } = Open::read(&open).ok_or(WRONG_LENGTH)?;
    door.check_blocked(&guest.peer)?;
    if door.secrets().is_guest() {
        // It has to be told the mesh's secret first, by a member that it dials.
        return Err(AdmissionError::TooSoon(GUEST_PAUSE));
    }
    door.check_pace(guest, epoch)?;
    if !same(&tag, &mesh_tag(door, &initiator_nonce, guest.peer, door.local)) {
        return Err(AdmissionError::WrongMesh);
    }
    let secret = door.secret_of(epoch, invited, &guest.peer)?;
    let transcript = Transcript {
        door,
        epoch,
        secret,
        initiator: guest.peer,
        responder: door.local,
        initiator_nonce,
        responder_nonce: nonce()?,
    };
    send(io, CHALLENGE, &transcript.responder_nonce).await?;
    let proof: Bytes32 = receive(io, PROOF).await?;
    transcript.check(Role::Initiator, &proof)?;
    send(io, PROOF, &transcript.proof(Role::Responder)).await
}

/// Tells the versions, and hears the other side's. Uses the highest that both speak; today there is one.
async fn hello<C: AsyncRead + AsyncWrite + Unpin>(door: &Door, io: &mut C) -> Outcome {
    let ours = door.versions();
    let mut hello = [0; 12];
    hello[..8].copy_from_slice(MAGIC);
    hello[8..10].copy_from_slice(&ours.low.to_be_bytes());
    hello[10..].copy_from_slice(&ours.high.to_be_bytes());
    io.write_all(&hello).await.map_err(closed)?;
    io.flush().await.map_err(closed)?;

    io.read_exact(&mut hello).await.map_err(closed)?;
    if hello[..8] != MAGIC[..] {
        return Err(AdmissionError::NotAMeshNode);
    }
    let number = |at: usize| u16::from_be_bytes([hello[at], hello[at + 1]]);
    let theirs = Versions { low: number(8), high: number(10) };
    if theirs.low > ours.high || theirs.high < ours.low {
        return Err(AdmissionError::OtherVersion { theirs, ours });
    }
    Ok(())
}

impl Transcript<'_> {
    fn mac(&self, role: Role) -> Hmac<Sha256> {
        let mut mac = keyed(&self.secret.0);
        mac.update(match role {
            Role::Initiator => b"mesh-node admission 1 initiator",
            Role::Responder => b"mesh-node admission 1 responder",
        });
        mac.update(&self.door.mesh.0);
        mac.update(&self.epoch.to_be_bytes());
        for peer in [self.initiator, self.responder] {
            let id = peer.to_bytes();
            mac.update(&(id.len() as u32).to_be_bytes());
            mac.update(&id);
        }
        mac.update(&self.initiator_nonce);
        mac.update(&self.responder_nonce);
        mac
    }

    fn proof(&self, role: Role) -> Bytes32 {
        self.mac(role).finalize().into_bytes().into()
    }

    fn check(&self, role: Role, proof: &Bytes32) -> Outcome {
        if same(&self.proof(role), proof) { Ok(()) } else { Err(AdmissionError::WrongSecret) }
    }
}

fn mesh_tag(door: &Door, nonce: &Bytes32, initiator: PeerId, responder: PeerId) -> Bytes32 {
    let mut mac = keyed(&door.mesh.0);
    mac.update(b"mesh-node mesh tag 1");
    mac.update(nonce);
    mac.update(&initiator.to_bytes());
    mac.update(&responder.to_bytes());
    mac.finalize().into_bytes().into()
}

fn keyed(key: &[u8]) -> Hmac<Sha256> {
    match Hmac::new_from_slice(key) {
        Ok(mac) => mac,
        Err(_) => unreachable!("HMAC takes keys of any length"),
    }
}

fn same(one: &Bytes32, other: &Bytes32) -> bool {
    one.ct_eq(other).into()
}

fn nonce() -> Outcome<Bytes32> {
    let mut nonce = [0; 32];
    getrandom::fill(&mut nonce).map_err(|_| AdmissionError::Malformed("no random numbers on this side"))?;
    Ok(nonce)
}

/// What the dialling side begins with: 68 bytes, and 8 more for an invitation.
struct Open {
    nonce: Bytes32,
    tag: Bytes32,
    epoch: u32,
    /// Until when it is invited, in Unix seconds.
    invited: Option<u64>,
}

impl Open {
    fn read(open: &[u8]) -> Option<Self> {
        let (nonce, rest) = open.split_first_chunk::<32>()?;
        let (tag, rest) = rest.split_first_chunk::<32>()?;
        let (epoch, rest) = rest.split_first_chunk::<4>()?;
        let invited = match rest {
            [] => None,
            until => Some(u64::from_be_bytes(until.try_into().ok()?)),
        };
        Some(Self { nonce: *nonce, tag: *tag, epoch: u32::from_be_bytes(*epoch), invited })
    }
}

async fn send<C: AsyncWrite + Unpin>(io: &mut C, kind: u8, payload: &[u8]) -> Outcome {
    let mut message = vec![kind, payload.len() as u8];
    message.extend_from_slice(payload);
    io.write_all(&message).await.map_err(closed)?;
    io.flush().await.map_err(closed)
}

/// The payload of the next message, which has to be of this kind and length.
async fn receive<C: AsyncRead + Unpin, const N: usize>(io: &mut C, expected: u8) -> Outcome<[u8; N]> {
    receive_any(io, expected).await?.try_into().map_err(|_| WRONG_LENGTH)
}

/// The payload of the next message, which has to be of this kind.
async fn receive_any<C: AsyncRead + Unpin>(io: &mut C, expected: u8) -> Outcome<Vec<u8>> {
    let mut head = [0; 2];
    io.read_exact(&mut head).await.map_err(closed)?;
    let mut payload = [0; 255];
    let payload = &mut payload[..head[1].into()];
    io.read_exact(payload).await.map_err(closed)?;
    if head[0] == REFUSED {
        return Err(AdmissionError::Refused(decode_refusal(payload)));
    }
    if head[0] != expected {
        return Err(AdmissionError::Malformed("a message out of turn"));
    }
    Ok(payload.to_vec())
}

fn encode_refusal(refusal: Refusal) -> [u8; 5] {
    let (code, detail) = match refusal {
        Refusal::WrongMesh => (WRONG_MESH, 0),
        Refusal::WrongSecret => (WRONG_SECRET, 0),
        Refusal::OtherEpoch(epoch) => (OTHER_EPOCH, epoch),
        Refusal::Blocked => (BLOCKED, 0),
        Refusal::Expired => (EXPIRED, 0),
        Refusal::TooSoon(wait) => (TOO_SOON, u32::try_from(wait.as_millis()).unwrap_or(u32::MAX)),
        Refusal::Other(code) => (code, 0),
    };
    let [a, b, c, d] = detail.to_be_bytes();
    [code, a, b, c, d]
}

/// Refusals may grow longer in later versions; what is not understood is ignored.
fn decode_refusal(payload: &[u8]) -> Refusal {
    let code = payload.first().copied().unwrap_or(0);
    let detail = payload.get(1..5).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_be_bytes);
    match code {
        WRONG_MESH => Refusal::WrongMesh,
        WRONG_SECRET => Refusal::WrongSecret,
        OTHER_EPOCH => Refusal::OtherEpoch(detail),
        BLOCKED => Refusal::Blocked,
        EXPIRED => Refusal::Expired,
        TOO_SOON => Refusal::TooSoon(Duration::from_millis(detail.into())),
        other => Refusal::Other(other),
    }
}

/// Any I/O error in admission: the other side went, or does not speak multistream's answer to our protocol name.
fn closed(error: std::io::Error) -> AdmissionError {
    if error.kind() == std::io::ErrorKind::Other { AdmissionError::NotAMeshNode } else { AdmissionError::Closed }
}
