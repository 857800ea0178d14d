//! One connection from accept to close.

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

use crate::pulse::Pulse;
use crate::service::Tracked;
use crate::slot::Slot;
use crate::socket::{Socket, Transport};
use crate::stall::Patience;
use crate::stream::StreamExecutor;
use crate::wire::{LINGER, LINGER_BYTES, Wire};
use crate::{NetLimits, NetStats, Peer, TlsFiles, protocol};

/// What the connections of a listener have in common.
pub(crate) struct Shared {
    app: Router,
    tls: Option<TlsAcceptor>,
    limits: NetLimits,
    stop: watch::Receiver<bool>,
    patience: Patience,
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
        let patience = Patience::new(limits.write_timeout(), stop.clone());
        let h2 = protocol::h2(patience.clone());
        Self { app, tls, limits, stop, patience, h1: protocol::h1(), h2 }
    }
}

/// Serves one connection. The slot is given back last, after the socket is closed.
pub(crate) async fn run(stream: TcpStream, peer: Peer, shared: Arc<Shared>, slot: Slot) {
    let mut stop = shared.stop.clone();
    let opened = tokio::select! {
        biased;
        opened = open(stream, &shared, &slot.stats) => opened,
        // No request has begun: nothing to wait for.
        _ = stop.wait_for(|stop| *stop) => None,
    };
    drop(stop);
    if let Some(opened) = opened {
        opened.serve(peer, &shared).await;
    }
}

/// A connection whose protocol is known.
struct Opened {
    transport: Transport,
    h2: bool,
    prefix: Bytes,
    born: Instant,
}

/// Handshake and the first bytes, all within the time for a head.
async fn open(stream: TcpStream, shared: &Shared, stats: &NetStats) -> Option<Opened> {
    let born = Instant::now();
    let deadline = born + shared.limits.header_timeout;
    // Answers are written whole: to wait for more to send only delays them.
    stream.set_nodelay(true).ok()?;
    let socket = Socket::new(stream, shared.patience.clone());
    let mut transport = match &shared.tls {
        None => Transport::Plain(socket),
        Some(acceptor) => match timeout_at(deadline, acceptor.accept(socket)).await {
            Ok(Ok(stream)) => Transport::Tls(Box::new(stream)),
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

/// What the handshake settled: true for HTTP/2, `None` if it settled nothing.
fn agreed(transport: &Transport) -> Option<bool> {
    match transport {
        Transport::Plain(_) => None,
        Transport::Tls(stream) => Some(stream.get_ref().1.alpn_protocol()? == b"h2"),
    }
}

impl Opened {
    async fn serve(self, peer: Peer, shared: &Shared) {
        let pulse = Pulse::new(self.born, &shared.limits, self.h2);
        let (app, hosts) = (shared.app.clone(), shared.limits.hosts.clone());
        let service = Tracked { app, peer, pulse: Arc::clone(&pulse), hosts };
        let stop = shared.stop.clone();
        // Boxed: a connection of one kind should not carry the size of the other.
        if self.h2 {
            let io = TokioIo::new(Wire::h2(self.transport, self.prefix, Arc::clone(&pulse)));
            let mut conn = Box::new(shared.h2.serve_connection(io, service));
            drive(Pin::new(conn.as_mut()), &pulse, stop).await;
        } else {
            let io = TokioIo::new(Wire::h1(self.transport, self.prefix, Arc::clone(&pulse)));
            let mut conn = Box::new(shared.h1.serve_connection(io, service));
            if drive(Pin::new(conn.as_mut()), &pulse, stop).await == End::Protocol {
                let wire = conn.into_parts().io.into_inner();
                Box::pin(linger(wire)).await;
            }
        }
    }
}

/// Why a connection is over.
#[derive(PartialEq)]
enum End {
    /// Hyper is done with it.
    Protocol,
    /// It ran out of time, or the server drains.
    Server,
}

/// Runs a connection until it is done or out of time, and tells it when the server stops.
async fn drive<C>(mut conn: Pin<&mut C>, pulse: &Pulse, mut stop: watch::Receiver<bool>) -> End
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
                    tracing::debug!(target: "codeq::net", %error, "a connection ended with an error");
                }
                return if draining { End::Server } else { End::Protocol };
            }
            _ = stop.wait_for(|stop| *stop), if !draining => {
                draining = true;
                pulse.begin_stop();
                conn.as_mut().graceful_shutdown();
            }
            () = pulse.expired() => {
                if !pulse.is_h2() || pulse.is_closing() {
                    return End::Server;
                }
                // The client may be about to send: tell it first.
                pulse.begin_close();
                conn.as_mut().graceful_shutdown();
            }
        }
    }
}

/// Lets the client read the last answer before the socket goes.
async fn linger(mut wire: Wire) {
    if wire.ended {
        return;
    }
    let rest = async {
        // After an error hyper has not said that this is the end.
        let _ = wire.transport.shutdown().await;
        let mut left = LINGER_BYTES;
        poll_fn(|cx| wire.transport.poll_discard(cx, &mut left)).await;
    };
    let _ = timeout(LINGER, rest).await;
}
