//! The listening socket and its connections: HTTP/1.1 and HTTP/2 on one port, bounded, and closed gracefully.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::balance::Balancer;
use crate::config::Config;
use crate::metrics::Metrics;
use crate::peers::Peers;
use crate::routes::Shared;

/// How often an HTTP/2 client is asked whether it is still there, and how long it may take to say so.
const PING: (Duration, Duration) = (Duration::from_secs(20), Duration::from_secs(20));
/// How long to wait before accepting again, after the system had no room for another connection.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);
/// Most bytes of a request's head.
const MAX_HEAD: usize = 64 << 10;

/// A gateway that has its port, and answers once it [runs](Self::run).
pub struct Gateway {
    listener: TcpListener,
    addr: SocketAddr,
    shared: Arc<Shared>,
}

/// Why there is no gateway.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// Another program has the port.
    #[error("cannot serve on {0}: another program is using that port")]
    InUse(SocketAddr),
    /// The address cannot be listened on.
    #[error("cannot serve on {addr}: {source}")]
    Bind {
        /// The address.
        addr: SocketAddr,
        /// What the system says.
        source: io::Error,
    },
    /// Others could reach it, and it would answer anybody.
    #[error("a gateway on {0} can be reached from other machines: it needs an API key")]
    KeyRequired(SocketAddr),
}

impl Gateway {
    /// Takes the port of `config.addr`. Clients can connect from now on and wait until it runs.
    ///
    /// # Errors
    /// [`GatewayError`].
    ///
    /// # Cancel safety
    /// May be dropped.
    pub async fn bind(config: Config, peers: Arc<dyn Peers>) -> Result<Self, GatewayError> {
        let addr = config.addr;
        if !addr.ip().to_canonical().is_loopback() && config.api_key.is_none() {
            return Err(GatewayError::KeyRequired(addr));
        }
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::AddrInUse => GatewayError::InUse(addr),
            _ => GatewayError::Bind { addr, source },
        };
        let listener = TcpListener::bind(addr).await.map_err(failed)?;
        let addr = listener.local_addr().map_err(failed)?;
        let started = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let requests = Arc::new(Semaphore::new(config.limits.requests));
        let large_bodies = Arc::new(Semaphore::new(config.limits.large_bodies));
        let shared = Shared {
            peers,
            balancer: Balancer::new(),
            api_key: config.api_key,
            limits: config.limits,
            requests,
            large_bodies,
            started,
            metrics: Arc::new(Metrics::new()),
        };
        Ok(Self { listener, addr, shared: Arc::new(shared) })
    }

    /// The same, at any free port of the address where its own is taken; [`Self::local_addr`] says which it is.
    ///
    /// # Errors
    /// [`GatewayError`].
    ///
    /// # Cancel safety
    /// May be dropped.
    pub async fn bind_or_any_port(config: Config, peers: Arc<dyn Peers>) -> Result<Self, GatewayError> {
        match Self::bind(config.clone(), Arc::clone(&peers)).await {
            Err(GatewayError::InUse(busy)) => {
                let addr = SocketAddr::new(busy.ip(), 0);
                let gateway = Self::bind(Config { addr, ..config }, peers).await?;
                tracing::warn!("{busy} is busy: serving on {} instead", gateway.addr);
                Ok(gateway)
            }
            bound => bound,
        }
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.addr
    }

    /// `http://HOST:PORT/v1`, as a client on this machine would write it.
    pub fn url(&self) -> String {
        let mut addr = self.addr;
        match addr.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => addr.set_ip(Ipv4Addr::LOCALHOST.into()),
            IpAddr::V6(ip) if ip.is_unspecified() => addr.set_ip(Ipv6Addr::LOCALHOST.into()),
            _ => {}
        }
        format!("http://{addr}/v1")
    }

    /// Serves until `shutdown` is cancelled; then takes no more connections, lets answers finish within the limit for
    /// that, and cuts off the rest. No task of it is left when it returns.
    ///
    /// # Cancel safety
    /// Dropping it cuts off every connection.
    pub async fn run(self, shutdown: CancellationToken) {
        let cut = CancellationToken::new();
        let _cut_on_drop = cut.clone().drop_guard();
        let streams = Streams { tasks: TaskTracker::new(), cut: cut.clone() };
        let slots = Arc::new(Semaphore::new(self.shared.limits.connections));
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                Some(_) = connections.join_next(), if !connections.is_empty() => {}
                (stream, slot) = accept(&self.listener, &slots) => {
                    let (shared, streams, shutdown) = (Arc::clone(&self.shared), streams.clone(), shutdown.clone());
                    connections.spawn(async move {
                        serve(stream, shared, streams, shutdown).await;
                        drop(slot);
                    });
                }
            }
        }
        drop(self.listener);
        streams.tasks.close();
        let finish = async {
            while connections.join_next().await.is_some() {}
            streams.tasks.wait().await;
        };
        if timeout(self.shared.limits.drain, finish).await.is_err() {
            tracing::warn!("some answers did not finish in time and are cut off");
        }
        cut.cancel();
        connections.shutdown().await;
        streams.tasks.wait().await;
    }
}

/// The next connection, once there is room for one.
async fn accept(listener: &TcpListener, slots: &Arc<Semaphore>) -> (TcpStream, Option<OwnedSemaphorePermit>) {
    // The semaphore is never closed.
    let slot = Arc::clone(slots).acquire_owned().await.ok();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return (stream, slot),
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_BACKOFF).await;
            }
        }
    }
}

async fn serve(stream: TcpStream, shared: Arc<Shared>, streams: Streams, shutdown: CancellationToken) {
    // Without it small events wait for the client's acknowledgement of those before.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "cannot set TCP_NODELAY");
    }
    if let Err(error) = end_when_stalled(&stream, shared.limits.stalled) {
        tracing::debug!(%error, "a client that takes nothing, or is gone without a word, may stay connected");
    }
    let mut builder = auto::Builder::new(streams);
    let head = shared.limits.head;
    builder.http1().timer(TokioTimer::new()).header_read_timeout(head).max_buf_size(MAX_HEAD);
    builder.http2().timer(TokioTimer::new()).keep_alive_interval(PING.0).keep_alive_timeout(PING.1);
    builder.http2().max_header_list_size(MAX_HEAD as u32);
    let service = service_fn(move |request| {
        let shared = Arc::clone(&shared);
        async move { Ok::<_, Infallible>(shared.handle(request).await) }
    });
    let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
    let served = tokio::select! {
        served = connection.as_mut() => served,
        () = shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = served {
        tracing::debug!(%error, "connection ended");
    }
}

/// Has the system end the connection once its client has acknowledged nothing, or had no room, for `patience`.
fn end_when_stalled(stream: &TcpStream, patience: Duration) -> io::Result<()> {
    let socket = SockRef::from(stream);
    let interval = (patience / 4).max(Duration::from_secs(1));
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(interval).with_interval(interval))?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(patience))?;
    Ok(())
}

/// Owns the tasks that hyper makes for the streams of HTTP/2 connections.
#[derive(Clone)]
struct Streams {
    tasks: TaskTracker,
    cut: CancellationToken,
}

impl<F: Future<Output: Send> + Send + 'static> hyper::rt::Executor<F> for Streams {
    fn execute(&self, stream: F) {
        let cut = self.cut.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                () = cut.cancelled() => {}
                _ = stream => {}
            }
        });
    }
}
