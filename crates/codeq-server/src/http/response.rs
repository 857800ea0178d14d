//! Builds responses.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::body::{Body, HttpBody};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use serde::Serialize;

use crate::limits::budget::Hold;

/// Content type of successful responses.
pub const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// Content type of error responses.
pub const PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");

/// A response with a JSON body.
pub fn json(status: StatusCode, body: &impl Serialize) -> Response {
    json_as(status, body, JSON)
}

/// A response with a JSON body of another media type.
pub fn json_as(status: StatusCode, body: &impl Serialize, media: HeaderValue) -> Response {
    match serde_json::to_vec(body) {
        Ok(bytes) => bytes_as(status, bytes, media),
        // Response bodies are plain structs, which always serialize; answer an empty 500 if one
        // does not.
        Err(_) => status_only(StatusCode::INTERNAL_SERVER_ERROR),
    }
}

/// A response with a raw body.
pub fn bytes_as(status: StatusCode, bytes: impl Into<Body>, media: HeaderValue) -> Response {
    let mut response = Response::new(bytes.into());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, media);
    response
}

/// A response without a body.
pub fn status_only(status: StatusCode) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response
}

/// A response body whose bytes are charged to the memory budget until they are sent.
pub struct Counted {
    body: Body,
    hold: Arc<Hold>,
}

impl Counted {
    /// Charges the bytes of a body to `hold`.
    pub fn new(body: Body, hold: Hold) -> Counted {
        Counted { body, hold: Arc::new(hold) }
    }
}

/// Bytes with their charge: over HTTP/1, hyper takes the whole body at once and drops it long before the client has read
/// it.
struct Charged {
    bytes: Bytes,
    _hold: Arc<Hold>,
}

impl AsRef<[u8]> for Charged {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl HttpBody for Counted {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        let charge = |bytes| Bytes::from_owner(Charged { bytes, _hold: Arc::clone(&self.hold) });
        Poll::Ready(frame.map(|frame| frame.map(|frame| frame.map_data(charge))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
