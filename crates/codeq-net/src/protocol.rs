//! Protocol detection, and hyper's settings for HTTP/1 and HTTP/2.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use hyper::server::conn::{http1, http2};
use hyper_util::rt::TokioTimer;
use tokio::io::AsyncReadExt;

use crate::socket::Transport;
use crate::stream::StreamExecutor;
use crate::write_timeout::WriteTimeout;

/// The first bytes of every HTTP/2 connection.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Maximum size of a request head. Tokens are at most 16 KiB.
const HEAD_BYTES: usize = 24 * 1024;
/// Read and write buffer of an HTTP/1 connection. Starts at 8 KiB and grows on demand.
const H1_BUFFER: usize = 64 * 1024;
/// Maximum decoded headers of an HTTP/2 request. Also bounds its CONTINUATION frames.
const H2_HEADER_LIST: u32 = 24 * 1024;
/// Maximum concurrent requests on an HTTP/2 connection.
const H2_STREAMS: u32 = 256;
/// Bytes a connection may send before the server reads them. Also bounds the small frames that h2
/// buffers for unread streams.
const H2_CONNECTION_WINDOW: u32 = 1024 * 1024;
/// Bytes a request may send before the server reads them. A stream that is not read for lack of
/// memory is charged this much.
pub const H2_STREAM_WINDOW: u32 = 128 * 1024;
/// Response bytes buffered per stream before hyper stops polling the body.
const H2_SEND_BUFFER: usize = 64 * 1024;
/// Rapid-reset protection: the connection closes after this many pending resets by the client, or
/// this many resets caused by its errors.
const H2_PENDING_RESETS: usize = 20;
const H2_ERROR_RESETS: usize = 256;
/// Interval and timeout together bound how long a vanished peer goes undetected.
const H2_PING_INTERVAL: Duration = Duration::from_secs(30);
const H2_PING_TIMEOUT: Duration = Duration::from_secs(20);

/// HTTP/1 settings. Keeps hyper's limit of 100 headers, which needs no allocation.
pub(crate) fn h1() -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        // `Activity` enforces this: hyper's timer would also close idle connections.
        .header_read_timeout(None)
        .half_close(false)
        .keep_alive(true)
        .max_header_size(HEAD_BYTES)
        .max_buf_size(H1_BUFFER);
    builder
}

/// HTTP/2 settings. Hyper never sends server pushes, so there is no setting for them.
pub(crate) fn h2(write_timeout: WriteTimeout) -> http2::Builder<StreamExecutor> {
    let mut builder = http2::Builder::new(StreamExecutor { write_timeout });
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

/// Reads until the protocol is certain. Returns true for HTTP/2, and the bytes read.
///
/// The caller sets the time limit.
pub(crate) async fn detect(transport: &mut Transport) -> io::Result<(bool, Bytes)> {
    let mut buf = Vec::with_capacity(PREFACE.len());
    let mut limited = transport.take(PREFACE.len() as u64);
    loop {
        if limited.read_buf(&mut buf).await? == 0 {
            // Either the full preface has arrived, or the connection ended.
            return Ok((buf == PREFACE, buf.into()));
        }
        if !PREFACE.starts_with(&buf) {
            return Ok((false, buf.into()));
        }
    }
}
