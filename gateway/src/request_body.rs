//! The body of a request: read within its limits, unpacked, and parsed where that keeps nobody else waiting.
//!
//! Small ones are bounded by the number of requests. Large ones, which take many times their size while they are
//! parsed, need one of few places from their first mebibyte until they are read.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderMap};
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};
use mesh_openai::ApiError;
use mesh_types::{ErrorClass, Fault};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use crate::config::Limits;
use crate::unpack::unpack;

/// Once a body is known to be too large, this many times the limit is still read and thrown away, so that a client which
/// sends all of it before it reads gets to see the refusal.
const DISCARD_FACTOR: u64 = 4;
/// How long the same is done for one that gets no place.
const DISCARD_TIME: Duration = Duration::from_secs(5);
/// A body that has more bytes is a large one.
const LARGE: usize = 1 << 20;
/// A longer body is parsed on a thread of its own.
const PARSE_INLINE: usize = 128 << 10;

/// Reads bodies.
pub(crate) struct Reader<'a> {
    limits: &'a Limits,
    /// One permit for each large body.
    places: &'a Arc<Semaphore>,
}

/// A whole body, unpacked.
pub(crate) struct RequestBody {
    bytes: Bytes,
    /// Its place, if it is a large one.
    _place: Option<OwnedSemaphorePermit>,
}

impl<'a> Reader<'a> {
    /// One within `limits`, which takes a permit of `places` for each large body.
    pub(crate) fn new(limits: &'a Limits, places: &'a Arc<Semaphore>) -> Self {
        Self { limits, places }
    }

    /// All of `body`, unpacked as `headers` say that it is packed.
    ///
    /// # Errors
    /// 413 for one over the limit, 415 for one that is packed in a way that is not served, 408 for one that does not
    /// arrive in time, 429 for a large one that gets no place in time, 400 for one that breaks off.
    ///
    /// # Cancel safety
    /// Dropping it drops the body.
    pub(crate) async fn read(&self, headers: &HeaderMap, mut body: Incoming) -> Result<RequestBody, ApiError> {
        let (limit, deadline) = (self.limits.body_bytes, Instant::now() + self.limits.body);
        if body.size_hint().lower() > limit as u64 {
            // A client that waits for 100 Continue has sent nothing yet, and will not.
            if !headers.contains_key(header::EXPECT) {
                discard(&mut body, limit, deadline).await;
            }
            return Err(ApiError::too_large(limit));
        }
        let (mut packed, mut place) = (Vec::new(), None);
        let late = |_| ApiError::body_timeout(self.limits.body.as_secs());
        while let Some(frame) = timeout_at(deadline, body.frame()).await.map_err(late)? {
            let frame = frame.map_err(|_| Fault::invalid("The request's body broke off."))?;
            // Trailers say nothing here.
            let Ok(data) = frame.into_data() else { continue };
            if packed.len() + data.len() > limit {
                discard(&mut body, limit, deadline).await;
                return Err(ApiError::too_large(limit));
            }
            packed.extend_from_slice(&data);
            if packed.len() > LARGE
                && let Err(fault) = self.hold(&mut place, deadline).await
            {
                discard(&mut body, limit, Instant::now() + DISCARD_TIME).await;
                return Err(fault.into());
            }
        }
        if headers.contains_key(header::CONTENT_ENCODING) {
            self.hold(&mut place, deadline).await?;
        }
        Ok(RequestBody { bytes: unpack(headers, packed.into(), limit).await?, _place: place })
    }

    /// Waits for a place unless there is one already.
    async fn hold(&self, place: &mut Option<OwnedSemaphorePermit>, deadline: Instant) -> Result<(), Fault> {
        if place.is_none() {
            let waited = timeout_at(deadline, Arc::clone(self.places).acquire_owned()).await;
            let full = "This gateway is reading as many large requests as it may: try again soon.";
            // The semaphore is never closed.
            *place = waited.map_err(|_| Fault::new(ErrorClass::Overloaded, full))?.ok();
        }
        Ok(())
    }
}

async fn discard(body: &mut Incoming, limit: usize, deadline: Instant) {
    let mut left = (limit as u64).saturating_mul(DISCARD_FACTOR);
    while let Ok(Some(Ok(frame))) = timeout_at(deadline, body.frame()).await {
        let bytes = frame.data_ref().map_or(0, |data| data.len() as u64);
        match left.checked_sub(bytes) {
            Some(rest) => left = rest,
            None => return,
        }
    }
}

impl RequestBody {
    /// What `read` makes of the bytes. They, and their place, are let go of then.
    ///
    /// # Errors
    /// Those of `read`.
    ///
    /// # Cancel safety
    /// May be dropped; work that has begun ends by itself.
    pub(crate) async fn parse<T: Send + 'static>(
        self,
        read: impl FnOnce(&[u8]) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Fault> {
        if self.bytes.len() <= PARSE_INLINE {
            return read(&self.bytes);
        }
        let parsing = tokio::task::spawn_blocking(move || {
            let Self { bytes, _place } = self;
            read(&bytes)
        });
        parsing.await.unwrap_or_else(|_| Err(Fault::new(ErrorClass::Internal, "The request could not be read.")))
    }
}
