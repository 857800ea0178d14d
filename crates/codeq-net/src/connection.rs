//! One connection, from accept to close.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::Router;
use bytes::Bytes;
use hyper::server::conn::{http1, http2};
use hyper_util::rt::TokioIo;
use hyper_util::server::graceful::GracefulConnection;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::TlsAcceptor;
use tokio_util::either::Either;

use crate::activity::Activity;
use crate::framing::Framing;
use crate::service::Tracked;
use crate::slot::Slot;
use crate::socket::{Socket, Transport, poll_discard};
use crate::stream::StreamExecutor;
use crate::wire::{LINGER, LINGER_BYTES, Wire};
use crate::write_timeout::WriteTimeout;
use crate::{NetLimits, NetStats, Peer, TlsFiles, protocol};

/// State shared by all connections of a listener.
pub(crate) struct Shared {
    app: Router,
    tls: Option<TlsAcceptor>,
    limits: NetLimits,
    stop: watch::Receiver<bool>,
    write_timeout: WriteTimeout,
    h1: http1::Builder,
    h2: http2::Builder<StreamExecutor>,
}

impl Shared {
    pub(crate) fn new(
        app: Router,
        tls: Option<TlsFiles>,
        limits: NetLimits,
        stop: watch::Receiver<bool>,
    ) -> Self {
        let limits = limits.bounded();
        let tls = tls.map(|files| TlsAcceptor::from(files.config()));
        let write_timeout = WriteTimeout::new(limits.write_timeout(), stop.clone());
        let h2 = protocol::h2(write_timeout.clone());
        Self { app, tls, limits, stop, write_timeout, h1: protocol::h1(), h2 }
    }
}

/// Serves one connection. Releases the slot last, after the socket is closed.
pub(crate) async fn run(stream: TcpStream, peer: Peer, shared: Arc<Shared>, slot: Slot) {
    let mut stop = shared.stop.clone();
    let opened = tokio::select! {
        biased;
        opened = open(stream, &shared, &slot.stats) => opened,
        // No request has started yet, so there is nothing to wait for.
        _ = stop.wait_for(|stop| *stop) => None,
    };
    drop(stop);
    if let Some(opened) = opened {
        opened.serve(peer, &shared).await;
    }
}

/// A connection with its protocol detected.
struct Opened {
    transport: Transport,
    h2: bool,
    prefix: Bytes,
    born: Instant,
}

/// Does the TLS handshake and reads the first bytes, both within `header_timeout`.
async fn open(stream: TcpStream, shared: &Shared, stats: &NetStats) -> Option<Opened> {
    let born = Instant::now();
    let deadline = born + shared.limits.header_timeout;
    // Responses are written whole, so Nagle's algorithm would only delay them.
    stream.set_nodelay(true).ok()?;
    let socket = Socket::new(stream, shared.write_timeout.clone());
    let mut transport = match &shared.tls {
        None => Either::Left(socket),
        Some(acceptor) => match timeout_at(deadline, acceptor.accept(socket)).await {
            Ok(Ok(stream)) => Either::Right(Box::new(stream)),
            _ => {
                stats.handshake_failures.fetch_add(1, Ordering::Relaxed);
                return None;
            }
        },
    };
    let (looks_like_h2, prefix) =
        timeout_at(deadline, protocol::detect(&mut transport)).await.ok()?.ok()?;
    let h2 = agreed(&transport).unwrap_or(looks_like_h2);
    Some(Opened { transport, h2, prefix, born })
}

/// The protocol that ALPN negotiated: true for HTTP/2, `None` if there was no ALPN.
fn agreed(transport: &Transport) -> Option<bool> {
    match transport {
        Either::Left(_) => None,
        Either::Right(stream) => Some(stream.get_ref().1.alpn_protocol()? == b"h2"),
    }
}

impl Opened {
    async fn serve(self, peer: Peer, shared: &Shared) {
        let activity = Activity::new(self.born, &shared.limits, self.h2);
        let (app, hosts) = (shared.app.clone(), shared.limits.hosts.clone());
        let service = Tracked { app, peer, activity: Arc::clone(&activity), hosts };
        let stop = shared.stop.clone();
        let wire = |framing| Wire::new(self.transport, self.prefix, framing, Arc::clone(&activity));
        // Boxed so that an HTTP/1 connection does not carry the size of an HTTP/2 one, or vice
        // versa.
        if self.h2 {
            let io = TokioIo::new(wire(None));
            let mut conn = Box::new(shared.h2.serve_connection(io, service));
            drive(Pin::new(conn.as_mut()), &activity, stop).await;
        } else {
            let io = TokioIo::new(wire(Some(Framing::default())));
            let mut conn = Box::new(shared.h1.serve_connection(io, service));
            if drive(Pin::new(conn.as_mut()), &activity, stop).await == End::Protocol {
                let wire = conn.into_parts().io.into_inner();
                Box::pin(linger(wire)).await;
            }
        }
    }
}

/// Why a connection ended.
#[derive(PartialEq)]
enum End {
    /// Hyper finished with it.
    Protocol,
    /// It timed out, or the server is draining.
    Server,
}

/// Runs a connection until it finishes or times out; shuts it down gracefully when the server
/// stops.
async fn drive<C>(
    mut conn: Pin<&mut C>,
    activity: &Activity,
    mut stop: watch::Receiver<bool>,
) -> End
where
    C: GracefulConnection,
    C::Error: std::fmt::Display,
{
    let mut draining = false;
    loop {
        tokio::select! {
            biased;
            done = conn.as_mut() => {
                if let Err(error) = done {
                    tracing::debug!(target: "codeq::net", %error, "connection failed");
                }
                return if draining { End::Server } else { End::Protocol };
            }
            _ = stop.wait_for(|stop| *stop), if !draining => {
                draining = true;
                activity.begin_stop();
                conn.as_mut().graceful_shutdown();
            }
            () = activity.expired() => {
                if !activity.is_h2() || activity.is_closing() {
                    return End::Server;
                }
                // The client may be about to send a request, so announce the close first.
                activity.begin_close();
                conn.as_mut().graceful_shutdown();
            }
        }
    }
}

/// Gives the client time to read the last response before the socket closes.
async fn linger(mut wire: Wire) {
    if wire.ended {
        return;
    }
    let rest = async {
        // After an error, hyper leaves the socket's write side open.
        let _ = wire.transport.shutdown().await;
        let mut left = LINGER_BYTES;
        poll_fn(|cx| poll_discard(&mut wire.transport, cx, &mut left)).await;
    };
    let _ = timeout(LINGER, rest).await;
}
