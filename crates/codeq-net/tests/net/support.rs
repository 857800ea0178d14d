//! A listener with a small application, and a client that sees every byte.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use bytes::Bytes;
use codeq_net::{Hosts, NetLimits, NetStats, Peer, TlsFiles, serve};
use hyper::body::Frame;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Longer than any step of a test takes, however busy the machine is.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// A limit that no test waits for.
pub const LONG: Duration = Duration::from_secs(600);
/// A limit that a test waits for.
pub const SHORT: Duration = Duration::from_millis(300);

/// Events of the application.
#[derive(Default)]
pub struct Events {
    pub waiting: AtomicUsize,
    pub begun: Gate,
    pub release: Gate,
    pub dropped: Gate,
}

/// A count of events that can be waited for.
pub struct Gate(Semaphore);

impl Default for Gate {
    fn default() -> Self {
        Self(Semaphore::new(0))
    }
}

impl Gate {
    pub fn open(&self, times: usize) {
        self.0.add_permits(times);
    }

    pub async fn pass(&self) {
        timeout(PATIENCE, self.0.acquire()).await.expect("in time").unwrap().forget();
    }

    async fn pass_whenever(&self) {
        self.0.acquire().await.unwrap().forget();
    }
}

/// An endless body in chunks of 64 KiB, which reports when it is dropped.
struct Endless(Arc<Events>);

impl hyper::body::Body for Endless {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[b'x'; 65_536])))))
    }
}

impl Drop for Endless {
    fn drop(&mut self) {
        self.0.dropped.open(1);
    }
}

pub const HUGE: usize = 16 * 1024 * 1024;

async fn wait(State(events): State<Arc<Events>>) -> &'static str {
    events.waiting.fetch_add(1, Ordering::SeqCst);
    events.begun.open(1);
    events.release.pass_whenever().await;
    "released"
}

async fn fail() -> &'static str {
    panic!("on purpose")
}

pub fn app(events: Arc<Events>) -> Router {
    Router::new()
        .route("/hello", get(|| async { "hello" }))
        .route("/empty", get(|| async { StatusCode::NO_CONTENT }))
        .route("/echo", post(|body: Bytes| async move { body }))
        .route("/refuse", post(|| async { StatusCode::PAYLOAD_TOO_LARGE }))
        .route(
            "/peer",
            get(|Extension(peer): Extension<Peer>| async move { peer.addr.to_string() }),
        )
        .route("/huge", get(|| async { Bytes::from(vec![b'x'; HUGE]) }))
        .route(
            "/endless",
            get(|State(events): State<Arc<Events>>| async move { Body::new(Endless(events)) }),
        )
        .route("/wait", get(wait))
        .route("/panic", get(fail))
        .with_state(events)
}

pub fn limits() -> NetLimits {
    NetLimits {
        max_connections: 1000,
        header_timeout: LONG,
        idle_timeout: LONG,
        hosts: Hosts::default(),
    }
}

/// A listener that serves `app`.
pub struct Server {
    pub addr: SocketAddr,
    pub stats: Arc<NetStats>,
    pub events: Arc<Events>,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Server {
    pub async fn start(limits: NetLimits) -> Self {
        Self::start_with(limits, None, LONG).await
    }

    pub async fn start_with(limits: NetLimits, tls: Option<TlsFiles>, grace: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let stats = Arc::new(NetStats::default());
        let events = Arc::new(Events::default());
        let (stop, stopped) = watch::channel(false);
        let app = app(Arc::clone(&events));
        let task =
            tokio::spawn(serve(listener, app, tls, limits, Arc::clone(&stats), stopped, grace));
        Self { addr, stats, events, stop, task }
    }

    pub fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// Waits until `serve` has returned.
    pub async fn ended(self) {
        timeout(PATIENCE, self.task).await.expect("drained in time").unwrap();
        assert_eq!(self.stats.open.load(Ordering::Relaxed), 0);
    }

    pub async fn connect(&self) -> Client<TcpStream> {
        Client::new(TcpStream::connect(self.addr).await.unwrap())
    }
}

/// An HTTP/1 client that sends raw bytes and reads raw responses.
pub struct Client<S> {
    pub stream: S,
    buf: Vec<u8>,
}

/// A response as read.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl<S: AsyncRead + tokio::io::AsyncWrite + Unpin> Client<S> {
    pub fn new(stream: S) -> Self {
        Self { stream, buf: Vec::new() }
    }

    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).await.unwrap();
        self.stream.flush().await.unwrap();
    }

    pub async fn get(&mut self, path: &str) -> Answer {
        self.send(format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n")).await;
        self.answer().await
    }

    /// Reads one response that has a `Content-Length`.
    pub async fn answer(&mut self) -> Answer {
        self.try_answer().await.expect("an answer")
    }

    /// As `answer`, or `None` if the connection closes first.
    pub async fn try_answer(&mut self) -> Option<Answer> {
        let end = loop {
            if let Some(at) = self.buf.windows(4).position(|w| w == b"\r\n\r\n") {
                break at + 4;
            }
            self.more().await?;
        };
        let head = String::from_utf8(self.buf.drain(..end).collect()).unwrap().to_lowercase();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let length = head
            .split("content-length: ")
            .nth(1)
            .map_or(0, |rest| rest.split("\r\n").next().unwrap().parse().unwrap());
        while self.buf.len() < length {
            self.more().await?;
        }
        Some(Answer { status, head, body: self.buf.drain(..length).collect() })
    }

    async fn more(&mut self) -> Option<usize> {
        let read = timeout(PATIENCE, self.stream.read_buf(&mut self.buf)).await.expect("in time");
        read.ok().filter(|n| *n > 0)
    }

    /// Waits until the server closes, and gives what came before.
    pub async fn closed(&mut self) -> Vec<u8> {
        while self.more().await.is_some() {}
        std::mem::take(&mut self.buf)
    }
}
