//! gRPC between peers: HTTP/2 over a libp2p stream, or over memory for the local node.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use futures::StreamExt as _;
use http::{Request, Uri};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use libp2p::{Stream, StreamProtocol};
use mesh_types::PeerId;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::compat::FuturesAsyncReadCompatExt as _;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::body::Body;
use tonic::service::Routes;
use tonic::transport::{Channel, Endpoint};
use tower::ServiceExt as _;

use super::Caller;
use super::links::{self, Links};
use crate::identity;

const PROTOCOL: StreamProtocol = StreamProtocol::new("/mesh-node/grpc/1");
/// The host part of every request's URI: names no host.
const ORIGIN: &str = "http://mesh.invalid";
/// Concurrent calls of one peer.
const MAX_CALLS: u32 = 1024;
/// How long a call waits for a new connection.
const CONNECT_DEADLINE: Duration = Duration::from_secs(12);
const MEMORY_PIPE: usize = 256 << 10;
/// Unread bytes of one call's events, and of its request. All calls of a connection bound by these what it holds.
const EVENTS_WINDOW: u32 = 64 << 10;
const REQUEST_WINDOW: u32 = 1 << 20;
/// Unread bytes of all calls of a connection: as many as HTTP/2 can say. Half of them is what h2 allows as overhead of
/// small frames that nobody has read yet, before it takes the peer for an attacker and ends the connection with all its
/// calls. Events are small, a step of a model brings one for each of hundreds of calls, and clients read slowly.
const CONNECTION_WINDOW: u32 = (1 << 31) - 1;

/// Either kind of connection.
trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// Makes calls, and serves them. One a mesh.
pub(super) struct Grpc {
    local: PeerId,
    links: Arc<Links>,
    server: Server,
    channels: Mutex<HashMap<PeerId, Channel>>,
}

/// The serving half; channels to the local node hold one.
#[derive(Clone)]
struct Server {
    routes: Arc<RwLock<Routes>>,
    tasks: Tasks,
}

/// Where the tasks of HTTP/2 run. They end with the mesh, and are joined.
#[derive(Clone, Default)]
pub(super) struct Tasks {
    /// One task for each connection that is served.
    pub(super) serving: TaskTracker,
    /// All others.
    pub(super) helping: TaskTracker,
    /// Asks served connections to end once their calls have.
    pub(super) closing: CancellationToken,
    /// Ends everything now.
    pub(super) closed: CancellationToken,
}

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Tasks {
    fn execute(&self, task: F) {
        let closed = self.closed.clone();
        self.helping.spawn(async move {
            closed.run_until_cancelled(task).await;
        });
    }
}

impl Grpc {
    pub(super) fn new(local: PeerId, links: Arc<Links>, tasks: Tasks, routes: Routes) -> Self {
        let server = Server { routes: Arc::new(RwLock::new(routes.prepare())), tasks };
        Self { local, links, server, channels: Mutex::default() }
    }

    /// Serves `routes` from now on.
    pub(super) fn replace_routes(&self, routes: Routes) {
        *self.server.routes.write().unwrap_or_else(PoisonError::into_inner) = routes.prepare();
    }

    /// Takes and serves inbound connections until the mesh closes.
    pub(super) async fn serve(&self) {
        let Some(mut incoming) = self.links.accept(PROTOCOL) else { return };
        let closing = self.server.tasks.closing.clone();
        while let Some(Some((peer, stream))) = closing.run_until_cancelled(incoming.next()).await {
            let server = self.server.clone();
            let closed = server.tasks.closed.clone();
            self.server.tasks.serving.spawn(async move {
                closed.run_until_cancelled(server.serve_stream(identity::from_libp2p(&peer), stream)).await;
            });
        }
    }

    /// The channel to `peer`.
    pub(super) fn channel(&self, peer: &PeerId) -> Channel {
        let mut channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        channels.entry(peer.clone()).or_insert_with(|| self.make_channel(peer.clone())).clone()
    }

    /// Lets go of the channel to a peer that is gone for good.
    pub(super) fn forget(&self, peer: &PeerId) {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner).remove(peer);
    }

    fn make_channel(&self, peer: PeerId) -> Channel {
        let endpoint = Endpoint::from_static(ORIGIN)
            .initial_stream_window_size(EVENTS_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .connect_timeout(CONNECT_DEADLINE)
            .executor(self.server.tasks.clone());
        let (links, server) = (self.links.clone(), self.server.clone());
        let local = peer == self.local;
        endpoint.connect_with_connector_lazy(tower::service_fn(move |_: Uri| {
            let (links, server, peer) = (links.clone(), server.clone(), peer.clone());
            async move {
                let io: Box<dyn Io> = if local { server.connect(peer) } else { connect(&links, &peer).await? };
                Ok::<_, io::Error>(TokioIo::new(io))
            }
        }))
    }
}

async fn connect(links: &Links, peer: &PeerId) -> io::Result<Box<dyn Io>> {
    let stream = links.open(peer, PROTOCOL).await.map_err(io::Error::other)?;
    Ok(Box::new(stream.compat()))
}

impl Server {
    /// A connection of the local node to itself.
    fn connect(&self, local: PeerId) -> Box<dyn Io> {
        let (near, far) = tokio::io::duplex(MEMORY_PIPE);
        let server = self.clone();
        self.tasks.serving.spawn(async move {
            let closed = server.tasks.closed.clone();
            closed.run_until_cancelled(server.serve_connection(local, far)).await;
        });
        Box::new(near)
    }

    async fn serve_stream(&self, peer: PeerId, mut stream: Stream) {
        if links::take(&mut stream).await.is_ok() {
            self.serve_connection(peer, stream.compat()).await;
        }
    }

    async fn serve_connection(&self, peer: PeerId, io: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) {
        let routes = self.routes.clone();
        let caller = Caller(peer.clone());
        let service = tower::service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(caller.clone());
            // The routes of this moment: they may be set after a peer has connected.
            let routes = routes.read().unwrap_or_else(PoisonError::into_inner).clone();
            routes.oneshot(request.map(Body::new))
        });
        let connection = http2::Builder::new(self.tasks.clone())
            .timer(TokioTimer::new())
            .initial_stream_window_size(REQUEST_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_concurrent_streams(MAX_CALLS)
            .serve_connection(TokioIo::new(io), TowerToHyperService::new(service));
        let mut connection = std::pin::pin!(connection);
        let served = tokio::select! {
            served = &mut connection => served,
            () = self.tasks.closing.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = served {
            tracing::debug!(%peer, %error, "a peer's gRPC connection ended");
        }
    }
}
