//! What hyper reads from and writes to: the transport, plus what the rest must know of its bytes.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use crate::framing::Framing;
use crate::pulse::Pulse;
use crate::socket::Transport;

/// How long, and for how many bytes, a closed connection is read on. To close with bytes unread
/// makes the kernel send a reset, and that can destroy the answer (say, 413) on its way.
pub(crate) const LINGER: Duration = Duration::from_secs(1);
pub(crate) const LINGER_BYTES: usize = 1024 * 1024;

/// A transport whose bytes are told to the pulse and, for HTTP/1, checked.
pub(crate) struct Wire {
    pub(crate) transport: Transport,
    /// Bytes read to tell the protocol; hyper gets them first.
    prefix: Bytes,
    /// `None` for HTTP/2, whose framing is not ambiguous.
    framing: Option<Framing>,
    pulse: Arc<Pulse>,
    /// The client has said that it sends no more.
    pub(crate) ended: bool,
    /// For HTTP/2, once nothing more will be written: how long the client is still listened to.
    linger: Option<Linger>,
}

struct Linger {
    end: Pin<Box<Sleep>>,
    bytes: usize,
}

impl Wire {
    pub(crate) fn h1(transport: Transport, prefix: Bytes, pulse: Arc<Pulse>) -> Self {
        Self {
            transport,
            prefix,
            framing: Some(Framing::default()),
            pulse,
            ended: false,
            linger: None,
        }
    }

    pub(crate) fn h2(transport: Transport, prefix: Bytes, pulse: Arc<Pulse>) -> Self {
        Self { transport, prefix, framing: None, pulse, ended: false, linger: None }
    }

    /// Reads the prefix and what has arrived after it: hyper then mostly sees a head in one piece.
    fn fill(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.prefix.is_empty() {
            return Pin::new(&mut self.transport).poll_read(cx, buf);
        }
        let n = self.prefix.len().min(buf.remaining());
        buf.put_slice(&self.prefix.split_to(n));
        if !self.prefix.has_remaining() && buf.remaining() > 0 {
            // An error or the end shows again at the next read.
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
                this.pulse.bytes_in();
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
        self.pulse.bytes_out(&outcome);
        outcome
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.transport).poll_write_vectored(cx, bufs);
        self.pulse.bytes_out(&outcome);
        outcome
    }

    fn is_write_vectored(&self) -> bool {
        self.transport.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.transport).poll_flush(cx)
    }

    /// An HTTP/2 client that is still sending, as on a stream, is read on for a moment: to close with its bytes
    /// unread would destroy the last answers on their way. HTTP/1 does the same when hyper has let go.
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
        this.transport.poll_discard(cx, &mut linger.bytes).map(Ok)
    }
}
