//! Bodies: reading a request's within its limits, and the shapes that a response's can have.

use std::convert::Infallible;

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderValue};
use http::{Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Empty, Full, LengthLimitError, Limited};
use hyper::body::{Body, Frame, Incoming};
use mesh_openai::ApiError;
use mesh_types::{Fault, RequestId};
use tokio::time::timeout;

use crate::config::Limits;
use crate::unpack::unpack;

/// The body of every response.
pub(crate) type ResponseBody = UnsyncBoxBody<Bytes, Infallible>;

/// Once a body is known to be too large, this many times the limit is still read and thrown away, so that a client which
/// sends all of it before it reads gets to see the refusal.
const DISCARD_FACTOR: u64 = 4;

/// No bytes.
pub(crate) fn empty() -> ResponseBody {
    Empty::new().boxed_unsync()
}

/// Bytes that come as they are made.
pub(crate) fn stream(events: impl futures::Stream<Item = Bytes> + Send + 'static) -> ResponseBody {
    use futures::StreamExt as _;
    http_body_util::StreamBody::new(events.map(|bytes| Ok(Frame::data(bytes)))).boxed_unsync()
}

/// A whole JSON text.
pub(crate) fn json(status: StatusCode, json: Vec<u8>) -> Response<ResponseBody> {
    let mut response = Response::new(Full::new(Bytes::from(json)).boxed_unsync());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// In whose shape errors are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    OpenAi,
    Anthropic,
}

/// An error about the request `id`, in a dialect's shape.
pub(crate) fn error(error: &ApiError, shape: Shape, id: &RequestId) -> Response<ResponseBody> {
    let status = StatusCode::from_u16(error.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let body = match shape {
        Shape::OpenAi => error.body(),
        Shape::Anthropic => error.anthropic(Some(id.as_str())).to_string().into_bytes(),
    };
    let mut response = json(status, body);
    if let Some(seconds) = error.retry_after {
        response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    }
    response
}

/// All of a request's body, unpacked.
///
/// # Errors
/// 413 for one over the limit, 415 for one that is packed in a way that is not served, 408 for one that does not arrive
/// in time, 400 for one that breaks off.
///
/// # Cancel safety
/// Dropping it drops the body.
pub(crate) async fn read(headers: &HeaderMap, mut body: Incoming, limits: &Limits) -> Result<Bytes, ApiError> {
    let limit = limits.body_bytes;
    let reading = async {
        if body.size_hint().lower() > limit as u64 {
            // A client that waits for 100 Continue has sent nothing yet, and will not.
            if !headers.contains_key(header::EXPECT) {
                discard(&mut body, limit).await;
            }
            return Err(ApiError::too_large(limit));
        }
        match Limited::new(&mut body, limit).collect().await {
            Ok(whole) => Ok(whole.to_bytes()),
            Err(error) if error.is::<LengthLimitError>() => {
                discard(&mut body, limit).await;
                Err(ApiError::too_large(limit))
            }
            Err(_) => Err(Fault::invalid("The request's body broke off.").into()),
        }
    };
    let read = timeout(limits.body, reading).await;
    let packed = read.unwrap_or_else(|_| Err(ApiError::body_timeout(limits.body.as_secs())))?;
    unpack(headers, packed, limit).await
}

async fn discard(body: &mut Incoming, limit: usize) {
    let mut left = (limit as u64).saturating_mul(DISCARD_FACTOR);
    while let Some(Ok(frame)) = body.frame().await {
        let bytes = frame.data_ref().map_or(0, |data| data.len() as u64);
        match left.checked_sub(bytes) {
            Some(rest) => left = rest,
            None => return,
        }
    }
}
