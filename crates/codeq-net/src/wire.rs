//! The I/O object for hyper: reports bytes to [`Activity`] and checks HTTP/1 framing.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use crate::activity::Activity;
use crate::framing::Framing;
use crate::socket::{Transport, poll_discard};

/// How long, and for how many bytes, to keep reading after the last response. Closing a socket with
/// unread bytes makes the kernel send a reset, which can destroy a response in transit, such as a
/// 413.
pub(crate) const LINGER: Duration = Duration::from_secs(1);
pub(crate) const LINGER_BYTES: usize = 1024 * 1024;

/// A transport that reports its bytes to [`Activity`] and, for HTTP/1, checks their framing.
pub(crate) struct Wire {
    pub(crate) transport: Transport,
    /// Bytes read during protocol detection. Hyper gets them first.
    prefix: Bytes,
    /// `None` for HTTP/2, whose framing is unambiguous.
    framing: Option<Framing>,
    activity: Arc<Activity>,
    /// The client has closed its side.
    pub(crate) ended: bool,
    /// HTTP/2 only, after the last write: how much longer to read from the client.
    linger: Option<Linger>,
}

struct Linger {
    end: Pin<Box<Sleep>>,
    bytes: usize,
}

impl Wire {
    /// `framing` is `None` for HTTP/2.
    pub(crate) fn new(
        transport: Transport,
        prefix: Bytes,
        framing: Option<Framing>,
        activity: Arc<Activity>,
    ) -> Self {
        Self { transport, prefix, framing, activity, ended: false, linger: None }
    }

    /// Reads the prefix and then any bytes that have arrived, so hyper usually gets a head in one
    /// piece.
    fn fill(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.prefix.is_empty() {
            return Pin::new(&mut self.transport).poll_read(cx, buf);
        }
        let n = self.prefix.len().min(buf.remaining());
        buf.put_slice(&self.prefix.split_to(n));
        if !self.prefix.has_remaining() && buf.remaining() > 0 {
            // The next read reports an error or the end again.
            let _ = Pin::new(&mut self.transport).poll_read(cx, buf);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        let outcome = this.fill(cx, buf);
        let fresh = buf.filled_mut().get_mut(before..).unwrap_or_default();
        if let Poll::Ready(Ok(())) = outcome {
            if fresh.is_empty() {
                this.ended = true;
            } else {
                this.activity.bytes_in();
            }
        }
        if let Some(framing) = &mut this.framing {
            framing.check(fresh);
        }
        outcome
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.transport).poll_write(cx, buf);
        self.activity.bytes_out(&outcome);
        outcome
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.transport).poll_write_vectored(cx, bufs);
        self.activity.bytes_out(&outcome);
        outcome
    }

    fn is_write_vectored(&self) -> bool {
        self.transport.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.transport).poll_flush(cx)
    }

    /// Keeps reading briefly from an HTTP/2 client that is still sending: closing with unread bytes
    /// would destroy the last responses in transit. For HTTP/1, `connection::linger` does this
    /// after hyper is done.
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.linger.is_none() {
            let shut = Pin::new(&mut this.transport).poll_shutdown(cx);
            if this.framing.is_some() || this.ended || !matches!(shut, Poll::Ready(Ok(()))) {
                return shut;
            }
        }
        let start = || Linger { end: Box::pin(sleep(LINGER)), bytes: LINGER_BYTES };
        let linger = this.linger.get_or_insert_with(start);
        if linger.end.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Ok(()));
        }
        poll_discard(&mut this.transport, cx, &mut linger.bytes).map(Ok)
    }
}
