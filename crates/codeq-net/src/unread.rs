//! Request bodies that nobody read, such as those of refused requests.
//!
//! An HTTP/1 connection can only carry its next request once such a body is out of the way.
//! Otherwise hyper closes the connection, but only after the response, and a client that reuses
//! the connection fails. A small body is therefore read and dropped first; for any other, the
//! response says that the connection closes.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, header};
use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::Response;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use parking_lot::Mutex;
use tokio::time::timeout;

/// Larger bodies are not read; the connection is closed instead.
const DISCARD_BYTES: usize = 64 * 1024;
/// How long a refused client may take to send a small body.
const DISCARD_TIME: Duration = Duration::from_millis(500);

/// Receives the body of a request if its handler drops it before the end.
pub(crate) struct Unread {
    body: Arc<Mutex<Option<Incoming>>>,
    /// The client waits for a `100 Continue`, and may never send its body after a refusal.
    expects_continue: bool,
}

impl Unread {
    pub(crate) fn new(headers: &HeaderMap) -> Unread {
        let expects_continue = headers.contains_key(header::EXPECT);
        Unread { body: Arc::default(), expects_continue }
    }

    /// The body for the handler.
    pub(crate) fn watch(&self, body: Incoming) -> Watched {
        Watched { body: Some(body), unread: Arc::clone(&self.body) }
    }

    /// Makes the connection ready for the next request, or tells the client that the connection closes.
    pub(crate) async fn discard_or_close(self, response: &mut Response<Body>) {
        let Some(body) = self.body.lock().take() else { return };
        if response.headers().contains_key(header::CONNECTION) {
            return;
        }
        let small = body.size_hint().lower() <= DISCARD_BYTES as u64 && !self.expects_continue;
        // Boxed, because it is rare and every request would carry its size.
        if !small || !Box::pin(discard(body)).await {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
    }
}

/// Reads a body to its end. False if it is too large or too slow.
async fn discard(body: Incoming) -> bool {
    let mut body = Limited::new(body, DISCARD_BYTES);
    let reading = async {
        while let Some(frame) = body.frame().await {
            if frame.is_err() {
                return false;
            }
        }
        true
    };
    timeout(DISCARD_TIME, reading).await.unwrap_or(false)
}

/// A request body that goes to [`Unread`] if it is dropped before its end.
pub(crate) struct Watched {
    body: Option<Incoming>,
    unread: Arc<Mutex<Option<Incoming>>>,
}

impl Drop for Watched {
    fn drop(&mut self) {
        *self.unread.lock() = self.body.take().filter(|body| !body.is_end_stream());
    }
}

impl HttpBody for Watched {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = self.get_mut();
        let Some(body) = &mut this.body else { return Poll::Ready(None) };
        let frame = std::task::ready!(Pin::new(body).poll_frame(cx));
        // The end, or an error: there is nothing left to read.
        if !matches!(frame, Some(Ok(_))) {
            this.body = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or(SizeHint::with_exact(0), HttpBody::size_hint)
    }
}
