//! Whoever knocks at the port and is no mesh-node.

use std::io;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::*;
use crate::admission::VERSIONS;

#[tokio::test]
async fn strangers_on_the_port_get_nothing_in_no_time() {
    let alpha = TestNode::start_with("alpha", tempfile::tempdir().unwrap(), None, localhost(0), |door| {
        door.with(VERSIONS, Duration::from_millis(300))
    });
    let alpha = alpha.await.unwrap();
    for words in [&b"GET / HTTP/1.1\r\n\r\n"[..], b""] {
        let mut stranger = TcpStream::connect(alpha.mesh.listen_addr()).await.unwrap();
        stranger.write_all(words).await.unwrap();
        let mut heard = Vec::new();
        let read = tokio::time::timeout(PATIENCE, stranger.read_to_end(&mut heard)).await.expect("closed in time");
        assert!(read.is_ok() || read.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionReset));
        assert!(heard.len() < 64, "{heard:?}");
    }
    assert!(a_plain_libp2p_node_is_refused(&alpha).await);
    assert_eq!(alpha.mesh.view().borrow().peers.len(), 1);
}

/// A node that speaks noise, yamux and ping, and knows nothing of admission.
async fn a_plain_libp2p_node_is_refused(alpha: &TestNode) -> bool {
    use futures::StreamExt as _;
    use libp2p::swarm::SwarmEvent;
    let mut swarm = libp2p::SwarmBuilder::with_new_identity()
        .with_tokio()
        .with_tcp(Default::default(), libp2p::noise::Config::new, libp2p::yamux::Config::default)
        .unwrap()
        .with_behaviour(|_| libp2p::ping::Behaviour::default())
        .unwrap()
        .build();
    swarm.dial(alpha.mesh.token().bootstrap[0].clone()).unwrap();
    tokio::time::timeout(PATIENCE, async {
        loop {
            match swarm.select_next_some().await {
                // It dialled optimistically; its connection is refused as soon as it is used.
                SwarmEvent::OutgoingConnectionError { .. } | SwarmEvent::ConnectionClosed { .. } => return true,
                SwarmEvent::Behaviour(libp2p::ping::Event { result: Ok(_), .. }) => return false,
                _ => {}
            }
        }
    })
    .await
    .expect("refused in time")
}
