//! A TCP stream with a write timeout, in clear text or under TLS.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;

use crate::write_timeout::{WriteTimeout, WriteTimer};

/// A TCP stream whose writes fail after too long without progress.
pub(crate) struct Socket {
    stream: TcpStream,
    write_timeout: WriteTimeout,
    /// Set while a write is blocked: when it blocked, and its timeout.
    timer: Option<(Instant, WriteTimer)>,
}

impl Socket {
    pub(crate) fn new(stream: TcpStream, write_timeout: WriteTimeout) -> Self {
        Self { stream, write_timeout, timer: None }
    }

    /// Returns the outcome of a write, or a timeout error if the write has been blocked too long.
    fn watch<T>(
        &mut self,
        cx: &mut Context<'_>,
        outcome: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if outcome.is_ready() {
            self.timer = None;
            return outcome;
        }
        let write_timeout = &self.write_timeout;
        let timer =
            self.timer.get_or_insert_with(|| (Instant::now(), WriteTimer::new(write_timeout)));
        let (since, timer) = timer;
        timer.poll(*since, cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.watch(cx, outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.watch(cx, outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// A connection in clear text, or under TLS.
pub(crate) type Transport = Either<Socket, Box<TlsStream<Socket>>>;

/// Discards incoming bytes until the client closes or `left` bytes have been read.
///
/// Reads below TLS on purpose: discarded bytes need no decryption.
pub(crate) fn poll_discard(
    transport: &mut Transport,
    cx: &mut Context<'_>,
    left: &mut usize,
) -> Poll<()> {
    let socket = match transport {
        Either::Left(socket) => socket,
        Either::Right(stream) => stream.get_mut().0,
    };
    let mut space = [0; 1024];
    while *left > 0 {
        let mut buf = ReadBuf::new(&mut space);
        match Pin::new(&mut socket.stream).poll_read(cx, &mut buf) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Ok(())) if !buf.filled().is_empty() => {
                *left = left.saturating_sub(buf.filled().len());
            }
            Poll::Ready(_) => return Poll::Ready(()),
        }
    }
    Poll::Ready(())
}
