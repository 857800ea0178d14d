//! The router as a hyper service: attaches the peer to requests, reports them to [`Activity`], and
//! keeps an HTTP/1 connection usable after a refusal.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Router;
use axum::body::Body;
use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use hyper::service::Service;
use hyper::{Request, Response};

use crate::activity::{Activity, InFlight};
use crate::unread::Unread;
use crate::{Hosts, Peer, stream};

/// One HTTP/2 frame. A larger piece would go to the send buffer whole, however small the client's
/// window is.
const PIECE: usize = 16 * 1024;

/// Calls the router for one connection.
pub(crate) struct Tracked {
    pub(crate) app: Router,
    pub(crate) peer: Peer,
    pub(crate) activity: Arc<Activity>,
    pub(crate) hosts: Hosts,
}

impl Service<Request<Incoming>> for Tracked {
    type Response = Response<TrackedBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        let in_flight = InFlight::begin(&self.activity);
        let piece = if self.activity.is_h2() { PIECE } else { usize::MAX };
        let refusal = self.hosts.refuse(request.version(), request.uri(), request.headers());
        request.extensions_mut().insert(self.peer.clone());
        // Only an HTTP/1 request with a body needs this: HTTP/2 can close one stream alone.
        let unread = (!self.activity.is_h2() && !request.body().is_end_stream())
            .then(|| Unread::new(request.headers()));
        let request = request.map(|body| match &unread {
            Some(unread) => Body::new(unread.watch(body)),
            None => Body::new(body),
        });
        // A request is large: it is not moved into the future.
        let answer = match refusal {
            None => Ok(tower::Service::call(&mut self.app.clone(), request)),
            Some(refusal) => {
                drop(request);
                Err(refusal)
            }
        };
        Box::pin(async move {
            let mut response = match answer {
                Ok(answer) => answer.await?,
                Err((status, text)) => {
                    let mut response = Response::new(Body::from(text));
                    *response.status_mut() = status;
                    response
                }
            };
            if let Some(unread) = unread {
                unread.discard_or_close(&mut response).await;
            }
            stream::passed_to_hyper();
            Ok(response.map(|body| TrackedBody { body, piece, rest: Bytes::new(), in_flight }))
        })
    }
}

/// A response body in pieces that fit a frame. Keeps the request in flight until dropped.
pub(crate) struct TrackedBody {
    body: Body,
    piece: usize,
    rest: Bytes,
    #[expect(dead_code, reason = "counts by being alive")]
    in_flight: InFlight,
}

impl TrackedBody {
    fn next_piece(&mut self) -> Frame<Bytes> {
        let n = self.rest.len().min(self.piece);
        Frame::data(self.rest.split_to(n))
    }
}

impl HttpBody for TrackedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = self.get_mut();
        if this.rest.is_empty() {
            let next = Pin::new(&mut this.body).poll_frame(cx);
            let Poll::Ready(next) = next else {
                stream::waiting_for_handler();
                return Poll::Pending;
            };
            stream::passed_to_hyper();
            match next.map(|frame| frame.map(Frame::into_data)) {
                Some(Ok(Ok(data))) => this.rest = data,
                Some(Ok(Err(other))) => return Poll::Ready(Some(Ok(other))),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        } else {
            stream::passed_to_hyper();
        }
        Poll::Ready(Some(Ok(this.next_piece())))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.rest.len() as u64;
        let inner = self.body.size_hint();
        let mut hint = SizeHint::new();
        if let Some(upper) = inner.upper() {
            hint.set_upper(upper.saturating_add(rest));
        }
        hint.set_lower(inner.lower().saturating_add(rest));
        hint
    }
}
