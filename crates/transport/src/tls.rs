//! TLS and QUIC parameters: libp2p's certificates, our own protocol name, and windows for rows.

use std::sync::Arc;
use std::time::Duration;

use libp2p::identity::Keypair;
use mesh_types::PeerId;
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{ClientConfig, Connection, IdleTimeout, ServerConfig, TransportConfig, VarInt};
use rustls::pki_types::CertificateDer;

use crate::error::TransportError;

/// The protocol's name and version. Peers of another version fail in the handshake.
pub const ALPN: &[u8] = b"mesh-stage/5";

/// Pings go out this often, from threads that never compute.
const KEEP_ALIVE: Duration = Duration::from_millis(500);
/// After this long without a packet the peer is lost.
const IDLE: Duration = Duration::from_secs(5);
/// Bytes in flight a stream: two of the largest usual frames (16 MiB), and 2.6 Gbit/s at 100 ms.
const STREAM_WINDOW: u32 = 32 << 20;
/// Bytes in flight a connection; bounds what a peer can make this node hold.
const CONNECTION_WINDOW: u32 = 128 << 20;
/// Streams that a peer may have open: links and their returns.
const STREAMS: u32 = 256;

fn certificate(error: impl std::fmt::Display) -> TransportError {
    TransportError::Certificate(error.to_string())
}

/// For connections that others open. The certificate is as long-lived as the endpoint.
pub(crate) fn server(keypair: &Keypair) -> Result<ServerConfig, TransportError> {
    let mut tls = libp2p_tls::make_server_config(keypair).map_err(certificate)?;
    tls.alpn_protocols = vec![ALPN.to_vec()];
    // libp2p-tls writes session keys to the file in SSLKEYLOGFILE; prompts pass through here.
    tls.key_log = Arc::new(rustls::NoKeyLog);
    let crypto = QuicServerConfig::try_from(tls).map_err(certificate)?;
    let mut config = ServerConfig::with_crypto(Arc::new(crypto));
    config.transport_config(transport());
    Ok(config)
}

/// For a connection to `peer` and nobody else.
pub(crate) fn client(keypair: &Keypair, peer: libp2p::PeerId) -> Result<ClientConfig, TransportError> {
    let mut tls = libp2p_tls::make_client_config(keypair, Some(peer)).map_err(certificate)?;
    tls.alpn_protocols = vec![ALPN.to_vec()];
    tls.key_log = Arc::new(rustls::NoKeyLog);
    let crypto = QuicClientConfig::try_from(tls).map_err(certificate)?;
    let mut config = ClientConfig::new(Arc::new(crypto));
    config.transport_config(transport());
    Ok(config)
}

/// For a handshake that everybody refuses: with a protocol that nobody speaks.
pub(crate) fn probe(keypair: &Keypair) -> Result<ClientConfig, TransportError> {
    let mut tls = libp2p_tls::make_client_config(keypair, None).map_err(certificate)?;
    tls.alpn_protocols = vec![b"mesh-probe".to_vec()];
    tls.key_log = Arc::new(rustls::NoKeyLog);
    let crypto = QuicClientConfig::try_from(tls).map_err(certificate)?;
    let mut config = ClientConfig::new(Arc::new(crypto));
    config.transport_config(transport());
    Ok(config)
}

fn transport() -> Arc<TransportConfig> {
    let mut config = TransportConfig::default();
    config
        .keep_alive_interval(Some(KEEP_ALIVE))
        .max_idle_timeout(IdleTimeout::try_from(IDLE).ok())
        .stream_receive_window(VarInt::from_u32(STREAM_WINDOW))
        .receive_window(VarInt::from_u32(CONNECTION_WINDOW))
        .send_window(u64::from(CONNECTION_WINDOW))
        .max_concurrent_bidi_streams(VarInt::from_u32(STREAMS))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .datagram_receive_buffer_size(None);
    Arc::new(config)
}

/// The peer at the other end, as its certificate proves.
pub(crate) fn peer_of(connection: &Connection) -> Option<PeerId> {
    let identity = connection.peer_identity()?;
    let certificates = identity.downcast::<Vec<CertificateDer<'static>>>().ok()?;
    let certificate = libp2p_tls::certificate::parse(certificates.first()?).ok()?;
    Some(PeerId::new(certificate.peer_id().to_base58()))
}
