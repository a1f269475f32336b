//! The bodies of responses: the shapes that they can have.

use std::convert::Infallible;

use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::{Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Empty, Full};
use hyper::body::Frame;
use mesh_openai::ApiError;
use mesh_types::RequestId;

/// The body of every response.
pub(crate) type ResponseBody = UnsyncBoxBody<Bytes, Infallible>;

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
