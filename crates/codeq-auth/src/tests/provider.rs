//! A scripted identity provider.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::http::{HeaderMap, Response, Uri};
use hyper::body::Frame;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::Sleep;

use super::keys::Signer;

/// The provider's response to a request for keys.
pub enum Answer {
    /// This status and body, with `Cache-Control` if any.
    Body(u16, Vec<u8>, Option<&'static str>),
    /// A redirect to the URL with the keys.
    Redirect,
    /// Never respond.
    Hang,
    /// Send one byte per second.
    Drip,
}

/// A provider on a local port. It stops with the test's runtime.
pub struct Provider {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    address: SocketAddr,
    answer: Mutex<Answer>,
    discovery: Mutex<Value>,
    requests: watch::Sender<usize>,
    elsewhere: AtomicUsize,
    open: watch::Sender<bool>,
}

impl Provider {
    pub async fn start() -> Provider {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            address,
            answer: Mutex::new(Answer::Body(200, br#"{"keys":[]}"#.to_vec(), None)),
            discovery: Mutex::new(json!(null)),
            requests: watch::Sender::new(0),
            elsewhere: AtomicUsize::new(0),
            open: watch::Sender::new(true),
        });
        let served = Arc::clone(&shared);
        let router = Router::new().fallback(move |uri: Uri, headers: HeaderMap| {
            let shared = Arc::clone(&served);
            async move { shared.serve(&uri, &headers).await }
        });
        tokio::spawn(async move { axum::serve(listener, router).await });
        Provider { address, shared }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn keys_url(&self) -> String {
        format!("{}/keys", self.url())
    }

    pub fn publish(&self, signers: &[&Signer]) {
        self.publish_jwks(signers.iter().map(|signer| signer.jwk()).collect());
    }

    pub fn publish_jwks(&self, jwks: Vec<Value>) {
        let body = json!({ "keys": jwks }).to_string().into_bytes();
        self.answer(Answer::Body(200, body, None));
    }

    pub fn answer(&self, answer: Answer) {
        *self.shared.answer.lock() = answer;
    }

    pub fn discovery(&self, document: Value) {
        *self.shared.discovery.lock() = document;
    }

    /// Requests for keys so far.
    pub fn requests(&self) -> usize {
        *self.shared.requests.borrow()
    }

    /// Requests to any other path.
    pub fn elsewhere(&self) -> usize {
        self.shared.elsewhere.load(Ordering::SeqCst)
    }

    /// Waits until the provider has received this many requests for keys.
    pub async fn asked(&self, requests: usize) {
        self.shared.requests.subscribe().wait_for(|count| *count >= requests).await.unwrap();
    }

    /// While closed, requests are counted but not answered.
    pub fn open(&self, open: bool) {
        self.shared.open.send_replace(open);
    }
}

impl Shared {
    async fn serve(&self, uri: &Uri, headers: &HeaderMap) -> Response<Body> {
        assert!(!headers.contains_key("authorization"), "nothing secret goes to a provider");
        match uri.path() {
            "/keys" => {}
            "/.well-known/openid-configuration" => {
                return Response::new(Body::from(self.discovery.lock().to_string()));
            }
            _ => {
                self.elsewhere.fetch_add(1, Ordering::SeqCst);
                return Response::new(Body::from(r#"{"keys":[]}"#));
            }
        }
        self.requests.send_modify(|count| *count += 1);
        self.open.subscribe().wait_for(|open| *open).await.unwrap();
        self.respond().await
    }

    async fn respond(&self) -> Response<Body> {
        let hang = match &*self.answer.lock() {
            Answer::Body(status, body, cache_control) => {
                let mut response = Response::builder().status(*status);
                if let Some(value) = cache_control {
                    response = response.header("cache-control", *value);
                }
                return response.body(Body::from(body.clone())).unwrap();
            }
            Answer::Redirect => {
                let place = format!("http://{}/elsewhere", self.address);
                let response = Response::builder().status(302).header("location", place);
                return response.body(Body::empty()).unwrap();
            }
            Answer::Hang => true,
            Answer::Drip => false,
        };
        if hang {
            std::future::pending::<()>().await;
        }
        Response::new(Body::new(Drip(Box::pin(tokio::time::sleep(Duration::ZERO)))))
    }
}

/// A space per second, for ever.
struct Drip(Pin<Box<Sleep>>);

impl HttpBody for Drip {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        ready!(self.0.as_mut().poll(context));
        self.0.set(tokio::time::sleep(Duration::from_secs(1)));
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b" ")))))
    }
}
