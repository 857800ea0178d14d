//! HTTP/1 or HTTP/2, and hyper's settings for each.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use hyper::server::conn::{http1, http2};
use hyper_util::rt::TokioTimer;
use tokio::io::AsyncReadExt;

use crate::socket::Transport;
use crate::stall::Patience;
use crate::stream::StreamExecutor;

/// What every HTTP/2 connection begins with.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Most bytes of a request's head. Tokens have at most 16 KiB.
const HEAD_BYTES: usize = 24 * 1024;
/// Read and write buffer of an HTTP/1 connection. Grows from 8 KiB only when it is needed.
const H1_BUFFER: usize = 64 * 1024;
/// Decoded headers of an HTTP/2 request; also bounds the CONTINUATION frames of one.
const H2_HEADER_LIST: u32 = 24 * 1024;
/// Requests at once on an HTTP/2 connection.
const H2_STREAMS: u32 = 256;
/// How much a connection may send before it is read. It also says how many small frames h2 keeps for streams that are
/// not read.
const H2_CONNECTION_WINDOW: u32 = 1024 * 1024;
/// How much a request may send before it is read. A stream that is not read for want of room counts with this.
pub const H2_STREAM_WINDOW: u32 = 128 * 1024;
/// Response bytes held for one stream, beyond which its body is not asked for more.
const H2_SEND_BUFFER: usize = 64 * 1024;
/// Streams reset by the client before they were looked at, and streams reset for its errors:
/// beyond these the connection is closed ("rapid reset").
const H2_PENDING_RESETS: usize = 20;
const H2_ERROR_RESETS: usize = 256;
/// A peer that has gone without a word is found out within the sum of these.
const H2_PING_INTERVAL: Duration = Duration::from_secs(30);
const H2_PING_TIMEOUT: Duration = Duration::from_secs(20);

/// Settings of HTTP/1. The number of headers is left at hyper's 100, which needs no allocation.
pub(crate) fn h1() -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        // The pulse does this: hyper's timer would cut idle connections too.
        .header_read_timeout(None)
        .half_close(false)
        .keep_alive(true)
        .max_header_size(HEAD_BYTES)
        .max_buf_size(H1_BUFFER);
    builder
}

/// Settings of HTTP/2. A server never pushes: hyper has no such thing.
pub(crate) fn h2(patience: Patience) -> http2::Builder<StreamExecutor> {
    let mut builder = http2::Builder::new(StreamExecutor { patience });
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(H2_STREAMS)
        .max_header_list_size(H2_HEADER_LIST)
        .initial_connection_window_size(H2_CONNECTION_WINDOW)
        .initial_stream_window_size(H2_STREAM_WINDOW)
        .max_send_buf_size(H2_SEND_BUFFER)
        .max_pending_accept_reset_streams(H2_PENDING_RESETS)
        .max_local_error_reset_streams(H2_ERROR_RESETS)
        .keep_alive_interval(H2_PING_INTERVAL)
        .keep_alive_timeout(H2_PING_TIMEOUT);
    builder
}

/// Reads until it is plain which protocol the client speaks: true for HTTP/2. Also gives what was read.
///
/// The caller sets the time limit.
pub(crate) async fn detect(transport: &mut Transport) -> io::Result<(bool, Bytes)> {
    let mut buf = Vec::with_capacity(PREFACE.len());
    let mut limited = transport.take(PREFACE.len() as u64);
    loop {
        if limited.read_buf(&mut buf).await? == 0 {
            // The end of the preface, or of the connection.
            return Ok((buf == PREFACE, buf.into()));
        }
        if !PREFACE.starts_with(&buf) {
            return Ok((false, buf.into()));
        }
    }
}
