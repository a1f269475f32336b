//! Whether connections can be opened to a peer, and by it to this node.
//!
//! A connection that stands says nothing of that: the other side may have opened it. So the advertised addresses are
//! dialled anew, by plain TCP and by a QUIC handshake that is made to fail, and the peer is asked to do the same.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use futures::future::join_all;
use mesh_proto::v1;
use mesh_proto::v1::admin_client::AdminClient;
use mesh_transport::Endpoint;
use mesh_types::PeerView;
use tokio::net::TcpStream;
use tonic::Code;

use super::{Doctor, mesh};
use crate::admin::show::host_and_port;

/// How long an address may take to answer.
const DIAL_LIMIT: Duration = Duration::from_secs(3);
/// How long a peer may take to dial back.
const ASK_LIMIT: Duration = Duration::from_secs(8);
/// Addresses of one peer that are tried.
const MAX_ADDRESSES: usize = 8;

/// One protocol's addresses, and what came of dialling each.
#[derive(Debug, Default)]
pub(super) struct Way(Vec<(String, Result<(), String>)>);

/// Both protocols.
#[derive(Debug, Default)]
pub(super) struct Ways {
    pub(super) tcp: Way,
    pub(super) udp: Way,
}

/// Both directions.
pub(super) struct Both {
    pub(super) there: Ways,
    /// Or why the peer could not be asked.
    back: Result<Ways, String>,
    /// How far its clock is ahead of this one, in milliseconds.
    pub(super) clock_ahead: Option<i64>,
}

impl Way {
    /// Why no address answered; `None`: one did.
    pub(super) fn failed(&self) -> Option<String> {
        if self.0.iter().any(|(_, outcome)| outcome.is_ok()) {
            return None;
        }
        let reasons: Vec<_> =
            self.0.iter().filter_map(|(at, outcome)| Some(format!("{at}: {}", outcome.as_ref().err()?))).collect();
        Some(if reasons.is_empty() { "it tells no address".to_owned() } else { reasons.join("; ") })
    }

    /// The port of the first address.
    pub(super) fn port(&self) -> Option<u16> {
        self.0.iter().find_map(|(at, _)| at.parse::<SocketAddr>().ok()).map(|at| at.port())
    }

    fn said(self) -> Vec<v1::Attempt> {
        let said = |(address, outcome): (String, Result<(), String>)| v1::Attempt {
            address,
            error: outcome.err().unwrap_or_default(),
        };
        self.0.into_iter().map(said).collect()
    }

    fn heard(attempts: Vec<v1::Attempt>) -> Self {
        let heard = |v1::Attempt { address, error }| (address, if error.is_empty() { Ok(()) } else { Err(error) });
        Self(attempts.into_iter().take(MAX_ADDRESSES).map(heard).collect())
    }
}

impl Both {
    /// There and back, where the peer could be asked.
    pub(super) fn ways(&self) -> Option<(&Ways, &Ways)> {
        self.back.as_ref().ok().map(|back| (&self.there, back))
    }

    /// Why it could not.
    pub(super) fn unasked(&self) -> &str {
        self.back.as_ref().err().map_or("", String::as_str)
    }
}

impl Doctor {
    pub(super) async fn reach_both(&self, peer: &PeerView) -> Both {
        let admin = AdminClient::new(self.mesh.channel(&peer.id));
        // Before the dialling, whose time would blur it.
        let clock_ahead = clock_ahead(admin.clone()).await;
        let (there, back) = tokio::join!(dial(peer, &self.endpoint), dialled_back(admin));
        Both { there, back, clock_ahead }
    }
}

/// How far the clock at the other end is ahead, in milliseconds.
async fn clock_ahead(mut admin: AdminClient<tonic::transport::Channel>) -> Option<i64> {
    let (asked, began) = (mesh::now(), Instant::now());
    let request = v1::ProbeRequest { dial_back: false };
    let answer = tokio::time::timeout(DIAL_LIMIT, admin.probe(request)).await.ok()?.ok()?.into_inner();
    let half = i64::try_from(began.elapsed().as_millis() / 2).ok()?;
    answer.unix_ms.checked_sub(asked.checked_add(half)?)
}

/// Has the peer dial this node.
async fn dialled_back(mut admin: AdminClient<tonic::transport::Channel>) -> Result<Ways, String> {
    match tokio::time::timeout(ASK_LIMIT, admin.probe(v1::ProbeRequest { dial_back: true })).await {
        Ok(Ok(answer)) => {
            let v1::ProbeResponse { tcp, udp, .. } = answer.into_inner();
            Ok(Ways { tcp: Way::heard(tcp), udp: Way::heard(udp) })
        }
        Ok(Err(status)) if status.code() == Code::Unimplemented => {
            Err("it only routes, or its version is older".to_owned())
        }
        Ok(Err(status)) => Err(status.message().to_owned()),
        Err(_) => Err(format!("no answer within {} s", ASK_LIMIT.as_secs())),
    }
}

/// What a peer is told that asks for the time, and whether this node reaches it at the addresses that it advertises.
///
/// # Cancel safety
/// May be dropped.
pub async fn probe(caller: Option<&PeerView>, endpoint: &Endpoint) -> v1::ProbeResponse {
    let Ways { tcp, udp } = match caller {
        Some(caller) => dial(caller, endpoint).await,
        None => Ways::default(),
    };
    v1::ProbeResponse { unix_ms: mesh::now(), tcp: tcp.said(), udp: udp.said() }
}

/// Dials all addresses of `peer` at the same time.
async fn dial(peer: &PeerView, endpoint: &Endpoint) -> Ways {
    let mesh =
        peer.addresses.iter().map(|address| host_and_port(address)).filter(|at| at.parse::<SocketAddr>().is_ok());
    let tcp = join_all(mesh.take(MAX_ADDRESSES).map(|at| async move {
        let outcome = dial_tcp(&at).await;
        (at, outcome)
    }));
    let stages = peer.stage_addresses.iter().take(MAX_ADDRESSES).cloned();
    let udp = join_all(stages.map(|at| async move {
        let outcome = dial_udp(&at, endpoint).await;
        (at, outcome)
    }));
    let (tcp, udp) = tokio::join!(tcp, udp);
    Ways { tcp: Way(tcp), udp: Way(udp) }
}

async fn dial_tcp(at: &str) -> Result<(), String> {
    match tokio::time::timeout(DIAL_LIMIT, TcpStream::connect(at)).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(reason(&error)),
        Err(_) => Err("no answer".to_owned()),
    }
}

async fn dial_udp(at: &str, endpoint: &Endpoint) -> Result<(), String> {
    let address = at.parse().map_err(|_| "not an address".to_owned())?;
    match tokio::time::timeout(DIAL_LIMIT, endpoint.answers_at(address)).await {
        Ok(answered) => answered.map_err(|error| error.to_string()),
        Err(_) => Err("no answer".to_owned()),
    }
}

/// Why a socket could not be connected, in a word or two.
pub(super) fn reason(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        std::io::ErrorKind::TimedOut => "no answer".to_owned(),
        std::io::ErrorKind::HostUnreachable | std::io::ErrorKind::NetworkUnreachable => "no route".to_owned(),
        _ => error.to_string(),
    }
}
