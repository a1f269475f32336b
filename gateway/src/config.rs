//! What a gateway is told, and what it holds itself to.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use subtle::ConstantTimeEq as _;

/// Where a gateway listens, and whom it answers.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where `/v1` is served. Port 0 picks one.
    pub addr: SocketAddr,
    /// What clients must send as `Authorization: Bearer …`; `None`: nothing, which only loopback may do.
    pub api_key: Option<ApiKey>,
    /// See [`Limits`].
    pub limits: Limits,
}

/// What a gateway bounds. The defaults suit a person's or a team's mesh.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of a request's body. 32 MiB: a long conversation with room to spare.
    pub body_bytes: usize,
    /// Bodies over a mebibyte, or packed ones, that are read at the same time; more wait. 4: read as JSON, one may take
    /// some hundred mebibytes.
    pub large_bodies: usize,
    /// How long a body may take to arrive. 60 s.
    pub body: Duration,
    /// How long a client may take to send a request's head, and how long an idle connection is kept. 75 s.
    pub head: Duration,
    /// Requests being answered at the same time; more are refused with 429. 1024, of which a quiet stream takes some
    /// tens of kilobytes.
    pub requests: usize,
    /// Connections at the same time; more wait to be accepted. 2048. Each takes a file descriptor: see
    /// [`raise_open_files`](crate::raise_open_files).
    pub connections: usize,
    /// How long a node may take to accept or refuse a request, its waiting queue included. 10 min.
    pub first_event: Duration,
    /// How long a node may be silent within an answer: a long prompt is read before the first text. 10 min.
    pub next_event: Duration,
    /// How long a client may take nothing of what it is sent, or not be there any more, before its connection ends, and
    /// its runs with it. 2 min.
    pub stalled: Duration,
    /// After how much silence a stream carries a comment, so that nothing on the way takes it for dead. 15 s.
    pub keep_alive: Duration,
    /// How long answers may take to finish once the gateway is told to stop. 30 s.
    pub drain: Duration,
}

impl Limits {
    /// See [`Self::requests`].
    pub const REQUESTS: u32 = 1024;
    /// See [`Self::connections`].
    pub const CONNECTIONS: u32 = 2048;

    /// The defaults, with these limits of requests and connections where they are given.
    pub fn with(requests: Option<u32>, connections: Option<u32>) -> Self {
        let (requests, connections) = (requests.unwrap_or(Self::REQUESTS), connections.unwrap_or(Self::CONNECTIONS));
        Self { requests: requests as usize, connections: connections as usize, ..Self::default() }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes: 32 << 20,
            large_bodies: 4,
            body: Duration::from_secs(60),
            head: Duration::from_secs(75),
            requests: Self::REQUESTS as usize,
            connections: Self::CONNECTIONS as usize,
            first_event: Duration::from_secs(600),
            next_event: Duration::from_secs(600),
            stalled: Duration::from_secs(120),
            keep_alive: Duration::from_secs(15),
            drain: Duration::from_secs(30),
        }
    }
}

impl Config {
    /// A gateway at `addr` with the default limits and no key.
    pub fn new(addr: SocketAddr) -> Self {
        Self { addr, api_key: None, limits: Limits::default() }
    }

    /// The same with `limits`.
    #[must_use]
    pub fn with_limits(self, limits: Limits) -> Self {
        Self { limits, ..self }
    }

    /// The same with `key` (`None`: without one).
    #[must_use]
    pub fn with_api_key(mut self, key: Option<String>) -> Self {
        self.api_key = key.map(ApiKey);
        self
    }
}

/// The secret that clients share with the gateway. Never printed.
#[derive(Clone)]
pub struct ApiKey(String);

impl ApiKey {
    /// Whether `given` is this key. Takes as long for a near miss as for a far one of the same length.
    pub fn matches(&self, given: &[u8]) -> bool {
        self.0.as_bytes().ct_eq(given).into()
    }
}

impl From<String> for ApiKey {
    fn from(key: String) -> Self {
        Self(key)
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey(…)")
    }
}
